"""The mformer network: convolutional stages, then transformer stages that read image, class and metadata tokens together.

    image -> stem -> conv blocks, halving -> grid of image tokens --.
    one learned class token per taxonomic rank ---------------------+-> transformer blocks, halving the grid -> class tokens
    metadata -> one token per component (a learned one if missing) -'

The head of each rank reads the rank's class token; the last block computes only the class tokens. Class and metadata tokens are called
special tokens below. `SIZES` lists the sizes: `micro` learns 48-pixel organisms on two CPU cores in about two minutes, `nano` is for small
photographs on a CPU, the others are comparable to published models of 20 to 100 million parameters.

Norms are over channels, never over the batch, so a sample's result does not depend on its micro-batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnaeus.workloads.repeated_blocks import block_distances, find_repeated_blocks
from linnaeus.workloads.taxonomy.config import MformerConfig
from linnaeus.workloads.taxonomy.models.classifier import TOKEN_STD, DropPath, LateFusion, MetadataEncoder, init_affine

ROTARY_BASE = 100.0  # grids are tens of tokens wide, not thousands: the slowest wave spans about 600 tokens
Stage = tuple[int, int]  # blocks, width


@dataclass(frozen=True)
class Size:
    """Sizes of the layers of a named network. Every stage but the first halves the grid."""

    stride: int  # of the stem, 2 or 4
    convolution: tuple[Stage, ...]
    attention: tuple[Stage, ...]
    head_width: int
    scale: float | None  # initial LayerScale, smaller for deeper nets; None: no LayerScale, shallow nets learn as well without
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


class Mformer(nn.Module):
    """Trunk that maps image, metadata and presence to features [B, R, width], before the final norm."""

    def __init__(self, config: MformerConfig, image_sizes: Sequence[int], ranks: int, components: Sequence[str]) -> None:
        """`image_sizes`: sides of the images in pixels; position tables are stored for them. Images of other sizes can be read, too.
        `ranks`: number of class tokens."""
        super().__init__()
        size = SIZES[config.size]
        blocks = sum(depth for depth, _ in size.convolution + size.attention)
        rates = iter([config.drop_path * i / max(blocks - 1, 1) for i in range(blocks)])  # grow linearly with depth from 0
        self.ranks, self.width, first = ranks, size.attention[-1][1], size.attention[0][1]
        self.stem = stem(size.convolution[0][1], size.stride)
        self.convolution = nn.Sequential(*_conv_layers(size, config.dropout, rates))
        self.stages = nn.ModuleList(_stages(size, config.dropout, rates, ranks + len(components), image_sizes))
        self.widen = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(inputs), nn.Linear(inputs, width)) for (_, inputs), (_, width) in pairwise(size.attention)
        )
        self.class_tokens = nn.Parameter(torch.empty(ranks, first))
        self.metadata = MetadataEncoder(components, config.meta_width, first) if components else None
        self.fusion = LateFusion(self.width, len(components) * first) if components else None

    @property
    def no_decay(self) -> set[str]:
        """Return the names of the learned tokens, which have no weight decay."""
        return {"class_tokens"} | ({"metadata.missing"} if self.metadata is not None else set())

    def layer_distances(self) -> dict[str, int]:
        """Return {parameter name: number of layers between the parameter and the output}. Stem, class tokens and metadata encoder are
        farthest. A layer before a stage has the distance of the stage's first block; the late fusion has 0."""
        found = block_distances(self, find_repeated_blocks(self))
        for name in found:
            if name.startswith("metadata."):
                found[name] = max(found.values())
            elif name.startswith("widen."):
                found[name] = found[f"stages.{int(name.split('.')[1]) + 1}.blocks.0.norm1.weight"]
        return found

    def init_weights(self) -> None:
        """Initialise every parameter, from torch's default generator."""
        nn.init.trunc_normal_(self.class_tokens, std=TOKEN_STD)
        for module in self.modules():
            init_affine(module)
            if isinstance(module, Residual | MetadataEncoder):
                module.init_weights()

    def forward(self, image: Tensor, meta: Tensor, present: Tensor) -> Tensor:
        """Return features [B, R, width] of image [B, 3, H, W], meta [B, F] and present bool [B, M]."""
        grid = self.convolution(self.stem(image))
        special = self.class_tokens.to(grid.dtype).expand(grid.shape[0], -1, -1)
        if self.metadata is not None:
            known = self.metadata(meta, present).to(grid.dtype)
            special = torch.cat([special, known], dim=1)
        for widen, stage in zip(self.widen, self.stages[:-1], strict=True):
            special, grid = stage(special, grid, None)
            special = widen(special)
        features = self.stages[-1](special, grid, self.ranks)[0]
        return features if self.fusion is None else self.fusion(features, known.flatten(1))


