"""Test timm models of six families: building, masked metadata, one optimizer step, loading a state dict, one-line errors."""

import pytest
import torch
from safetensors.torch import save_file

from linnaeus.checkpoint.initial_weights import InitialWeights
from linnaeus.checkpoint.weight_matching import load_matched, match_weights
from linnaeus.errors import ConfigError
from linnaeus.train.building.freezing import batch_statistics
from linnaeus.workloads.taxonomy.inputs.preparation import MEAN, STD
from linnaeus.workloads.taxonomy.models import build_classifier
from linnaeus.workloads.taxonomy.models.timm_backbone import _rescaling
from linnaeus.workloads.taxonomy.models.timm_weights import resample_positions
from linnaeus.workloads.taxonomy.observations.components import COMPONENTS, column_slices
from tests.workloads.taxonomy.test_mformer import total

FAMILIES = {  # smallest model of each family that reads 32 pixels -> whether it has batch statistics
    "resnet10t": True,  # batch-norm convolutions
    "convnext_atto": False,
    "vit_tiny_patch16_224": False,
    "swin_tiny_patch4_window7_224": False,
    "mobilevit_xxs": True,  # hybrid
    "vit_pwee_patch16_reg1_gap_256": False,  # with a register token
}


LARGE = {"convnext_atto", "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "mobilevit_xxs", "vit_pwee_patch16_reg1_gap_256"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in FAMILIES])
def test_model_families(tree, make_config, make_batch, name):
    config = make_config(backbone=name, image_size=32, drop_path=0.1)
    model = build_classifier(config, tree, COMPONENTS)
    assert bool(batch_statistics(model)) == FAMILIES[name]
    assert model.no_decay <= {n for n, _ in model.named_parameters()} and "trunk.metadata.missing" in model.no_decay
    batch = make_batch(4, 32)
    batch["present"][:2], batch["present"][2:] = True, False
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total(model(batch)).backward()
    assert [n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.isfinite().all())] == []
    assert all(p.grad.any() for p in model.shared_parameters())
    optimizer.step()

    model.eval()
    outputs = model(batch)
    assert [tuple(z.shape) for z in outputs["scores"].logits] == [(4, c) for c in tree.sizes]
    restored = build_classifier(make_config(backbone=name, image_size=32, seed=9), tree, COMPONENTS).eval()
    restored.load_state_dict(model.state_dict())
    assert torch.equal(restored(batch)["scores"].logits[-1], outputs["scores"].logits[-1])
    check_metadata(model, batch, outputs["scores"].logits[-1])


def check_metadata(model, batch, before):
    """Check that present metadata change the output and that masked values do not."""
    poisoned = {**batch, "meta": batch["meta"].clone()}
    for m, columns in enumerate(column_slices(COMPONENTS)):
        poisoned["meta"][~batch["present"][:, m], columns] = torch.nan
    assert torch.equal(model(poisoned)["scores"].logits[-1], before)
    moved = model({**batch, "meta": batch["meta"] + 1})["scores"].logits[-1]
    assert (moved[:2] - before[:2]).abs().max() > 1e-3 and torch.equal(moved[2:], before[2:])


def test_without_components(tree, make_config, make_batch):
    model = build_classifier(make_config(backbone="vit_tiny_patch16_224", image_size=32), tree, ())
    total(model(make_batch(2, 32, components=()))).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_images_are_normalised_as_the_pretrained_weights_expect():
    model = torch.nn.Module()
    model.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    pixel = torch.tensor([0.1, 0.6, 0.9]).view(3, 1, 1)
    normalised = (pixel - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    factor, offset = _rescaling(model)
    assert torch.allclose(normalised * factor + offset, (pixel - 0.5) / 0.5, atol=1e-6)
    model.pretrained_cfg = {"mean": MEAN, "std": STD}
    assert _rescaling(model) is None


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"backbone": "resnet51"}, "model.backbone: 'resnet51' is not a timm model; similar names: .*resnet50"),
        (
            {"backbone": "resnet10t.nowhere", "pretrained": True},
            "model.backbone: resnet10t.nowhere: the pretrained weights cannot be loaded",
        ),
        ({"backbone": "vgg11", "drop_path": 0.1}, "model.drop_path=0.1: vgg11 does not have stochastic depth"),
        ({"backbone": "cait_xxs24_224", "image_size": 8}, "model.backbone: cait_xxs24_224 cannot read images of data.image_size=8"),
    ],
)
def test_errors_are_one_line(tree, make_config, choice, message):
    with pytest.raises(ConfigError, match=message) as caught:
        build_classifier(make_config(**choice), tree, ())
    assert "\n" not in str(caught.value)


