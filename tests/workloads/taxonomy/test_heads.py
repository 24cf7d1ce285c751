"""Test every head against probabilities computed node by node in float64; the tree law; null labels; routing."""

import math

import numpy as np
import pytest
import torch

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.config import HeadConfig, HierarchicalSoftmaxConfig
from linnaeus.workloads.taxonomy.heads import LinearScores, Priors, Scores, build_head
from linnaeus.workloads.taxonomy.heads.conditional import SiblingScores
from linnaeus.workloads.taxonomy.plugin_checks import check_mean
from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from tests.covering import every_pair
from tests.workloads.taxonomy.trees import KINDS, is_path, random_tree, with_null_labels

WIDTH, ROWS = 8, 40
CONFIGS = {
    "linear": HeadConfig("linear", "ignore"),
    "conditional": HeadConfig("conditional", "ignore"),
    "marginal": HeadConfig("marginal", "ignore"),
    "soft": HierarchicalSoftmaxConfig("hierarchical_softmax", "ignore", "soft", 0.7),
    "hard": HierarchicalSoftmaxConfig("hierarchical_softmax", "ignore", "hard", 1.0),
    "gumbel": HierarchicalSoftmaxConfig("hierarchical_softmax", "ignore", "gumbel", 1.0),
}
TREES = [name for name in CONFIGS if name != "linear"]


def build(name, tree, null=False, dtype=torch.float64, std=1.5):
    config = CONFIGS[name]
    head = build_head(type(config)(**{**vars(config), "nulls": "predict" if null else "ignore"}), WIDTH, tree).to(dtype)
    torch.manual_seed(0)
    head.init_weights()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return head


def make(name, kind="plain", null=False, seed=0, **more):
    tree, label = random_tree(seed, 4, ROWS, *KINDS[kind])
    head = build(name, tree, null, **more)
    features = torch.randn(ROWS, 4, WIDTH, dtype=next(head.parameters()).dtype)
    return tree, with_null_labels(tree, label, seed) if null else label, head, features


def every(names):
    """Return the mark of a test of these heads on trees of each kind, without and with null classes: every pair of these."""
    return every_pair(name=list(names), kind=list(KINDS), null=[False, True])


def children_of(tree):
    found = {}
    for node, parent in enumerate(tree.node_parent.tolist()):
        found.setdefault(parent, []).append(node)
    return found


def decision(tree, probability, leaf, fast):
    """Return the score of a leaf of which the predicted path has the greatest; `fast`: that of `greedy_path`, its probability."""
    above = [n for n in (tree.paths[leaf] + tree.offsets[:-1])[tree.paths[leaf] >= 0].tolist() if n != leaf]
    return probability[leaf] + (0.0 if fast or not above else sum(probability[n] for n in above) / len(above))


def node_probabilities(name, tree, head, scores):
    """Return node -> probability [B], and taxon -> probability [B] of the null node under it (-1: the top), one node at a time."""
    children, layout = children_of(tree), head.layout
    null = {taxon: int(n) for taxon, n in zip([*range(layout.taxa), -1], layout.null_below.tolist(), strict=True) if n >= 0}
    if name == "marginal":
        leaf = {int(node): scores.logits[:, i] for i, node in enumerate(layout.leaf_node)}
        top = torch.stack(list(leaf.values())).logsumexp(0)
        below = lambda n: [n, *(m for c in children.get(n, []) for m in below(c)), *([null[n]] if n in null else [])]
        found = {n: sum((leaf[m] - top).exp() for m in below(n) if m in leaf) for n in range(layout.taxa)}
        return found, {n: (leaf[m] - top).exp() for n, m in null.items()}
    raw = lambda n: scores.logits[int(layout.level[n])][int(layout.position[n])]
    found, nulls = {-1: torch.ones(ROWS, dtype=torch.float64)}, {}
    for parent in sorted(children):
        members = [*children[parent], *([null[parent]] if parent in null else [])]
        shares = torch.stack([raw(n) for n in members]).softmax(0)
        for node, share in zip(members, shares, strict=True):
            (found if node < layout.taxa else nulls)[node if node < layout.taxa else parent] = found[parent] * share
    return found, nulls


