"""Test the losses with both kinds of scores: against dense float64 references, missing labels, sums over micro-batches (law 3)."""

import itertools

import numpy as np
import pytest
import torch

from linnaeus.config import compose
from linnaeus.errors import ConfigError
from linnaeus.health import HealthMonitor
from linnaeus.metrics.update_sums import UpdateLosses
from linnaeus.train.measuring.health import updates
from linnaeus.workloads.taxonomy.heads import LinearScores
from linnaeus.workloads.taxonomy.losses import LabelCounts, TaxonomyLoss, rank_loss_sums, valid_counts, weighted_hierarchical_loss
from tests.optim.test_growth_update import Waits
from tests.workloads.taxonomy import slow_losses as slow

PRESETS = ["cross_entropy", "label_smoothing", "taxonomic_smoothing", "soft_labels", "conditional", "marginal"]
PRESETS += ["class_balanced", "inverse_frequency", "logit_adjusted"]
TREES = {seed: slow.random_tree(seed, 25) for seed in (0, 1)}
ONE = torch.ones(1)


def raw_scores(tree, kind, count, nulls, dtype=torch.float64, seed=0, scale=3.0):
    g = torch.Generator().manual_seed(seed)
    widths = [size + nulls for size in tree.sizes] if kind == "linear" else [len(slow.leaves_of(tree))]
    return [(torch.randn(count, width, generator=g, dtype=torch.float64) * scale).to(dtype).requires_grad_() for width in widths]


def scores_of(tree, kind, raw):
    return LinearScores(tree, raw) if kind == "linear" else slow.marginal_scores(tree, raw[0])


def slowly(tree, kind, raw):
    return slow.SlowLinear(tree, raw) if kind == "linear" else slow.SlowLeaves(tree, raw[0])


def loss_of(config, tree, labels, nulls, dtype=torch.float64):
    return TaxonomyLoss(config, tree, LabelCounts.from_labels(tree, labels), nulls, dtype)


def gradients(sums, raw):
    weights = torch.arange(1, len(sums) + 1, dtype=sums.dtype)
    found = torch.autograd.grad((sums * weights).sum(), raw, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(z) if g is None else g for g, z in zip(found, raw, strict=True)]


CASES = [
    (name, kind, nulls, mixed, balance, seed)
    for i, (name, kind) in enumerate(itertools.product(slow.LOSSES, ("linear", "leaves")))
    for nulls, mixed, balance, seed in [
        (False, True, slow.INVERSE, i % 2),
        (slow.loss_config(name).coarser_share is None and kind == "linear", i % 4 > 1, slow.EFFECTIVE, (i + 1) % 2),
    ]
]


@pytest.mark.parametrize("name, kind, nulls, mixed, balance, seed", CASES)
def test_agrees_with_dense_targets(name, kind, nulls, mixed, balance, seed):
    """Values agree to 1e-10 in float64 and 1e-5 in float32, gradients to 1e-4; with class weights, logit adjustment, pairs and nulls."""
    tree, labels = TREES[seed]
    config, batch = slow.loss_config(name, **balance), slow.random_batch(tree, labels, seed, 8, nulls, mixed)
    raw = raw_scores(tree, kind, 8, nulls)
    priors = slow.slow_priors(tree, labels)
    tau = config.logit_adjustment
    if kind == "linear":
        adjusted = [z + tau * p[: z.shape[1]] for z, p in zip(raw, priors.ranks, strict=True)]
    else:
        adjusted = [raw[0] + tau * slow.leaf_priors(tree, priors)]
    expected, denominators = slow.slow_sums(config, tree, labels, slowly(tree, kind, adjusted), batch, nulls)
    expected_gradients = gradients(expected, raw)
    assert expected.abs().sum() > 1
    for dtype, digits in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        loss = loss_of(config, tree, labels, nulls, dtype)
        cast = [z.detach().to(dtype).requires_grad_() for z in raw]
        outputs = {"scores": scores_of(tree, kind, cast)}
        sums = loss.sums(outputs, batch)
        assert sums.dtype == dtype
        assert sums.tolist() == pytest.approx(expected.tolist(), rel=digits, abs=digits)
        assert torch.equal(torch.stack(outputs["losses"]), sums)
        assert loss.denominators(loss.valid_counts(batch)).tolist() == pytest.approx(denominators.tolist(), rel=1e-12)
        for found, wanted in zip(gradients(sums, cast), expected_gradients, strict=True):
            assert (found.double() - wanted).abs().max() <= max(digits, 1e-9) * 10 * wanted.abs().max()


