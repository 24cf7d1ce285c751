"""Signed distances (negative inside) and cover, vectorised over a batch: float32 [B, H, W] against parameters [B, 1, 1].

Distances are first-order approximations, exact enough for an outline one pixel wide.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def cover(d: Array, pixel: Array) -> Array:
    """Anti-aliased cover in [0, 1] of the inside of `d`, `pixel` being the width of one pixel in the units of `d`."""
    return np.clip(0.5 - d / pixel, 0.0, 1.0)


def radius(u: Array, v: Array, cu: Array | float, cv: Array | float, a: Array | float, b: Array | float) -> Array:
    """Elliptic radius: 0 at (cu, cv), 1 on the ellipse of half-axes a, b."""
    return np.sqrt(np.square((u - cu) / a) + np.square((v - cv) / b))


def ellipse(u: Array, v: Array, cu: Array | float, cv: Array | float, a: Array | float, b: Array | float) -> Array:
    """Distance to an ellipse, scaled by its smaller half-axis."""
    return (radius(u, v, cu, cv, a, b) - 1.0) * np.minimum(a, b)


def strand(
    along: Array,
    across: Array,
    start: Array | float,
    end: Array | float,
    at: Array | float,
    slope: Array | float,
    bend: Array | float,
    thick: Array,
) -> Array:
    """Distance to a curved hair from along=start to end, lying at across = at + slope x + bend x^2, x = along - start."""
    x = along - start
    return np.maximum(np.abs(across - (at + x * (slope + bend * x))) - thick, np.maximum(-x, along - end))
