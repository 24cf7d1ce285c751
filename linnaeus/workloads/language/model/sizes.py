"""Named sizes of the decoder.

They are those of GPT-2 (Radford et al. 2019) and smaller ones for experiments. Parameters at a vocabulary of 50,257, 1,024 learned
positions and no biases: gpt2 124 million, medium 355, large 774, xl 1,557.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from linnaeus.errors import ConfigError

if TYPE_CHECKING:
    from linnaeus.workloads.language.config import GPTConfig


@dataclass(frozen=True)
class Size:
    layers: int
    heads: int
    width: int


SIZES = {
    "gpt_nano": Size(3, 3, 48),
    "gpt_micro": Size(4, 4, 128),  # learns to spell on a laptop's CPU in minutes
    "gpt_mini": Size(6, 6, 192),
    "gpt_baby": Size(6, 6, 384),
    "gpt2": Size(12, 12, 768),
    "gpt2_medium": Size(24, 16, 1024),
    "gpt2_large": Size(36, 20, 1280),
    "gpt2_xl": Size(48, 25, 1600),
}


def size_of(config: GPTConfig) -> Size:
    """Return the named size, with the numbers that the configuration sets. Raise `ConfigError` if the heads do not divide the width."""
    given = {name: value for name in ("layers", "heads", "width") if (value := getattr(config, name)) is not None}
    size = dataclasses.replace(SIZES[config.size], **given)
    if size.width % size.heads:
        raise ConfigError(
            f"model.heads is {size.heads}, which does not divide the width {size.width}; set model.width="
            f"{rounded_up(size.width, size.heads)} or another number of heads"
        )
    return size


def rounded_up(number: int, multiple: int) -> int:
    """Return the next multiple of `multiple`. GPU matrix products are fastest with sides that are multiples of 64 (50,257 -> 50,304)."""
    return -(-number // multiple) * multiple
