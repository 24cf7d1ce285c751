"""Show photographs with a heat map and the name of a taxon on an HTML page about single samples."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from linnaeus.data.samples import Batch
from linnaeus.workloads.sample_view import SampleView
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

LARGEST = 160  # side of a photograph on a page, in pixels
SMALL = 64  # photographs below this side are written without loss
PREFIXES = (1, 2, 5)  # tokens before those of the image in models of timm: a class token, with distillation, or with four registers
HEAT = (255, 88, 0)
STRONGEST = 0.8  # opacity of the heat map where it is 1


class PhotographView(SampleView):
    """View of the samples of a taxonomy run: photographs, with the scores and labels of each rank.

    `special`: possible numbers of special tokens before the image tokens of a transformer, such as the number of class tokens, or of class
    and metadata tokens."""

    def __init__(self, tree: TaxonomyTree, name: Callable[[int], str], components: int) -> None:
        super().__init__(name)
        self.special = (len(tree.ranks), len(tree.ranks) + components, *PREFIXES)
        self.tree, self.classes = tree, tree.ranks
        self.outputs = dict(zip(tree.ranks, tree.names, strict=True))

    def scores(self, model: nn.Module, batch: Batch, position: Tensor | None) -> dict[str, Tensor]:
        per_rank = model(batch)["scores"].log_probs()
        return {rank: p[:, : len(names)] for (rank, names), p in zip(self.outputs.items(), per_rank, strict=True)}

    def labels(self, batch: Batch) -> dict[str, Tensor]:
        labels = {rank: batch["label"][:, r] for r, rank in enumerate(self.classes)}
        sizes = {rank: len(names) for rank, names in self.outputs.items()}
        return {rank: torch.where(label < sizes[rank], label, -1) for rank, label in labels.items()}

    def html(self, batch: Batch, row: int, heat: np.ndarray | None) -> str:
        """Return the photograph with the heat map over it, and the name of its finest known taxon, as HTML."""
        image = batch["image"][row].permute(1, 2, 0).numpy()
        taxon = next((names[i] for names, i in zip(self.tree.names[::-1], batch["label"][row].tolist()[::-1]) if 0 <= i < len(names)), "?")
        title = escape(f"{taxon}: {self.name(int(batch['sample'][row]))}")
        grid = None if heat is None else grid_of(heat, self.special)
        over = "" if grid is None else f'<img class="heat" alt="" src="{heat_url(grid)}">'
        focus = "" if grid is None else ' tabindex="0"'  # a page may hide the heat map then
        photo = f'<img alt="{title}" src="{photo_url(image)}">{over}'
        return f'<div class="photo" title="{title}"{focus}>{photo}</div><span>{escape(taxon)}</span>'


def grid_of(heat: np.ndarray, special: Sequence[int]) -> np.ndarray | None:
    """Return a heat map as [H, W]; None if its values are not those of image tokens. `heat`: [H, W], which is returned unchanged, or [T], a
    value per token of a transformer.

    `special`: possible numbers of special tokens at the start of the T tokens (besides 0). The other tokens must be a square of at least 2
    x 2 image tokens. If T itself is in `special`, all tokens are special, and the result is None."""
    if heat.ndim == 2:
        return heat
    side = math.isqrt(len(heat))
    first = len(heat) - side * side
    if side < 2 or len(heat) in special or first not in (0, *special):
        return None
    return heat[first:].reshape(side, side)


def photo_url(pixels: np.ndarray) -> str:
    """Return `pixels`, uint8 [H, W, 3], as a data URL: PNG if the photograph is small (`SMALL`), otherwise JPEG, scaled down to
    `LARGEST`."""
    from PIL import Image

    image = Image.fromarray(pixels)
    image.thumbnail((LARGEST, LARGEST))
    return _url(image, "png") if max(image.size) <= SMALL else _url(image, "jpeg", quality=85)


def heat_url(grid: np.ndarray) -> str:
    """Return a heat map [H, W] as a data URL: one colour, opaque where the map is strong."""
    from PIL import Image

    pixels = np.empty((*grid.shape, 4), np.uint8)
    pixels[..., :3] = HEAT
    pixels[..., 3] = np.rint(255 * STRONGEST * grid.clip(0, 1)).astype(np.uint8)
    return _url(Image.fromarray(pixels), "png")


def _url(image: Any, kind: str, **options: Any) -> str:
    memory = io.BytesIO()
    image.save(memory, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(memory.getvalue()).decode()}"
