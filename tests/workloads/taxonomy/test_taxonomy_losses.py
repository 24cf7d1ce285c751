"""Losses: against a slow float64 reference with dense targets; nulls and stand-ins excluded exactly; sums that add up (law 3)."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from linnaeus.workloads.taxonomy.config import LossConfig
from linnaeus.workloads.taxonomy.losses import cross_entropy, loss_sums, valid_counts, weighted_hierarchical_loss


def reference(logits, label, label2, share, smoothing):
    """One sample, a dense target, plain floats."""
    top = max(logits)
    log_z = top + math.log(sum(math.exp(z - top) for z in logits))
    target = [0.0] * len(logits)
    for y, weight in ((label, share), (label2, 1 - share)):
        if y >= 0:
            for c in range(len(logits)):
                target[c] += weight * (smoothing / len(logits) + (1 - smoothing) * (c == y))
    return sum(t * (log_z - z) for t, z in zip(target, logits, strict=True)), sum(target)


def batch_of(count=40, classes=7, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, classes, generator=g, dtype=dtype) * 4
    label, label2 = torch.randint(-1, classes, (2, count), generator=g)
    return logits, label, label2, torch.rand(count, generator=g, dtype=dtype)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("mixed", [False, True])
def test_agrees_with_a_slow_reference(smoothing, mixed):
    logits, label, label2, share = batch_of()
    found = cross_entropy(logits, label, label2 if mixed else None, share if mixed else None, smoothing)
    rows = zip(logits.tolist(), label.tolist(), label2.tolist(), share.tolist(), strict=True)
    expected = [reference(z, y, y2 if mixed else -1, s if mixed else 1.0, smoothing)[0] for z, y, y2, s in rows]
    assert found.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradcheck(smoothing):
    logits, label, label2, share = batch_of(6, 4)
    assert gradcheck(lambda z: cross_entropy(z, label, label2, share, smoothing), logits.requires_grad_())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_nulls_give_exactly_nothing(smoothing):
    logits, label, _, share = batch_of(dtype=torch.float32)
    logits = (logits * 1e4).requires_grad_()
    label[:] = -1
    loss = cross_entropy(logits, label, label, share, smoothing)
    loss.sum().backward()
    assert not loss.any() and not logits.grad.any() and loss.isfinite().all() and logits.grad.isfinite().all()


def test_confidently_wrong_still_learns():
    logits = torch.tensor([[90.0, 0.0, 0.0]], requires_grad=True)
    cross_entropy(logits, torch.tensor([2]), None, None).sum().backward()
    assert logits.grad[0].tolist() == pytest.approx([1, 0, -1], abs=1e-6)


def test_half_precision_scores_are_summed_in_float32():
    logits, label, *_ = batch_of(dtype=torch.float32)
    half = logits.bfloat16()
    assert cross_entropy(half, label, None, None).dtype == torch.float32
    assert torch.equal(cross_entropy(half, label, None, None), cross_entropy(half.float(), label, None, None))
    with torch.autocast("cpu", torch.bfloat16):
        outputs = {"logits": (half,)}
        sums = loss_sums(outputs, {"label": label[:, None], "weight": torch.ones(len(label))}, LossConfig("cross_entropy", 0.1))
    assert sums.dtype == torch.float32


@pytest.mark.parametrize("mixed", [False, True])
def test_sums_and_counts_of_a_batch(tree, make_batch, mixed):
    batch = make_batch(32, 8, mixed=mixed)
    logits = tuple(torch.randn(32, size, dtype=torch.float64) for size in tree.sizes)
    outputs = {"logits": logits}
    sums, counts = loss_sums(outputs, batch, LossConfig("cross_entropy", 0.1)), valid_counts(batch)
    assert torch.equal(outputs["loss_sums"], sums) and not outputs["loss_sums"].requires_grad
    for r in range(4):
        expected = torch.zeros(2, dtype=torch.float64)
        for i, weight in enumerate(batch["weight"].tolist()):
            other = (batch["label2"][i, r].item(), batch["share"][i].item()) if mixed else (-1, 1.0)
            loss, valid = reference(logits[r][i].tolist(), batch["label"][i, r].item(), *other, 0.1)
            expected += weight * torch.tensor([loss, valid], dtype=torch.float64)
        assert [sums[r].item(), counts[r].item()] == pytest.approx(expected.tolist(), rel=1e-12)


def test_micro_batches_add_up_to_the_global_batch(tree, make_batch):
    batch = make_batch(24, 8, mixed=True)
    config, weights = LossConfig("cross_entropy", 0.1), torch.tensor([0.5, 1.0, 1.0, 1.5], dtype=torch.float64)
    logits = [torch.randn(24, size, dtype=torch.float64) for size in tree.sizes]
    denominators = valid_counts(batch)

    def loss_of(rows):
        part = {name: value[rows] for name, value in batch.items()}
        return weighted_hierarchical_loss(loss_sums({"logits": tuple(z[rows] for z in logits)}, part, config), weights, denominators)

    whole = loss_of(slice(0, 24))
    cuts = [(0, 5), (5, 6), (6, 24)]
    assert sum(loss_of(slice(*cut)) for cut in cuts).item() == pytest.approx(whole.item(), rel=1e-12)
    wrong = sum(  # the negative control: each micro-batch divided by its own counts
        weighted_hierarchical_loss(
            loss_sums({"logits": tuple(z[a:b] for z in logits)}, {n: v[a:b] for n, v in batch.items()}, config),
            weights,
            valid_counts({n: v[a:b] for n, v in batch.items()}),
        )
        for a, b in cuts
    )
    assert abs(wrong / 3 - whole) > 1e-3


def test_a_rank_without_labels_adds_zero_and_no_gradient(tree, make_batch):
    batch = make_batch(8, 8)
    batch["label"][:, 2] = -1
    logits = tuple(torch.randn(8, size, requires_grad=True) for size in tree.sizes)
    sums = loss_sums({"logits": logits}, batch, LossConfig("cross_entropy", 0.1))
    weighted_hierarchical_loss(sums, torch.ones(4), valid_counts(batch)).backward()
    assert sums[2] == 0 and logits[2].grad is not None and not logits[2].grad.any()
    assert all(z.grad.isfinite().all() and z.grad.any() for r, z in enumerate(logits) if r != 2)


def test_a_stand_in_changes_nothing(tree, make_batch):
    batch = make_batch(8, 8)
    batch["weight"] = torch.ones(8)
    batch["weight"][3] = 0.0
    logits = [torch.randn(8, size, dtype=torch.float64) for size in tree.sizes]
    keep = [i for i in range(8) if i != 3]
    without = {name: value[keep] for name, value in batch.items()}
    config = LossConfig("cross_entropy", 0.0)
    with_it = loss_sums({"logits": tuple(logits)}, batch, config)
    assert torch.allclose(with_it, loss_sums({"logits": tuple(z[keep] for z in logits)}, without, config), rtol=1e-14)
    assert torch.equal(valid_counts(batch), valid_counts(without))
