"""Test the sharded head against the replicated one, in groups of threads: losses and gradients of every loss, and of single ranks,
micro-batches of different sizes, fewer classes than processes, predictions, and what is sent."""

import copy
from itertools import product

import pytest
import torch

from linnaeus.config import compose
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.heads.conditional import ConditionalHead
from linnaeus.workloads.taxonomy.heads.head import LinearHead
from linnaeus.workloads.taxonomy.heads.marginal import MarginalHead
from linnaeus.workloads.taxonomy.heads.sharded import check_sharded, shard_head
from linnaeus.workloads.taxonomy.losses import LabelCounts, TaxonomyLoss
from tests.thread_group import Member, ThreadGroup
from tests.workloads.taxonomy import slow_losses as slow

WIDTH, SAMPLES = 6, 12
SPLITS = [[12], [7, 5], [5, 1, 6], [3, 2, 1, 1, 1, 1, 3]]  # samples of each process; the coarsest rank has fewer than seven classes
ONE_RANK = 3


class Case:
    """A replicated head, features and a batch, with the loss `name`. repeated: the ranks read one feature."""

    def __init__(self, name="cross_entropy", nulls=False, mixed=False, repeated=False, head=LinearHead, **balance):
        self.tree, labels = slow.random_tree(1, 60)
        self.batch = slow.random_batch(self.tree, labels, 3, SAMPLES, nulls, mixed)
        self.batch["label"][-1] = -1  # with the splits 3, 2, ... a process without labels beside one with few
        counts = LabelCounts.from_labels(self.tree, labels)
        self.loss = TaxonomyLoss(slow.loss_config(name, **balance), self.tree, counts, nulls, torch.float64)
        torch.manual_seed(0)
        self.head = head(WIDTH, self.tree, nulls, sharded=True).double()
        for parameter in self.head.parameters():
            torch.nn.init.normal_(parameter)
        self.features = torch.randn(SAMPLES, 1 if repeated else len(self.tree.ranks), WIDTH, dtype=torch.float64)
        self.weights = torch.arange(1.0, len(self.tree.ranks) + 1, dtype=torch.float64)

    def measured(self, head, features, batch):
        """Return (loss sums, gradient of the features, the same of one rank's loss, gradients of the head)."""
        features = features.clone().requires_grad_()
        outputs = {"scores": head(features.expand(-1, len(self.tree.ranks), -1))}
        sums = self.loss.sums(outputs, batch)
        (single,) = torch.autograd.grad(outputs["losses"][ONE_RANK], features, retain_graph=True)
        (sums * self.weights).sum().backward()
        return sums.detach(), features.grad, single, {name: parameter.grad for name, parameter in head.named_parameters()}

    def part(self, member: Member, split):
        first = sum(split[: member.rank])
        own = slice(first, first + split[member.rank])
        head = shard_head(copy.deepcopy(self.head), member) or self.head
        return head, self.features[own], {key: value[own] for key, value in self.batch.items()}

    def replicated(self):
        return self.measured(self.head, self.features, self.batch)

    def sharded(self, split):
        self.loss.sums(
            {"scores": self.head(self.features.expand(-1, len(self.tree.ranks), -1))}, self.batch
        )  # makes the tables of the loss
        found = ThreadGroup(len(split)).run(lambda member: self.measured(*self.part(member, split)))
        sums, features, single, heads = zip(*found, strict=True)
        gradients = {name: torch.cat([head[name] for head in heads]) for name in heads[0]}
        return torch.stack(sums).sum(0), torch.cat(features), torch.cat(single), gradients


def distance(a, b):
    """Return the largest difference between two results of `measured`, relative to the largest entry of each part."""
    pairs = [*zip(a[:3], b[:3], strict=True), *((a[3][name], b[3][name]) for name in a[3])]
    assert all(x.shape == y.shape for x, y in pairs)
    return max(float((x - y).abs().max() / x.abs().max().clamp(min=1e-6)) for x, y in pairs)


ON_THE_TREE = product([MarginalHead, ConditionalHead], ["cross_entropy", "conditional", "marginal"])


CASES = [*((LinearHead, name) for name in slow.LOSSES), *ON_THE_TREE]
EVERY = [(i + j, *case, split) for i, case in enumerate(CASES) for j, split in enumerate(SPLITS)]
MARKED = [pytest.param(*case, marks=pytest.mark.slow if number % 2 else ()) for number, *case in EVERY]  # two of the four splits are quick


@pytest.mark.parametrize("head, name, split", MARKED)
def test_losses_and_gradients_equal_those_of_the_replicated_head(head, name, split):
    mixed = len(split) % 2 == 0
    case = Case(name, slow.loss_config(name).coarser_share is None, mixed, mixed, head, **(slow.INVERSE if mixed else slow.EFFECTIVE))
    expected = case.replicated()
    assert expected[0].max() > 1 and expected[2 if head is LinearHead else 1].abs().max() > 0.1
    assert distance(expected, case.sharded(split)) < 1e-10


