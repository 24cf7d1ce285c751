"""The network: published sizes, order of the set, sets of one and the empty set."""

import dataclasses

import pytest
import torch

from linnaeus.config.load import compose
from linnaeus.errors import ConfigError
from linnaeus.workloads.loadout.game.token_code import NULL, PointsCode, SlotsCode
from linnaeus.workloads.loadout.model.level_logits import LevelLogits
from linnaeus.workloads.loadout.model.set_transformer import SetTransformer, build_set_transformer

PUBLISHED = {"published": 83_001_420, "published_cli": 20_833_612}


def config(**given):
    return dataclasses.replace(compose(["workload=loadout"]).model, **given)


@pytest.mark.parametrize("size, number", PUBLISHED.items())
def test_parameters_of_the_published_models(size, number):
    with torch.device("meta"):
        assert sum(p.numel() for p in SetTransformer(config(size=size), PointsCode(), 130).parameters()) == number


@pytest.mark.parametrize("size, layers", [("small", None), ("small", 1), ("published", 1), ("published_cli", 1)])
def test_sets(size, layers):
    """The order changes nothing; padding, a set of one and the empty set are finite."""
    network = build_set_transformer(config(size=size, width=64, layers=layers, heads=4 if layers else None), 0, PointsCode(), 130).eval()
    tokens = torch.tensor([[5, 9, 17, 60, 0, 0], [5, 0, 0, 0, 0, 0], [NULL, 0, 0, 0, 0, 0]])
    weapon = torch.tensor([3, 4, 5])
    logits = network({"tokens": tokens, "weapon": weapon})
    assert logits.shape == (3, 140) and logits.isfinite().all()
    mixed = tokens[:, [2, 5, 0, 3, 1, 4]]
    assert (network({"tokens": mixed, "weapon": weapon}) - logits).abs().max() <= 1e-6
    shorter = network({"tokens": tokens[:, :4], "weapon": weapon})
    torch.testing.assert_close(shorter, logits, atol=1e-5, rtol=1e-5)
    assert (logits[0] - logits[1]).abs().max() > 1e-3


def test_weights_are_a_function_of_the_seed_and_all_are_initialised():
    one, two, other = (build_set_transformer(config(width=32), seed, SlotsCode(), 130) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters()))
    assert not torch.equal(one.output.weight, other.output.weight) and all(p.isfinite().all() for p in one.parameters())
    assert one.no_decay <= {name for name, _ in one.named_parameters()}


def test_heads_that_do_not_divide_the_width():
    with pytest.raises(ConfigError, match=r"model\.heads is 4, which does not divide"):
        build_set_transformer(config(width=30, layers=1, heads=4), 0, SlotsCode(), 130)


def test_a_network_without_attention_has_no_heads():
    with pytest.raises(ConfigError, match=r"model\.heads=2 has no effect"):
        build_set_transformer(config(heads=2), 0, SlotsCode(), 130)
    build_set_transformer(config(width=30), 0, SlotsCode(), 130)  # which the heads of the size do not divide


@pytest.mark.parametrize("code", [SlotsCode(), PointsCode()], ids=["slots", "points"])
def test_the_logit_of_a_level_depends_on_its_distance_from_what_is_shown(code):
    """The n-th level above the shown one has the same logit, whichever is shown; those of other items do not change."""
    layer = LevelLogits(8, code)
    x = torch.randn(1, 8)
    levels = [code.names.index(name) for name in code.names if name.startswith("swim_speed_up_") and "main" not in name]
    shown = [layer(x, torch.tensor([levels[:n] or [NULL]]))[0] for n in range(4)]
    for n in range(1, 4):
        assert torch.equal(shown[n][levels[n:]], shown[0][levels[: len(levels) - n]]) and shown[n][levels[:n]].unique().numel() == 1
        others = [token for token in range(len(code)) if token not in levels]
        assert torch.equal(shown[n][others], shown[0][others])
    assert shown[0].unique().numel() > len(code) - 3, "negative control: each item and distance has its own weights"
