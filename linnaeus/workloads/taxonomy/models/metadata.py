"""Metadata encoders: a vector per component, and a learned token in the place of what is missing or masked."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from linnaeus.workloads.taxonomy.components import column_slices

TOKEN_STD = 0.02


class MetadataEncoder(nn.Module):
    """One small MLP per component; [B, F] and presence [B, M] to tokens [B, M, width].

    Absent columns are blanked before the MLPs and their result is replaced after: neither output nor gradient can depend
    on a masked value, be it NaN. Every parameter stays in the graph whatever is present."""

    def __init__(self, components: Sequence[str], hidden: int, width: int) -> None:
        super().__init__()
        self.slices = column_slices(components)
        sizes = [columns.stop - columns.start for columns in self.slices]
        self.encoders = nn.ModuleList(
            nn.Sequential(nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, width), nn.LayerNorm(width)) for size in sizes
        )
        self.missing = nn.Parameter(torch.empty(len(sizes), width))

    def init_weights(self) -> None:
        nn.init.trunc_normal_(self.missing, std=TOKEN_STD)

    def forward(self, meta: Tensor, present: Tensor) -> Tensor:
        tokens = []
        for m, (encoder, columns) in enumerate(zip(self.encoders, self.slices, strict=True)):
            here = present[:, m : m + 1]
            encoded = encoder(meta[:, columns].masked_fill(~here, 0.0))
            tokens.append(torch.where(here, encoded, self.missing[m].to(encoded.dtype)))
        return torch.stack(tokens, dim=1)


class LateFusion(nn.Module):
    """Adds to features [B, R or 1, width] what they and the metadata tokens, [B, M x token width] flattened, say together.

    Attention alone finds the metadata late: species that look alike differ in nothing else, and until the picture is understood
    there is little to gain from place and date. This path is short, so their gradient arrives from the first steps on."""

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width + tokens, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, features: Tensor, tokens: Tensor) -> Tensor:
        together = torch.cat([self.norm(features), tokens.unsqueeze(1).expand(-1, features.shape[1], -1)], dim=2)
        return features + self.mlp(together)
