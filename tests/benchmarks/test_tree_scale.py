"""The trees are shaped as they should be, steps of every head and loss allocate nothing quadratic in classes, and verdicts follow costs."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.big_trees import big_tree, draw_labels, rank_sizes, training_batch
from benchmarks.tree_scale import ONE_LOSS, exponent, growth, table_of
from benchmarks.tree_step import HEADS, LOSSES, Bench, peak_bytes
from linnaeus.config.load import compose
from linnaeus.workloads.taxonomy.heads import build_head
from linnaeus.workloads.taxonomy.losses import TaxonomyLoss
from tests.workloads.taxonomy.trees import is_path

CLASSES = 10_000  # of the tree whose shape is tested
LEAVES = 5_000  # of the tree of the steps
LIMIT = LEAVES * LEAVES // 4  # elements


# -- trees ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tree():
    return big_tree(CLASSES)


def test_trees_are_shaped_like_inaturalist(tree):
    assert tree.sizes == tuple(rank_sizes(CLASSES)) and len(tree.ranks) == 7
    assert 0.29 < sum(tree.sizes[:-1]) / CLASSES < 0.31
    parents = [tree.ancestors(r, np.arange(size), r - 1) for r, size in enumerate(tree.sizes) if r]
    assert all((parent >= 0).all() and len(np.unique(parent)) == size for parent, size in zip(parents, tree.sizes))
    genera = np.bincount(parents[-1])
    assert genera.max() > 30 * genera.mean() and (genera == 1).mean() > 0.1, "heavy-tailed"
    assert 0.29 < sum(rank_sizes(1_000_000)[:-1]) / 1e6 < 0.31


def test_trees_and_labels_are_functions_of_their_seed(tree):
    assert big_tree(CLASSES).fingerprint() == tree.fingerprint() != big_tree(CLASSES, seed=1).fingerprint()
    labels = [draw_labels(tree, 50, seed=seed) for seed in (0, 0, 1)]
    assert (labels[0] == labels[1]).all() and (labels[0] != labels[2]).any()


def test_holes_leave_out_their_share_and_no_leaf(tree):
    holed = big_tree(CLASSES, holes=0.2)
    assert holed.sizes[-1] == CLASSES and holed.sizes[0] == tree.sizes[0]
    assert all(0.1 < 1 - few / all_ < 0.3 for few, all_ in zip(holed.sizes[4:6], tree.sizes[4:6]))
    assert 0.1 < (holed.ancestors(6, np.arange(CLASSES), 5) < 0).mean() < 0.3


def test_labels_lie_on_paths_and_some_are_null(tree):
    labels = draw_labels(tree, 5_000)
    assert is_path(tree, labels).all()
    known = (labels >= 0).sum(1)
    assert 0.05 < (known < 7).mean() < 0.15 and set(known) == set(range(8))
    often = np.sort(np.bincount(labels[labels[:, -1] >= 0, -1], minlength=CLASSES))
    assert often[-1] > 100 and np.median(often) <= 1
    mixed = training_batch(tree, 8, mixed=True)
    assert (mixed["label2"] == mixed["label"][[1, 0, 3, 2, 5, 4, 7, 6]]).all() and mixed["share"].unique().numel() == 8


# -- nothing quadratic ---------------------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """Most elements of any tensor that an operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.elements = max([self.elements, *(x.numel() for x in tree_leaves(result) if isinstance(x, torch.Tensor))])
        return result