@every_pair(name=TREES, kind=list(KINDS), null=[False, True], missing=[0.0, 0.5])
@torch.no_grad()
def test_probabilities_match_a_walk_down_the_tree(name, kind, null, missing):
    """`missing`: share of labels that are left out at any rank, so that a species is known whose genus is not given."""
    tree, label, head, features = make(name, kind, null)
    label = torch.where(torch.rand(label.shape, generator=torch.Generator().manual_seed(1)) < missing, -1, label)
    scores = head(features)
    nodes, nulls = node_probabilities(name, tree, head, scores)
    marginal, conditional = (torch.stack(part, 1) for part in scores.label_log_probs(label))
    for r in range(4):
        for cls in range(tree.sizes[r]):
            assert torch.allclose(scores.log_probs()[r][:, cls].exp(), nodes[tree.offsets[r] + cls], rtol=1e-9)
        if null:
            assert torch.allclose(scores.log_probs()[r].exp().sum(1), torch.ones(ROWS, dtype=torch.float64))
    for row in range(ROWS):
        above, known, null_above = -1, torch.tensor(1.0, dtype=torch.float64), False
        finest = max((r for r in range(4) if 0 <= label[row, r] < tree.sizes[r]), default=-1)
        for r in range(4):
            cls, expected, given = int(label[row, r]), 1.0, 1.0
            if 0 <= cls < tree.sizes[r]:
                above = tree.offsets[r] + cls
                expected, given = nodes[above][row], nodes[above][row] / known
                known = expected
            elif cls == tree.sizes[r] and r > finest and above in nulls:
                expected, given = nulls[above][row], (1.0 if null_above else nulls[above][row] / known)
                null_above = True
            assert float(marginal[row, r].exp()) == pytest.approx(float(expected), rel=1e-9)
            assert float(conditional[row, r].exp()) == pytest.approx(float(given), rel=1e-9)


@every(["conditional", "soft"])
def test_gathered_siblings_give_the_same_label_log_probs(name, kind, null, monkeypatch):
    """On a large tree only the siblings of labels are gathered. This test compares always and never gathering."""
    _tree, label, head, features = make(name, kind, null)
    found = []
    for cost, unused in ((0, "_RangeLogSumExp"), (1 << 40, "_ShortLogSumExp")):
        monkeypatch.undo()
        monkeypatch.setattr("linnaeus.workloads.taxonomy.tree.ranges.GATHER_COST", cost)
        monkeypatch.setattr(f"linnaeus.workloads.taxonomy.tree.ranges.{unused}", None)
        values = torch.stack([each for part in head(features).label_log_probs(label) for each in part])
        weight = torch.linspace(-1, 1, values.numel(), dtype=values.dtype).view_as(values)
        found.append((values.detach(), *torch.autograd.grad((values * weight).sum(), list(head.parameters()))))
    assert all(torch.allclose(one, other, atol=1e-10) for one, other in zip(*found, strict=True))