@pytest.mark.parametrize("name", ["cross_entropy", "soft_labels", "conditional"])
def test_negative_control_squared_class_weights_change_the_loss(name):
    """The reference with squared weights gives another value."""
    tree, labels = TREES[0]
    config, batch = slow.loss_config(name, **slow.INVERSE), slow.random_batch(tree, labels)
    raw = raw_scores(tree, "linear", 10, False)
    right, wrong = (slow.slow_sums(config, tree, labels, slowly(tree, "linear", raw), batch, False, p)[0] for p in (1, 2))
    assert ((right - wrong).abs() > 1e-2 * right.abs()).all()


@pytest.mark.parametrize("kind", ["linear", "leaves"])
@pytest.mark.parametrize("name", slow.LOSSES)
def test_missing_labels_and_placeholders_give_exactly_0(name, kind):
    tree, labels = TREES[1]
    loss = loss_of(slow.loss_config(name, **slow.INVERSE), tree, labels, False, torch.float32)
    batch = slow.random_batch(tree, labels, 0, 6, mixed=True)
    raw = raw_scores(tree, kind, 6, False, torch.float32, scale=1e4)
    missing = {**batch, "label": torch.full((6, 4), -1), "label2": torch.full((6, 4), -1)}
    for empty in (missing, {**batch, "weight": torch.zeros(6)}):
        sums = loss.sums({"scores": scores_of(tree, kind, raw)}, empty)
        assert not sums.any() and not loss.valid_counts(empty).any()
        assert not any(g.any() for g in gradients(sums, raw))
    some = loss.sums({"scores": scores_of(tree, kind, raw)}, batch)
    assert some.any() and any(g.any() for g in gradients(some, raw)), "negative control"


@pytest.mark.parametrize("name", slow.LOSSES)
def test_micro_batches_add_up_to_the_global_batch(name):
    """Law 3, with the denominators of the whole batch. Negative control: dividing each part by its own denominators."""
    tree, labels = TREES[0]
    loss = loss_of(slow.loss_config(name, **slow.INVERSE), tree, labels, False)
    batch, raw = slow.random_batch(tree, labels, 2, 24, mixed=True), raw_scores(tree, "linear", 24, False)
    weights = torch.tensor([0.5, 1.0, 1.0, 1.5], dtype=torch.float64)
    whole = loss.denominators(loss.valid_counts(batch))

    def total(a, b, own):
        part = {key: value[a:b] for key, value in batch.items()}
        sums = loss.sums({"scores": LinearScores(tree, [z[a:b] for z in raw])}, part)
        return weighted_hierarchical_loss(sums, weights, loss.denominators(loss.valid_counts(part)) if own else whole).item()

    cuts = [(0, 5), (5, 6), (6, 24)]
    parts = [loss.valid_counts({key: value[a:b] for key, value in batch.items()}) for a, b in cuts]
    assert torch.allclose(loss.denominators(sum(parts)), whole, rtol=1e-12)
    assert sum(total(*cut, own=False) for cut in cuts) == pytest.approx(total(0, 24, False), rel=1e-12)
    assert abs(sum(total(*cut, own=True) for cut in cuts) / 3 - total(0, 24, False)) > 1e-3


def test_the_marginal_loss_is_the_mean_likelihood_of_the_finest_labels():
    """Every labelled sample counts once: 94 named to the finest rank and 6 to a coarser one, which have 6 % of the loss."""
    tree, labels = TREES[0]
    whole = labels[labels[:, -1] >= 0]
    label = torch.from_numpy(np.resize(whole, (100, whole.shape[1])).copy())
    finest = len(tree.ranks) - 1
    label[:6, finest] = -1
    raw = raw_scores(tree, "leaves", 100, False)
    scores = scores_of(tree, "leaves", raw)
    loss = loss_of(slow.loss_config("marginal"), tree, label.numpy(), False, torch.float64)
    batch = {"label": label, "weight": torch.ones(100)}
    denominators = loss.denominators(loss.valid_counts(batch))
    total = weighted_hierarchical_loss(loss.sums({"scores": scores}, batch), torch.ones(finest + 1), denominators)
    known = [int((row >= 0).nonzero()[-1]) for row in label]
    log_p = torch.stack(scores.label_log_probs(label)[0], 1)
    assert total.item() == pytest.approx(-log_p[torch.arange(100), known].mean().item(), rel=1e-12)
    assert denominators.tolist() == [100.0] * (finest + 1)


