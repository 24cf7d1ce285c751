"""Counted operations of models agree with closed forms. Everything runs on the meta device, with 224 x 224 pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from linnaeus.train.measuring import model_flops
from linnaeus.train.measuring.model_flops import count_flops
from tests import runs, watching
from tests.vectors.workload import VectorsWorkload


class Timm(nn.Module):
    """A timm model on the meta device, with the interface of a model of linnaeus."""

    def __init__(self, name: str) -> None:
        super().__init__()
        import timm

        with torch.device("meta"):
            self.inner = timm.create_model(name)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.inner(batch["image"])


def images(number: int = 2, side: int = 224) -> dict[str, torch.Tensor]:
    return {"image": torch.empty(number, 3, side, side, device="meta")}


def vit(layers: int, width: int) -> int:
    """Multiply-adds of ViT/16 without the first layer: per token 12 D^2 in the matrices, and 2 N D in attention."""
    return layers * 197 * (12 * width**2 + 2 * 197 * width) + 1000 * width


def convnext_tiny() -> int:
    """Multiply-adds without the first layer: depthwise 7 x 7 and two matrices of C x 4C at each place, and 2 x 2 convolutions between."""
    depths, widths = (3, 3, 9, 3), (96, 192, 384, 768)
    blocks = sum(d * (56 >> i) ** 2 * (49 * c + 8 * c * c) for i, (d, c) in enumerate(zip(depths, widths, strict=True)))
    return blocks + sum((28 >> i) ** 2 * 4 * widths[i] * widths[i + 1] for i in range(3)) + 768 * 1000


def resnet50() -> int:
    """Multiply-adds without the first layer. The stride is in the 3 x 3 convolution (version 1.5), as in timm."""
    total, before = 1000 * 2048, 64
    for i, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        places, entry = (56 >> i) ** 2, (56 >> max(0, i - 1)) ** 2
        total += entry * before * width + places * (9 * width**2 + 4 * width**2) + places * before * 4 * width
        total += (blocks - 1) * places * (4 * width**2 + 9 * width**2 + 4 * width**2)
        before = 4 * width
    return total


FIRST = {"vit": lambda width: 196 * 768 * width, "convnext": lambda width: 56**2 * 48 * width, "resnet": lambda width: 112**2 * 147 * width}


@pytest.mark.parametrize(
    "name, rest, width, published",
    [
        ("vit_small_patch16_224", vit(12, 384), 384, 27.7),
        pytest.param("vit_base_patch16_224", vit(12, 768), 768, 105.5, marks=pytest.mark.slow),
        pytest.param("vit_large_patch16_224", vit(24, 1024), 1024, 369.6, marks=pytest.mark.slow),
        ("convnext_tiny", convnext_tiny(), 96, 26.8),
        ("resnet50", resnet50(), 64, 24.5),
    ],
)
def test_models_of_timm(name: str, rest: int, width: int, published: float) -> None:
    """Forward and twice as much backward, 2 operations a multiply-add; the gradient of the image is not computed. `published`: 6 x the
    multiply-adds in timm's tables, in GFLOP."""
    pytest.importorskip("timm")
    found = count_flops(Timm(name), images(), 2)
    assert found.unknown == () and found.repeated == 0
    assert found.per_sample == pytest.approx(6 * rest + 4 * FIRST[name.split("_")[0].rstrip("50")](width), rel=0.01)
    assert found.per_sample == pytest.approx(published * 1e9, rel=0.01)


def test_negative_control_torchs_own_formula_counts_a_depthwise_layer_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("timm")
    from torch.utils.flop_counter import flop_registry

    monkeypatch.setattr(model_flops, "convolution_backward_flops", flop_registry[torch.ops.aten.convolution_backward])
    assert count_flops(Timm("convnext_tiny"), images(), 2).per_sample > 2 * 26.8e9


class Checkpointed(nn.Module):
    """Two perceptrons, each repeated in the backward if `again`."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again = again
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.ReLU()) for _ in range(2))

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        x = batch["x"].requires_grad_()
        for part in self.parts:
            x = checkpoint(part, x, use_reentrant=False) if self.again else part(x)
        return x


def test_repeated_operations_are_counted_apart() -> None:
    """HFU / MFU is 4/3 where the whole forward is repeated."""
    batch = {"x": torch.empty(8, 64)}
    plain = count_flops(Checkpointed(False), batch, 8)
    with set_checkpoint_early_stop(False):
        again = count_flops(Checkpointed(True), batch, 8)
    assert plain.per_sample == again.per_sample == 6 * 2 * 2 * 64 * 256 and plain.executed == plain.per_sample
    assert again.executed / again.per_sample == pytest.approx(4 / 3)


def test_a_compiled_model_has_the_same_number_and_nothing_changes() -> None:
    model = nn.Sequential(Checkpointed(False))
    model.compile(backend=lambda graph, inputs: pytest.fail("compiled"))
    before = {name: value.clone() for name, value in model.named_parameters()}
    state = torch.get_rng_state()
    assert count_flops(model, {"x": torch.empty(8, 64)}, 8).per_sample == 6 * 2 * 2 * 64 * 256
    assert all(torch.equal(value, before[name]) and value.grad is None for name, value in model.named_parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_unknown_operations_are_listed() -> None:
    @torch.library.custom_op("linnaeus_test::product", mutates_args=())
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b

    @product.register_fake
    def _(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.new_empty(a.shape[0], b.shape[1])

    class Custom(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, batch: dict[str, torch.Tensor]) -> Any:
            return self.layer(batch["x"]), product(batch["x"], batch["x"].T)

    found = count_flops(Custom(), {"x": torch.empty(8, 8)}, 8)
    assert found.unknown == ("linnaeus_test::product",) and found.per_sample == 4 * 8 * 8


def test_a_torch_without_the_list_of_unsupported_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.11 does not have it; its counter knows the operations of this model."""
    from torch.utils.flop_counter import FlopCounterMode

    model, expected = Timm("resnet18"), count_flops(Timm("resnet18"), images(), 2)
    monkeypatch.delattr(FlopCounterMode, "get_unsupported_ops", raising=False)
    assert count_flops(model, images(), 2) == expected


