"""Draws photographs of individuals: a pure function of (world, sample number), vectorised over a batch.

Pose, scale, position, tilt, bend, light, backdrop and small individual differences are nuisances, independent of the species.
"""

from __future__ import annotations

import numpy as np

from linnaeus.randomness import SYNTHETIC, key, uniforms
from linnaeus.workloads.taxonomy.biota import backdrop
from linnaeus.workloads.taxonomy.biota.individuals import species_of
from linnaeus.workloads.taxonomy.biota.patterns import marks
from linnaeus.workloads.taxonomy.biota.plans import PLANS, Figure
from linnaeus.workloads.taxonomy.biota.shapes import Array, cover
from linnaeus.workloads.taxonomy.biota.world import build_world

DRAWS = 64  # uniform numbers an individual's photograph is made from
CHUNK = 16  # photographs drawn at once: at 48 pixels an array of them is 150 kB and stays in the cache of a core


def draw(world: int, samples: Array, size: int) -> Array:
    """uint8 [B, size, size, 3] photographs of individuals `samples` (int64 [B])."""
    return draw_forms(world, build_world(world).form[species_of(build_world(world), samples)], samples, size)


def draw_forms(world: int, forms: Array, samples: Array, size: int) -> Array:
    """As `draw`, of the given form numbers (int64 [B]) instead of the individuals' own."""
    out = np.empty((len(samples), size, size, 3), np.uint8)
    plans = build_world(world).forms.plan[forms]
    for plan in np.unique(plans):
        rows = np.flatnonzero(plans == plan)
        for start in range(0, len(rows), CHUNK):
            part = rows[start : start + CHUNK]
            out[part] = _photographs(world, int(plan), forms[part], samples[part], size)
    return out


def nuisances(world: int, samples: Array) -> Array:
    """float32 [B, DRAWS] uniform numbers of each individual."""
    place = np.asarray(samples, np.int64)[:, None] * DRAWS + np.arange(DRAWS)
    return uniforms(key(world, SYNTHETIC, 9), place).astype(np.float32)


def _photographs(world: int, plan: int, forms: Array, samples: Array, size: int) -> Array:
    draws = nuisances(world, samples)
    axis = (np.arange(size, dtype=np.float32) + 0.5) * (2.0 / size) - 1.0
    y, x = np.meshgrid(axis, axis, indexing="ij")
    canvas = backdrop.paint(world, PLANS[plan].backdrop, x[None], y[None], draws[:, 24:48])
    u, v, pixel, light = _pose(x[None], y[None], draws, PLANS[plan].turns)
    table = build_world(world).forms
    shape = table.shape[forms] * (1.0 + 0.07 * (draws[:, 8:16] - 0.5))
    figure = PLANS[plan].figure(u, v, [shape[:, i, None, None] for i in range(8)], pixel)
    _cast_shadow(canvas, figure, draws)
    _paint(canvas, figure, _pigments(table, forms, draws), table.pattern[forms], pixel, light, draws)
    backdrop.blade(canvas, PLANS[plan].backdrop, x[None], y[None], draws[:, 56:60])  # one in front, often out of the picture
    return _expose(canvas, x, y, world, draws)


def _pose(x: Array, y: Array, draws: Array, turns: float) -> tuple[Array, Array, Array, tuple[Array, Array]]:
    """Body coordinates of every pixel, the width of a pixel in them, and the direction of the light in the body's frame."""
    d = draws[:, :, None, None]
    angle = 2 * np.pi * turns * (2 * d[:, 0] - 1)
    scale = 0.48 + 0.40 * d[:, 1]
    dx, dy = x - 0.64 * (d[:, 2] - 0.5), y - 0.64 * (d[:, 3] - 0.5)
    ca, sa = np.cos(angle), np.sin(angle)
    u, v = (dx * ca + dy * sa) / scale, (dy * ca - dx * sa) / scale
    v = v / (0.74 + 0.26 * d[:, 4]) + (d[:, 5] - 0.5) * 0.20 * u  # tilted away, seen askew
    v = v + (d[:, 6] - 0.5) * 0.24 * u * u  # bent
    turn = 2 * np.pi * d[:, 7] - angle
    return u, v, (2.0 / x.shape[-1]) / scale, (np.cos(turn), np.sin(turn))


