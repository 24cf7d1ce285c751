"""Render photographs of individuals, as a pure function of (world, individual number), vectorised over a batch.

Pose, scale, position, tilt, bend, light, background and small individual differences are nuisance variables, independent of the species.
"""

import numpy as np

from linnaeus.randomness import SYNTHETIC, key, uniforms
from linnaeus.workloads.taxonomy.biota import background
from linnaeus.workloads.taxonomy.biota.body_plans import BODY_PLANS, Figure
from linnaeus.workloads.taxonomy.biota.individuals import species_of
from linnaeus.workloads.taxonomy.biota.shapes import Array, coverage, pattern_coverage
from linnaeus.workloads.taxonomy.biota.world import Forms, build_world

DRAWS = 64  # uniform numbers per individual
CHUNK = 16  # photographs per chunk: at 48 pixels an array of a chunk has 150 kB and stays in the cache of a core


def render(world: int, samples: Array, size: int) -> Array:
    """Return RGB photographs of the individuals `samples` (int64 [B]): uint8 [B, size, size, 3]."""
    organisms = build_world(world)
    return render_forms(world, organisms.form[species_of(organisms, samples)], samples, size)


def render_forms(world: int, forms: Array, samples: Array, size: int) -> Array:
    """Return photographs like `render`, but of organisms with the form numbers `forms`, int64 [B].

    `samples`, int64 [B]: individual numbers, which set the pose, the light and the background."""
    out = np.empty((len(samples), size, size, 3), np.uint8)
    plans = build_world(world).forms.plan[forms]
    for plan in np.unique(plans):
        rows = np.flatnonzero(plans == plan)
        for start in range(0, len(rows), CHUNK):
            part = rows[start : start + CHUNK]
            out[part] = _render_chunk(world, int(plan), forms[part], samples[part], size)
    return out


def nuisance_draws(world: int, samples: Array) -> Array:
    """Return the uniform numbers that set the nuisance variables (pose, light, background) of each individual, float32 [B, DRAWS]."""
    index = np.asarray(samples, np.int64)[:, None] * DRAWS + np.arange(DRAWS)
    return uniforms(key(world, SYNTHETIC, 9), index).astype(np.float32)


def _render_chunk(world: int, plan: int, forms: Array, samples: Array, size: int) -> Array:
    """Return photographs, uint8 [B, size, size, 3], of individuals whose forms all have the body plan number `plan`."""
    draws = nuisance_draws(world, samples)
    axis = (np.arange(size, dtype=np.float32) + 0.5) * (2.0 / size) - 1.0
    y, x = np.meshgrid(axis, axis, indexing="ij")
    canvas = background.paint_background(world, BODY_PLANS[plan].background, x[None], y[None], draws[:, 24:48])
    u, v, pixel, light = _pose(x[None], y[None], draws)
    table = build_world(world).forms
    shape = table.shape[forms] * (1.0 + 0.07 * (draws[:, 8:16] - 0.5))
    figure = BODY_PLANS[plan].figure(u, v, [shape[:, i, None, None] for i in range(8)], pixel)
    depth = 0.25 + 0.35 * draws[:, 16, None, None]
    canvas *= 1.0 - depth * np.square(np.clip(1.0 - figure.body / 0.28, 0, 1))  # shadow close to the body
    _paint(canvas, figure, _pigments(table, forms, draws), table.pattern[forms], pixel, light, draws)
    background.paint_blade(canvas, BODY_PLANS[plan].background, x[None], y[None], draws[:, 56:60])  # in front, often outside the picture
    return _expose(canvas, x, y, world, draws)


def _pose(x: Array, y: Array, draws: Array) -> tuple[Array, Array, Array, tuple[Array, Array]]:
    """Return the body coordinates u and v of each pixel, the pixel width in body units, and the direction of the light as (cos, sin)
    relative to the body."""
    d = draws[:, :, None, None]
    angle = np.pi * (2 * d[:, 0] - 1)
    scale = 0.48 + 0.40 * d[:, 1]
    dx, dy = x - 0.64 * (d[:, 2] - 0.5), y - 0.64 * (d[:, 3] - 0.5)
    ca, sa = np.cos(angle), np.sin(angle)
    u, v = (dx * ca + dy * sa) / scale, (dy * ca - dx * sa) / scale
    v = v / (0.74 + 0.26 * d[:, 4]) + (d[:, 5] - 0.5) * 0.20 * u  # tilt and shear
    v = v + (d[:, 6] - 0.5) * 0.24 * u * u  # bend
    light_angle = 2 * np.pi * d[:, 7] - angle
    return u, v, (2.0 / x.shape[-1]) / scale, (np.cos(light_angle), np.sin(light_angle))


