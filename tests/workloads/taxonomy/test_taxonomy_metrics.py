"""Metrics: every number against a slow reference, one sample at a time in plain Python; the same however batches are cut."""

import math

import numpy as np
import pytest
import torch

from linnaeus.workloads.taxonomy.config import LossConfig
from linnaeus.workloads.taxonomy.losses import loss_sums
from linnaeus.workloads.taxonomy.metrics import TaxonomyMetrics, TrainingMetrics
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

CPU = torch.device("cpu")


def run(metrics, logits, batch, cuts):
    sums = 0.0
    for a, b in cuts:
        part, outputs = {name: value[a:b] for name, value in batch.items()}, {"logits": tuple(z[a:b] for z in logits)}
        if type(metrics) is TrainingMetrics:
            loss_sums(outputs, part, LossConfig("cross_entropy", 0.1))
        sums = sums + metrics.sums(outputs, part)
        metrics.count(outputs, part)
    return metrics.compute(sums, metrics.counts)


def mean(values):
    values = [v for v in values if not math.isnan(v)]
    return sum(values) / len(values) if values else math.nan


def reference(tree, logits, batch):
    """Straight from the definitions."""
    rows = [i for i in range(len(batch["weight"])) if batch["weight"][i] > 0]
    z = [[row.tolist() for row in rank] for rank in logits]
    y = batch["label"].tolist()
    order = [[sorted(range(len(row)), key=lambda c: (-row[c], c)) for row in rank] for rank in z]
    results, losses, span = {}, [], range(len(tree.ranks))
    for r, rank in enumerate(tree.ranks):
        known = [i for i in rows if y[i][r] >= 0]
        nll = [math.log(sum(math.exp(v) for v in z[r][i])) - z[r][i][y[i][r]] for i in known]
        top1 = {i: float(order[r][i][0] == y[i][r]) for i in known}
        losses.append(mean(nll))
        results[f"{rank}/loss"], results[f"{rank}/top1"] = mean(nll), mean(top1.values())
        results[f"{rank}/top5"] = mean([float(y[i][r] in order[r][i][:5]) for i in known])
        results[f"{rank}/macro_top1"] = mean([mean([top1[i] for i in known if y[i][r] == c]) for c in range(tree.sizes[r])])
    right = lambda i: all(y[i][r] in (-1, order[r][i][0]) for r in span)
    results["loss"] = mean(losses)
    results["chain"] = mean([float(right(i)) for i in rows if min(y[i]) >= 0])
    results["partial_chain"] = mean([float(right(i)) for i in rows if max(y[i]) >= 0])
    paths = [all(broken(tree, r, [order[q][i][0] for q in span]) is False for r in span) for i in rows]
    results["inconsistent"] = mean([1.0 - p for p in paths])
    return results


def broken(tree, r, predicted):
    """Whether the class predicted at rank r has an ancestor other than the class predicted at that ancestor's rank."""
    anchor = tree.anchor[r][predicted[r]]
    for q in range(r):
        if tree.offsets[q] <= anchor < tree.offsets[q + 1]:
            return bool(predicted[q] != anchor - tree.offsets[q])
    return False


@pytest.fixture
def sample(tree, make_batch):
    batch = make_batch(90, 8, seed=3)
    logits = [torch.randn(90, size, generator=torch.Generator().manual_seed(size)) for size in tree.sizes]
    for r, z in enumerate(logits):  # right more often than by chance, so that chains exist
        z[torch.arange(90), batch["label"][:, r].clamp(min=0)] += 3 * (torch.arange(90) % 3)
    logits[3][::4] = (logits[3][::4] * 2).round()  # ties
    return tuple(logits), batch


def test_every_validation_metric(tree, sample):
    expected = reference(tree, *sample)
    for cuts in ([(0, 90)], [(0, 1), (1, 40), (40, 90)]):
        found = run(TaxonomyMetrics(tree, CPU), *sample, cuts)
        assert found == pytest.approx(expected, rel=1e-6), cuts
    assert 0 < expected["inconsistent"] < 1 and 0 < expected["chain"] != expected["partial_chain"] > 0