def _cast_shadow(canvas: Array, figure: Figure, draws: Array) -> None:
    """Darken the backdrop close to the body."""
    depth = 0.25 + 0.35 * draws[:, 16, None, None]
    canvas *= 1.0 - depth * np.square(np.clip(1.0 - figure.body / 0.28, 0, 1))


def _pigments(table, forms: Array, draws: Array) -> dict[str, Array]:
    """float32 [B, 3] of each named colour, the individual's own shade of its form's."""
    shade = (0.86 + 0.28 * draws[:, 17:20])[:, None, :]
    own = {name: np.clip(getattr(table, name)[forms] * shade[:, 0], 0, 1) for name in ("ground", "mark", "accent")}
    ground = own["ground"]
    fixed = {"dark": (0.13, 0.10, 0.08), "black": (0.03, 0.03, 0.04), "pale": (0.92, 0.91, 0.84), "green": (0.30, 0.45, 0.16)}
    own |= {name: np.broadcast_to(np.array(rgb, np.float32), ground.shape) for name, rgb in fixed.items()}
    own["fin"] = 0.6 * own["accent"] + 0.4 * ground
    own["stalk"] = 0.5 * ground + 0.5 * np.array((0.42, 0.34, 0.18), np.float32)
    return own


def _blend(canvas: Array, alpha: Array, rgb: Array, light: Array | float = 1.0) -> None:
    for c in range(3):
        canvas[c] += alpha * (rgb[:, c, None, None] * light - canvas[c])


def _paint(
    canvas: Array, figure: Figure, pigments: dict[str, Array], pattern: Array, pixel: Array, light: tuple[Array, Array], draws: Array
) -> None:
    """Lay the figure over the canvas: what is under the body, the body with its marks, what is over it."""
    lean = light[0] * np.clip(figure.along, -1.2, 1.2) + light[1] * np.clip(figure.side, -1.2, 1.2)
    dome = 1.0 - np.clip(figure.rim, 0, 1.1) ** 2
    lit = 0.84 + 0.20 * dome + 0.20 * lean
    for alpha, name in figure.under:
        _blend(canvas, alpha, pigments[name], 0.85 + 0.15 * lit)
    phase = (draws[:, 20, None, None] - 0.5) * 0.7
    mark = marks(pattern, figure.along, np.abs(figure.side), figure.rim, pixel, phase)
    alpha = cover(figure.body, pixel)
    lit *= 1.0 - 0.35 * np.clip(1.0 + figure.body / 0.07, 0, 1)  # the outline, as an illustrator would ink it
    for c in range(3):
        ground, marked = pigments["ground"][:, c, None, None], pigments["mark"][:, c, None, None]
        canvas[c] += alpha * ((ground + mark * (marked - ground)) * lit - canvas[c])
    for cover_, name in figure.over:
        _blend(canvas, cover_, pigments[name], lit if name == "accent" else 1.0)
    if figure.gloss:
        spot = np.square(figure.along - 0.45 * light[0]) + np.square(figure.side - 0.45 * light[1])
        canvas += figure.gloss * alpha * np.square(np.clip(1.0 - 5.0 * spot, 0, 1))


def _expose(canvas: Array, x: Array, y: Array, world: int, draws: Array) -> Array:
    """Light the scene from a side, tint it, add grain, and quantise: uint8 [B, H, W, 3]."""
    d = draws[:, :, None, None]
    angle = 2 * np.pi * d[:, 49]
    fall = (0.62 + 0.58 * d[:, 48]) * (1.0 + 0.40 * d[:, 50] * (np.cos(angle) * x + np.sin(angle) * y))
    grain = backdrop.crop(world, 2, draws[:, 53:55], x.shape[-1]) * (0.015 + 0.03 * d[:, 55])
    warm = 0.22 * (d[:, 51] - 0.5)
    out = np.empty((*canvas.shape[1:], 3), np.uint8)
    for c, tint in enumerate((1.0 + warm, 1.0 + 0.05 * (d[:, 52] - 0.5), 1.0 - warm)):
        out[..., c] = np.clip((canvas[c] * (fall * tint) + grain) * 255.0 + 0.5, 0, 255)
    return out