def test_weights_that_cannot_be_downloaded(tree, make_config, monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"model.backbone: resnet10t: the pretrained weights cannot be loaded; set model.pretrained_file=FILE"
    ):
        build_classifier(make_config(backbone="resnet10t", pretrained=True), tree, ())


def test_a_hub_that_does_not_answer_is_not_asked_again(tree, make_config, monkeypatch, tmp_path, caplog):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # refused at once
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail(f"waits {seconds} s to try again"))
    caplog.set_level("INFO", "linnaeus")
    with pytest.raises(ConfigError, match=r"model.pretrained_file=FILE to weights on this machine, or model.pretrained=false") as caught:
        build_classifier(make_config(backbone="resnet10t", pretrained=True), tree, ())
    assert "\n" not in str(caught.value) and not constants.HF_HUB_OFFLINE
    assert sum("does not respond" in message for message in caplog.messages) == 1


# -- weights in a local file ---------------------------------------------------------------------------------------------


def timm_state(name="resnet10t", **options):
    import timm

    torch.manual_seed(7)
    return timm.create_model(name, **options).state_dict()


@pytest.mark.parametrize(
    ("prefix", "suffix"),
    [("", ".safetensors"), ("module.", ".pth"), ("module.", ".safetensors"), ("model.", ".pth"), ("", ".bin"), ("trunk.backbone.", ".bin")],
)
def test_a_local_file_of_timm_weights(tree, make_config, tmp_path, caplog, prefix, suffix):
    state, path = timm_state(), tmp_path / f"weights{suffix}"
    named = {prefix + name: value for name, value in state.items()}
    save_file(named, path) if suffix == ".safetensors" else torch.save({"state_dict": named}, path)
    with caplog.at_level("INFO", "linnaeus"):
        model = build_classifier(make_config(backbone="resnet10t", pretrained_file=str(path)), tree, ())
    found = model.trunk.backbone.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in found.items())
    line = next(record.getMessage() for record in caplog.records if "pretrained weights from" in record.getMessage())
    assert line.endswith(f"{len(found)} loaded, 0 missing, 0 left over, 2 of the classifier not used")


def test_position_embeddings_are_resized_and_other_weights_counted(tree, make_config, tmp_path, caplog):
    state = timm_state("vit_tiny_patch16_224", img_size=64, depth=1)  # the model has 12 blocks and reads 32 pixels
    save_file(state | {"extra": torch.zeros(1)}, tmp_path / "weights.safetensors")
    config = make_config(backbone="vit_tiny_patch16_224", image_size=32, pretrained_file=str(tmp_path / "weights.safetensors"))
    with caplog.at_level("INFO", "linnaeus"):
        model = build_classifier(config, tree, ())
    assert torch.equal(model.trunk.backbone.blocks[0].attn.qkv.weight, state["blocks.0.attn.qkv.weight"])
    assert model.trunk.rescale is not None, "this model was trained on images with another normalisation"
    line = caplog.messages[-1]
    own, loaded = len(model.trunk.backbone.state_dict()), len(state) - 2
    assert f"{loaded} loaded, {own - loaded} missing (blocks.1." in line and "1 left over (extra)" in line


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "model.pretrained_file: '.*' does not exist"),
        ({"a.weight": torch.zeros(3)}, "model.pretrained_file: not one of 1 weight in .* fits model.backbone"),
        ({"conv1.0.weight": torch.full((24, 3, 3, 3), torch.nan)}, "model.pretrained_file: conv1.0.weight in .* not finite"),
        (torch.nn.Linear(1, 1), "model.pretrained_file: .* contains torch.nn.modules.linear.Linear, which is not plain data"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(tree, make_config, tmp_path, content, message):
    path = tmp_path / "weights.pth"
    if content is not None:
        torch.save(content, path)
    with pytest.raises(ConfigError, match=message) as caught:
        build_classifier(make_config(backbone="resnet10t", pretrained_file=str(path)), tree, ())
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"model.pretrained=true and model.pretrained_file exclude each other"):
        build_classifier(make_config(backbone="resnet10t", pretrained=True, pretrained_file=str(path)), tree, ())


