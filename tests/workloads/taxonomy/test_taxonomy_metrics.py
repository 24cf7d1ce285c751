"""Test validation and training metrics: every value against `metric_reference.py`, on random trees, heads and labels; independent of
batches, process ranks and device."""

import math

import numpy as np
import pytest
import torch

from linnaeus.workloads.taxonomy.config import HeadConfig, HierarchicalSoftmaxConfig
from linnaeus.workloads.taxonomy.heads import LinearScores, build_head
from linnaeus.workloads.taxonomy.losses import LabelCounts, TaxonomyLoss
from linnaeus.workloads.taxonomy.metrics import TaxonomyMetrics, TaxonomyTrainingMetrics
from linnaeus.workloads.taxonomy.metrics.training_metrics import loss_and_counts, main_labels
from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from tests.covering import every_pair
from tests.workloads.taxonomy import slow_losses
from tests.workloads.taxonomy.metric_reference import reference
from tests.workloads.taxonomy.trees import KINDS, random_tree

CPU = torch.device("cpu")
N, WIDTH = 70, 8
ENDS = ("_low", "_high")


class Rows:
    """Saved scores that can be sliced by rows."""

    def __init__(self, log_probs, path, consistent):
        self.saved, self.consistent = (log_probs, path), consistent

    def log_probs(self):
        return self.saved[0]

    def path(self):
        return self.saved[1]

    greedy_path = path

    def label_log_probs(self, label):
        own = [z.gather(1, label[:, r : r + 1].clamp(min=0))[:, 0] for r, z in enumerate(self.saved[0])]
        return [torch.where(label[:, r] >= 0, z, 0.0) for r, z in enumerate(own)], None

    def __getitem__(self, rows):
        return Rows([z[rows] for z in self.saved[0]], self.saved[1][rows], self.consistent)


def saved(scores):
    return Rows([z.detach() for z in scores.log_probs()], scores.path(), scores.consistent)


def case(head="linear", kind="both", null=False, seed=0, ranks=4, dtype=torch.float64):
    """Return a tree, saved scores of N samples from a head with random weights, and a batch whose labels often equal the predictions."""
    tree, _ = random_tree(seed, ranks, 50, *KINDS[kind])
    nulls = "predict" if null else "ignore"
    routed = HierarchicalSoftmaxConfig(head, nulls, "soft", 0.8) if head == "hierarchical_softmax" else HeadConfig(head, nulls)
    built = build_head(routed, WIDTH, tree).to(dtype).eval()
    g = torch.Generator().manual_seed(seed)
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=1.0, generator=g)
    scores = built(torch.randn(N, ranks, WIDTH, generator=g, dtype=dtype))
    if head == "linear":
        scores = LinearScores(tree, [z + boost for z, boost in zip(scores.logits, agreement(tree, scores.logits), strict=True)])
    return tree, saved(scores), labelled(tree, saved(scores), seed)


def agreement(tree, logits):
    """Return additions to the logits of each rank that make a linear head predict one path in a third of the rows."""
    path = torch.from_numpy(tree.paths[tree.offsets[-2] + np.arange(N) % tree.sizes[-1]])
    third = (torch.arange(N) % 3 == 0).unsqueeze(1)
    return [8.0 * (third & (torch.arange(z.shape[1]) == path[:, r : r + 1])) for r, z in enumerate(logits)]


def labelled(tree, scores, seed):
    rng = np.random.default_rng(seed)
    node = rng.integers(tree.offsets[-1], size=N)
    finest = tree.offsets[-2] + rng.integers(tree.sizes[-1], size=N)
    deepest = (scores.path() + torch.tensor(tree.offsets[:-1])).where(scores.path() >= 0, torch.tensor(-1)).amax(1).numpy()
    choice = rng.random(N)
    node = np.where(choice < 0.5, deepest, np.where(choice < 0.85, finest, node))
    label = tree.paths[node].copy()
    label[rng.random(label.shape) < 0.1] = -1
    return {
        "label": torch.from_numpy(label),
        "weight": torch.from_numpy((rng.random(N) < 0.9).astype(np.float32)),
        "sample": torch.from_numpy(rng.permutation(N)),
    }


def training_counts(tree, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.choice([0, 19, 20, 60, 100, 101, 500], size=size) for size in tree.sizes]


