"""Test the mixing of pairs: the draws, and the result on the device, compared with a slow reference."""

import dataclasses
import hashlib

import numpy as np
import torch

from linnaeus.workloads.taxonomy.augment.mixing import PairMixing
from linnaeus.workloads.taxonomy.inputs.preparation import MEAN, STD, BatchPreparation, masking_counts, mix_images, partner_rows
from tests.workloads.taxonomy.augment.test_augmentation import STANDARD

SIZE = 20
SLICES = (slice(0, 2), slice(2, 3), slice(3, 6))
NAMES = ("SPATIAL", "TEMPORAL", "ELEVATION")


def draw(config=STANDARD, count=2000, probability=1.0, present=None, allowed=None, seed=5, epoch=0):
    present = np.random.default_rng(0).random((count, 3)) < 0.6 if present is None else present
    allowed = np.ones(count, bool) if allowed is None else allowed
    mixing = PairMixing(config, seed, SIZE)
    return mixing.draw(np.full(count, epoch), np.arange(count), np.full(count, probability), allowed, present), present


def test_probability_kind_and_share_are_realised():
    drawn, _ = draw(dataclasses.replace(STANDARD, mixup_alpha=0.4, cutmix_share=0.3), count=6000, probability=0.7)
    assert np.array_equal(drawn.mixed[::2], drawn.mixed[1::2])
    assert abs(drawn.mixed.mean() - 0.7) < 0.03
    cut = drawn.box[:, 2] > drawn.box[:, 0]
    assert not cut[~drawn.mixed].any() and (drawn.share[~drawn.mixed] == 1).all() and not drawn.pick[~drawn.mixed].any()
    assert abs(cut[drawn.mixed].mean() - 0.3) < 0.03
    blended = drawn.share[drawn.mixed & ~cut][::2]
    assert abs(blended.mean() - 0.5) < 0.03 and abs(blended.var() - 0.25 / (2 * 0.4 + 1)) < 0.015  # Beta(a, a): 1 / (4 (2a + 1))


def test_an_alpha_of_0_leaves_only_the_other_method():
    blend_only, _ = draw(dataclasses.replace(STANDARD, cutmix_alpha=0.0), count=200)
    assert (blend_only.box == 0).all() and blend_only.mixed.all()


def test_the_share_of_cutmix_is_the_exact_kept_area():
    drawn, _ = draw(dataclasses.replace(STANDARD, mixup_alpha=0.0))
    assert (drawn.box[:, 2] > drawn.box[:, 0]).all()
    image = torch.ones(len(drawn.share), 3, SIZE, SIZE, dtype=torch.float64)
    image[1::2] = 0.0  # one sample of each pair is white, the other black
    mix_images(image, torch.from_numpy(drawn.share), torch.from_numpy(drawn.box), partner_rows(len(image), image.device))
    kept = torch.where(torch.arange(len(image)) % 2 == 0, image[:, 0].mean((1, 2)), 1 - image[:, 0].mean((1, 2)))
    assert torch.allclose(kept, torch.from_numpy(drawn.share).double(), atol=1e-7)
    assert 0.3 < kept.mean() < 0.75 and kept.min() < 0.1 and kept.max() > 0.9


def test_components_come_whole_from_one_sample():
    drawn, present = draw(count=8000)
    other = present[np.arange(8000) ^ 1]
    assert not drawn.pick[~other].any()  # a component the partner does not have is never taken
    assert drawn.pick[other & ~present].all()  # a component only the partner has is always taken
    given = np.repeat((1 - drawn.share)[:, None], 3, 1)  # the share of the partner
    for low, high in ((0.0, 0.1), (0.1, 0.4), (0.4, 0.6), (0.6, 0.9), (0.9, 1.0)):
        both = other & present & (given >= low) & (given <= high)
        assert both.sum() > 200 and abs(drawn.pick[both].mean() - given[both].mean()) < 0.06


def test_golden_draws():
    """Changes with the hash, the stream or the order of the draws; the mixing of every run then changes too."""
    drawn, _ = draw(count=64, probability=0.7, present=np.ones((64, 3), bool), seed=11, epoch=2)
    text = repr([drawn.share.round(5).tolist(), drawn.box.tolist(), drawn.pick.tolist()])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "bdce254dc39933ae"