def test_few_labels_of_a_rank_are_not_a_spike_of_its_loss():
    """Every label has the loss 2 in all updates. One photograph in 200 is not named to the finest rank."""
    tree, labels = TREES[0]
    loss, rng, batch_size = loss_of(slow.loss_config("marginal"), tree, labels, False), np.random.default_rng(0), 64
    monitor, named, alarms = HealthMonitor(tree.ranks), labels[(labels[:, -2:] >= 0).all(1)], []
    for first in range(1, 1001, 50):
        rows = []
        for _ in range(50):
            label = np.resize(named, (batch_size, len(tree.ranks))).copy()
            label[rng.random(batch_size) < 0.005, -1] = -1
            finest = np.bincount([(row >= 0).nonzero()[0][-1] for row in label], minlength=len(tree.ranks))
            valid = loss.valid_counts({"label": torch.from_numpy(label), "weight": torch.ones(batch_size)})
            rows.append((torch.from_numpy(2.0 * finest), valid))
        sums, valid = (torch.stack(column) for column in zip(*rows, strict=True))
        losses = UpdateLosses(sums, valid, sums.sum(1, keepdim=True), sums[:, :0], sums.sum(0), valid.sum(0), None)
        alarms += monitor.observe(updates(first + 49, losses, [1.0] * 50, loss.denominators))
    assert alarms == []