def fresh(tree, groups=None, size=N, consistent=False, nulls=False, device=CPU):
    return TaxonomyMetrics(tree, device, training_counts(tree), groups, size, consistent, nulls)


def feed(metrics, scores, batch, cuts=((0, N),)):
    sums = torch.zeros(2 * len(scores.log_probs()), dtype=torch.float64)
    for a, b in cuts:
        outputs, part = {"scores": scores[slice(a, b)]}, {name: value[a:b] for name, value in batch.items()}
        sums += getattr(metrics, "sums", loss_and_counts)(outputs, part)
        metrics.count(outputs, part)
    return sums


def trained(metrics, scores, batch, cuts=((0, N),)):
    """Return training metrics whose loss is plain cross-entropy."""
    return metrics.compute(*feed(metrics, scores, batch, cuts).view(2, -1), metrics.counts)


def run(tree, scores, batch, cuts=((0, N),), groups=None):
    nulls = scores.log_probs()[0].shape[1] > tree.sizes[0]
    metrics = fresh(tree, groups, consistent=scores.consistent, nulls=nulls)
    return metrics.compute(feed(metrics, scores, batch, cuts), metrics.counts)


def expected(tree, scores, batch):
    plain = {"log_probs": scores.log_probs(), "path": scores.path(), "consistent": scores.consistent}
    return reference(tree, plain, batch, training_counts(tree))


HEADS = ("linear", "conditional", "marginal", "hierarchical_softmax")


@every_pair(head=HEADS, kind=list(KINDS), null=[False, True])
def test_every_metric_matches_its_definition(head, kind, null):
    given = case(head, kind, null, seed=len(kind) + null)
    slow = expected(*given)
    assert run(*given) == pytest.approx(slow, rel=1e-6, abs=1e-9, nan_ok=True)
    assert 0 < slow["partial_chain"] < 1 and 0 < slow["hd1"] < slow["hd5"] and (kind != "plain" or 0 < slow["chain"] < 1)
    assert (0 < slow["inconsistent"] < 1) if head == "linear" else slow["inconsistent"] == 0
    assert any(0 < slow.get(f"{rank}/null_recall", 0) < 1 for rank in given[0].ranks) == null


