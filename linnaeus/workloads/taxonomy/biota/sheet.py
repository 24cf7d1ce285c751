"""A contact sheet of a world for people: a row per species, individuals side by side, ordered and captioned by the tree."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from linnaeus.workloads.taxonomy.biota.draw import draw_forms
from linnaeus.workloads.taxonomy.biota.world import World, build_world

INDIVIDUALS = 6
COLUMNS = 3  # of species, side by side
_CAPTION = 190  # pixels
_PAPER, _INK, _FAINT = (250, 248, 242), (30, 28, 26), (120, 112, 104)


def write_sheet(path: Path, world_number: int, size: int) -> None:
    """Draw the sheet of a world as a PNG, `size` pixels a photograph (never below 48, so that captions fit)."""
    from PIL import Image, ImageDraw

    size = max(size, 48)
    world = build_world(world_number)
    species = len(world.form)
    rows = -(-species // COLUMNS)
    width = COLUMNS * (_CAPTION + INDIVIDUALS * size)
    sheet = Image.new("RGB", (width, rows * size), _PAPER)
    pen = ImageDraw.Draw(sheet)
    for s in range(species):
        left, top = (s // rows) * (width // COLUMNS), (s % rows) * size
        _caption(pen, world, s, left + 6, top + 4)
        samples = np.arange(INDIVIDUALS) + 1000 * s  # everyone its own pose
        strip = draw_forms(world_number, np.full(INDIVIDUALS, world.form[s]), samples, size)
        sheet.paste(Image.fromarray(np.concatenate(list(strip), axis=1)), (left + _CAPTION, top))
    sheet.save(path)


def _caption(pen, world: World, s: int, x: int, y: int) -> None:
    order, family = (world.tree.names[r][c] for r, c in enumerate(world.lineage[s, :2]))
    first = s == 0 or world.lineage[s, 2] != world.lineage[s - 1, 2]
    if first:
        pen.text((x, y), f"{order} · {family}", fill=_FAINT)
    pen.text((x, y + 14), world.tree.names[3][s], fill=_INK)
    kind = f"{world.cryptic_kind[s]} tells it from its twin" if world.cryptic_kind[s] else ""
    pen.text((x, y + 28), f"{100 * world.prior[s]:.2f} %  {kind}", fill=_FAINT)
