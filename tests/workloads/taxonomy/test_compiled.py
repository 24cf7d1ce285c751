"""Compiled loss, preparation and training metrics of the taxonomy workload give the results of the eager ones, each as a single graph."""

from __future__ import annotations

import functools
from unittest import mock

import numpy as np
import pytest
import torch

from linnaeus.config.load import compose
from linnaeus.workloads.taxonomy.heads import build_head
from linnaeus.workloads.taxonomy.inputs.preparation import BatchPreparation
from linnaeus.workloads.taxonomy.losses import LabelCounts, TaxonomyLoss
from linnaeus.workloads.taxonomy.metrics import TaxonomyTrainingMetrics
from linnaeus.workloads.taxonomy.observations.components import COMPONENTS, column_slices
from linnaeus.workloads.taxonomy.tree.ranges import range_logsumexp, range_sum
from tests.workloads.taxonomy import slow_losses

CPU, WIDTH, SAMPLES = torch.device("cpu"), 5, 10
# without code generation, which takes most of the time of a compilation; `fullgraph`: an error if the graph is not a single one
one_graph = functools.partial(torch.compile, backend="aot_eager", fullgraph=True)


@pytest.fixture(autouse=True)
def traced():
    torch._dynamo.reset()
    with mock.patch("torch.compile", one_graph):
        yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("head", "loss", "nulls", "mixed"),
    [
        ("linear", "label_smoothing", True, True),
        pytest.param("marginal", "marginal", False, True, marks=pytest.mark.slow),
        pytest.param("conditional", "conditional", True, False, marks=pytest.mark.slow),
        pytest.param("conditional", "logit_adjusted", False, True, marks=pytest.mark.slow),
        pytest.param("hierarchical_softmax", "cross_entropy", False, False, marks=pytest.mark.slow),
    ],
)
def test_loss_its_gradients_and_the_training_metrics(head, loss, nulls, mixed):
    tree, labels = slow_losses.random_tree(1)
    counts = LabelCounts.from_labels(tree, labels)
    configured = compose([f"head={head}", f"loss={loss}", *["head.nulls=predict"] * nulls])
    torch.manual_seed(0)
    network = build_head(configured.head, WIDTH, tree)
    network.init_weights()
    features = torch.randn(SAMPLES, len(tree.ranks), WIDTH, requires_grad=True)
    batch = slow_losses.random_batch(tree, labels, 3, SAMPLES, nulls, mixed)
    factors = torch.arange(1.0, len(tree.ranks) + 1)

    def results(compiled, batch):
        own = TaxonomyLoss(configured.loss, tree, counts, nulls)
        if compiled:
            own.compile(CPU)
        metrics = TaxonomyTrainingMetrics(tree, CPU, (), compiled)
        outputs = {"scores": network(features)}
        sums = own.sums(outputs, batch)
        metrics.count(outputs, batch)
        per_rank = [torch.autograd.grad(one, features, retain_graph=True)[0] for one in outputs["losses"]]
        gradients = torch.autograd.grad((sums * factors).sum(), [features, *network.parameters()], allow_unused=True)
        return [sums.detach(), *per_rank, *(g for g in gradients if g is not None)], metrics.counts

    eager, counted = results(False, batch)
    found, found_counts = results(True, batch)
    for a, b in zip(eager, found, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(found_counts[name], counted[name]) for name in counted)
    other = results(True, batch | {"weight": batch["weight"] * 0.5})[0]
    assert not torch.allclose(other[0], eager[0], rtol=1e-3), "negative control: other weights, another loss"


def test_sums_over_ranges_which_may_be_empty():
    draws = np.random.default_rng(0)
    first = torch.from_numpy(draws.integers(0, 30, (6, 4)))
    last = (first + torch.from_numpy(draws.integers(0, 10, (6, 4)))).clamp(max=30)
    last[0, 0] = first[0, 0]
    for function in (range_sum, range_logsumexp):
        x = torch.randn(6, 30, requires_grad=True)
        found, expected = one_graph(function)(x, first, last), function(x, first, last)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        shares = torch.rand(6, 4) * (first < last)
        gradients = [torch.autograd.grad(result, x, shares)[0] for result in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-6)
        assert gradients[0].isfinite().all()


def test_preparation_of_mixed_and_masked_batches():
    preparation = BatchPreparation(COMPONENTS, column_slices(COMPONENTS))
    columns = column_slices(COMPONENTS)[-1].stop
    torch.manual_seed(0)
    batch = {
        "image": torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8),
        "meta": torch.randn(4, columns),
        "present": torch.rand(4, len(COMPONENTS)) < 0.7,
        "mask": torch.rand(4, len(COMPONENTS)) < 0.3,
        "share": torch.tensor([0.7, 0.3, 1.0, 1.0]),
        "box": torch.tensor([[0, 0, 4, 4], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]),
        "pick": torch.rand(4, len(COMPONENTS)) < 0.5,
    }
    before = {name: value.clone() for name, value in batch.items()}
    expected = preparation(batch)
    preparation.compile(CPU)
    with mock.patch.object(preparation, "_prepare", side_effect=AssertionError("the eager preparation")):
        found = preparation(batch)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6)
    assert all(torch.equal(batch[name], value) for name, value in before.items())
    with torch.no_grad():  # a validation pass
        assert not preparation(batch, ("ELEVATION",))["present"][:, COMPONENTS.index("ELEVATION")].any()