def test_negative_control_scores_of_other_samples_change_every_metric():
    tree, scores, batch = case("linear", "plain", seed=3)
    other = Rows([z.roll(1, 0) for z in scores.log_probs()], scores.path().roll(1, 0), False)
    found, moved = run(tree, scores, batch), run(tree, other, batch)
    coarsest = tree.ranks[0]  # it has so few classes that its accuracy may be equal by chance
    defined = {name for name, v in found.items() if not (math.isnan(v) or name.startswith(coarsest))}
    assert {name for name in defined if found[name] == pytest.approx(moved[name], rel=1e-6, abs=1e-9)} == set()
    assert moved == pytest.approx(expected(tree, other, batch), rel=1e-6, nan_ok=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("head", ["linear", "marginal"])
def test_a_gpu_counts_the_same_without_synchronisation(head):
    tree, scores, batch = case(head, seed=6)
    on_gpu = Rows([z.cuda() for z in scores.log_probs()], scores.path().cuda(), scores.consistent)
    counted = [fresh(tree, device=torch.device("cuda")) for _ in range(2)]
    inputs = {"scores": on_gpu}, {name: value.cuda() for name, value in batch.items()}
    counted[0].count(*inputs)  # the first call builds constants
    torch.cuda.set_sync_debug_mode("error")
    try:
        counted[1].count(*inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    on_cpu = fresh(tree)
    sums = feed(on_cpu, scores, batch)
    assert counted[1].compute(sums, counted[1].counts) == pytest.approx(on_cpu.compute(sums, on_cpu.counts), rel=1e-9, nan_ok=True)


@pytest.mark.parametrize("head", ["linear", "marginal"])
def test_float32_scores_match_the_reference(head):
    given = case(head, dtype=torch.float32, seed=4)
    assert run(*given) == pytest.approx(expected(*given), rel=1e-4, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("head", ["linear", "marginal"])
def test_counts_do_not_depend_on_batches_and_processes(head):
    tree, scores, batch = case(head, "both", seed=2)
    whole = fresh(tree)
    sums = feed(whole, scores, batch)
    pieces = [(0, 0), *((a, min(a + 9, N)) for a in range(0, N, 9))]  # one batch is empty
    processes = [fresh(tree) for _ in range(3)]
    for number, piece in reversed(list(enumerate(pieces))):
        feed(processes[number % 3], scores, batch, [piece])
    total = {name: sum(process.counts[name] for process in processes) for name in whole.counts}
    assert all(torch.equal(total[name], whole.counts[name]) for name in whole.counts)
    assert np.array_equal(list(whole.compute(sums, total).values()), list(whole.compute(sums, whole.counts).values()), equal_nan=True)
    lost = {name: sum(process.counts[name] for process in processes[:2]) for name in whole.counts}
    changed = [name for name in whole.counts if not torch.equal(lost[name], whole.counts[name])]
    assert set(changed) >= set(whole.counts) - {"consistent"}  # negative control: one process is missing


def test_counts_are_integers_linear_in_taxa_and_samples():
    sizes = {}
    for leaves in (200, 400):
        names = np.array([(f"a{i // 20}", f"b{i // 4}", f"c{i}") for i in range(leaves)])
        tree, _ = TaxonomyTree.from_lineages("abc", names)
        counts = fresh(tree, size=1000).counts
        assert all(count.dtype == torch.int64 for count in counts.values())
        sizes[leaves] = sum(count.numel() for count in counts.values()) - 3 * sum(tree.sizes)
    assert sizes[200] == sizes[400] <= 8 * 1000 + 500


@pytest.mark.parametrize("head", HEADS)
def test_tables_have_the_metrics_as_means_and_sums(head):
    """Columns of `samples` that are named like metrics, the bins of `reliability`, and the counts of `classes` give the metrics."""
    tree, scores, batch = case(head, "both", seed=3)
    metrics = fresh(tree, consistent=scores.consistent)
    sums = feed(metrics, scores, batch)
    found = metrics.compute(sums, metrics.counts)
    tables = {name: list(rows) for name, rows in metrics.tables(sums, metrics.counts).items()}
    for name in (*(f"{rank}/top1" for rank in tree.ranks), "chain", "hd1"):
        values = [row[name] for row in tables["samples"] if row[name] is not None]
        assert np.mean(values) == pytest.approx(found[name], rel=1e-12)
    finest = tree.ranks[-1]
    classes = set(tree.lineage_ids(len(tree.ranks) - 1))
    wrong = [row for row in tables["samples"] if row[f"{finest}/top1"] == 0 and row["predicted"] in classes]
    assert sum(row["count"] for row in tables["confusions"]) == len(wrong) > 0
    for row in tables["samples"]:
        assert row["answer_1"] in classes or not row["probability_1"]
        assert row["probability_1"] >= row["probability_2"] >= row["probability_3"] >= 0
        assert not row[f"{finest}/top1"] or row["label"] == row["predicted"]
    for pair in tables["confusions"]:
        shared = pair["common"]
        assert pair["label"] != pair["predicted"] and all(pair[name].startswith(shared) for name in ("label", "predicted"))
        assert pair["height"] == (
            len(tree.ranks) if not shared else len(tree.ranks) - 1 - [len(s) for s in _ranks_of(tree, shared)].index(1)
        )
    for rank in tree.ranks:
        bins = [row for row in tables["reliability"] if row["rank"] == rank]
        error = sum(row["samples"] * abs(row["right"] - row["confidence"]) for row in bins) / sum(row["samples"] for row in bins)
        assert error == pytest.approx(found[f"{rank}/ece"], rel=1e-9)
    metrics.masked = True
    assert list(metrics.tables(sums, metrics.counts)) == ["samples"]


def _ranks_of(tree, lineage):
    """Return for each rank the classes with this lineage."""
    return [[c for c, own in enumerate(tree.lineage_ids(r)) if own == lineage] for r in range(len(tree.ranks))]


@pytest.mark.parametrize("head", ["linear", "conditional"])  # a path of the second may have no class at a rank with a label
def test_baselines_are_those_of_predictions_without_skill(head):
    """`constant` by its definition, `shuffled` as the mean over many random orders of the predictions."""
    tree, scores, batch = case(head, "both", seed=8)
    metrics, seen = fresh(tree), training_counts(tree)
    sums = feed(metrics, scores, batch)
    rows = {row["metric"]: row for row in metrics.tables(sums, metrics.counts)["baselines"]}
    path, rng = scores.path().numpy(), np.random.default_rng(0)
    for r, rank in enumerate(tree.ranks):
        label = main_labels(batch, torch.tensor(tree.sizes))[0][:, r].numpy()
        known = label >= 0
        label, predicted = label[known], path[known, r]
        occurs = np.unique(label)
        constant = rows[f"{rank}/top1"]["constant"], rows[f"{rank}/macro_top1"]["constant"]
        assert constant == pytest.approx((np.mean(label == seen[r].argmax()), np.mean(occurs == seen[r].argmax())))
        orders = [rng.permutation(predicted) == label for _ in range(2000)]
        assert rows[f"{rank}/top1"]["shuffled"] == pytest.approx(np.mean(orders), abs=0.01)
        macro = np.mean([[hits[label == c].mean() for c in occurs] for hits in orders[:500]])
        assert rows[f"{rank}/macro_top1"]["shuffled"] == pytest.approx(macro, abs=0.02)


def test_large_trees_are_processed_a_few_samples_at_a_time(monkeypatch):
    given = case("linear", "both", seed=5)
    plain = run(*given)
    monkeypatch.setattr("linnaeus.workloads.taxonomy.metrics.batch_view.WORKSPACE", 3 * given[0].offsets[-1] + 20)
    assert np.array_equal(list(run(*given).values()), list(plain.values()), equal_nan=True)


def test_intervals_are_computed_at_the_end_only():
    tree, scores, batch = case("linear", seed=3)
    metrics = fresh(tree, groups=np.arange(N) // 2)
    found = metrics.compute(feed(metrics, scores, batch), metrics.counts)
    assert not [name for name in found if name.endswith(ENDS)]
    ends = metrics.compute_at_end(metrics.counts)
    assert all(name.endswith(ENDS) and name.rpartition("_")[0] in found for name in ends)
    bounded = [*(f"{rank}/top1" for rank in tree.ranks), "chain", "hd1", "severity"]
    assert len(ends) == 2 * len(bounded) and all(ends[f"{name}_low"] <= found[name] <= ends[f"{name}_high"] for name in bounded)


def test_metrics_without_samples_are_nan():
    tree, scores, batch = case("marginal")
    empty = fresh(tree, size=0)
    assert all(math.isnan(v) for v in empty.compute(torch.zeros(empty.width), empty.counts).values())
    batch["label"][:] = -1
    batch["weight"][:] = 1
    assert {name for name, v in run(tree, scores, batch).items() if not math.isnan(v)} == {"inconsistent"}
    batch["weight"][:] = 0
    assert all(math.isnan(v) for v in run(tree, scores, batch).values())


def test_a_tree_of_one_class():
    """Accuracies are 1 and distances 0; severity and information are not defined."""
    tree, _ = TaxonomyTree.from_lineages(("a", "b"), np.array([("x", "y")]))
    scores = saved(LinearScores(tree, [torch.zeros(N, 1), torch.zeros(N, 1)]))
    batch = {"label": torch.zeros(N, 2, dtype=torch.int64), "weight": torch.ones(N), "sample": torch.arange(N)}
    found = run(tree, scores, batch)
    undefined = {name for name, v in found.items() if math.isnan(v)}
    assert {"severity", "crm_severity", "hierarchical_aurc", "info_precision", "info_recall", "info_f1"} <= undefined
    assert found["b/top1"] == found["b/top5"] == found["chain"] == found["depth_f1"] == 1
    assert found["hd1"] == found["hd20"] == found["b/ece"] == found["aurc"] == 0


def test_nan_scores_predict_nothing():
    tree, scores, batch = case("linear", seed=3)
    broken = Rows([torch.full_like(z, torch.nan) for z in scores.log_probs()], torch.zeros_like(scores.path()), False)
    batch["label"] = torch.from_numpy(tree.paths[np.full(N, tree.offsets[-2])]).clone()  # the argmax of NaN scores
    batch["weight"][:] = 1
    found = run(tree, broken, batch)
    finest = tree.ranks[-1]
    assert found[f"{finest}/top1"] == found[f"{finest}/top5"] == found["crm_top1"] == found["depth_f1"] == 0
    assert found["hd1"] == found["hd5"] == found["crm_hd1"] == found["severity"] == len(tree.ranks)
    assert math.isnan(found["loss"]) and math.isnan(found[f"{finest}/ece"]) and found["aurc"] == 1
    sound = Rows(scores.log_probs(), torch.zeros_like(scores.path()), False)
    assert run(tree, sound, batch)[f"{finest}/top1"] == 1


def test_ties_go_to_the_lower_index(tree):
    scores = saved(LinearScores(tree, [torch.zeros(13, size) for size in tree.sizes]))
    label = torch.stack([torch.arange(13) % size for size in tree.sizes], 1)
    metrics = fresh(tree, size=13)
    batch = {"label": label, "weight": torch.ones(13), "sample": torch.arange(13)}
    found = metrics.compute(feed(metrics, scores, batch, [(0, 13)]), metrics.counts)
    assert found["species/top1"] == pytest.approx(1 / 13) and found["species/top5"] == pytest.approx(5 / 13)


def test_training_metrics():
    tree, scores, batch = case("marginal", seed=7)
    metrics = TaxonomyTrainingMetrics(tree, CPU)
    found, slow = trained(metrics, scores, batch, [(0, 50), (50, N)]), expected(tree, scores, batch)
    assert set(found) == {"loss", *(f"{r}/{m}" for r in tree.ranks for m in ("loss", "top1"))}
    assert found == pytest.approx({name: slow[name] for name in found})


@pytest.mark.parametrize("mixed", [False, True])
def test_the_training_loss_of_a_rank_is_a_mean_over_its_own_labels(mixed):
    """Equal scores give the loss log(C_r) for each label. The labels of a sample have shares of its weight."""
    tree, labels = slow_losses.random_tree(1)
    batch = slow_losses.random_batch(tree, labels, 3, 40, mixed=mixed)
    loss = TaxonomyLoss(slow_losses.loss_config("smoothing_and_coarser"), tree, LabelCounts.from_labels(tree, labels))
    outputs = {"scores": LinearScores(tree, [torch.zeros(40, size) for size in tree.sizes])}
    metrics, valid = TaxonomyTrainingMetrics(tree, CPU), loss.valid_counts(batch)
    found = []
    for numbers in (valid, loss.denominators(valid)):
        results = metrics.compute(loss.sums(outputs, batch).double(), numbers, metrics.counts)
        found.append([results[f"{rank}/loss"] for rank in tree.ranks])
    assert found[0] == pytest.approx([math.log(size) for size in tree.sizes], rel=1e-5)
    assert all(a < 0.7 * b for a, b in zip(found[1], found[0], strict=True)), "negative control: divided by the labels of all ranks"


@pytest.mark.parametrize("head", ["conditional", "hierarchical_softmax"])
def test_training_metrics_of_a_frozen_head_compute_no_log_probs(head, monkeypatch):
    """A frozen head is in evaluation mode during training. Its `path` would compute all log-probabilities."""
    tree, _ = random_tree(0, 4, 90)
    routed = HierarchicalSoftmaxConfig(head, "ignore", "soft", 0.8) if head == "hierarchical_softmax" else HeadConfig(head, "ignore")
    built = build_head(routed, WIDTH, tree)
    built.init_weights()
    label = torch.from_numpy(tree.paths[tree.offsets[-2] + np.arange(N) % tree.sizes[-1]])
    outputs = {"scores": built.eval()(torch.randn(N, 4, WIDTH))}
    monkeypatch.setattr("linnaeus.workloads.taxonomy.heads.conditional.sibling_log_softmax", None)
    metrics = TaxonomyTrainingMetrics(tree, CPU)
    metrics.count(outputs, {"label": label, "weight": torch.ones(N), "sample": torch.arange(N)})
    assert metrics.counts["n"].tolist() == [N] * 4
    with pytest.raises(TypeError):
        outputs["scores"].path()


def test_a_mixed_sample_has_the_label_with_the_larger_share():
    tree, scores, batch = case("linear", seed=8)
    g = torch.Generator().manual_seed(0)
    mixed = batch | {"label2": batch["label"].flip(0), "share": torch.rand(N, generator=g)}
    dominant = torch.where(mixed["share"][:, None] >= 0.5, mixed["label"], mixed["label2"])
    metrics = TaxonomyTrainingMetrics(tree, CPU)
    found = trained(metrics, scores, mixed)
    slow = expected(tree, scores, batch | {"label": dominant})
    for rank in tree.ranks:
        assert found[f"{rank}/top1"] == pytest.approx(slow[f"{rank}/top1"])
