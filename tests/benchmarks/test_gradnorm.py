"""The variants that `benchmarks/gradnorm.py` compares compute the same."""

from __future__ import annotations

import pytest
import torch

from benchmarks.drivers import Ours
from benchmarks.gradnorm import GRADNORM, ForwardAgain
from benchmarks.loop_overhead import configure
from linnaeus.distributed import DistributedContext

SMALL = ["experiment=ranks", "model.architecture=test_vit", "data.held=64", "data.classes=[3, 5, 40]", "optimizer.weight_decay=0.01"]


@pytest.fixture
def pair(tmp_path):
    threads = torch.get_num_threads()
    context = DistributedContext().initialize(device="cpu")
    ours = Ours(configure([*SMALL, *GRADNORM, "weighting.place=trunk"], 32, 1, 2, str(tmp_path)), context)
    yield ours, ForwardAgain(ours.config, context, ours.workload, ours.plan)
    ours.close()
    torch.set_num_threads(threads)


def test_forward_again_finds_the_weights_that_ours_finds_from_one_graph(pair):
    """In the first update; later the rates of training have a say in ours."""
    ours, again = pair
    assert all(driver(0) > 0 for driver in pair)
    assert not torch.allclose(again.weights, torch.ones(3), atol=1e-3)
    torch.testing.assert_close(ours.training.weighting.weights, again.weights, rtol=1e-5, atol=0)
