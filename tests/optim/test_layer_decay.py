"""`optimizer.layer_decay`: the learning rate of a parameter falls with its distance from the head."""

import re

import pytest
import torch

from linnaeus.errors import ConfigError
from linnaeus.optim import build_optimizer
from linnaeus.optim.param_groups import describe_groups, parameter_groups
from linnaeus.train import loop
from linnaeus.workloads import build_workload
from tests import runs
from tests.optim.test_param_groups import Small


def model_of(*settings):
    return build_workload(runs.composed(settings)).build_model()


def scales_of(model, layer_decay=0.5, specs=()):
    return {name: group.lr_scale for group in parameter_groups(model, specs, 0.1, layer_decay) for name in group.names}


def test_a_decoder_from_head_to_embedding():
    model = model_of("workload=language", "model.size=gpt_nano")
    scales = scales_of(model)
    assert set(scales) == {name for name, _ in model.named_parameters()}
    found = {re.sub(r"(blocks\.\d+|[^.]+)\..*", r"\1", name): scale for name, scale in scales.items()}
    assert found == {"norm": 1, "blocks.2": 0.5, "blocks.1": 0.25, "blocks.0": 0.125, "token": 0.0625, "position": 0.0625}


def test_layers_of_mformer():
    model = model_of("model.size=nano", "data.components=[SPATIAL]")
    scales = scales_of(model)
    part = lambda name: {scale for key, scale in scales.items() if key.startswith(name)}
    assert part("norm.") == part("head.") == part("trunk.fusion.") == {1}
    blocks = [f"trunk.convolution.{i}." for i in (0, 1, 3, 4)]
    blocks += [f"trunk.stages.{stage}.blocks.{i}." for stage, depth in ((0, 4), (1, 2)) for i in range(depth)]
    assert [part(name) for name in blocks] == [{0.5**distance} for distance in range(10, 0, -1)]
    assert part("trunk.stem.") == part("trunk.class_tokens") == part("trunk.metadata.") == {0.5**11}
    assert part("trunk.convolution.2.") == {0.5**8}, "the layer that halves the grid is before the third block"
    assert part("trunk.stages.1.reduce.") == part("trunk.widen.0.") == {0.5**2}


@pytest.mark.parametrize("name", ["test_vit", "test_convnext", "test_resnet", "test_byobnet"])
def test_timm_models_have_the_scales_of_timm(name):
    """timm counts the layers of the same model with a classifier."""
    import timm
    from timm.optim import param_groups_layer_decay

    peer = timm.create_model(name, num_classes=10)
    groups = param_groups_layer_decay(peer, layer_decay=0.75)
    names = {id(parameter): key for key, parameter in peer.named_parameters()}
    expected = {names[id(parameter)]: group["lr_scale"] for group in groups for parameter in group["params"]}
    model = model_of("model=timm", f"model.backbone={name}", "data.image_size=160")
    found = scales_of(model, 0.75)
    own = {key.removeprefix("trunk.backbone."): scale for key, scale in found.items() if key.startswith("trunk.backbone.")}
    assert own == {key: scale for key, scale in expected.items() if key in own} and len(own) > 20
    assert {scale for key, scale in found.items() if not key.startswith("trunk.backbone.")} == {1.0}


def test_it_multiplies_the_scale_of_a_group_and_is_one_line_in_the_log():
    model = model_of("workload=language", "model.size=gpt_nano")
    scales = scales_of(model, 0.5, [{"filter": {"name": "blocks.1.*"}, "lr_scale": 0.1}])
    assert {scale for name, scale in scales.items() if name.startswith("blocks.1.")} == {0.1 * 0.25}
    groups = parameter_groups(model, [], 0.1, 0.5)
    lines = describe_groups(groups, ["adamw"] * len(groups))
    assert len(lines) == 2 and all(line.startswith("adamw, default: weight decay ") for line in lines)
    assert ", lr x0.0625, x0.125, x0.25, x0.5, " in lines[0], lines


def test_an_update_moves_each_layer_in_proportion():
    """SGD without momentum and weight decay, with a gradient of 1 everywhere."""
    model = model_of("workload=language", "model.size=gpt_nano")
    options = ["optimizer=sgd", "optimizer.momentum=0", "optimizer.nesterov=false", "optimizer.weight_decay=0", "optimizer.layer_decay=0.5"]
    optimizers = build_optimizer(runs.composed(options).optimizer, model)
    before = {name: parameter.detach().clone().double() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers.lr = 0.25
    with torch.no_grad():
        optimizers.step()
    scales = scales_of(model)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(before[name] - parameter.detach().double(), torch.full_like(before[name], 0.25 * scales[name]))


def test_a_decay_of_one_changes_nothing_and_a_run_resumes(tmp_path):
    """With Muon, whose matrices are groups of another optimizer, and frozen layers."""
    more = ["optimizer=muon", "trainer.freeze=[blocks.0]", "trainer.length=4steps", "schedule.checkpoint=[2steps]"]
    plain = runs.run("language", tmp_path / "plain", *more)
    assert runs.differences(plain, runs.run("language", tmp_path / "one", *more, "optimizer.layer_decay=1")) == []
    decayed = runs.run("language", tmp_path / "decayed", *more, "optimizer.layer_decay=0.7")
    assert "metrics.jsonl" in runs.differences(plain, decayed), "negative control"
    config = runs.configuration("language", tmp_path / "cut", *more, "optimizer.layer_decay=0.7")
    assert runs.differences(decayed, runs.resumed(config, (loop, "train_one_step", 4))) == []


def test_a_model_without_layers_is_refused():
    with pytest.raises(ConfigError, match=r"optimizer\.layer_decay: this model does not have repeated blocks"):
        parameter_groups(Small(), [], 0.1, 0.5)
