"""Test the pipeline of single photographs: a sample is a function of its key (law 1); golden draws, realised distributions, pixels."""

import dataclasses
import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from linnaeus.errors import ConfigError
from linnaeus.randomness import AUGMENT
from linnaeus.workloads.taxonomy.augment import AugmentationPipelineFactory, colour, draws, geometry
from linnaeus.workloads.taxonomy.augment_config import AugmentConfig

CONF = Path(__file__).resolve().parents[4] / "conf/augment"
STANDARD = AugmentConfig(**yaml.safe_load((CONF / "standard.yaml").read_text()))
NONE = AugmentConfig(**yaml.safe_load((CONF / "none.yaml").read_text()))
COLOURS = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}
FULL = dataclasses.replace(STANDARD, crop_scale=[0.3, 1.0], horizontal_flip=0.5, vertical_flip=0.3, erasing=0.4, **COLOURS)


def keys(count, seed=3, epoch=0, first=0):
    return draws.sample_keys(seed, AUGMENT, np.full(count, epoch), np.arange(first, first + count))


def photographs(count, sizes=((48, 48),), seed=0):
    """Return smooth coloured gradients with a bright rectangle off centre, so that every geometric change is visible."""
    rng, out = np.random.default_rng(seed), []
    for i in range(count):
        h, w = sizes[i % len(sizes)]
        y, x = np.mgrid[0:h, 0:w]
        image = np.stack([255 * x / w, 255 * y / h, np.full((h, w), rng.integers(0, 200))], axis=2)
        image[h // 8 : h // 4, w // 8 : w // 3] = rng.integers(100, 255, 3)
        out.append(image.astype(np.uint8))
    return out


def build(config, size=32, training=True):
    return AugmentationPipelineFactory(config, size).build(training)


@pytest.mark.parametrize("policy", ["none", "randaugment", "trivialaugment"])
def test_a_sample_is_a_function_of_its_key_in_any_batch(policy):
    pipeline = build(dataclasses.replace(FULL, policy=policy))
    images, k = photographs(16, ((48, 48), (60, 40), (32, 32))), keys(16)
    whole = pipeline(images, k)
    for cut in (1, 3, 8):
        parts = [pipeline(images[i : i + cut], k[i : i + cut]) for i in range(0, 16, cut)]
        assert torch.equal(torch.cat(parts), whole)
    torch.rand(7)  # other code draws from the global generator
    backwards = pickle.loads(pickle.dumps(pipeline))(images[::-1], k[::-1])
    assert torch.equal(backwards.flip(0), whole)


def test_square_crops_are_copied_where_the_photograph_has_the_size():
    config = dataclasses.replace(NONE, crop_side=0.875)
    images = [np.random.default_rng(i).integers(0, 256, (64, 90, 3) if i % 2 else (100, 64, 3), dtype=np.uint8) for i in range(32)]
    out, places = build(config, size=56)(images, keys(32)), set()
    for image, picture in zip(images, out.permute(0, 2, 3, 1).numpy(), strict=True):
        height, width = image.shape[:2]
        found = [(y, x) for y in range(height - 55) for x in range(width - 55) if np.array_equal(image[y : y + 56, x : x + 56], picture)]
        assert len(found) == 1, "the crop is not a copy of 56 x 56 pixels"
        places |= {(found[0][0] / (height - 56), found[0][1] / (width - 56))}
    assert len(places) > 28 and min(places)[0] < 0.2 and max(places)[0] > 0.8, "the crops are not spread"


def test_square_crops_reach_every_place_alike():
    u = np.random.default_rng(0).random((30_000, geometry.CROP_DRAWS))
    boxes = geometry.square_boxes(np.full((30_000, 2), (10, 12)), u, 0.8)
    assert np.array_equal(boxes[:, 2:] - boxes[:, :2], np.full((30_000, 2), 8.0))
    assert np.allclose(np.bincount(boxes[:, 0].astype(int)) / 30_000, 1 / 5, atol=0.01)
    assert np.allclose(np.bincount(boxes[:, 1].astype(int)) / 30_000, 1 / 3, atol=0.01)
    tiny = geometry.square_boxes(np.array([[1, 7]]), u[:1], 0.3)
    assert (tiny[0, 2:] - tiny[0, :2] == 1).all()


@pytest.mark.parametrize("policy", ["none", "trivialaugment"])
def test_negative_control_another_seed_epoch_or_position_changes_it(policy):
    pipeline = build(dataclasses.replace(FULL, policy=policy))
    images = photographs(8)
    base = pipeline(images, keys(8))
    for other in (keys(8, seed=4), keys(8, epoch=1), keys(8, first=1)):
        changed = (pipeline(images, other) != base).flatten(1).any(1)
        assert changed.all()


def test_golden_draws():
    """Changes with the hash, the streams or the order of the draws; the augmentation of every run then changes too."""
    k = keys(64, seed=11, epoch=2)
    crop = geometry.random_boxes(np.full((64, 2), 100), draws.uniform_draws(k, draws.CROP, geometry.CROP_DRAWS), [0.3, 1.0], [0.75, 1.3333])
    boxes = geometry.erase_boxes(draws.uniform_draws(k, draws.ERASE, geometry.ERASE_DRAWS), 64, 0.5)
    matrices, grey = colour.colour_maps(draws.uniform_draws(k, draws.COLOUR, 4), 0.4, 0.4, 0.4, 0.1)
    flips = draws.uniform_draws(k, draws.FLIP, 2) < 0.5
    text = repr([(np.round(a.astype(np.float64), 6) + 0.0).tolist() for a in (crop, boxes, matrices, grey, flips)])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "065bfab8a87415a1"


def test_operations_do_not_share_draws():
    """Switching one operation on does not change another: with erasing on, pixels that are not erased are as without."""
    images, k = photographs(32), keys(32)
    without = build(dataclasses.replace(FULL, erasing=0.0))(images, k)
    with_erasing = build(dataclasses.replace(FULL, erasing=1.0))(images, k)
    fill = torch.from_numpy(geometry.FILL).view(1, 3, 1, 1)
    erased = (with_erasing == fill).all(1, keepdim=True)
    assert torch.equal(torch.where(erased, without, with_erasing), without)
    assert 0.02 < erased.float().mean() < 0.34


def test_crops_are_inside_and_have_the_configured_area_and_ratio():
    u = draws.uniform_draws(keys(4000), draws.CROP, geometry.CROP_DRAWS)
    sizes = np.tile([[300, 400], [400, 300]], (2000, 1))
    boxes = geometry.random_boxes(sizes, u, [0.2, 0.9], [0.5, 2.0])
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert (boxes[:, :2] >= 0).all() and (boxes[:, 2] <= sizes[:, 1]).all() and (boxes[:, 3] <= sizes[:, 0]).all()
    share = width * height / 120_000
    assert share.min() >= 0.2 - 1e-9 and share.max() <= 0.9 + 1e-9 and share.min() < 0.21 and share.max() > 0.85
    ratio = width / height
    assert ratio.min() >= 0.5 - 1e-9 and ratio.max() <= 2.0 + 1e-9 and abs(np.log(ratio).mean()) < 0.03
    small = geometry.random_boxes(np.full((4000, 2), 100), u, [0.2, 0.2], [1.0, 1.0])  # corners are uniform where all fit
    assert abs(small[:, 0].mean() - (100 - 20**0.5 * 10) / 2) < 1.0


def test_a_crop_that_cannot_fit_is_the_largest_centred_one():
    u = draws.uniform_draws(keys(3), draws.CROP, geometry.CROP_DRAWS)
    boxes = geometry.random_boxes(np.array([[10, 100], [100, 10], [50, 50]]), u, [1.0, 1.0], [1.0, 1.0])
    assert boxes.tolist() == [[45, 0, 55, 10], [0, 45, 10, 55], [0, 0, 50, 50]]


def test_whole_boxes_are_inside_and_never_empty():
    sizes = np.array([[1, 3000], [10, 100], [40, 30], [2, 2]])
    boxes = np.array([[1499.5, 0, 1500.5, 1], [99.9, 9.8, 100, 10], [0.4, 0.5, 29.6, 39.4], [0.2, 1.9, 0.3, 2.0]])
    whole = geometry.whole_boxes(boxes, sizes)
    assert whole.tolist() == [[1500, 0, 1501, 1], [99, 9, 100, 10], [0, 1, 30, 39], [0, 1, 1, 2]]
    images = photographs(500, ((37, 53), (1, 90), (48, 48)))
    u = draws.uniform_draws(keys(500), draws.CROP, geometry.CROP_DRAWS)
    whole = geometry.whole_boxes(geometry.random_boxes(geometry.sizes_of(images), u, [1e-6, 1.0], [0.1, 10.0]), geometry.sizes_of(images))
    assert (whole[:, :2] >= 0).all() and (whole[:, 2:] > whole[:, :2]).all() and (whole[:, 2:] <= geometry.sizes_of(images)[:, ::-1]).all()


def test_flips_are_realised_with_their_probabilities_and_are_flips():
    images, k = photographs(2000, ((16, 16),)), keys(2000)
    base = build(NONE, 16)(images, k)
    flipped = build(dataclasses.replace(NONE, horizontal_flip=0.5, vertical_flip=0.2), 16)(images, k)
    kinds = [base, base.flip(3), base.flip(2), base.flip(2, 3)]
    found = torch.stack([(flipped == kind).flatten(1).all(1) for kind in kinds])
    assert (found.sum(0) == 1).all()
    horizontal, vertical = (found[1] | found[3]).float().mean(), (found[2] | found[3]).float().mean()
    assert abs(horizontal - 0.5) < 0.04 and abs(vertical - 0.2) < 0.03


def test_colour_equals_the_four_operations_in_sequence():
    """Compare with the definitions applied in sequence in float64 without clipping, on colours that stay in range."""
    rng = np.random.default_rng(1)
    images = rng.integers(90, 150, (6, 3, 8, 8)).astype(np.uint8)
    u = draws.uniform_draws(keys(6), draws.COLOUR, 4)
    b, c, s = (0.7 + 0.6 * u[:, i, None, None, None] for i in range(3))
    angle = 2 * np.pi * 0.1 * (2 * u[:, 3, None, None] - 1)
    out = images.copy()
    colour.apply_colour(out, *colour.colour_maps(u, 0.3, 0.3, 0.3, 0.1))
    grey = lambda x: np.einsum("c,bchw->bhw", colour.GREY, x)[:, None]
    x = images * b
    x = c * x + (1 - c) * grey(x).mean((2, 3), keepdims=True)
    x = s * x + (1 - s) * grey(x)
    y, i, q = np.einsum("dc,bchw->dbhw", colour._YIQ, x)
    turned = np.stack([y, np.cos(angle) * i - np.sin(angle) * q, np.sin(angle) * i + np.cos(angle) * q])
    expected = np.einsum("cd,dbhw->bchw", np.linalg.inv(colour._YIQ), turned)
    assert np.abs(out - np.clip(expected, 0, 255)).max() <= 0.502


def test_the_mean_grey_of_an_image_does_not_depend_on_its_batch_in_the_last_bit():
    """Offsets are on the border between two numbers of float32, where the last bit of a mean decides."""
    images = np.random.default_rng(0).integers(0, 256, (200, 3, 6, 6)).astype(np.uint8)
    means = images.sum(axis=(2, 3), dtype=np.int64) / 36
    mean_grey = colour.GREY[0] * means[:, 0] + colour.GREY[1] * means[:, 1] + colour.GREY[2] * means[:, 2]
    factors = (100 - 2**-18 - 0.5) / mean_grey
    for _ in range(4):  # until the product is exact
        factors = np.where(factors * mean_grey + 0.5 < 100 - 2**-18, np.nextafter(factors, np.inf), factors)
    whole, black = images.copy(), np.zeros((200, 3, 3))
    colour.apply_colour(whole, black, factors)
    for size in (1, 3):
        parts = images.copy()
        for first in range(0, 200, size):
            part = slice(first, first + size)
            colour.apply_colour(parts[part], black[part], factors[part])
        assert np.array_equal(parts, whole)


def test_colour_clips_and_leaves_greys_without_hue():
    grey = np.repeat(np.arange(0, 256, 4, dtype=np.uint8).reshape(1, 1, 8, 8), 3, axis=1).repeat(50, axis=0)
    out = grey.copy()
    colour.apply_colour(out, *colour.colour_maps(draws.uniform_draws(keys(50), draws.COLOUR, 4), 0.0, 0.0, 1.0, 0.5))
    assert np.abs(out.astype(int) - grey).max() <= 1
    bright = np.full((50, 3, 8, 8), 250, np.uint8)
    colour.apply_colour(bright, *colour.colour_maps(draws.uniform_draws(keys(50), draws.COLOUR, 4), 0.9, 0.0, 0.0, 0.0))
    assert bright.max() == 255 and bright.min() < 100


def test_erasing_is_realised_with_its_probability_and_area():
    boxes = geometry.erase_boxes(draws.uniform_draws(keys(4000), draws.ERASE, geometry.ERASE_DRAWS), 40, 0.3)
    sides = boxes[:, 2:] - boxes[:, :2]
    erased = sides[:, 0] > 0
    assert abs(erased.mean() - 0.3) < 0.03
    assert boxes.min() >= 0 and boxes.max() <= 40
    area = sides.prod(axis=1)[erased] / 1600
    assert area.min() > 0.01 and area.max() < 0.36 and abs(area.mean() - 0.177) < 0.02


def test_neutral_values_do_not_change_a_picture_of_the_right_size():
    images = photographs(4, ((32, 32),))
    expected = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
    for training in (True, False):
        out = build(NONE, 32, training)(images, keys(4))
        assert torch.equal(out, expected) and out.is_contiguous() and out.dtype == torch.uint8


def test_validation_takes_the_central_square_and_ignores_the_keys():
    image = np.zeros((60, 100, 3), np.uint8)
    image[:, 20:80] = 200  # exactly the central square
    pipeline = build(FULL, 24, training=False)
    assert (pipeline([image], keys(1)) == 200).all()
    assert torch.equal(pipeline(photographs(3), keys(3)), pipeline(photographs(3), keys(3, seed=9)))
    assert pipeline(photographs(1, ((1, 3000),)), keys(1)).shape == (1, 3, 24, 24)


def test_the_central_square_of_validation_may_be_a_share_of_the_short_side():
    image = np.zeros((60, 100, 3), np.uint8)
    image[6:54, 26:74] = 200  # 0.8 of the short side
    smaller = dataclasses.replace(FULL, center_crop=0.8)
    pipeline = build(smaller, 24, training=False)
    assert (pipeline([image], keys(1)) == 200).all()
    assert not (build(FULL, 24, training=False)([image], keys(1)) == 200).all()
    cropped = pipeline(photographs(3), keys(3))
    at_end = AugmentationPipelineFactory(dataclasses.replace(smaller, off_last="10%"), 24).build_at_end(mixing=False)
    assert torch.equal(at_end(photographs(3), keys(3)), cropped)


def test_the_central_square_is_a_square_of_every_photograph():
    """Also of one that has exactly the size of the network's images, as the smaller copy of a photograph in a store may have."""
    sizes = np.array([(128, 171), (171, 128), (100, 101), (24, 24), (1, 2000), (3, 2000)])
    boxes = geometry.central_squares(sizes, 0.9)
    sides = boxes[:, 2:] - boxes[:, :2]
    assert sides.tolist() == [[115, 115], [115, 115], [90, 90], [22, 22], [1, 1], [3, 3]]
    assert np.array_equal(geometry.whole_boxes(boxes, sizes), boxes)
    assert (np.abs(boxes[:, :2] + boxes[:, 2:] - sizes[:, ::-1]) <= 1).all(), "the square is not central"
    image = np.zeros((24, 24, 3), np.uint8)
    image[2:22, 2:22] = 200
    assert (build(dataclasses.replace(NONE, center_crop=20 / 24), 24, training=False)([image], keys(1)) == 200).all()


def test_a_smaller_central_square_makes_an_end_without_augmentation_possible():
    at_end = AugmentationPipelineFactory(dataclasses.replace(NONE, center_crop=0.8, off_last="10%"), 24).build_at_end(mixing=False)
    assert not torch.equal(at_end(photographs(3), keys(3)), build(NONE, 24)(photographs(3), keys(3)))


def test_reduction_is_antialiased():
    stripes = np.zeros((240, 240, 3), np.uint8)
    stripes[:, ::2] = 255
    out = build(NONE, 24, training=False)([stripes], keys(1)).float()
    assert out.std() < 3 and abs(out.mean() - 127.5) < 3


@pytest.mark.parametrize(
    "change", [{"crop_scale": [0.0, 1.0]}, {"crop_scale": [0.5, 1.5]}, {"crop_scale": [0.5]}, {"crop_ratio": [2.0, 1.0]}]
)
def test_impossible_ranges_are_an_error_with_the_key(change):
    with pytest.raises(ConfigError, match=f"augment.{next(iter(change))}"):
        AugmentationPipelineFactory(dataclasses.replace(STANDARD, **change), 32)