@every(CONFIGS)
def test_range_sums_match_the_log_probabilities(name, kind, null):
    """Values and gradients are compared before and after `log_probs` is computed."""
    tree, _, head, features = make(name, kind, null)
    columns = [z.shape[1] for z in head.eval()(features).log_probs()]
    bounds = [torch.randint(0, size + 1, (2, ROWS, 5), generator=torch.Generator().manual_seed(3)).sort(0).values for size in columns]
    found = []
    for known in (False, True):
        scores = head(features)
        log_probs = scores.log_probs() if known else None
        sums = torch.stack([scores.range_sums(r, first, last) for r, (first, last) in enumerate(bounds)])
        if isinstance(scores, SiblingScores) and scores.layout.regular and not known:
            assert len(scores._levels) == len(tree.ranks) - 1, "the finest rank is not computed"
        weight = torch.linspace(-1, 1, sums.numel(), dtype=sums.dtype).view_as(sums)
        found.append((sums.detach(), *torch.autograd.grad((sums * weight).sum(), list(head.parameters()))))
    for r, ranges in enumerate(bounds):
        rows = zip(log_probs[r].detach(), *(end.tolist() for end in ranges), strict=True)
        slow = [[float(row[f:t].sum()) for f, t in zip(*ends, strict=True)] for row, *ends in rows]
        assert torch.allclose(found[0][0][r], torch.tensor(slow, dtype=torch.float64), atol=1e-9)
    assert all(torch.allclose(one, other, atol=1e-9) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("null", [False, True], ids=["ignore", "predict"])
@torch.no_grad()
def test_the_linear_head_is_a_softmax_per_rank(kind, null):
    tree, label, head, features = make("linear", kind, null)
    scores = head(features)
    marginal, conditional = (torch.stack(part, 1) for part in scores.label_log_probs(label))
    own = [z.log_softmax(1).gather(1, label[:, r : r + 1].clamp(min=0)) for r, z in enumerate(scores.logits)]
    assert torch.allclose(marginal, torch.where(label >= 0, torch.cat(own, 1), 0.0), atol=1e-9)
    assert torch.equal(conditional, marginal), "ranks are independent"
    assert torch.equal(scores.path(), torch.stack([z[:, :n].argmax(1) for z, n in zip(scores.logits, tree.sizes, strict=True)], 1))


NULLS = [*((name, False) for name in CONFIGS), *(pytest.param(name, True, marks=pytest.mark.slow) for name in CONFIGS)]


@pytest.mark.parametrize("name, null", NULLS)
def test_gradients_match_finite_differences(name, null):
    _tree, label, head, features = make(name, "both", null, std=0.5)
    head.eval()  # in training, each call would draw new Gumbel noise
    rows = torch.stack([label[(label >= 0).all(1)][0], label[(label < 0).any(1)][0]])

    def both(x):
        scores = head(x)
        marginal, conditional = scores.label_log_probs(rows)
        return (*marginal, *conditional, *(p.clamp(min=-1e6) for p in scores.log_probs()))

    if name == "hard":  # its backward is the gradient of soft routing
        both = lambda x: head(x).label_log_probs(rows)[0][0]
    assert torch.autograd.gradcheck(both, features[:2].requires_grad_())


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("kind", ["plain", "both"])
@pytest.mark.parametrize("name", TREES)
def test_a_parent_probability_is_the_sum_of_its_children_to_a_relative_1e_5(name, kind, precision):
    tree, _label, head, features = make(name, kind, dtype=torch.float32, std=4.0)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        scores = head(features)
        found = torch.cat(scores.log_probs(), 1).double()
    assert found.min() < -40, "improbable taxa are included"
    for parent, children in children_of(tree).items():
        total, own = found[:, children].logsumexp(1), found[:, parent] if parent >= 0 else torch.zeros(ROWS)
        above_0 = own > math.log(torch.finfo(torch.float32).tiny)  # the others are 0 in float32
        assert ((total - own)[above_0].abs() < 1e-5).all() and (total[~above_0] < -80).all()


@pytest.fixture(scope="module")
def large_genus():
    """A tree of 200,000 species, 180,000 of them in one genus."""
    genus = np.concatenate([np.zeros(180_000, int), np.repeat(np.arange(1, 2001), 10)])
    names = [np.array([f"{rank}{i:06d}" for i in range(size)]) for rank, size in (("g", 2001), ("s", 200_000))]
    return TaxonomyTree.from_codes(("genus", "species"), names, np.stack([genus, np.arange(200_000)], 1))[0]


@pytest.mark.parametrize("name", ["linear", "conditional", "marginal", "soft"])
@torch.no_grad()
def test_probabilities_in_a_genus_of_180_000_species_are_exact_to_a_relative_1e_5(name, large_genus):
    """Reference: the same raw scores in float64, from float32 and from bf16 features and weights."""
    head, rows = build(name, large_genus, dtype=torch.float32), torch.tensor([[0, 7], [0, 179_999], [5, 180_040]])
    features = torch.randn(3, 2, WIDTH)
    for low_precision in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=low_precision):
            scores = head(features)
        exact = type(scores)(getattr(scores, "layout", large_genus), _double(scores.logits))
        for found, expected in zip((*scores.log_probs(), *scores.label_log_probs(rows)[0]), _log_probs(exact, rows), strict=True):
            assert (found.double() - expected).expm1().abs().max() < 1e-5
        genus = large_genus.ancestors(1, np.arange(200_000), 0)
        if name != "linear":
            species = scores.log_probs()[1].double().exp()
            total = species.new_zeros(3, 2001).index_add_(1, torch.from_numpy(genus), species)
            assert (total / scores.log_probs()[0].double().exp() - 1).abs().max() < 1e-5