@pytest.fixture(scope="module", params=[0.0, pytest.param(0.05, marks=pytest.mark.slow)], ids=["complete", "holes"])
def bench(request):
    """Complete lineages take shorter ways than those with holes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Bench(LEAVES, holes=request.param)
    torch.set_num_threads(threads)


QUICK = ("marginal", "hierarchical_softmax")  # sums up the tree and walks down it; the others cost as much


@pytest.mark.parametrize("head_name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in HEADS])
def test_no_step_of_any_loss_has_anything_quadratic(bench, head_name):
    head = bench.head(head_name)
    losses = LOSSES[:1] if head_name in ONE_LOSS else LOSSES
    steps = [bench.step(head, loss) for loss in losses]
    steps += [bench.step(head, loss, mixed=True) for loss in losses[:2]]
    for step in [*steps, bench.validation(head)]:
        with Largest() as largest:
            step()
        assert LEAVES * 64 <= largest.elements < LIMIT
    assert peak_bytes(steps[-1]) < 4 * LIMIT, "inside operations too"


def test_tables_are_not_quadratic(bench):
    """Bytes that numpy allocates while they are made; a matrix of one byte per pair of classes is four times the limit."""
    heads = [compose(HEADS[name]).head for name in HEADS if name not in ONE_LOSS]
    losses = [compose([f"loss={name}"]).loss for name in LOSSES]
    tracemalloc.start()
    for made in heads:
        build_head(made, 4, bench.tree)
    for made in losses:
        TaxonomyLoss(made, bench.tree, bench.counts)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert LEAVES * 8 < most < LIMIT


def test_something_quadratic_would_be_found(bench):
    head = bench.head("linear")

    def distances():
        """A third of the size of a classes x classes matrix of distances."""
        return torch.empty(LEAVES // 3, LEAVES)

    with Largest() as largest:
        distances()
    assert largest.elements > LIMIT and peak_bytes(distances) > 4 * LIMIT
    assert peak_bytes(lambda: head(bench.features)) < 4 * LIMIT


def test_peak_memory_counts_what_is_alive_at_once():
    def two_then_one():
        a = torch.empty(1 << 20)
        del a
        b, c = torch.empty(1 << 20), torch.empty(1 << 19)
        return b, c

    assert peak_bytes(two_then_one) == 4 * ((1 << 20) + (1 << 19))


# -- verdicts ------------------------------------------------------------------------------------------------------------


def test_exponents_are_those_of_the_costs():
    found = exponent([10_000, 100_000, 1_000_000], [[n**1.05 * f for f in (0.9, 1.0, 1.1)] for n in (1e4, 1e5, 1e6)])
    assert found.median == pytest.approx(1.05) and found.low < 1.05 < found.high


def costs(leaves: int, power: float, times: float):
    """Return the result of `measure_head` for a head whose loss costs `times` the plain softmax and grows with `power`."""
    noise = 1 + 0.01 * np.sin(np.arange(15))
    plain = leaves * 1e-6 * noise
    ours = plain * times * (leaves / 1e5) ** (power - 1)
    variant = lambda seconds: {
        "seconds": seconds.tolist(),
        "metrics": (plain * 0.05).tolist(),
        "wall": seconds.tolist(),
        "bytes": leaves**power,
    }
    return {"variants": {"plain": variant(plain), "cross_entropy": variant(ours), "validation": variant(plain)}}


def verdicts(table) -> dict[str, str]:
    return {bar["variant"]: bar["verdict"] for bar in table["bars"]}


def test_bars_are_on_the_best_hierarchical_head_on_the_others_and_on_metrics():
    heads = {"linear": costs(100_000, 1, 1.0), "marginal": costs(100_000, 1, 1.3), "conditional": costs(100_000, 1, 1.9)}
    said = verdicts(table_of(100_000, heads))
    assert said["marginal + cross_entropy"] == "MISSED", "1.3 is the best of the hierarchical ones, and over 1.2"
    assert said["conditional + cross_entropy"] == said["linear + cross_entropy"] == said["linear + metrics with cross_entropy"] == "held"
    assert verdicts(table_of(10_000, heads)) == {}, "ratios have bars at one size"


@pytest.mark.parametrize("power, said", [(1.0, "held"), (1.3, "MISSED")])
def test_bars_on_growth(power, said):
    sizes = [10_000, 100_000, 1_000_000]
    table = growth({(n, "marginal"): costs(n, power, 1.0) for n in sizes}, sizes)
    assert verdicts(table) == {"marginal + cross_entropy + time": said, "marginal + cross_entropy + memory": said}
