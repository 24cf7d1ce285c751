"""The network: published sizes, order of the set, sets of one and the empty set."""

import dataclasses

import pytest
import torch

from linnaeus.config.load import compose
from linnaeus.errors import ConfigError
from linnaeus.workloads.loadout.model.set_transformer import SetTransformer, build_set_transformer
from linnaeus.workloads.loadout.token_code import NULL

PUBLISHED = {"published": 83_001_420, "published_cli": 20_833_612}


def config(**given):
    return dataclasses.replace(compose(["workload=loadout"]).model, **given)


@pytest.mark.parametrize("size, number", PUBLISHED.items())
def test_parameters_of_the_published_models(size, number):
    with torch.device("meta"):
        assert sum(p.numel() for p in SetTransformer(config(size=size), 140, 130).parameters()) == number


@pytest.mark.parametrize("size, layers", [("small", None), ("small", 1), ("published", 1), ("published_cli", 1)])
def test_sets(size, layers):
    """The order changes nothing; padding, a set of one and the empty set are finite."""
    network = build_set_transformer(config(size=size, width=64, layers=layers, heads=4), 0, 140, 130).eval()
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
    one, two, other = (build_set_transformer(config(width=32), seed, 182, 130) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters()))
    assert not torch.equal(one.output.weight, other.output.weight) and all(p.isfinite().all() for p in one.parameters())
    assert one.no_decay <= {name for name, _ in one.named_parameters()}


def test_heads_that_do_not_divide_the_width():
    with pytest.raises(ConfigError, match=r"model\.heads"):
        build_set_transformer(config(width=30, heads=4), 0, 182, 130)
