"""mformer: convolutional stages, then transformer stages that read image, class and metadata tokens together.

    image -> stem -> conv blocks, halving -> grid of image tokens --.
    one learned class token per taxonomic rank ---------------------+-> transformer blocks, halving the grid -> class tokens
    metadata -> one token per component (a learned one if missing) -'

Each rank's head reads the rank's own class token; the last block computes no others. `SIZES` names the sizes: `micro` learns
48-pixel organisms on two CPU cores in about two minutes, `nano` is for small photographs on a CPU, the others compare with
published models of 20 to 100 million parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from linnaeus.workloads.taxonomy.config import MformerConfig
from linnaeus.workloads.taxonomy.models.attention import TransformerBlock, rotary_table
from linnaeus.workloads.taxonomy.models.convolution import ConvBlock, downsample, stem
from linnaeus.workloads.taxonomy.models.metadata import TOKEN_STD, LateFusion, MetadataEncoder
from linnaeus.workloads.taxonomy.models.residual import Residual, init_affine

Stage = tuple[int, int]  # blocks, width


@dataclass(frozen=True)
class Size:
    """A named size. Every stage but the first halves the grid."""

    stride: int  # of the stem, 2 or 4
    convolution: tuple[Stage, ...]
    attention: tuple[Stage, ...]
    head_width: int
    scale: float | None  # initial LayerScale, smaller for deeper nets; None: no LayerScale, which shallow ones learn as well without
    kernel: int = 7
    depthwise: bool = True
    expansion: float = 4.0  # hidden over outer width of every two-layer perceptron


SIZES = {
    "micro": Size(2, ((1, 24), (1, 48)), ((2, 128),), 32, None, kernel=3, depthwise=False, expansion=2.0),
    "nano": Size(4, ((2, 32), (2, 64)), ((4, 160), (2, 256)), 32, 0.1),
    "tiny": Size(4, ((2, 64), (2, 128)), ((6, 320), (2, 640)), 32, 0.1),
    "small": Size(4, ((3, 96), (3, 192)), ((5, 384), (2, 768)), 32, 0.1),
    "base": Size(4, ((3, 128), (3, 256)), ((8, 512), (3, 1024)), 64, 1e-2),
    "large": Size(4, ((3, 144), (3, 288)), ((9, 576), (3, 1152)), 64, 1e-2),
}


class TransformerStage(nn.Module):
    """Halves the grid, then runs blocks over the special tokens and the image tokens together."""

    table: Tensor

    def __init__(self, inputs: int, width: int, blocks: Sequence[TransformerBlock], special: int, side: int) -> None:
        """`inputs` channels of the grid; `special` tokens; `side` of the halved grid at the configured image size."""
        super().__init__()
        self.special, self.side, self.head_width = special, side, blocks[0].attention.head_width
        self.reduce = downsample(inputs, width)
        self.blocks = nn.ModuleList(blocks)
        self.register_buffer("table", self._rotary(side, side), persistent=False)

    def _rotary(self, rows: int, columns: int) -> Tensor:
        return rotary_table(rows, columns, self.head_width, self.special)

    def init_weights(self) -> None:
        self.table.copy_(self._rotary(self.side, self.side))

    def forward(self, special: Tensor, grid: Tensor, queries: int | None) -> tuple[Tensor, Tensor]:
        """Special tokens [B, S, width] and grid [B, inputs, H, W] to tokens and a halved grid; with `queries` the last block
        computes that many special tokens only, and the grid comes back empty."""
        grid = self.reduce(grid)
        rows, columns = grid.shape[2:]
        table = self.table if rows == columns == self.side else self._rotary(rows, columns).to(self.table)
        tokens = torch.cat([special, grid.flatten(2).transpose(1, 2)], dim=1)
        for block in self.blocks[:-1]:
            tokens = block(tokens, table)
        tokens = self.blocks[-1](tokens, table, queries)
        if queries is not None:
            return tokens, grid[:, :0]
        special, image = tokens.split([self.special, rows * columns], dim=1)
        return special, image.transpose(1, 2).unflatten(2, (rows, columns))


class Mformer(nn.Module):
    """The trunk: image, metadata and presence to features [B, ranks, width], before the final norm."""

    def __init__(self, config: MformerConfig, image_size: int, ranks: int, components: Sequence[str]) -> None:
        super().__init__()
        size = SIZES[config.size]
        rates = _drop_path_rates(config.drop_path, sum(depth for depth, _ in size.convolution + size.attention))
        self.ranks, self.width, first = ranks, size.attention[-1][1], size.attention[0][1]
        self.stem = stem(size.convolution[0][1], size.stride)
        self.convolution = nn.Sequential(*_conv_layers(size, config.dropout, rates))
        self.stages = nn.ModuleList(_stages(size, config.dropout, rates, ranks + len(components), image_size))
        self.widen = nn.ModuleList(_widen(a, b) for (_, a), (_, b) in pairwise(size.attention))
        self.class_tokens = nn.Parameter(torch.empty(ranks, first))
        self.metadata = MetadataEncoder(components, config.meta_width, first) if components else None
        self.fusion = LateFusion(self.width, len(components) * first) if components else None

    @property
    def no_decay(self) -> set[str]:
        """Names of the learned tokens."""
        return {"class_tokens"} | ({"metadata.missing"} if self.metadata is not None else set())

    def init_weights(self) -> None:
        """Every parameter and buffer, from torch's default generator."""
        nn.init.trunc_normal_(self.class_tokens, std=TOKEN_STD)
        for module in self.modules():
            init_affine(module)
            if isinstance(module, Residual | MetadataEncoder | TransformerStage):
                module.init_weights()

    def forward(self, image: Tensor, meta: Tensor, present: Tensor) -> Tensor:
        """[B, 3, H, W], [B, F] and bool [B, M] to [B, ranks, width]."""
        grid = self.convolution(self.stem(image))
        special = self.class_tokens.to(grid.dtype).expand(len(grid), -1, -1)
        if self.metadata is not None:
            known = self.metadata(meta, present).to(grid.dtype)
            special = torch.cat([special, known], dim=1)
        for widen, stage in zip(self.widen, self.stages[:-1], strict=True):
            special, grid = stage(special, grid, None)
            special = widen(special)
        features = self.stages[-1](special, grid, self.ranks)[0]
        return features if self.fusion is None else self.fusion(features, known.flatten(1))


def _drop_path_rates(largest: float, blocks: int) -> Iterator[float]:
    """Growing linearly with depth from 0."""
    return iter([largest * i / max(blocks - 1, 1) for i in range(blocks)])


def _conv_layers(size: Size, dropout: float, rates: Iterator[float]) -> Iterator[nn.Module]:
    previous = size.convolution[0][1]
    for i, (depth, width) in enumerate(size.convolution):
        if i:
            yield downsample(previous, width)
        for _ in range(depth):
            yield ConvBlock(width, size.kernel, size.depthwise, size.expansion, size.scale, dropout, next(rates))
        previous = width


def _stages(size: Size, dropout: float, rates: Iterator[float], special: int, image_size: int) -> Iterator[TransformerStage]:
    previous = size.convolution[-1][1]
    stride = size.stride * 2 ** (len(size.convolution) - 1)
    for depth, width in size.attention:
        stride *= 2
        blocks = [TransformerBlock(width, size.head_width, size.expansion, size.scale, dropout, next(rates)) for _ in range(depth)]
        yield TransformerStage(previous, width, blocks, special, side=-(-image_size // stride))
        previous = width


def _widen(inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(inputs), nn.Linear(inputs, width))