def _conv_layers(size: Size, dropout: float, rates: Iterator[float]) -> Iterator[nn.Module]:
    previous = size.convolution[0][1]
    for i, (depth, width) in enumerate(size.convolution):
        if i:
            yield downsample(previous, width)
        for _ in range(depth):
            yield ConvBlock(width, size, dropout, next(rates))
        previous = width


def _stages(size: Size, dropout: float, rates: Iterator[float], special: int, image_sizes: Sequence[int]) -> Iterator[TransformerStage]:
    previous = size.convolution[-1][1]
    stride = size.stride * 2 ** (len(size.convolution) - 1)
    for depth, width in size.attention:
        stride *= 2
        blocks = [TransformerBlock(width, size, dropout, next(rates)) for _ in range(depth)]
        yield TransformerStage(previous, width, blocks, special, sides=[-(-side // stride) for side in image_sizes])
        previous = width


class TransformerStage(nn.Module):
    """Stage that halves the grid and then runs transformer blocks over special tokens and image tokens together."""

    def __init__(self, inputs: int, width: int, blocks: Sequence[TransformerBlock], special: int, sides: Sequence[int]) -> None:
        """`inputs`: channels of the incoming grid. `special`: number of class and metadata tokens. `sides`: numbers of rows (= columns) of
        the halved grid, one for each configured image size."""
        super().__init__()
        self.special, self.sides, self.head_width = special, tuple(dict.fromkeys(sides)), blocks[0].attention.head_width
        self.reduce = downsample(inputs, width)
        self.blocks = nn.ModuleList(blocks)
        for side in self.sides:
            self.register_buffer(f"table{side}", rotary_table(side, side, self.head_width, special), persistent=False)

    def forward(self, special: Tensor, grid: Tensor, queries: int | None) -> tuple[Tensor, Tensor]:
        """Return the class and metadata tokens [B, S, width] and the halved grid [B, width, H/2, W/2]. `special`: the tokens before, [B, S,
        width]. `grid`: [B, inputs, H, W]. With `queries` the last block computes only the first `queries` tokens, and the returned grid is
        empty."""
        grid = self.reduce(grid)
        rows, columns = grid.shape[2:]
        table = self._table(rows, columns)
        tokens = torch.cat([special, grid.flatten(2).transpose(1, 2)], dim=1)
        for block in self.blocks[:-1]:
            tokens = block(tokens, table)
        tokens = self.blocks[-1](tokens, table, queries)
        if queries is not None:
            return tokens, grid[:, :0]
        special, image = tokens.split([self.special, rows * columns], dim=1)
        return special, image.transpose(1, 2).unflatten(2, (rows, columns))

    def _table(self, rows: int, columns: int) -> Tensor:
        """Return the position table of a grid of `rows` x `columns` tokens: the stored table for the configured image sizes, otherwise a
        new table."""
        for side in self.sides:
            if rows == columns == side:
                return self.get_buffer(f"table{side}")
        return rotary_table(rows, columns, self.head_width, self.special).to(self.get_buffer(f"table{self.sides[0]}"))


class TransformerBlock(nn.Module):
    """Transformer block with pre-norm attention and MLP over tokens [B, T, width]. With `queries`, only the first `queries` tokens are
    computed and returned, which costs a fraction of a full block and suffices for the last block (class attention, Touvron et al. 2021)."""

    def __init__(self, width: int, size: Size, dropout: float, drop_path: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, size.head_width)
        self.mlp = perceptron(width, size)
        self.residual1 = Residual(width, size.scale, dropout, drop_path)
        self.residual2 = Residual(width, size.scale, dropout, drop_path)

    def forward(self, x: Tensor, table: Tensor, queries: int | None = None) -> Tensor:
        x = self.residual1(x[:, :queries], self.attention(self.norm1(x), table, queries))
        return self.residual2(x, self.mlp(self.norm2(x)))


class Attention(nn.Module):
    """Multi-head attention over tokens [B, T, width]. Queries come from the first `queries` tokens (None: from all tokens), keys and values
    from all tokens. `table`, a result of `rotary_table`, rotates queries and keys."""

    def __init__(self, width: int, head_width: int) -> None:
        super().__init__()
        self.head_width = head_width
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)

    def forward(self, x: Tensor, table: Tensor, queries: int | None) -> Tensor:
        key, value = self.key_value(x).chunk(2, dim=-1)
        query = rotate(self._heads(self.query(x[:, :queries])), table[:, :queries])
        mixed = F.scaled_dot_product_attention(query, rotate(self._heads(key), table), self._heads(value))
        return self.output(mixed.transpose(1, 2).flatten(2))


def rotary_table(rows: int, columns: int, head_width: int, special: int) -> Tensor:
    """Return cosines and sines [2, special + rows * columns, head_width / 2] of 2-D rotary positions (Su et al. 2021).

    Half of the channel pairs of a head encode the row, half the column. Special tokens have angle 0, so they are not rotated."""
    assert head_width % 4 == 0, "a head has pairs of channels for each of two axes"
    frequency = ROTARY_BASE ** -(torch.arange(head_width // 4, dtype=torch.float64) / (head_width // 4))
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    angle = torch.cat([y.reshape(-1, 1) * frequency, x.reshape(-1, 1) * frequency], dim=1)
    angle = torch.cat([angle.new_zeros(special, angle.shape[1]), angle])
    return torch.stack([angle.cos(), angle.sin()]).float()


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Return x [..., T, head_width] with each channel pair (i, i + head_width / 2) rotated by the angles of a `rotary_table`."""
    cos, sin = table
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)


class ConvBlock(nn.Module):
    """Residual block on a grid [B, width, H, W]: convolution, norm, two-layer perceptron per pixel.

    With kernel 7 and depth-wise convolution this is the block of ConvNeXt (Liu et al. 2022). With kernel 3 and a full convolution the block
    learns more per second of CPU time at few channels."""

    def __init__(self, width: int, size: Size, dropout: float, drop_path: float) -> None:
        super().__init__()
        groups = width if size.depthwise else 1
        self.spatial = nn.Conv2d(width, width, size.kernel, padding=size.kernel // 2, groups=groups)
        self.norm = nn.LayerNorm(width)
        self.mlp = perceptron(width, size)
        self.residual = Residual(width, size.scale, dropout, drop_path)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.mlp(self.norm(self.spatial(x).permute(0, 2, 3, 1)))
        return self.residual(x.permute(0, 2, 3, 1), branch).permute(0, 3, 1, 2)


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of [B, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class Residual(nn.Module):
    """Residual connection `x + drop_path(scale * dropout(branch))`. The first dimension of the tensors is the sample, the last the channel.

    `scale` is the initial LayerScale (Touvron et al. 2021); None: no scale. `drop_path` is the probability of stochastic depth, which drops
    the branch of whole samples. Dropout and stochastic depth draw from torch's global generator, which the loop seeds for each micro-batch
    by its position."""

    def __init__(self, width: int, scale: float | None, dropout: float, drop_path: float) -> None:
        super().__init__()
        self.initial_scale = scale
        self.scale = None if scale is None else nn.Parameter(torch.empty(width))
        self.dropout, self.drop_path = nn.Dropout(dropout), DropPath(drop_path)

    def init_weights(self) -> None:
        if self.scale is not None and self.initial_scale is not None:
            nn.init.constant_(self.scale, self.initial_scale)

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        branch = self.dropout(branch)
        if self.scale is not None:
            branch = branch * self.scale
        return x + self.drop_path(branch)


def perceptron(width: int, size: Size) -> nn.Sequential:
    hidden = int(width * size.expansion)
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


def downsample(inputs: int, width: int) -> nn.Sequential:
    """Return a norm and an overlapping convolution that halves the sides of a grid, rounding up."""
    return nn.Sequential(ChannelNorm(inputs), nn.Conv2d(inputs, width, 3, stride=2, padding=1))


def stem(width: int, stride: int) -> nn.Sequential:
    """Return the layers that map pixels to the first grid: one overlapping convolution for stride 2, two convolutions for stride 4."""
    first = width // (stride // 2)
    convolution = nn.Conv2d(3, first, 3, stride=2, padding=1)
    if stride == 2:
        return nn.Sequential(convolution)
    return nn.Sequential(convolution, ChannelNorm(first), nn.GELU(), nn.Conv2d(first, width, 3, stride=2, padding=1))
