"""Compute signed distances to shapes (negative inside), their anti-aliased coverage, and patterns of marks, vectorised over a batch.

Coordinates are float32 [B, H, W], parameters float32 [B, 1, 1]. Distances are first-order approximations: the error is small near an
outline.
"""

import numpy as np

Array = np.ndarray
Value = np.ndarray | float


def coverage(d: Array, pixel: Array) -> Array:
    """Return the share of each pixel that is inside a shape, in [0, 1]. `d`: signed distance to the shape. `pixel`: width of a pixel in
    units of `d`."""
    return np.clip(0.5 - d / pixel, 0.0, 1.0)


def radius(u: Array, v: Array, cu: Value, cv: Value, a: Value, b: Value) -> Array:
    """Return the elliptic radius of each point (u, v): 0 at the centre (cu, cv), and 1 on the ellipse with half-axes a and b around this
    centre."""
    return np.sqrt(np.square((u - cu) / a) + np.square((v - cv) / b))


def ellipse(u: Array, v: Array, cu: Value, cv: Value, a: Value, b: Value) -> Array:
    """Return the signed distance to the ellipse with centre (cu, cv) and half-axes a, b: the elliptic radius minus 1, times the smaller
    half-axis."""
    return (radius(u, v, cu, cv, a, b) - 1.0) * np.minimum(a, b)


def strand(along: Array, across: Array, start: Value, end: Value, at: Value, slope: Value, bend: Value, thick: Array) -> Array:
    """Return the signed distance to a curved strand of half-width `thick`, which reaches from along = start to along = end.

    Its centre line is across = at + slope x + bend x^2, with x = along - start."""
    x = along - start
    return np.maximum(np.abs(across - (at + x * (slope + bend * x))) - thick, np.maximum(-x, along - end))


def pattern_coverage(c: Array, s: Array, t: Array, r: Array, pixel: Array, phase: Array) -> Array:
    """Return how much of each pixel the marks of a pattern cover, in [0, 1], float32 [B, H, W], from body coordinates.

    s runs along the body (-1 to 1), t across it (0 at the midline, 1 at the edge), r outwards (0 in the middle, 1 at the outline). The
    marks are the region where

            f = a cos(k_s s + k_t t + phase) cos(k_t2 t) + rim r^2 + slope s - eye ((s - s0)^2 + (t - t0)^2) - threshold

    is positive. Which coefficients are not zero determines the kind of pattern: bands, stripes, chevrons, spots, a rim, halves or a saddle.
    One formula for all needs no branch per species. `c` is float32 [B, 12]: a, k_s, k_t, phase, k_t2, rim, slope, eye, s0, t0, threshold
    and steepness. `pixel` (pixel width in body units) and `phase` (added for each individual) are [B, 1, 1]."""
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