def test_gpt_agrees_with_nanogpt() -> None:
    """6 N + 12 L H Q T for a token of GPT-2 124M, as `estimate_mfu` of nanoGPT computes it."""
    from linnaeus.workloads.language.model.gpt import GPT
    from tests import runs

    config = runs.composed(["workload=language", "model.size=gpt2", "data.path=x.txt"])
    with torch.device("meta"):
        gpt = GPT(config.model, 50304, 1024)
    batch = {name: torch.zeros(2, 1024, dtype=torch.int64, device="meta") for name in ("tokens", "input", "target", "x", "y")}
    batch |= {"weight": torch.empty(2, device="meta")}
    parameters = sum(p.numel() for p in gpt.parameters()) - 1024 * 768
    assert parameters == pytest.approx(124e6, rel=0.01)
    nanogpt = 1024 * (6 * parameters + 12 * 12 * 768 * 1024)
    assert count_flops(gpt, batch, 2).per_sample == pytest.approx(nanogpt, rel=0.005)
    assert gpt.flops_per_sample() == nanogpt


def test_mformer_agrees_with_the_sum_over_its_layers() -> None:
    """Each weight of a layer is used once at each place of its output; attention costs twice queries x keys x width. The gradient of the
    image is not computed."""
    from linnaeus.workloads.taxonomy.models.mformer import Attention, Mformer
    from tests import runs

    with torch.device("meta"):
        trunk = Mformer(runs.composed(["model=mformer", "model.size=small"]).model, (224,), 4, ())
    products: list[int] = []

    def layer(module: Any, inputs: Any, output: torch.Tensor) -> None:
        products.append(output.numel() // module.weight.shape[0] * module.weight.numel())

    def attention(module: Any, inputs: Any, output: torch.Tensor) -> None:
        batch, tokens, width = inputs[0].shape
        products.append(2 * batch * (inputs[2] or tokens) * tokens * width)

    for module in trunk.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.register_forward_hook(layer)
        if isinstance(module, Attention):
            module.register_forward_hook(attention)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = trunk

        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.trunk(batch["image"], None, None)

    found = count_flops(Whole(), images(), 2)
    assert found.per_sample == pytest.approx((6 * sum(products) - 2 * products[0]) / 2, rel=0.01) and found.unknown == ()


def test_the_input_of_a_model_need_not_have_the_weights_of_the_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Workload.prepare` returns the input of the model, for which the operations are counted after the first update."""
    monkeypatch.setattr(VectorsWorkload, "prepare", lambda self, batch, masked=(): {name: batch[name] for name in ("x", "y", "known")})
    run = runs.run("vectors", tmp_path, "profile=steps:2-3", "trainer.length=4steps")
    assert "GFLOP in an update" in (run / "profile" / "summary.txt").read_text()


@pytest.mark.parametrize("blocks", ["none", "blocks"])
def test_a_model_that_states_its_operations_has_hfu_with_activation_checkpointing(tmp_path: Path, blocks: str) -> None:
    """For each token, a block of width W repeats 12 W^2 multiply-adds in its matrices and 2 W T in attention over T tokens. There are 2
    blocks of width 12 and windows of 8 tokens. (Without dropout torch would leave out the last matrix.)"""
    settings = ["trainer.length=6steps", "schedule.report=[1steps]", "logger.peak_tflops=1", f"trainer.activation_checkpointing={blocks}"]
    config = runs.configuration("language", tmp_path, *settings, "model.width=12", "model.heads=2", "model.layers=2")
    stated: list[float] = []
    with watching.around_updates(before=lambda t: stated.append(t.model.flops_per_sample())):
        runs.start(config)
    row = runs.rows(runs.run_path(config) / "timings.jsonl")[5]
    assert "recent/mfu" in row and ("recent/hfu" in row) == (blocks == "blocks")
    if blocks == "blocks":
        repeated = 2 * 2 * 8 * (12 * 12**2 + 2 * 12 * 8)
        assert row["recent/hfu"] / row["recent/mfu"] == pytest.approx(1 + repeated / stated[0], rel=1e-6)


def test_a_stated_number_stays_if_the_repeated_operations_cannot_be_counted(caplog: pytest.LogCaptureFixture) -> None:
    class ReadsValues(nn.Linear):
        def forward(self, batch: Any) -> Any:
            return super().forward(batch["x"]) * float(batch["x"].sum())

    model, batch = ReadsValues(4, 4), {"x": torch.zeros(2, 4)}
    with caplog.at_level("INFO"):
        assert model_flops._count(model, batch, 96.0) == model_flops.Counted(96.0)
        assert model_flops._count(model, batch) is None
    assert [text.partition(":")[0] for text in caplog.messages] == ["HFU is not shown", "MFU is not shown"]