def test_training_metrics(tree, sample):
    found, expected = run(TrainingMetrics(tree, CPU), *sample, [(0, 50), (50, 90)]), reference(tree, *sample)
    assert set(found) == {"loss", *(f"{r}/{m}" for r in tree.ranks for m in ("loss", "top1"))}
    assert {k: v for k, v in found.items() if "top1" in k} == pytest.approx({k: v for k, v in expected.items() if k.endswith("/top1")})
    assert found["loss"] != pytest.approx(expected["loss"])  # that one is smoothed, as training is


def test_a_mixed_sample_counts_as_its_larger_part(tree, make_batch):
    batch = make_batch(20, 8, mixed=True)
    logits = tuple(torch.randn(20, size) for size in tree.sizes)
    dominant = torch.where(batch["share"][:, None] >= 0.5, batch["label"], batch["label2"])
    alone = {"label": dominant, "weight": batch["weight"]}
    found = run(TrainingMetrics(tree, CPU), logits, batch, [(0, 20)])
    expected = reference(tree, logits, alone)
    for rank in tree.ranks:
        assert found[f"{rank}/top1"] == pytest.approx(expected[f"{rank}/top1"])


def test_ties_go_to_the_lower_index(tree):
    logits = tuple(torch.zeros(13, size) for size in tree.sizes)
    label = torch.stack([torch.arange(13) % size for size in tree.sizes], 1)
    found = run(TaxonomyMetrics(tree, CPU), logits, {"label": label, "weight": torch.ones(13)}, [(0, 13)])
    assert found["species/top1"] == pytest.approx(1 / 13) and found["species/top5"] == pytest.approx(5 / 13)


def test_nothing_seen_is_nan(tree, make_batch):
    batch = make_batch(4, 8)
    batch["label"][:] = -1
    logits = tuple(torch.randn(4, size) for size in tree.sizes)
    batch["weight"][:] = 1
    found = run(TaxonomyMetrics(tree, CPU), logits, batch, [(0, 4)])
    assert {k for k, v in found.items() if not math.isnan(v)} == {"inconsistent"}
    batch["weight"][:] = 0
    assert all(math.isnan(v) for v in run(TaxonomyMetrics(tree, CPU), logits, batch, [(0, 4)]).values())


def test_scores_that_are_no_numbers_are_not_right(tree):
    logits = tuple(torch.full((6, size), torch.nan) for size in tree.sizes)
    label = torch.stack([torch.arange(6) % size for size in tree.sizes], 1)
    found = run(TaxonomyMetrics(tree, CPU), logits, {"label": label, "weight": torch.ones(6)}, [(0, 6)])
    assert found["species/top5"] == 0


def test_a_hole_in_the_lineage_is_bridged():
    rows = np.array([("a", "", "s0"), ("b", "b1", "s1"), ("a", "a1", "s2")])
    tree, labels = TaxonomyTree.from_lineages(("order", "family", "species"), rows)

    def inconsistent(*predicted):
        logits = tuple(torch.eye(size)[[p]] for size, p in zip(tree.sizes, predicted, strict=True))
        batch = {"label": torch.full((1, 3), -1), "weight": torch.ones(1)}
        return run(TaxonomyMetrics(tree, CPU), logits, batch, [(0, 1)])["inconsistent"]

    a, b, s0 = labels[0, 0], labels[1, 0], labels[0, 2]
    a1, b1 = labels[2, 1], labels[1, 1]
    assert inconsistent(a, a1, s0) == 0
    assert inconsistent(b, b1, s0) == 1, "its nearest known ancestor is the order"


def test_counts_are_integers_and_linear_in_the_classes(tree):
    counts = TaxonomyMetrics(tree, CPU).counts
    assert all(c.dtype == torch.int64 for c in counts.values())
    assert sum(c.numel() for c in counts.values()) == 2 * sum(tree.sizes) + 3 * len(tree.ranks) + 6
