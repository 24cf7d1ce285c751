"""A block of the decoder: causal attention and a two-layer perceptron, each behind a norm and beside the residual stream.

While text is generated, keys and values of tokens already read are kept by somebody else (`generation.cache`): a block is then given
`attend`, which takes its new queries, keys and values and answers from all that was read. What else a block may hold must keep to the
same rule: the output at a position depends on positions up to it, and on earlier ones through `attend` alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from linnaeus.workloads.language.model.dimensions import Dimensions
from linnaeus.workloads.language.model.positions import rotate

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # queries, keys and values of new tokens [B, H, T, D] -> answers [B, H, T, D]


class CausalAttention(nn.Module):
    """Every position asks, those up to it answer."""

    def __init__(self, width: int, heads: int, bias: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query_key_value = nn.Linear(width, 3 * width, bias=bias)
        self.output = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor, turns: Tensor | None, attend: Attend | None) -> Tensor:
        """x [B, T, width]; `turns` is a rotary table of the positions, None without."""
        query, key, value = (part.transpose(1, 2) for part in self.query_key_value(x).unflatten(-1, (3, self.heads, -1)).unbind(2))
        if turns is not None:
            query, key = rotate(query, turns), rotate(key, turns)
        if attend is not None:
            answer = attend(query, key, value)
        else:
            dropout = self.dropout if self.training else 0.0
            answer = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropout)
        return self.output(answer.transpose(1, 2).flatten(2))


class Perceptron(nn.Module):
    """Four times as wide inside, GELU by the error function; `approximate` is tanh for what stood for it in GPT-2, else none."""

    def __init__(self, width: int, bias: bool, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate
        self.up = nn.Linear(width, 4 * width, bias=bias)
        self.down = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


class Block(nn.Module):
    """Pre-norm: x + attention(norm x), where there are any x + dimensions(x), then x + perceptron(norm x)."""

    def __init__(
        self, width: int, heads: int, bias: bool, dropout: float, dimensions: Dimensions | None = None, approximate: str = "none"
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
        self.attention = CausalAttention(width, heads, bias, dropout)
        self.dimensions = dimensions
        self.perceptron = Perceptron(width, bias, approximate)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, turns: Tensor | None, attend: Attend | None = None, weights: Tensor | None = None) -> Tensor:
        """`weights` [B, D] or [D] are those of the dimensions; None where the model has none."""
        x = x + self.dropout(self.attention(self.norm1(x), turns, attend))
        if self.dimensions is not None:
            assert weights is not None
            x = x + self.dropout(self.dimensions(x, weights))
        return x + self.dropout(self.perceptron(self.norm2(x)))