def batch_of(count=12, seed=0, probability=0.8):
    rng = np.random.default_rng(seed)
    drawn, present = draw(count=count, probability=probability)
    arrays = {
        "image": rng.integers(0, 256, (count, 3, SIZE, SIZE)).astype(np.uint8),
        "label": rng.integers(-1, 5, (count, 2)),
        "label2": rng.integers(-1, 5, (count, 2)),
        "meta": rng.normal(size=(count, 6)).astype(np.float32),
        "present": present,
        "mask": rng.random((count, 3)) < 0.3,
        "share": drawn.share,
        "box": drawn.box,
        "pick": drawn.pick,
        "weight": np.ones(count, np.float32),
    }
    return {k: torch.from_numpy(v) for k, v in arrays.items()}


def reference(batch, masked=()):
    """Return the prepared batch, computed sample by sample and pixel by pixel in float64."""
    n = len(batch["image"])
    x = (batch["image"].double().numpy() / 255 - np.array(MEAN).reshape(3, 1, 1)) / np.array(STD).reshape(3, 1, 1)
    image, meta = x.copy(), np.zeros((n, 6))
    present = np.zeros((n, 3), bool)
    for i in range(n):
        j, share = i ^ 1, float(batch["share"][i])
        top, left, bottom, right = batch["box"][i].tolist()
        if bottom > top:
            image[i, :, top:bottom, left:right] = x[j, :, top:bottom, left:right]
        else:
            image[i] = share * x[i] + (1 - share) * x[j]
        for m, columns in enumerate(SLICES):
            source = j if batch["pick"][i, m] else i
            present[i, m] = batch["present"][source, m] and not batch["mask"][i, m] and NAMES[m] not in masked
            if present[i, m]:
                meta[i, columns] = batch["meta"][source, columns].double().numpy()
    return image, meta, present


def test_the_device_does_what_a_slow_reference_does():
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        for masked in ((), ("TEMPORAL",)):
            batch = batch_of()
            before = {k: v.clone() for k, v in batch.items()}
            out = BatchPreparation(NAMES, SLICES, dtype)(batch, masked)
            image, meta, present = reference(batch, masked)
            assert out["image"].dtype == out["meta"].dtype == out["share"].dtype == dtype
            assert np.abs(out["image"].numpy() - image).max() < tolerance
            assert np.array_equal(out["present"].numpy(), present) and np.array_equal(out["meta"].double().numpy(), meta)
            assert all(torch.equal(batch[k], before[k]) for k in before), "the host batch must not change"
            assert not {"box", "pick", "mask"} & set(out)


def test_masking_comes_after_mixing():
    """A masked component stays hidden even if the partner has it. Negative control: without the mask it is present."""
    batch = batch_of(2, probability=1.0)
    batch["present"] = torch.tensor([[False] * 3, [True] * 3])
    batch["pick"] = torch.tensor([[True] * 3, [False] * 3])
    batch["mask"] = torch.tensor([[True, False, True], [False] * 3])
    prepare = BatchPreparation(NAMES, SLICES)
    out = prepare(batch)
    assert out["available"][0].tolist() == [True] * 3 and out["present"][0].tolist() == [False, True, False]
    assert out["meta"][0, [0, 1, 3, 4, 5]].eq(0).all() and out["meta"][0, 2] == batch["meta"][1, 2]
    batch["weight"] = torch.tensor([1.0, 0.0])
    assert masking_counts(prepare(batch)).tolist() == [[1, 1, 1], [0, 1, 0]]


def test_a_validation_batch_is_not_mixed_and_hides_the_masked_components():
    batch = {k: v for k, v in batch_of().items() if k in ("image", "label", "meta", "present", "weight")}
    prepare = BatchPreparation(NAMES, SLICES)
    assert torch.equal(prepare(batch)["present"], batch["present"])
    hidden = prepare(batch, NAMES)
    assert not hidden["present"].any() and hidden["meta"].eq(0).all()
    assert torch.equal(prepare(batch, ("SPATIAL",))["present"][:, 1:], batch["present"][:, 1:])


def test_an_odd_last_row_is_not_mixed_and_a_batch_may_have_no_components():
    none = torch.zeros(5, 0, dtype=torch.bool)
    batch = batch_of(5, probability=0.0) | {"present": none, "pick": none, "mask": none, "meta": none.float()}
    out = BatchPreparation((), ())(batch)
    plain = BatchPreparation((), ())({k: batch[k] for k in ("image", "meta", "present")})
    assert torch.equal(out["image"], plain["image"]) and out["meta"].shape == (5, 0)
