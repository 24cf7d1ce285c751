"""Patterns of marks as one formula, so that a batch of unlike species needs no branches.

On body coordinates s (along, -1 to 1), t (across, 0 at the midline to 1 at the edge) and r (0 in the middle, 1 at the outline)

    f = a cos(k_s s + k_t t + phase) cos(k_t2 t) + rim r^2 + slope s - eye ((s - s0)^2 + (t - t0)^2) - threshold

is positive on a mark: bands, stripes, chevrons, spots, a rim, halves or a saddle, by which coefficients are not zero.
"""

from __future__ import annotations

import numpy as np


def marks(c: np.ndarray, s: np.ndarray, t: np.ndarray, r: np.ndarray, pixel: np.ndarray, phase: np.ndarray) -> np.ndarray:
    """float32 [B, H, W] cover of the marks in [0, 1]; `c` float32 [B, 12], `pixel` and `phase` (the individual's) [B, 1, 1]."""
    a, ks, kt, ph, kt2, rim, slope, eye, s0, t0, threshold, steep = (c[:, i, None, None] for i in range(12))
    f = np.cos(ks * s + (kt * t + (ph + phase))) * a
    if np.any(kt2):
        f *= np.cos(kt2 * t)
    f += rim * (r * r)
    f += slope * s
    if np.any(eye):
        f -= eye * (np.square(s - s0) + np.square(t - t0))
    f -= threshold
    width = np.maximum(1.2 * steep * pixel, 0.12)  # one pixel, in units of f, for a half-body about 0.5 wide
    f /= width
    f += 0.5
    return np.clip(f, 0, 1, out=f)