def _double(logits):
    return logits.double() if isinstance(logits, torch.Tensor) else [z.double() for z in logits]


def _log_probs(scores, rows):
    return *scores.log_probs(), *scores.label_log_probs(rows)[0]


def test_negative_control_a_linear_head_contradicts_the_tree():
    tree, _label, head, features = make("linear")
    found = torch.cat(head(features).log_probs(), 1)
    children = children_of(tree)
    assert max((found[:, children[p]].logsumexp(1) - found[:, p]).abs().max() for p in children if p >= 0) > 0.1
    assert not is_path(tree, head(features).path().numpy()).all()


@every_pair(name=TREES, fast=[True, False], training=[True, False], null=[False, True], kind=list(KINDS))
@torch.no_grad()
def test_predictions_are_paths_from_the_top_to_a_leaf(name, fast, training, null, kind):
    tree, _label, head, features = make(name, kind, null)
    head.train(training)
    scores = head(features)
    path = scores.greedy_path() if fast else scores.path()
    children, probabilities = children_of(tree), torch.cat([p[:, :n] for p, n in zip(scores.log_probs(), tree.sizes, strict=True)], 1)
    greedy = name != "marginal" and (fast or name == "hard")
    leaves = [n for n in range(tree.offsets[-1]) if n not in children]
    for row in range(ROWS):
        node = -1
        if greedy:
            while node in children:
                node = max(children[node], key=lambda n: float(probabilities[row, n]))
        else:
            node = max(leaves, key=lambda n: decision(tree, probabilities[row].exp().tolist(), n, fast))
        assert path[row].tolist() == tree.paths[node].tolist()


def test_gumbel_routing_draws_only_in_training_from_the_default_generator():
    _tree, _label, head, features = make("gumbel")

    def finest(seed):
        torch.manual_seed(seed)
        return head(features).log_probs()[-1]

    head.train()
    assert torch.equal(finest(1), finest(1)) and not torch.equal(finest(1), finest(2))
    head.eval()
    assert torch.equal(finest(1), finest(2))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.bfloat16, 0.03)])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("routing", ["soft", "hard"])