@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.5, 2.0])
def test_hxe_weighs_a_decision_by_its_distance_from_the_root(alpha):
    """Finer decisions count less with a positive alpha, as in the code of the authors (Bertinetto et al. 2020)."""
    tree, labels = TREES[0]
    batch = slow.random_batch(tree, labels, 0, 8, False, False)
    raw = raw_scores(tree, "linear", 8, False)
    sums = [
        loss_of(slow.loss_config("conditional", alpha=a), tree, labels, False, torch.float64).sums(
            {"scores": scores_of(tree, "linear", raw)}, batch
        )
        for a in (0.0, alpha)
    ]
    ratios = (sums[1] / sums[0])[sums[0] != 0]
    expected = torch.exp(-alpha * torch.arange(len(sums[0]), dtype=torch.float64))[sums[0] != 0]
    torch.testing.assert_close(ratios, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", ["linear", "leaves"])
@pytest.mark.parametrize("name", slow.LOSSES)
def test_very_improbable_labels_have_exact_gradients(name, kind):
    """The label has log-probability -80, whose probability is 0 in float32. Loss and gradient in float32 equal those of float64."""
    tree, labels = TREES[0]
    config = slow.loss_config(name)
    row = next(i for i in range(len(labels)) if (labels[i] >= 0).all())
    batch = {"label": torch.from_numpy(labels[row : row + 1]), "weight": ONE}
    raw = [torch.zeros_like(z) for z in raw_scores(tree, kind, 1, False)]
    if kind == "linear":
        for r, z in enumerate(raw):
            z[0, labels[row, r]] = -80.0
    else:
        raw[0][0, torch.from_numpy(tree.paths[slow.leaves_of(tree), 0] == labels[row, 0])] = -80.0
    raw = [z.requires_grad_() for z in raw]
    expected, _ = slow.slow_sums(config, tree, labels, slowly(tree, kind, raw), batch, False)
    cast = [z.detach().float().requires_grad_() for z in raw]
    sums = loss_of(config, tree, labels, False, torch.float32).sums({"scores": scores_of(tree, kind, cast)}, batch)
    assert sums.tolist() == pytest.approx(expected.tolist(), rel=1e-5, abs=1e-5) and sums.max() > 10  # 80 x a third of 0.4
    for found, wanted in zip(gradients(sums, cast), gradients(expected, raw), strict=True):
        assert (found.double() - wanted).abs().max() <= 1e-4 * max(wanted.abs().max().item(), 1e-6)
    assert max(g.abs().max() for g in gradients(sums, cast)) > 0.1


def test_the_validation_loss_is_plain_cross_entropy(tree, make_batch):
    batch = make_batch(32, 8, mixed=True)
    logits = [torch.randn(32, size, dtype=torch.float64) for size in tree.sizes]
    plain = TaxonomyLoss(
        slow.loss_config("cross_entropy"), tree, LabelCounts.from_labels(tree, np.zeros((0, 4), np.int64)), dtype=torch.float64
    )
    scores = LinearScores(tree, logits)
    assert torch.allclose(rank_loss_sums(scores, batch), plain.sums({"scores": scores}, batch), rtol=1e-6)
    assert torch.allclose(valid_counts(batch), plain.valid_counts(batch), rtol=1e-12)


def test_the_loss_of_a_rank_depends_only_on_its_own_scores(tree, make_batch):
    batch, logits = make_batch(8, 8), [torch.randn(8, size, requires_grad=True) for size in tree.sizes]
    loss = loss_of(slow.loss_config("label_smoothing"), tree, batch["label"].numpy(), False, torch.float32)
    outputs = {"scores": LinearScores(tree, logits)}
    sums = loss.sums(outputs, batch)
    assert torch.equal(torch.stack(outputs["losses"]), sums)
    own = torch.autograd.grad(outputs["losses"][0], logits, allow_unused=True)
    assert own[0] is not None and own[1:] == (None,) * (len(logits) - 1)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_one_override(name, tree, make_batch):
    config, batch = compose([f"loss={name}"]).loss, make_batch(16, 8, mixed=True)
    loss = loss_of(config, tree, batch["label"].numpy(), False, torch.float32)
    logits = [torch.randn(16, size) for size in tree.sizes]
    with torch.autocast("cpu", torch.bfloat16):
        sums = loss.sums({"scores": LinearScores(tree, [z.bfloat16() for z in logits])}, batch)
    assert sums.dtype == torch.float32 and sums.isfinite().all() and (loss.valid_counts(batch)[3:] > 0).all()
    rounded = LinearScores(tree, [z.bfloat16().float() for z in logits])
    assert torch.equal(sums, loss.sums({"scores": rounded}, batch)), "bf16 scores are summed in float32"


@pytest.mark.parametrize(
    "overrides, nulls, message",
    [
        (["loss.class_weights=effective"], False, "loss.effective_beta"),
        (["loss.effective_beta=0.9"], False, "loss.effective_beta=0.9 has no effect"),
        (["loss.class_weight_cap=3"], False, "loss.class_weight_cap=3.0 has no effect"),
        (["loss=marginal"], True, "head.nulls=ignore"),
    ],
)
def test_contradicting_settings_are_errors(tree, overrides, nulls, message):
    with pytest.raises(ConfigError, match=message) as error:
        loss_of(compose(overrides).loss, tree, np.zeros((0, 4), np.int64), nulls)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", slow.LOSSES)
def test_nothing_waits_for_the_device(name):
    tree, labels = TREES[0]
    loss = loss_of(slow.loss_config(name, **slow.INVERSE), tree, labels, False, torch.float32)
    batch, raw = slow.random_batch(tree, labels, mixed=True), raw_scores(tree, "linear", 10, False, torch.float32)
    loss.sums({"scores": LinearScores(tree, raw)}, batch)  # the first use copies tables to the device
    outputs = {"scores": LinearScores(tree, raw)}
    with Waits() as waits:
        sums = loss.sums(outputs, batch)
        sums.sum().backward()
        assert waits.found == []
        sums[sums > 0].sum().item()  # negative control
    assert len(waits.found) == 2


def test_two_scores_of_a_sample_share_its_loss():
    """With `image_scores` the sums and their gradients are means over both scores."""
    tree, labels = TREES[0]
    batch = slow.random_batch(tree, labels, 0, 8, False, False)
    loss = loss_of(slow.loss_config("label_smoothing"), tree, labels, False)
    raws = [raw_scores(tree, "linear", 8, False, seed=seed) for seed in (0, 1)]
    alone = [loss.sums({"scores": scores_of(tree, "linear", raw)}, batch) for raw in raws]
    outputs = {name: scores_of(tree, "linear", raw) for name, raw in zip(("scores", "image_scores"), raws, strict=True)}
    both = loss.sums(outputs, batch)
    torch.testing.assert_close(both, (alone[0] + alone[1]) / 2)
    assert torch.equal(torch.stack(outputs["losses"]), both) and not torch.allclose(alone[0], alone[1])
    for raw, own in zip(raws, alone, strict=True):
        for found, expected in zip(gradients(both, raw), gradients(own, raw), strict=True):
            torch.testing.assert_close(found, expected / 2)
