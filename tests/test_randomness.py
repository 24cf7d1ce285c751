"""Position law: golden values of the hash, and the statistical properties that the program relies on."""

import numpy as np
import pytest

from linnaeus.randomness import Draw, hashes, key, permutation, uniforms


def test_golden_values():
    assert key(0, 1, 2) == GOLDEN_KEY
    assert hashes(key(7), np.arange(3)).tolist() == GOLDEN_HASHES
    assert permutation(key(3, 1), 10).tolist() == GOLDEN_PERMUTATION
    draw = Draw(5, 6)
    assert [draw.integer(1000) for _ in range(5)] == GOLDEN_DRAWS


GOLDEN_KEY = 17650578182555822980
GOLDEN_HASHES = [11685031136818296010, 13992891743814637427, 2059971932516929975]
GOLDEN_PERMUTATION = [4, 8, 5, 9, 0, 2, 3, 7, 1, 6]
GOLDEN_DRAWS = [277, 982, 569, 800, 705]


def test_key_depends_on_every_part_and_their_order():
    keys = {key(1, 2, 3), key(3, 2, 1), key(1, 2), key(1, 2, 4), key(0, 1, 2, 3), key(-1)}
    assert len(keys) == 6


def test_uniforms_are_uniform_and_streams_are_independent():
    a, b = uniforms(key(1), np.arange(100_000)), uniforms(key(2), np.arange(100_000))
    assert abs(a.mean() - 0.5) < 0.005 and abs(a.var() - 1 / 12) < 0.002
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.015 and abs(np.corrcoef(a[1:], a[:-1])[0, 1]) < 0.015
    assert a.min() >= 0 and a.max() < 1


def test_permutation_contains_every_index_once():
    p = permutation(key(9), 1000)
    assert sorted(p.tolist()) == list(range(1000))
    assert (p != permutation(key(10), 1000)).any()


def test_draw_moments():
    draw = Draw(11)
    normals = np.array([draw.normal() for _ in range(20_000)])
    betas = np.array([draw.beta(0.4, 0.4) for _ in range(5_000)])
    assert abs(normals.mean()) < 0.03 and abs(normals.std() - 1) < 0.03
    assert abs(betas.mean() - 0.5) < 0.03 and betas.var() == pytest.approx(1 / (4 * 1.8), rel=0.1)


@pytest.mark.parametrize("alpha", [1e-6, 1e-4, 1e-3, 9e-3])
def test_beta_with_a_small_alpha_is_almost_0_or_1(alpha):
    """Both Gamma numbers underflow then. Beta(a, a) has the mean 1/2, and P(1e-3 < x < 1 - 1e-3) is a log(999) + O(a^2)."""
    draw = Draw(12)
    betas = np.array([draw.beta(alpha, alpha) for _ in range(4_000)])
    assert ((betas >= 0) & (betas <= 1)).all() and abs(betas.mean() - 0.5) < 0.04
    assert ((betas < 1e-3) | (betas > 1 - 1e-3)).mean() == pytest.approx(1 - alpha * np.log(999), abs=0.02)