def _pigments(table: Forms, forms: Array, draws: Array) -> dict[str, Array]:
    """Return colour name -> RGB, float32 [B, 3]: the ground, mark and accent colours of each form with a small individual variation,
    colours derived from these, and fixed colours."""
    shade = (0.86 + 0.28 * draws[:, 17:20])[:, None, :]
    colours = {name: np.clip(getattr(table, name)[forms] * shade[:, 0], 0, 1) for name in ("ground", "mark", "accent")}
    ground = colours["ground"]
    fixed = {"dark": (0.13, 0.10, 0.08), "black": (0.03, 0.03, 0.04), "pale": (0.92, 0.91, 0.84), "green": (0.30, 0.45, 0.16)}
    colours |= {name: np.broadcast_to(np.array(rgb, np.float32), ground.shape) for name, rgb in fixed.items()}
    colours["fin"] = 0.6 * colours["accent"] + 0.4 * ground
    colours["stalk"] = 0.5 * ground + 0.5 * np.array((0.42, 0.34, 0.18), np.float32)
    return colours


def _blend(canvas: Array, alpha: Array, rgb: Array, light: Array | float = 1.0) -> None:
    """Blend the colours `rgb` [B, 3] into the canvas in place, with opacity `alpha` [B, H, W]. `light`: factor of the colours, [B, H, W] or
    a number."""
    for c in range(3):
        canvas[c] += alpha * (rgb[:, c, None, None] * light - canvas[c])


def _paint(
    canvas: Array, figure: Figure, pigments: dict[str, Array], pattern: Array, pixel: Array, light: tuple[Array, Array], draws: Array
) -> None:
    """Paint the figure on the canvas in place: the layers under the body, the body with its marks, the layers over it."""
    lean = light[0] * np.clip(figure.along, -1.2, 1.2) + light[1] * np.clip(figure.side, -1.2, 1.2)
    dome = 1.0 - np.clip(figure.rim, 0, 1.1) ** 2
    lit = 0.84 + 0.20 * dome + 0.20 * lean
    for alpha, name in figure.under:
        _blend(canvas, alpha, pigments[name], 0.85 + 0.15 * lit)
    phase = (draws[:, 20, None, None] - 0.5) * 0.7
    mark = pattern_coverage(pattern, figure.along, np.abs(figure.side), figure.rim, pixel, phase)
    alpha = coverage(figure.body, pixel)
    lit *= 1.0 - 0.35 * np.clip(1.0 + figure.body / 0.07, 0, 1)  # dark outline
    for c in range(3):
        ground, marked = pigments["ground"][:, c, None, None], pigments["mark"][:, c, None, None]
        canvas[c] += alpha * ((ground + mark * (marked - ground)) * lit - canvas[c])
    for layer_alpha, name in figure.over:
        _blend(canvas, layer_alpha, pigments[name], lit if name == "accent" else 1.0)
    if figure.gloss:
        spot = np.square(figure.along - 0.45 * light[0]) + np.square(figure.side - 0.45 * light[1])
        canvas += figure.gloss * alpha * np.square(np.clip(1.0 - 5.0 * spot, 0, 1))


def _expose(canvas: Array, x: Array, y: Array, world: int, draws: Array) -> Array:
    """Return the finished photographs, uint8 [B, H, W, 3]: the canvas lit from one side, tinted, with added grain, and quantised."""
    d = draws[:, :, None, None]
    angle = 2 * np.pi * d[:, 49]
    fall = (0.62 + 0.58 * d[:, 48]) * (1.0 + 0.40 * d[:, 50] * (np.cos(angle) * x + np.sin(angle) * y))
    grain = background.crop(world, 2, draws[:, 53:55], x.shape[-1]) * (0.015 + 0.03 * d[:, 55])
    warm = 0.22 * (d[:, 51] - 0.5)
    out = np.empty((*canvas.shape[1:], 3), np.uint8)
    for c, tint in enumerate((1.0 + warm, 1.0 + 0.05 * (d[:, 52] - 0.5), 1.0 - warm)):
        out[..., c] = np.clip((canvas[c] * (fall * tint) + grain) * 255.0 + 0.5, 0, 255)
    return out
