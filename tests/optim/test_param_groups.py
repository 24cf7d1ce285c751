"""Parameter groups: the group of each parameter, and invalid groups."""

import pytest
import torch
from torch import nn

from linnaeus.errors import ConfigError
from linnaeus.optim.param_groups import describe_groups, parameter_groups


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)) for _ in range(3)])
        self.head = nn.Linear(8, 4)
        self.tied = self.head
        self.no_decay = {"token"}


def names(groups, decay):
    return {name for group in groups for name in group.names if group.weight_decay == decay}


def test_by_default_norms_biases_and_tokens_are_not_decayed():
    groups = parameter_groups(Small(), [], 0.1)
    assert names(groups, 0.1) == {"blocks.0.0.weight", "blocks.1.0.weight", "blocks.2.0.weight", "head.weight"}
    assert names(groups, 0.0) >= {"token", "head.bias", "blocks.1.1.weight", "blocks.0.0.bias"}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"name": "blocks.1.*"}, {"blocks.1.0.weight", "blocks.1.0.bias", "blocks.1.1.weight", "blocks.1.1.bias"}),
        ({"name": r"re:^blocks\.[01]\.0\.weight$"}, {"blocks.0.0.weight", "blocks.1.0.weight"}),
        ({"dim": 3}, {"token"}),
        ({"dim": [2, 3], "not": {"name": "blocks.*"}}, {"token", "head.weight"}),
        ({"layer": "LayerNorm", "name": "*.weight"}, {f"blocks.{i}.1.weight" for i in range(3)}),
        ({"any": [{"name": "token"}, {"name": "head.bias"}]}, {"token", "head.bias"}),
        ({"all": [{"layer": ["Linear"]}, {"dim": 1}, {"name": "head.*"}]}, {"head.bias"}),
    ],
)
def test_filters(spec, expected):
    groups = parameter_groups(Small(), [{"filter": spec, "lr_scale": 0.5}], 0.1)
    assert {name for group in groups for name in group.names if group.lr_scale == 0.5} == expected


def test_every_parameter_is_in_one_group_the_first_that_matches():
    specs = [
        {"filter": {"name": "blocks.0.*"}, "lr_scale": 0.1},
        {"filter": {"name": "blocks.*"}, "lr_scale": 0.2, "weight_decay": 0.3},
    ]
    model = Small()
    groups = parameter_groups(model, specs, 0.1)
    everything = [name for group in groups for name in group.names]
    assert sorted(everything) == sorted(name for name, _ in model.named_parameters()), "each parameter exactly once, tied ones too"
    scales = {name: group.lr_scale for group in groups for name in group.names}
    assert scales["blocks.0.0.weight"] == 0.1 and scales["blocks.1.0.weight"] == 0.2 and scales["head.weight"] == 1.0
    decays = {name: group.weight_decay for group in groups for name in group.names}
    assert decays["blocks.0.0.bias"] == 0.0, "a group that does not set weight_decay keeps the exception"
    assert decays["blocks.1.0.bias"] == 0.3, "a group that sets weight_decay applies it to biases"


def test_frozen_parameters_are_left_out():
    model = Small()
    model.head.requires_grad_(False)
    assert not any("head" in name for group in parameter_groups(model, [], 0.1) for name in group.names)


def test_dtypes_do_not_share_a_group():
    model = Small()
    model.head.double()
    for group in parameter_groups(model, [], 0.1):
        assert len({tensor.dtype for tensor in group.tensors}) == 1


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"filter": {"name": "nothing.*"}, "lr_scale": 2}, "optimizer.param_groups[0]: its filter matches no parameter"),
        ({"filter": {"nme": "x"}, "lr_scale": 2}, "optimizer.param_groups[0].filter.nme"),
        ({"filter": {}, "lr_scale": 2}, "optimizer.param_groups[0].filter"),
        ({"filter": {"name": "re:("}, "lr_scale": 2}, "not a regular expression"),
        ({"filter": {"dim": "two"}, "lr_scale": 2}, "optimizer.param_groups[0].filter.dim"),
        ({"filter": {"layer": 3}, "lr_scale": 2}, "optimizer.param_groups[0].filter.layer"),
        ({"filter": {"any": {"name": "x"}}, "lr_scale": 2}, "optimizer.param_groups[0].filter.any"),
        ({"filter": {"all": [{"not": {"wat": 1}}]}, "lr_scale": 2}, "optimizer.param_groups[0].filter.all[0].not.wat"),
        ({"filter": {"dim": 1}}, "sets nothing"),
        ({"filter": {"dim": 1}, "lr": 2}, "optimizer.param_groups[0].lr:"),
        ({"filter": {"dim": 1}, "weight_decay": -1}, "weight_decay=-1"),
        ({"lr_scale": 2}, "a group must be a dict with `filter`"),
    ],
)
def test_an_invalid_group_raises_one_line(spec, message):
    with pytest.raises(ConfigError) as error:
        parameter_groups(Small(), [spec], 0.1)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_group_without_remaining_parameters_raises():
    specs = [{"filter": {"name": "*"}, "lr_scale": 0.5}, {"filter": {"name": "head.*"}, "lr_scale": 2}]
    with pytest.raises(ConfigError, match=r"optimizer.param_groups\[1\]"):
        parameter_groups(Small(), specs, 0.1)


def test_description_accounts_for_every_value():
    model = Small()
    groups = parameter_groups(model, [{"filter": {"name": "head.*"}, "lr_scale": 0.5}], 0.1)
    lines = describe_groups(groups, ["adamw"] * len(groups))
    sizes = [int(line.split(" values")[0].split()[-1].replace(",", "")) for line in lines]
    assert sum(sizes) == sum(p.numel() for p in model.parameters())
    assert any("blocks.*.0.weight" in line for line in lines) and any("lr x0.5" in line for line in lines)
