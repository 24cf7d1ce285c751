"""Augmentation on the device: the pixels of the host's pipeline but for one level, exact arithmetic, and independence of the batch."""

import dataclasses

import numpy as np
import pytest
import torch

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.augment import AugmentationPipelineFactory, colour, draws, geometry, on_device
from linnaeus.workloads.taxonomy.augment.on_device import HostDraws, augment_batch, filter_weights
from linnaeus.workloads.taxonomy.augment.pipeline import TrainingPipeline
from tests.workloads.taxonomy.augment.test_augmentation import STANDARD

SIDE = 48
SHAPES = [(256, 341), (341, 256), (500, 375), (100, 130), (SIDE, SIDE), (30, 20), (1, 90), (7, 1)]
PLAIN = dataclasses.replace(STANDARD, brightness=0.0, contrast=0.0, saturation=0.0, vertical_flip=0.5, crop_scale=[0.2, 1.0])
STRONG = dataclasses.replace(STANDARD, vertical_flip=0.5, hue=0.3, erasing=0.5, crop_scale=[0.2, 1.0])


@pytest.fixture(scope="module")
def photographs() -> list[np.ndarray]:
    """Return photographs of noise, the hardest case for a filter: neighbouring pixels are independent."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in SHAPES * 3]


def keys(count: int) -> np.ndarray:
    return draws.sample_keys(3, 5, np.zeros(count, np.int64), np.arange(count))


def test_the_pixels_are_those_of_the_host_but_for_rounding(photographs):
    """Compare with the host: both round weights, rows and result, so a pixel near a half may differ by one level, never by more."""
    host = TrainingPipeline(PLAIN, SIDE)(photographs, keys(len(photographs))).int()
    found = augment_batch(HostDraws(PLAIN, SIDE)(photographs, keys(len(photographs))))
    difference = (found - host).abs()
    assert found.dtype == torch.float32 and torch.equal(found, found.floor())
    assert difference.max() <= 1 and difference.mean() < 0.01


def test_colour_and_erasing_are_those_of_the_host_to_the_last_bit(photographs):
    made = HostDraws(STRONG, SIDE)(photographs, keys(len(photographs)))
    image = augment_batch({name: value for name, value in made.items() if name not in ("colour", "grey", "erase")})
    expected = image.byte().numpy()
    strengths = (STRONG.brightness, STRONG.contrast, STRONG.saturation, STRONG.hue)
    matrices, grey = colour.colour_maps(draws.uniform_draws(keys(len(photographs)), draws.COLOUR, 4), *strengths)
    colour.apply_colour(expected, matrices, grey)
    u = draws.uniform_draws(keys(len(photographs)), draws.ERASE, geometry.ERASE_DRAWS)
    geometry.erase(expected, geometry.erase_boxes(u, SIDE, STRONG.erasing))
    assert np.array_equal(augment_batch(made).byte().numpy(), expected)


def test_a_result_does_not_depend_on_the_batch(photographs, monkeypatch):
    whole = augment_batch(HostDraws(STRONG, SIDE)(photographs, keys(len(photographs))))
    for i in (0, 3, 7, 11):
        assert torch.equal(augment_batch(HostDraws(STRONG, SIDE)(photographs[i : i + 1], keys(len(photographs))[i : i + 1]))[0], whole[i])
    monkeypatch.setattr(on_device, "SAMPLES_AT_ONCE", 5)
    assert torch.equal(augment_batch(HostDraws(STRONG, SIDE)(photographs, keys(len(photographs)))), whole)


@pytest.mark.parametrize("bits", [None, 10])
def test_the_sums_are_exact_and_tf32_is_a_negative_control(photographs, monkeypatch, bits):
    """Compare with products in int64, which give the same pixels. Negative control: weights rounded to TF32 do not."""
    made = HostDraws(PLAIN, SIDE)(photographs, keys(len(photographs)))
    (rows, columns), (up, left) = made["crop_size"].unbind(1), made["mirror"].unbind(1)
    pixels = made["image"].permute(0, 3, 1, 2).long()
    weights = [
        filter_weights(*one).mul(on_device.UNIT).long()
        for one in ((columns, left, SIDE, pixels.shape[3]), (rows, up, SIDE, pixels.shape[2]))
    ]
    half = on_device.UNIT // 2
    narrow = (torch.einsum("bchw,bsw->bchs", pixels, weights[0]) + half) // on_device.UNIT
    expected = (torch.einsum("bchs,brh->bcrs", narrow, weights[1]) + half) // on_device.UNIT
    if bits is not None:
        full = on_device.filter_weights
        monkeypatch.setattr(
            on_device, "filter_weights", lambda *a: (lambda m, e: (m * 2**bits).round().div(2**bits) * 2 ** e.float())(*full(*a).frexp())
        )
    assert torch.equal(augment_batch(made).long(), expected) == (bits is None)


def test_matrices_are_multiplied_in_full_float32_and_the_setting_is_restored(photographs, monkeypatch):
    seen, weights = [], on_device.filter_weights
    monkeypatch.setattr(on_device, "filter_weights", lambda *a: seen.append(torch.get_float32_matmul_precision()) or weights(*a))
    torch.set_float32_matmul_precision("high")
    try:
        augment_batch(HostDraws(PLAIN, SIDE)(photographs[:2], keys(2)))
        assert seen == ["highest"] * 2 and torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_weights_sum_to_one_and_mirroring_reverses_them():
    length = torch.tensor([1, 20, 48, 500])
    plain, mirrored = (filter_weights(length, torch.full((4,), flag), SIDE, 500) for flag in (False, True))
    assert (plain.sum(2) - 1).abs().max() < 2**-12 and torch.equal(mirrored, plain.flip(1))
    assert torch.equal(plain[2, :, :48], torch.eye(48)) and not plain[0, :, 1:].any()
    assert not filter_weights(torch.tensor([0]), torch.tensor([False]), SIDE, 9).any(), "a photograph that cannot be decoded"


def test_where_images_are_augmented():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    policy = dataclasses.replace(STANDARD, policy="randaugment")
    for config, place, device, kind in (
        (STANDARD, "auto", gpu, HostDraws),
        (STANDARD, "auto", cpu, TrainingPipeline),
        (STANDARD, "auto", None, TrainingPipeline),
        (STANDARD, "host", gpu, TrainingPipeline),
        (STANDARD, "device", cpu, HostDraws),
        (policy, "auto", gpu, TrainingPipeline),
    ):
        assert type(AugmentationPipelineFactory(dataclasses.replace(config, place=place), SIDE).build(True, device)) is kind
    with pytest.raises(ConfigError, match=r"augment.place=device cannot apply augment.policy=randaugment; set augment.place=host"):
        AugmentationPipelineFactory(dataclasses.replace(policy, place="device"), SIDE).build(True)