def test_weights_of_a_run_at_another_image_size(tree, make_config):
    small, large = (build_classifier(make_config(backbone="test_vit", image_size=size), tree, COMPONENTS) for size in (32, 64))
    weights = InitialWeights("step-4", "", small.state_dict())
    with pytest.raises(ConfigError, match="pos_embed"):
        match_weights(weights, large)
    found = resample_positions(weights, large.trunk.backbone, "trunk.backbone.")
    assert found.notes == ["resampled to the image size: trunk.backbone.pos_embed"]
    load_matched(found, match_weights(found, large), large)
    other = {name for name, value in large.state_dict().items() if not torch.equal(value, found.state[name])}
    assert other == set() and found.state["trunk.backbone.pos_embed"].shape == large.trunk.backbone.pos_embed.shape
    assert {name for name in weights.state if weights.state[name] is not found.state[name]} == {"trunk.backbone.pos_embed"}
    assert resample_positions(weights, small.trunk.backbone, "trunk.backbone.") is weights


@pytest.mark.parametrize("name", ["test_vit", "resnet10t"])
def test_growing_images(tree, make_config, make_batch, name):
    model = build_classifier(make_config(backbone=name, image_size=64, start=32), tree, COMPONENTS)
    for side in (32, 48, 64):
        total(model(make_batch(2, side))).backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    fixed = build_classifier(make_config(backbone=name, image_size=64), tree, COMPONENTS)
    fixed.load_state_dict(model.state_dict())
    batch = make_batch(2, 64)
    assert torch.equal(model.eval()(batch)["features"], fixed.eval()(batch)["features"]), "at the final size the model is the same"


def test_a_model_of_one_size_refuses_growing_images(tree, make_config):
    config = make_config(backbone="mixer_s32_224", image_size=64, start=32)
    with pytest.raises(ConfigError, match=r"mixer_s32_224 cannot read images of schedule.image_size=32") as error:
        build_classifier(config, tree, COMPONENTS)
    assert "\n" not in str(error.value)


def test_separate_fusion(tree, make_config, make_batch):
    """The answer with metadata has no gradient with respect to the backbone, and without metadata it is the answer of the image alone."""
    model = build_classifier(make_config(backbone="resnet10t", image_size=32, fusion="separate"), tree, COMPONENTS)
    batch = make_batch(4, 32)
    batch["present"][:2], batch["present"][2:] = True, False
    outputs = model(batch)
    fused, alone = outputs["scores"].logits[-1], outputs["image_scores"].logits[-1]
    assert torch.equal(fused[2:], alone[2:]) and (fused[:2] - alone[:2]).abs().max() > 1e-3
    backbone, metadata = list(model.trunk.backbone.parameters()), list(model.trunk.metadata.parameters())
    grads = torch.autograd.grad(fused.square().sum(), [*backbone, *metadata], retain_graph=True, allow_unused=True)
    assert all(grad is None for grad in grads[: len(backbone)]) and all(grad is not None for grad in grads[len(backbone) :])
    grads = torch.autograd.grad(alone.square().sum(), [*backbone, *metadata], allow_unused=True)
    assert any(grad.any() for grad in grads[: len(backbone)]) and all(grad is None for grad in grads[len(backbone) :])
    assert "image_scores" not in model.eval()(batch)


def test_joint_fusion_trains_the_backbone_with_metadata(tree, make_config, make_batch):
    model = build_classifier(make_config(backbone="resnet10t", image_size=32), tree, COMPONENTS)
    outputs = model(make_batch(4, 32))
    outputs["scores"].logits[-1].square().sum().backward()
    assert "image_scores" not in outputs and any(p.grad.any() for p in model.trunk.backbone.parameters())
