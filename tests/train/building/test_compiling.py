"""`trainer.compile`: equal blocks share one graph, and neither a partial batch nor validation compiles without bound."""

import contextlib
import functools
from collections.abc import Iterator
from unittest import mock

import pytest
import torch
from torch import nn

from linnaeus.errors import ConfigError
from linnaeus.train.building import compiling
from linnaeus.workloads import build_workload
from linnaeus.workloads.taxonomy.observations.components import COMPONENTS, column_slices
from tests import runs
from tests.config import observers as see

VIT = ["model=timm", "model.backbone=test_vit", "model.drop_path=0.2", "data.image_size=160"]
NANO = ["model.size=nano", "data.image_size=32", "model.drop_path=0.2"]
WIDTH = sum(columns.stop - columns.start for columns in column_slices(COMPONENTS))  # of the metadata


@contextlib.contextmanager
def compiled_with(backend: str) -> Iterator[None]:
    """Compile with `backend`, also in `nn.Module.compile`. It must not be inductor, which takes a minute."""
    with mock.patch("torch.compile", functools.partial(torch.compile, backend=backend)):
        yield


def graphs() -> int:
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def compiled(settings: list[str], backend: str = "eager") -> nn.Module:
    """Return the classifier of `settings` with compiled blocks."""
    torch._dynamo.reset()
    model = build_workload(runs.composed(settings)).build_model()
    with compiled_with(backend):
        compiling.compile_model(model, model.repeated_blocks(), "blocks", keep_graphs=False)
    return model


def graphs_for(model: nn.Module, number: int, training: bool = True) -> int:
    """Return the number of graphs that are compiled for a batch of `number` images."""
    before = graphs()
    size = 160 if hasattr(model.trunk, "backbone") else 32
    with torch.set_grad_enabled(training):
        features = model.train(training).trunk(
            torch.rand(number, 3, size, size), torch.zeros(number, WIDTH), torch.ones(number, 3, dtype=torch.bool)
        )
    if training:
        features.sum().backward()
    return graphs() - before


def test_equal_blocks_share_a_graph():
    """This ViT has six blocks of two kinds: the first one does not have drop-path. Each size compiles once, in
    training and in validation."""
    model = compiled(VIT)
    assert [graphs_for(model, number) for number in (4, 4, 3, 4)] == [2, 0, 2, 0]
    assert [graphs_for(model, number, training=False) for number in (4, 4)] == [2, 0]


@pytest.mark.slow
def test_blocks_of_mformer_share_graphs():
    """Ten blocks are of four kinds; the last block is called with `queries`, the others of its kind without."""
    assert graphs_for(compiled(NANO), 4) == 5


def test_negative_control_rates_as_numbers_compile_every_block():
    with mock.patch.object(compiling, "use_tensor_rates", lambda model: None):
        assert graphs_for(compiled(VIT), 4) == 6


def test_a_network_without_blocks_is_refused():
    with pytest.raises(ConfigError, match=r"trainer\.compile=blocks: this model does not have repeated blocks; use whole"):
        see.built(see.composed("experiment=vectors", "trainer.compile=blocks"))
    assert see.built(see.composed("experiment=vectors", "trainer.compile=whole")).model.trunk._compiled_call_impl is not None
