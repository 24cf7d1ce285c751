"""`trainer.activation_checkpointing`: the same run, bit for bit on the CPU, with less memory for activations."""

from pathlib import Path
from unittest import mock

import pytest
import torch

from linnaeus.errors import ConfigError
from linnaeus.train import loop
from linnaeus.train.building import activation_checkpointing
from linnaeus.workloads.taxonomy.workload import TaxonomyWorkload
from tests import runs
from tests.config import observers as see
from tests.train.building.test_compiling import VIT, WIDTH, compiled_with

GRADNORM = ["weighting=gradnorm", "weighting.every=[1steps]"]
CHOICES = ("none", "blocks", "2")
SHORT = ["trainer.length=3steps", "schedule.checkpoint=[2steps]", "schedule.validate=[100%]", "schedule.validate_mask_meta=[]"]
SHORT += ["schedule.partial_combinations=[]", "schedule.validate_partial_mask_meta=[]", "trainer.global_batch_size=16", *GRADNORM]


def trained(root, choice, *more):
    return runs.run("biota", root, *SHORT, f"trainer.activation_checkpointing={choice}", *more)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("none"), "none")


def test_the_run_is_the_same_and_resumes(plain, tmp_path):
    """Dropout, drop-path, mixing, masking and GradNorm at the last shared layer are on; the second run is killed after its checkpoint."""
    config = runs.configuration("biota", tmp_path / "blocks", *SHORT, "trainer.activation_checkpointing=blocks")
    assert runs.differences(plain, runs.resumed(config, (loop, "train_one_step", 3))) == []
    assert runs.differences(plain, trained(tmp_path / "2", "2")) == []


def test_negative_control_without_the_random_state_the_run_differs(plain, tmp_path, monkeypatch):
    original = activation_checkpointing.checkpoint
    without = lambda *args, **kwargs: original(*args, **kwargs, preserve_rng_state=False)
    monkeypatch.setattr(activation_checkpointing, "checkpoint", without)
    activation_checkpointing.checkpointed.cache_clear()
    try:
        assert "metrics.jsonl" in runs.differences(plain, trained(tmp_path, "blocks"))
    finally:
        activation_checkpointing.checkpointed.cache_clear()


@pytest.mark.slow
def test_two_processes_make_the_same_updates(tmp_path):
    """DDP reduces gradients while backward computes activations again, in blocks that are compiled (without code generation)."""
    short = ["trainer.length=2steps", "schedule.checkpoint=[]"]
    changed = [*short, "trainer.compile=blocks", "trainer.activation_checkpointing=blocks"]
    jobs = [runs.job("language", tmp_path / "plain", *short)]
    jobs.append(runs.job("language", tmp_path / "changed", *changed, watch=["compiled_eagerly"]))
    for one in jobs:
        Path(one["root"]).mkdir()
    runs.run_group(2, jobs, tmp_path)
    assert runs.differences(tmp_path / "plain/text/run", tmp_path / "changed/text/run") == []
    assert runs.summary(tmp_path / "changed/text/run")["compiled"]["graphs"] == 2


@pytest.mark.slow
def test_compiled_blocks_make_the_same_update():
    """In bf16, with backward through the graphs a second time for GradNorm on the whole trunk."""
    found = {}
    with compiled_with("aot_eager"), mock.patch.object(TaxonomyWorkload, "compile"):  # the loss takes most of the time
        for choice in ("none", "blocks"):
            torch._dynamo.reset()
            more = ["trainer.compile=blocks", "weighting.place=trunk", "trainer.precision=bf16"]
            found[choice] = see.updates(see.composed(*VIT, *GRADNORM, *more, f"trainer.activation_checkpointing={choice}"), steps=1)
    assert found["none"] == found["blocks"]


@pytest.mark.parametrize("choice", CHOICES)
def test_blocks_store_their_inputs_only(choice):
    """Count the bytes that backward keeps: without the inside of the chosen blocks it is a fraction."""
    found = {}
    for name in ("none", choice):
        model = see.built(see.composed("model.size=nano", f"trainer.activation_checkpointing={name}")).model
        kept: dict[int, int] = {}

        def keep(tensor, kept=kept):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            features = model.trunk(torch.rand(16, 3, 32, 32), torch.zeros(16, WIDTH), torch.ones(16, 3, dtype=torch.bool))
        weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        found[name] = sum(size for pointer, size in kept.items() if pointer not in weights)
        features.sum().backward()
    ratio = found[choice] / found["none"]
    assert {"none": ratio == 1, "blocks": ratio < 0.35, "2": 0.35 < ratio < 0.8}[choice], ratio


class NormBlock(torch.nn.Module):
    """A block with batch statistics, like those of a ResNet."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.linear(self.norm(x)))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_batch_statistics_change_once(compiled):
    """Two backward passes, as GradNorm makes at the trunk, compute the blocks again twice."""
    found = {}
    for choice in ("none", "blocks"):
        torch.manual_seed(0)
        torch._dynamo.reset()
        network = torch.nn.Sequential(NormBlock(), NormBlock())
        activation_checkpointing.checkpoint_activations(list(network), choice)
        for block in network if compiled else ():
            block.compile(dynamic=False, backend="aot_eager")
        loss = network(torch.randn(8, 4)).sum()
        with mock.patch("torch._functorch.config.donated_buffer", False):
            grads = torch.autograd.grad(loss, list(network.parameters()), retain_graph=True)
            loss.backward()
        found[choice] = [*grads, *(parameter.grad for parameter in network.parameters()), *network.buffers()]
    assert network[0].norm.num_batches_tracked == 1
    assert all(map(torch.equal, found["none"], found["blocks"]))


def test_every_second_block_with_compiling_and_layer_decay():
    """Blocks are found before their classes are replaced: two of four blocks recompute, all are compiled, and all have layers."""
    options = ["trainer.activation_checkpointing=2", "trainer.compile=blocks", "optimizer.layer_decay=0.5"]
    with mock.patch.object(TaxonomyWorkload, "compile"):
        training = see.built(see.composed(*options))
    classes = [type(module) for module in training.model.modules() if module._compiled_call_impl is not None]
    assert [hasattr(cls, "stored_forward") for cls in classes] == [True, False, True, False]
    assert len({group.lr_scale for optimizer in training.optimizers.optimizers for group in optimizer.groups}) == 6


def test_a_network_without_blocks_is_refused():
    with pytest.raises(ConfigError, match=r"trainer\.activation_checkpointing=blocks: this model does not have repeated blocks; use none"):
        see.built(see.composed("experiment=vectors", "trainer.activation_checkpointing=blocks"))
