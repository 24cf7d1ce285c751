"""Test the variants of a sparse dictionary on planted activations: sparsity, unit norms, gradients, dead features, folding, saving."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from linnaeus.errors import ConfigError
from linnaeus.workloads.dictionary.model.config import BatchTopKConfig, JumpReLUConfig, MatryoshkaConfig, PenalisedConfig, TopKConfig
from linnaeus.workloads.dictionary.model.largest import _largest_by_topk, largest_of_blocks, largest_of_rows, largest_places
from linnaeus.workloads.dictionary.model.sparse_dictionary import SparseDictionary, geometric_median
from linnaeus.workloads.dictionary.model.straight_through import Jump, Step
from linnaeus.workloads.dictionary.model.variants import VARIANTS, build_dictionary

WIDTH, PLANTED, FEATURES, K = 16, 24, 48, 3
COMMON: dict[str, Any] = {
    "features": FEATURES,
    "encoder_norm": 1.0,
    "dead_after": 2000,
    "auxiliary": 1 / 32,
    "auxiliary_features": None,
    "usage_target": 0.05,
    "usage_penalty": 0.0,
    "frontier": [],
}
PENALTY: dict[str, Any] = {"sparsity": 0.15, "sparsity_warmup": "10%"}
THRESHOLD = {"k": K, "threshold_rate": 0.05, "block": 32}
CONFIGS = {
    "relu": PenalisedConfig("relu", **COMMON, **PENALTY),
    "gated": PenalisedConfig("gated", **COMMON, **PENALTY),
    "topk": TopKConfig("topk", **COMMON, k=K),
    "batch_topk": BatchTopKConfig("batch_topk", **COMMON, **THRESHOLD),
    "jumprelu": JumpReLUConfig("jumprelu", **COMMON, **PENALTY | {"sparsity": 0.02}, threshold=0.1, bandwidth=0.2),
    "matryoshka": MatryoshkaConfig("matryoshka", **COMMON, **THRESHOLD, widths=[12, 24]),
}
VARIANT = pytest.mark.parametrize("name", list(CONFIGS))
SKIPPED, DONE = torch.ones(()), torch.zeros(())


def activations(number: int, seed: int = 0) -> Tensor:
    """Return sums [number, WIDTH] of K of PLANTED fixed directions, far from the origin."""
    directions = torch.nn.functional.normalize(torch.randn(PLANTED, WIDTH, generator=torch.Generator().manual_seed(99)), dim=1)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(number, PLANTED, generator=generator).argsort(1)[:, :K]
    amounts = torch.zeros(number, PLANTED).scatter(1, chosen, 1 + torch.rand(number, K, generator=generator))
    return 5 * (amounts @ directions) + 3


def batch_of(x: Tensor) -> dict[str, Tensor]:
    return {"activation": x, "weight": torch.ones(len(x))}


def train(config: Any, updates: int = 100) -> SparseDictionary:
    """Return a dictionary trained on `updates` batches of 128 activations."""
    model = build_dictionary(config, WIDTH, seed=0)
    model.fit_scale(activations(512, seed=1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.99))
    model.train()
    for i in range(updates):
        x = activations(128, seed=10 + i)
        optimizer.zero_grad()
        torch.stack([loss.sum() for loss in model(batch_of(x)).losses.values()]).sum().div(len(x)).backward()
        optimizer.step()
        model.after_update(DONE)
    return model.eval()


@pytest.fixture(scope="module")
def trained() -> dict[str, SparseDictionary]:
    return {name: train(config) for name, config in CONFIGS.items()}


def explained(model: SparseDictionary, x: Tensor) -> float:
    """Return the share of the variance of `x` that the reconstruction explains."""
    with torch.no_grad():
        error = (model.decode(model.encode(x)) - x).square().sum()
    return float(1 - error / (x - x.mean(0)).square().sum())


def active(model: SparseDictionary, x: Tensor) -> float:
    """Return the mean number of active features per sample."""
    with torch.no_grad():
        return float((model.encode(x) > 0).sum(1).double().mean())


@VARIANT
def test_a_variant_learns_more_than_its_first_directions(trained, name):
    model, x = trained[name], activations(2000, seed=5)
    start = build_dictionary(CONFIGS[name], WIDTH, seed=0)
    start.fit_scale(activations(512, seed=1))
    assert explained(model, x) > 0.6 and explained(model, x) > explained(start.eval(), x) + 0.1
    cosine = torch.nn.functional.cosine_similarity(model.decoder, start.decoder).detach()
    assert float(cosine[~model.dead].median()) < 0.98, "the decoder has its initial directions"


@VARIANT
def test_decoder_vectors_have_norm_1_and_gradients_across_them(trained, name):
    model = copy.deepcopy(trained[name]).train()
    assert torch.allclose(model.decoder.norm(dim=1), torch.ones(FEATURES), atol=1e-6)
    sum(loss.sum() for loss in model(batch_of(activations(64))).losses.values()).backward()
    along, size = (model.decoder.grad * model.decoder).sum(1).abs(), model.decoder.grad.norm(dim=1)
    assert float(size.max()) > 0 and bool((along <= 1e-5 * size.clamp(min=1e-3) * WIDTH).all())


@pytest.mark.parametrize("name", ["topk", "batch_topk", "matryoshka"])
def test_k_features_are_active(trained, name):
    x = activations(4000, seed=7)
    assert active(trained[name], x) == pytest.approx(K, rel=0.05)
    model = copy.deepcopy(trained[name]).train()
    with torch.no_grad():
        assert int(model(batch_of(x)).active.sum()) <= K * len(x), "more than k per sample in training"


@pytest.mark.parametrize("name", ["relu", "gated", "jumprelu"])
def test_ten_times_the_coefficient_halves_the_active_features(trained, name):
    x = activations(2000, seed=7)
    strong = train(replace(CONFIGS[name], sparsity=10 * CONFIGS[name].sparsity))
    assert active(strong, x) <= active(trained[name], x) / 2


def test_the_ramp_is_a_factor_of_the_coefficient_only(trained):
    model, x = copy.deepcopy(trained["gated"]).train(), activations(32)
    whole, none = (model(batch_of(x) | {"ramp": torch.full((32,), ramp)}).losses for ramp in (1.0, 0.0))
    assert whole["sparsity"].min() > 0 and (none["sparsity"] == 0).all()
    assert torch.equal(none["gate"], whole["gate"]) and whole["gate"].min() > 0


@VARIANT
def test_padding_changes_neither_choices_nor_counts(name):
    x = activations(32)
    results, config = [], CONFIGS[name]
    if isinstance(config, BatchTopKConfig):
        config = replace(config, k=FEATURES)  # all positive ones are active, because a larger micro-batch has more places
    for rows, weight in ((x, torch.ones(32)), (torch.cat([x, 100 * x]), torch.cat([torch.ones(32), torch.zeros(32)]))):
        model = build_dictionary(config, WIDTH, 0)
        model.fit_scale(x)
        found = model.train()({"activation": rows, "weight": weight})
        results.append((found.reconstruction[:32], model._fired.clone()))
    assert torch.equal(results[0][1], results[1][1]) and torch.allclose(results[0][0], results[1][0], atol=1e-5)


@VARIANT
def test_a_skipped_update_changes_nothing(trained, name):
    model = copy.deepcopy(trained[name]).train()
    before = copy.deepcopy(model.state_dict())
    model(batch_of(activations(64)))
    model.after_update(SKIPPED)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not bool(model._fired.any()), "counts of the skipped update are used by the next one"
    model(batch_of(activations(64)))
    model.after_update(DONE)
    assert not torch.equal(model.usage, before["usage"]), "the next update is not counted"


def test_features_that_are_silent_count_as_dead():
    model = build_dictionary(replace(CONFIGS["topk"], dead_after=256), WIDTH, 0)
    with torch.no_grad():
        model.encoder_bias[:5] = -1e6
    model.train()
    for i in range(2):
        assert not bool(model.dead.any())
        model(batch_of(activations(128, seed=i)))
        model.after_update(DONE)
    assert bool(model.dead[:5].all()) and not bool(model.dead.all())


def test_only_the_auxiliary_loss_trains_dead_features():
    for auxiliary in (0.0, 1.0):
        model = build_dictionary(replace(CONFIGS["topk"], auxiliary=auxiliary), WIDTH, 0)
        with torch.no_grad():
            model.encoder_bias[:5] = -50.0
            model.silent[:5] = 10**6
        losses = model.train()(batch_of(activations(64))).losses
        sum(loss.sum() for loss in losses.values()).backward()
        assert bool((model.encoder.grad[:5].norm(dim=1) > 0).all()) == bool(auxiliary)
        if auxiliary:  # activities of -50 in full would be an error of 2500 for each dead feature
            assert bool((losses["auxiliary"] < 2 * losses["reconstruction"]).all())


def test_the_usage_penalty_raises_features_that_are_too_rare():
    model = build_dictionary(replace(CONFIGS["topk"], usage_penalty=1.0, auxiliary=0.0), WIDTH, 0)
    model.usage[:5], model.usage[5:10] = 0.001, 0.5
    model.train()(batch_of(activations(64))).losses["usage"].sum().backward()
    gradient = model.encoder_bias.grad
    assert bool((gradient[:5] < 0).all()) and bool((gradient[5:10] > 0).all()) and float(gradient[10:].abs().max()) < 1e-4


@VARIANT
def test_folding_and_saving_change_no_reconstruction(trained, name):
    model, x = trained[name], activations(500, seed=3)
    loaded = build_dictionary(CONFIGS[name], WIDTH, seed=7).eval()
    loaded.load_state_dict(model.state_dict())
    folded = model.folded()
    with torch.no_grad():
        f = model.encode(x)
        assert torch.equal(loaded.encode(x), f) and float(model.scale) != 1.0 and float(folded.scale) == 1.0
        assert torch.allclose(folded.encode(x), f / model.scale, atol=1e-4)
        assert torch.allclose(folded.decode(folded.encode(x)), model.decode(f), atol=1e-3)
        wrong = copy.deepcopy(model)
        wrong.scale.fill_(1.0)
        assert not torch.allclose(wrong.decode(wrong.encode(x)), model.decode(f), atol=1e-3)


def test_activations_get_a_common_norm_and_their_median():
    x, model = activations(500), build_dictionary(CONFIGS["topk"], WIDTH, 0)
    model.fit_scale(x)
    for offset in (0, 1000):
        model.fit_scale(x + offset)
        found = (x + offset) * model.scale - model.bias.detach()
        assert float(found.norm(dim=1).mean()) == pytest.approx(WIDTH**0.5, rel=1e-4), "a constant changes the scale"
    with pytest.raises(ConfigError, match="cannot be decoded"):
        model.fit_scale(x[:0])
    points = torch.cat([torch.zeros(9, 2), torch.full((1, 2), 1000.0)]).double() + torch.tensor([1.0, 2.0])
    assert geometric_median(points).tolist() == pytest.approx([1.0, 2.0], abs=1e-3), "an outlier moves the mean, not the median"


def test_gradients_of_thresholds_have_their_closed_form():
    z, threshold = torch.tensor([[0.9, 1.05, 3.0]], requires_grad=True), torch.full((3,), 1.0, requires_grad=True)
    Jump.apply(z, threshold, 0.4).sum().backward()
    assert z.grad.tolist() == [[0.0, 1.0, 1.0]] and threshold.grad.tolist() == [-2.5, -2.5, 0.0]
    z.grad = threshold.grad = None
    Step.apply(z, threshold, 0.4).sum().backward()
    assert z.grad is None and threshold.grad.tolist() == [-2.5, -2.5, 0.0]


def test_a_negative_pre_activation_is_not_near_a_small_threshold():
    """Set to 0 before, it was: all samples in which a feature is not active changed its threshold while that was below half a bandwidth."""
    model = build_dictionary(replace(CONFIGS["jumprelu"], threshold=0.1, bandwidth=1.0), WIDTH, 0)
    pre = torch.tensor([[-3.0, 0.3, -0.2] + [3.0] * (FEATURES - 3)], requires_grad=True)
    found = model.activities(pre)
    found.sum().backward()
    assert [round(value, 6) for value in found[0, :4].tolist()] == [0.0, 0.3, 0.0, 3.0]
    slope = -0.1 * 3  # -theta / bandwidth, times the derivative of the threshold with respect to its parameter
    assert model.slow_threshold.grad[:4].tolist() == pytest.approx([0.0, slope, slope, 0.0])


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (replace(CONFIGS["topk"], k=49), "model.k is 49, but there are 48 features"),
        (replace(CONFIGS["topk"], k=2.5), "model=topk needs a whole number"),
        (replace(CONFIGS["matryoshka"], widths=[24, 12]), "must ascend"),
        (replace(CONFIGS["matryoshka"], widths=[12, 48]), "must ascend"),
    ],
)
def test_impossible_settings_are_one_line(config, line):
    with pytest.raises(ConfigError, match=line):
        build_dictionary(config, WIDTH, 0)


def test_a_seed_decides_the_weights():
    first, same, other = (build_dictionary(CONFIGS["gated"], WIDTH, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[key], same[key]) for key in first) and not torch.equal(first["decoder"], other["decoder"])
    assert set(VARIANTS) == set(CONFIGS)


def test_blocks_choose_alone_and_their_order_does_not_matter():
    torch.manual_seed(0)
    pre = torch.rand(22, 10)
    real = torch.ones(22, dtype=torch.bool)
    real[[3, 20, 21]] = False
    found, smallest = largest_of_blocks(pre, real, 2.5, 8)
    assert [int((part > 0).sum()) for part in found.split(8)] == [17, 20, 10], "k n of the 7, 8 and 4 real samples"
    for i, rows in enumerate((slice(0, 8), slice(8, 16), slice(16, 22))):
        alone, least = largest_of_blocks(pre[rows], real[rows], 2.5, 8)
        assert torch.equal(alone, found[rows]) and torch.equal(least, smallest[i : i + 1])
        kept = found[rows]
        assert float(kept[kept > 0].min()) == float(smallest[i])
        assert float((pre[rows] * real[rows].unsqueeze(1))[kept == 0].max()) < float(smallest[i])
    assert not bool(found[~real].any())
    empty, none = largest_of_blocks(pre[:8], torch.zeros(8, dtype=torch.bool), 2.5, 8)
    assert not bool(empty.any()) and float(none) == 0


@pytest.mark.parametrize("guess", [0.0, 0.5, 0.9, 2.0])
def test_a_guess_changes_no_choice(guess):
    """The guesses leave enough candidates in all blocks, in some, and in none."""
    torch.manual_seed(0)
    pre = torch.rand(64, 10) - 0.3
    pre[40] = pre[41]  # of equal numbers the first ones are kept
    real = torch.ones(64, dtype=torch.bool)
    real[9] = False
    places, smallest = largest_places(pre, real, 2.5, 8, guess)
    positive = torch.where(real.unsqueeze(1), pre, 0).relu()
    for block in range(8):
        part = positive[8 * block : 8 * block + 8].flatten()
        number = int(2.5 * int(real[8 * block : 8 * block + 8].sum()))
        expected = part.sort(descending=True, stable=True)
        own = places[(places >= 80 * block) & (places < 80 * block + 80)] - 80 * block
        assert own.tolist() == sorted(expected.indices[:number].tolist()) and float(smallest[block]) == float(expected.values[number - 1])
    found, least = largest_of_blocks(positive, real, 2.5, 8, guess)
    assert torch.equal(found.flatten().nonzero().flatten(), places) and torch.equal(least, smallest)


@pytest.mark.parametrize("name", ["topk", "batch_topk", "matryoshka"])
def test_a_loss_that_is_not_finite_is_not_hidden_by_the_choice(trained, name):
    model = copy.deepcopy(trained[name]).train()
    model.limited = True
    with torch.no_grad():
        model.encoder[3] = float("nan")
    losses = model(batch_of(activations(64))).losses
    assert not bool(torch.stack(list(losses.values())).sum().isfinite()), "the update would not be skipped"


@pytest.mark.parametrize("name", ["batch_topk", "matryoshka"])
def test_a_skipped_update_of_activations_that_are_not_finite_keeps_the_threshold(trained, name):
    model = copy.deepcopy(trained[name]).train()
    before = float(model.threshold)
    model(batch_of(torch.full((64, WIDTH), float("nan"))))
    model.after_update(SKIPPED)
    assert float(model.threshold) == before > 0


def test_a_product_k_n_that_is_whole_keeps_so_many_with_both_methods():
    """0.29 x 100 is 28.999999999999996 in float64 and 29 in float32."""
    pre, real = torch.rand(150, 4, generator=torch.Generator().manual_seed(0)), torch.ones(150, dtype=torch.bool)
    real[120:] = False
    for k, wanted in ((0.29, (29, 5)), (0.57, (57, 11)), (2.5, (250, 50))):
        found, smallest = largest_of_blocks(pre, real, k, 100)
        assert tuple(int((part > 0).sum()) for part in found.split(100)) == wanted
        other, least = _largest_by_topk(pre, real, k, 100)
        assert torch.equal(other, found) and torch.equal(least, smallest)


@VARIANT
def test_losses_in_evaluation_are_those_of_the_objective(trained, name):
    """A dense code has a low squared error in use; the loss that chooses the best checkpoint keeps its price or its limit."""
    model, x = copy.deepcopy(trained[name]), activations(64)
    if isinstance(CONFIGS[name], BatchTopKConfig):
        before = sum(loss.sum() for loss in model(batch_of(x)).losses.values())
        model.threshold.fill_(0.0)  # everything positive is active in use
        dense = model(batch_of(x))
        assert float((dense.activities > 0).sum(1).double().mean()) > 2 * K
        assert torch.equal(sum(loss.sum() for loss in dense.losses.values()), before)
    elif name != "topk":
        assert "sparsity" in model(batch_of(x)).losses


@pytest.mark.parametrize("dead", [5, 30])  # fewer and more than the auxiliary loss uses for a sample
@pytest.mark.parametrize("name", ["topk", "batch_topk", "matryoshka"])
def test_the_pass_through_active_features_has_the_results_of_the_dense_one(trained, name, dead):
    found = []
    for dense in (False, True):
        model = copy.deepcopy(trained[name]).double().train()
        model.silent[:dead] = 10**6
        assert 5 < model._most_dead() < 30
        model.limited = not dense
        weight = torch.ones(70)
        weight[[3, 69]] = 0
        result = model({"activation": activations(70, seed=3).double(), "weight": weight})
        sum((loss * weight).sum() for loss in result.losses.values()).backward()
        counts = [model._fired, *([model._smallest] if name != "topk" else [])]
        gradients = [parameter.grad for parameter in model.parameters()]
        found.append([result.reconstruction, result.active, *result.losses.values(), *counts, *gradients])
    for sparse, whole in zip(*found, strict=True):
        assert torch.allclose(sparse.double(), whole.double(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("count", [1, 5, 17])
def test_the_largest_of_a_row_depend_on_the_row_alone_with_equal_values_and_nan(count: int) -> None:
    values = torch.randn(40, 17, generator=torch.Generator().manual_seed(0))
    rounded = values.round()  # many equal values
    rounded[3, 4] = rounded[5] = torch.nan
    for matrix in (values, rounded):
        found = largest_of_rows(matrix, count)
        assert found.shape == (40, count) and all(len(row.unique()) == count for row in found)
        chosen = matrix.nan_to_num(torch.inf).gather(1, found).sort(descending=True).values
        assert torch.equal(chosen, matrix.nan_to_num(torch.inf).topk(count).values)
        assert all(torch.equal(found[i].sort().values, largest_of_rows(matrix[i : i + 1], count)[0].sort().values) for i in range(40))
