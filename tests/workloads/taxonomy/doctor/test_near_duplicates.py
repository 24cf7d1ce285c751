"""`near_pairs` against a comparison of all pairs, and the perceptual hash against its definition."""

import numpy as np
import pytest
from PIL import Image

from linnaeus.workloads.taxonomy.biota.__main__ import biota_config
from linnaeus.workloads.taxonomy.biota.biota_source import build_source
from linnaeus.workloads.taxonomy.doctor import near_duplicates
from linnaeus.workloads.taxonomy.doctor.near_duplicates import near_pairs
from linnaeus.workloads.taxonomy.doctor.perceptual_hash import perceptual_hashes, resampled


def clusters(count, size, changed, seed=0):
    """Return distinct hashes: `count` random ones with `size` variants of each, in which up to `changed` bits differ; shuffled."""
    random = np.random.default_rng(seed)
    hashes = random.integers(0, 2**64, count, dtype=np.uint64)
    variants = [hashes]
    for _ in range(size):
        bits = np.array([random.permutation(64) < random.integers(0, changed + 1) for _ in range(count)])
        variants.append(hashes ^ np.packbits(bits, axis=1).view(np.uint64)[:, 0])
    return random.permutation(np.unique(np.concatenate(variants)))


def all_near_pairs(hashes, distance):
    different = np.bitwise_count(hashes[:, None] ^ hashes[None])
    i, j = np.nonzero(np.triu(different <= distance, 1))
    return set(zip(i.tolist(), j.tolist(), different[i, j].tolist(), strict=True))


def found_pairs(hashes, distance):
    pairs = [
        (min(i, j), max(i, j), bits)
        for block in near_pairs(hashes, distance)
        for i, j, bits in zip(*(column.tolist() for column in block), strict=True)
    ]
    assert len(set(pairs)) == len(pairs), "a pair was found twice"
    return set(pairs)


@pytest.mark.parametrize("distance", [0, 1, 3, 8, 10])
def test_every_pair_within_the_distance_is_found_once(distance):
    hashes = clusters(count=80, size=20, changed=14)
    expected = all_near_pairs(hashes, distance)
    assert found_pairs(hashes, distance) == expected and (len(expected) > 100 or distance < 2)


def test_hashes_that_share_a_band_are_compared_in_blocks(monkeypatch):
    monkeypatch.setattr(near_duplicates, "CHUNK", 1000)
    random = np.random.default_rng(1)
    crowded = [random.integers(0, 1 << 30, 300, dtype=np.uint64) << np.uint64(shift) for shift in (0, 17, 34)]
    hashes = random.permutation(np.unique(np.concatenate([*crowded, clusters(count=20, size=8, changed=8)])))
    assert found_pairs(hashes, 8) == all_near_pairs(hashes, 8)
    blocks = [len(left) for left, _ in near_duplicates._candidates(np.zeros(300, np.int32), 22, 2)]
    assert sum(blocks) == 300 * 299 // 2 and max(blocks) <= 1000 + 300


def test_hashes_without_a_pair_and_distances_that_cannot_be_searched():
    assert not found_pairs(np.zeros(0, np.uint64), 8) and not found_pairs(np.array([5], np.uint64), 8)
    for distance in (-1, 13):
        with pytest.raises(ValueError, match="from 0 to 12"):
            list(near_pairs(np.zeros(0, np.uint64), distance))


@pytest.fixture(scope="module")
def photographs():
    source = build_source(biota_config(train=24, validation=8, size=64))
    return [Image.fromarray(pixels) for pixels in source.images.read(np.arange(32))]


def hash_of(image):
    return perceptual_hashes(resampled(np.asarray(image.convert("L"), dtype=np.float32), 32, 32)[None])[0]


def defined_hash(image):
    """Return the hash by its definition, from Pillow's resampling and the sum of cosines of each coefficient."""
    grey = np.asarray(image.convert("L").resize((32, 32), Image.Resampling.LANCZOS), dtype=float)
    place = (2 * np.arange(32) + 1) * np.pi / 64
    low = [[(grey * np.outer(np.cos(u * place), np.cos(v * place))).sum() for v in range(8)] for u in range(8)]
    bits = np.ravel(low) > np.median(low)
    return sum(1 << (63 - i) for i in np.flatnonzero(bits).tolist())


def test_the_hash_is_the_one_of_its_definition(photographs):
    different = [(int(hash_of(image)) ^ defined_hash(image)).bit_count() for image in photographs]
    assert max(different) <= 4 and np.mean(different) <= 1, different  # Pillow rounds the resampled pixels


def test_the_hash_of_a_copy_is_near_and_that_of_another_photograph_is_not(photographs):
    for image in photographs:
        small = image.resize((48, 48)).point(lambda value: min(255, value + 10))
        assert (int(hash_of(image)) ^ int(hash_of(small))).bit_count() <= 8
    own = np.array([hash_of(image) for image in photographs], dtype=np.uint64)
    assert not all_near_pairs(own, 5)