def test_routing_passes_a_mean_or_one_embedding_with_the_gradient_of_soft(routing, temperature, dtype, tolerance):
    """Values and gradients agree, also for bf16 embeddings as under autocast."""
    tree, _label, head, features = make(routing)
    head.temperature = temperature
    log_p = torch.randn(tree.sizes[2], 3, dtype=torch.float64).log_softmax(0).requires_grad_()
    embedding = torch.randn(tree.sizes[2], 5, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(3, 5, dtype=torch.float64)
    routed, soft = head._routed_embedding(log_p, embedding.to(dtype)), (log_p / temperature).softmax(0).t() @ embedding
    expected = soft if routing == "soft" else embedding[log_p.argmax(0)]
    assert routed.dtype == dtype and torch.allclose(routed.double(), expected, atol=tolerance, rtol=tolerance)
    found = torch.autograd.grad((routed * weights).sum(), [log_p, embedding])
    by_log_p = torch.autograd.grad((soft * weights).sum(), log_p, retain_graph=True)[0]
    by_embedding = torch.autograd.grad((expected * weights).sum(), embedding)[0]
    for own, exact in zip(found, (by_log_p, by_embedding), strict=True):
        assert torch.allclose(own, exact, atol=tolerance, rtol=tolerance) and exact.abs().max() > 0.1
    for logits in head(features).logits[1:]:
        assert (torch.autograd.grad(logits.sum(), head.levels["0"].weight, retain_graph=True)[0] != 0).any()


@pytest.mark.parametrize("name", CONFIGS)
def test_adjustment_adds_log_priors_to_raw_scores(name):
    """At strength 1, raw scores of 0 give the class frequencies as probabilities."""
    tree, label, head, features = make(name, std=0.0)
    counts = [torch.bincount(label[:, r], minlength=n).double() for r, n in enumerate(tree.sizes)]
    priors = Priors(tuple(torch.cat([c, c.new_ones(1)]).log() for c in counts), torch.zeros(tree.offsets[-1] + 1, dtype=torch.float64))
    scores = head(features).adjusted(priors, 1.0)
    for r in range(4):
        assert torch.allclose(scores.log_probs()[r][0].exp(), counts[r] / ROWS, atol=1e-9)
    assert not torch.allclose(head(features).log_probs()[-1][0].exp(), counts[-1] / ROWS, atol=1e-3)


@pytest.mark.parametrize("null", [False, True], ids=["ignore", "predict"])
@pytest.mark.parametrize("name", TREES)
def test_a_level_without_nodes(name, null):
    """Families without children and species without a genus: no genus has children, so the level of their children is empty. Every
    parameter gets a gradient, as DDP requires."""
    rows = np.array([("o", "f1", "", ""), ("o", "f2", "", ""), ("p", "", "g", ""), ("p", "", "", "s"), ("p", "f3", "", "")])
    tree, label = TaxonomyTree.from_lineages(("order", "family", "genus", "species"), rows)
    head = build(name, tree, null)
    scores = head(torch.randn(5, 4, WIDTH, dtype=torch.float64))
    marginal, _ = scores.label_log_probs(torch.from_numpy(label))
    sum(part.sum() for part in marginal).backward()
    assert is_path(tree, scores.path().numpy()).all()
    nodes = torch.cat([p[:, :n] for p, n in zip(scores.log_probs(), tree.sizes, strict=True)], 1).detach()
    assert torch.isfinite(torch.stack(marginal)).all() and all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())
    if not null:
        assert torch.allclose(nodes[:, tree.node_parent == 1].logsumexp(1), nodes[:, 1])


@every(CONFIGS)
@torch.no_grad()
def test_the_mean_of_views_has_the_mean_probabilities(name, kind, null):
    tree, label, head, features = make(name, kind, null)
    first, second = head.eval()(features), head(torch.randn_like(features))
    mean = first.mean([second])
    for found, *views in zip(mean.log_probs(), first.log_probs(), second.log_probs(), strict=True):
        assert torch.allclose(found.exp(), sum(view.exp() for view in views) / 2, rtol=1e-9)
    for found, *views in zip(*(scores.label_log_probs(label)[0] for scores in (mean, first, second)), strict=True):
        assert torch.allclose(found.exp(), sum(view.exp() for view in views) / 2, rtol=1e-9)
    assert torch.equal(first.mean([first]).path(), first.path()) and not torch.equal(mean.path(), first.path())
    if name == "linear":
        assert torch.equal(mean.path(), torch.stack([p[:, :n].argmax(1) for p, n in zip(mean.log_probs(), tree.sizes, strict=True)], 1))
    else:
        assert is_path(tree, mean.path().numpy()).all()