@pytest.mark.parametrize("lost", ["reduce_rows", "all_reduce"])
@pytest.mark.parametrize("head, name", [(LinearHead, "label_smoothing"), (ConditionalHead, "cross_entropy")])
def test_negative_control_without_one_of_the_sums(head, name, lost, monkeypatch):
    """`reduce_rows` brings losses and gradients of features to the process that has the sample; `all_reduce` agrees on sizes and maxima."""
    own = {"reduce_rows": lambda member, x: x.chunk(member.world_size)[member.rank], "all_reduce": lambda member, x, op="sum": x}
    monkeypatch.setattr(Member, lost, own[lost])
    case = Case(name, nulls=True, head=head)
    expected = case.replicated()
    assert distance(expected, case.sharded([6, 6])) > 1e-3


@pytest.mark.parametrize("split", SPLITS, ids=len)
@pytest.mark.parametrize("head", [LinearHead, MarginalHead, ConditionalHead])
def test_predictions_and_gathered_scores_equal_those_of_the_replicated_head(head, split):
    """Also of a process without a sample in this round."""
    case = Case(nulls=True, head=head)
    case.features[:, :, 0] = case.features[:, :, 0].round()
    for layer in filter(lambda module: isinstance(module, torch.nn.Linear), case.head.modules()):
        layer.weight.data[:] = layer.weight.data[:, :1].round() * torch.eye(1, WIDTH)  # equal scores: the lowest class is predicted
        layer.bias.data.zero_()
    whole = case.head(case.features)

    @torch.inference_mode()
    def predict(member):
        head, features, _ = case.part(member, [*split, 0])
        scores = head(features) if len(features) else head.join()
        return scores.path(), scores.gathered().log_probs()

    found = ThreadGroup(len(split) + 1).run(predict)
    assert torch.equal(torch.cat([path for path, _ in found]), whole.greedy_path())
    for r, expected in enumerate(whole.log_probs()):
        assert torch.allclose(torch.cat([log_p[r] for _, log_p in found]), expected, rtol=1e-12)


def sent(head, name, rows):
    """Return (number of classes, collective calls of one loss `name` with its gradients and of one prediction) for a tree of `rows` random
    rows."""
    case = Case(name, repeated=True, head=head)
    case.tree, _ = slow.random_tree(1, rows)
    case.head = head(WIDTH, case.tree, sharded=True).double()
    case.batch["label"].clamp_(max=1)
    counts = LabelCounts.from_labels(case.tree, case.tree.paths)
    case.loss = TaxonomyLoss(slow.loss_config(name), case.tree, counts, False, torch.float64)
    case.replicated()

    def step(member):
        own, features, batch = case.part(member, [6, 6])
        case.measured(own, features, batch)
        own(features.expand(-1, len(case.tree.ranks), -1)).greedy_path()

    group = ThreadGroup(2)
    group.run(step)
    return sum(case.tree.sizes), group.calls


@pytest.mark.parametrize("head, name", [(LinearHead, "label_smoothing"), (MarginalHead, "conditional"), (ConditionalHead, "conditional")])
def test_what_is_sent_does_not_depend_on_the_number_of_classes(head, name):
    """The features, which all ranks share, are sent once in each of two forward passes; their gradients in two backward passes."""
    (few, calls), (many, same) = sent(head, name, 20), sent(head, name, 60)
    assert few < many and calls == same
    assert calls.count(("gather_rows", 6 * WIDTH)) == 2 and calls.count(("reduce_rows", 12 * WIDTH)) == 2


NEED_ALL = [*((head, "log_probs", ()) for head in (LinearHead, MarginalHead, ConditionalHead)), (ConditionalHead, "rank_log_probs", (1,))]


@pytest.mark.parametrize("head, method, arguments", NEED_ALL)
def test_what_needs_all_classes_is_refused(head, method, arguments):
    case = Case(head=head)
    with pytest.raises(RuntimeError, match="gathered"):
        ThreadGroup(2).run(lambda member: getattr(case.part(member, [6, 6])[0](case.features), method)(*arguments))


@pytest.mark.parametrize(
    "settings, message",
    {
        "trainer.deterministic=anywhere": "use trainer.deterministic=true or false",
        "optimizer=timm": "needs an optimizer that updates each weight by itself, .* use adamw, sgd or muon",
        "head=marginal loss=label_smoothing": "smoothed targets of loss=cross_entropy need the probabilities of all taxa",
        "head=conditional loss=label_smoothing": "head=conditional head.sharded=true: the smoothed targets",
        "head=marginal loss=taxonomic_smoothing": "use loss=cross_entropy without smoothing, loss=marginal, or head=linear",
    }.items(),
)
def test_settings_that_do_not_work_are_refused_in_one_line(settings, message):
    with pytest.raises(ConfigError, match=message):
        check_sharded(compose(["head.sharded=true", *settings.split()]))
    check_sharded(compose(settings.split()))


def test_the_head_with_routing_names_the_heads_that_work():
    with pytest.raises(ConfigError, match=r"unknown key head\.sharded; choose head=linear or head=conditional or head=marginal for it"):
        compose(["head=hierarchical_softmax", "head.sharded=true"])
