"""Draw the background of an organism: two natural colours mixed by noise at three scales, and a few blades or twigs.

The noise is cropped, at a random position for each individual, from tiles that are computed once per world. A crop costs only a copy.
"""

from functools import lru_cache

import numpy as np

from linnaeus.randomness import SYNTHETIC, key, uniforms
from linnaeus.workloads.taxonomy.biota.shapes import Array

TILE = 512  # a power of two, several photographs wide
GROUNDS: dict[str, tuple[tuple[float, float, float], ...]] = {
    "bark": ((0.35, 0.26, 0.18), (0.62, 0.54, 0.42), (0.28, 0.36, 0.16), (0.55, 0.55, 0.52), (0.74, 0.66, 0.48), (0.40, 0.48, 0.26)),
    "foliage": ((0.20, 0.32, 0.12), (0.42, 0.54, 0.24), (0.58, 0.60, 0.38), (0.36, 0.30, 0.20), (0.60, 0.66, 0.66), (0.30, 0.40, 0.32)),
    "water": ((0.16, 0.34, 0.42), (0.42, 0.58, 0.58), (0.62, 0.58, 0.42), (0.20, 0.38, 0.26), (0.34, 0.42, 0.52), (0.50, 0.50, 0.46)),
    "litter": ((0.40, 0.28, 0.18), (0.58, 0.46, 0.30), (0.70, 0.68, 0.62), (0.32, 0.30, 0.28), (0.66, 0.58, 0.44), (0.30, 0.34, 0.22)),
}


@lru_cache(maxsize=4)
def tiles(world: int) -> Array:
    """Return three layers of periodic value noise for a world, float32 [3, TILE, TILE], with values of about -1 to 1. The grids of the
    layers have 32, 96 and 512 cells per side."""
    layers = []
    line = np.arange(TILE)
    rotated = ((line[:, None] + line) % TILE, (line[:, None] - line) % TILE)  # by 45 degrees: the sum hides the grid
    for i, cells in enumerate((32, 96, TILE)):
        grid = uniforms(key(world, SYNTHETIC, 8, i), np.arange(cells * cells)).reshape(cells, cells).astype(np.float32) * 2 - 1
        place = np.arange(TILE, dtype=np.float32) * (cells / TILE)
        low = place.astype(np.int64)
        blend = place - low
        blend = blend * blend * (3 - 2 * blend)
        rows = grid[low] * (1 - blend)[:, None] + grid[(low + 1) % cells] * blend[:, None]
        layer = rows[:, low] * (1 - blend) + rows[:, (low + 1) % cells] * blend
        layers.append(layer if cells == TILE else 0.65 * (layer + layer[rotated]))
    return np.stack(layers)


def crop(world: int, layer: int, place: Array, size: int, zoom: int = 1) -> Array:
    """Return one window of the noise layer number `layer` per individual, float32 [B, size, size]. Windows wrap around.

    `place`: [B, 2], row and column of the upper left corner as fractions of the layer's side, in [0, 1). `zoom`: step in the layer from one
    pixel of the window to the next; 1 reads every value, n every n-th."""
    span = size * zoom
    tile = _wrapped_tile(world, layer, span)
    corners = (place * TILE).astype(np.int64)
    return np.stack([tile[row : row + span : zoom, column : column + span : zoom] for row, column in corners.tolist()])


@lru_cache(maxsize=12)
def _wrapped_tile(world: int, layer: int, margin: int) -> Array:
    """Return the noise layer number `layer`, continued periodically by `margin` values, float32 [TILE + margin, TILE + margin]."""
    return np.pad(tiles(world)[layer], (0, margin), "wrap")


def paint_background(world: int, kind: str, x: Array, y: Array, draws: Array) -> Array:
    """Return RGB backgrounds, float32 [3, B, H, W], in colours of `GROUNDS[kind]`, with three blades.

    `world`: number of the world, which sets the noise. `draws`: uniform in [0, 1), [B, 24]. `x`, `y`: image coordinates in [-1, 1]."""
    grounds = np.array(GROUNDS[kind], np.float32)
    d = draws[:, :, None, None]
    first = (draws[:, 0] * len(grounds)).astype(np.int64)
    second = (first + 1 + (draws[:, 1] * (len(grounds) - 1)).astype(np.int64)) % len(grounds)
    size = x.shape[-1]
    zoom = max(1, 128 // size)
    coarse = crop(world, 0, draws[:, 2:4], size, zoom)
    middle = crop(world, 1, draws[:, 4:6], size, zoom)
    fine = crop(world, 2, draws[:, 6:8], size)
    angle = 2 * np.pi * d[:, 8]
    mix = 0.5 + 0.45 * (np.cos(angle) * x + np.sin(angle) * y) + (0.3 + 0.5 * d[:, 9]) * coarse
    np.clip(mix, 0, 1, out=mix)
    grain = 1.0 + (0.10 + 0.25 * d[:, 10]) * middle + 0.07 * fine
    out = np.empty((3, *mix.shape), np.float32)
    for c in range(3):
        low, high = grounds[first, c][:, None, None], grounds[second, c][:, None, None]
        np.multiply(low + mix * (high - low), grain, out=out[c])
    for i in range(11, 23, 4):
        paint_blade(out, kind, x, y, draws[:, i : i + 4])
    return out


def paint_blade(canvas: Array, kind: str, x: Array, y: Array, draws: Array) -> None:
    """Paint a curved strip, brighter on one side, on `canvas` in place, in one of the colours `GROUNDS[kind]`.

    canvas: float32 [3, B, H, W], RGB. x, y: image coordinates in [-1, 1], broadcast to [B, H, W]. draws: uniform in [0, 1), [B, 4]."""
    grounds = np.array(GROUNDS[kind], np.float32)
    q = draws[:, :, None, None]
    angle = np.pi * q[:, 0]
    ca, sa = np.cos(angle), np.sin(angle)
    along = x * ca + y * sa
    across = y * ca - x * sa - (q[:, 1] * 2.2 - 1.1) - (q[:, 2] - 0.5) * 0.6 * along * along
    wide = 0.02 + 0.10 * q[:, 3] * q[:, 2]
    alpha = np.clip((wide - np.abs(across)) * (0.5 * x.shape[-1]) + 0.5, 0, 1)
    colour = grounds[(draws[:, 0] * 977 % len(grounds)).astype(np.int64)]
    light = 0.95 + 0.35 * across / wide
    for c in range(3):
        canvas[c] += alpha * (colour[:, c, None, None] * light - canvas[c])