def test_scores_without_a_mean_are_refused_before_the_training():
    class NoMean(LinearScores):
        mean = Scores.mean

    class OtherPath(LinearScores):
        def path(self):
            return super().path() * 0 - 1

    _, _, head, features = make("linear")
    scores = head(features)
    check_mean(scores, "LinearHead")
    with pytest.raises(ConfigError, match=r"augment.tta averages views, but .*NoMean does not define `mean`; set augment.tta=none"):
        check_mean(NoMean(scores.tree, scores.logits), "Head")
    with pytest.raises(ConfigError, match=r"augment.tta: the mean of scores of Head and themselves differs from them"):
        check_mean(OtherPath(scores.tree, scores.logits), "Head")


TEMPERATURE = (0.5, 2.0, 0.8, 1.7)


@every(TREES)
@torch.no_grad()
def test_a_temperature_per_rank_changes_the_choice_among_siblings(name, kind, null):
    """p(taxon | parent)^(1/T), normalised among the siblings, one node at a time."""
    tree, _label, head, features = make(name, kind, null)
    scores = head(features)
    before, nulls = node_probabilities(name, tree, head, scores)
    before[-1] = torch.ones(ROWS, dtype=torch.float64)
    expected = {-1: before[-1]}
    for parent, members in sorted(children_of(tree).items()):
        rank = tree.node_rank[parent] + 1 if parent >= 0 else 0
        shares = torch.stack([*(before[n] for n in members), *([nulls[parent]] if parent in nulls else [])]) / before[parent]
        shares = shares ** (1 / TEMPERATURE[rank])
        for node, share in zip(members, shares / shares.sum(0), strict=False):
            expected[node] = expected[parent] * share
    found = scores.tempered(TEMPERATURE).log_probs()
    for r in range(4):
        for cls in range(tree.sizes[r]):
            assert torch.allclose(found[r][:, cls].exp(), expected[tree.offsets[r] + cls], rtol=1e-8)
    for own, same in zip(scores.log_probs(), scores.tempered((1.0,) * 4).log_probs(), strict=True):
        assert torch.allclose(own.exp(), same.exp(), rtol=1e-9)


@every(CONFIGS)
@torch.no_grad()
def test_the_temperature_is_fitted_on_the_choices_that_it_changes(name, kind, null):
    """Each choice is among the children of one taxon (linear: classes of a rank). Its likelihood is that in the result of `tempered`."""
    tree, label, head, features = make(name, kind, null)
    scores = head(features)
    for rank, temperature in enumerate(TEMPERATURE):
        values, place = scores.choices(rank, label)
        assert len(values) == len(place) and not values.isnan().any() and (len(place) == 0 or values.isfinite().any(1).all())
        own = torch.nn.functional.cross_entropy(values / temperature, place, reduction="sum") if len(place) else torch.zeros(())
        tempered = [p[:, :size] for p, size in zip(scores.tempered(TEMPERATURE).log_probs(), tree.sizes, strict=True)]
        expected, count = 0.0, 0
        for row in range(ROWS):
            path = [int(tree.offsets[r] + c) for r, c in enumerate(label[row].tolist()) if 0 <= c < tree.sizes[r]]
            path = {*path, *(n for node in path[-1:] for n in (tree.paths[node] + tree.offsets[:-1])[tree.paths[node] >= 0].tolist())}
            for node in path if name != "linear" else [n for n in path if tree.node_rank[n] == rank and label[row, rank] >= 0]:
                parent = int(tree.node_parent[node])
                if name == "linear":
                    siblings = range(tree.offsets[rank], tree.offsets[rank] + tree.sizes[rank])
                elif (tree.node_rank[parent] + 1 if parent >= 0 else 0) != rank:
                    continue
                else:
                    siblings = children_of(tree)[parent]
                logs = {n: tempered[tree.node_rank[n]][row, n - tree.offsets[tree.node_rank[n]]] for n in siblings}
                expected, count = expected - float(logs[node] - torch.stack(list(logs.values())).logsumexp(0)), count + 1
        assert count == len(place) and float(own) == pytest.approx(expected, rel=1e-7, abs=1e-9)
