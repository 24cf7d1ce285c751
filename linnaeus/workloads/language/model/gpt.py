"""`gpt`: a decoder that predicts the next token at each position.

    tokens -> embedding (+ learned positions) -> dropout -> blocks -> norm -> logits by the embedding's weights, or by a head of its own

`blocks` is a list of modules that map the residual stream [B, T, width] to the residual stream; code that adds layers may extend the list
or replace its entries. By default, architecture and initialisation are those of GPT-2 (Radford et al. 2019). With `model.positions=rotary`,
`rotary_fraction`, `parallel_residual` and `tied_embeddings=false` the architecture is that of GPT-NeoX (Black et al. 2022). Initial weights
are from N(0, 0.02), and from N(0, 0.02 / sqrt(2 layers)) for the matrices of a block that write to the residual stream. `model.dimensions`
adds the adapters of `dimensions.py` to all blocks but the lowest quarter.
"""

import dataclasses
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnaeus.data.samples import Batch
from linnaeus.errors import ConfigError
from linnaeus.workloads.language.config import SIZES, GPTConfig, Size
from linnaeus.workloads.language.model.causal_attention import ROTARY_BASE, Attend, Block, rotary_table
from linnaeus.workloads.language.model.dimensions import Dimensions, ablation_mask, adapter_width
from linnaeus.workloads.language.model.token_loss import token_losses
from linnaeus.workloads.seeded_models import SeededModel, initialised

STD = 0.02
APPROXIMATE = {"erf": "none", "tanh": "tanh"}  # model.gelu -> `approximate` of F.gelu
RESIDUAL_WRITERS = ("attention.output", "perceptron.down", "dimensions.up")  # matrices that write to the residual stream
MASKABLE = tuple(
    f"{matrix}.weight"
    for matrix in ("attention.query_key_value", "attention.output", "perceptron.up", "perceptron.down", "dimensions.down", "dimensions.up")
)


class GPT(SeededModel):
    """A decoder in the architecture of GPT-2 or GPT-NeoX.

    `model(batch)` reads `input`, int64 [B, T] with T up to `block`. Without `target` in the batch it returns `logits` [B, T, rows of the
    embedding]. With `target`, int64 [B, T], -1 where missing, it returns:

    - `losses` [B, T] in float32 (float64 in a float64 model) and their sum `loss_sum` []. The logits are not returned, so their memory is
      free after the loss.
    - outside training also `predictions`, int64 [B, T], the most probable tokens. They cost another pass over the logits.
    - outside training, with dimensions and with `sample` in the batch, also `ablated_losses` [B, T]: the losses with one dimension
      ablated, `sample` mod D (`dimensions.ablation_mask`).

    The dimensions (named adapters, `dimensions.py`) have weights: the entry `dimensions` of the batch, float32 [B, D], or else the weights
    of `set_dimension_weights`. Before `set_dimension_weights` is called, all weights are equal."""

    rotary: Tensor | None  # rotary table [2, block, rotated channels / 2]; None: learned positions
    dimension_weights: Tensor | None  # [D], for batches without weights: those of the run's last update; None without dimensions

    def __init__(self, config: GPTConfig, vocabulary: int, block: int) -> None:
        """`vocabulary` is the number of tokens; `vocabulary_multiple` may add rows to the embedding that are never targets. `block` is the
        longest context in tokens. Raise `ConfigError` for impossible settings."""
        super().__init__()
        self.size, self.vocabulary, self.block = _size(config), vocabulary, block
        self.rotary_base, self.rotary_fraction = _rotary_base(config), config.rotary_fraction
        self.rotary_channels = 0 if self.rotary_base is None else _rotary_channels(config, self.size.width // self.size.heads)
        self.parallel_residual = config.parallel_residual
        width, self.dimensions = self.size.width, tuple(config.dimensions)
        rows = rounded_up(vocabulary, config.vocabulary_multiple)
        self.token = _embedding(rows, width)
        self.position = _embedding(block, width) if self.rotary_base is None else None
        self.register_buffer("rotary", None if self.rotary_base is None else self._rotary_table(), persistent=False)
        self.register_buffer("dimension_weights", torch.empty(len(self.dimensions)) if self.dimensions else None, persistent=False)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(self._block(number, config) for number in range(self.size.layers))
        self.norm = nn.LayerNorm(width, bias=config.bias)
        self.head = None if config.tied_embeddings else nn.Linear(width, rows, bias=False)

    def _block(self, number: int, config: GPTConfig) -> Block:
        width, narrow, dimensions = self.size.width, adapter_width(config, self.size.width), None
        if self.dimensions and number >= self.size.layers // 4:
            dimensions = Dimensions(width, len(self.dimensions), narrow, config.bias)
        gelu = APPROXIMATE[config.gelu]
        return Block(width, self.size.heads, config.bias, config.dropout, dimensions, gelu, config.parallel_residual)

    def _rotary_table(self) -> Tensor:
        assert self.rotary_base is not None
        return rotary_table(self.block, self.rotary_channels, self.rotary_base).float()

    def init_weights(self) -> None:
        """Initialise every parameter and buffer, with torch's default generator."""
        residual_std = STD * (2 * len(self.blocks)) ** -0.5
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=residual_std if name.endswith(RESIDUAL_WRITERS) else STD)
            elif isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
        if self.rotary is not None:
            self.rotary.copy_(self._rotary_table())
        if self.dimension_weights is not None:
            self.dimension_weights.fill_(1 / len(self.dimensions))

    def set_dimension_weights(self, weights: Sequence[float]) -> None:
        """Set the weights [D] of the dimensions (named adapters) that are used for batches without the entry `dimensions`."""
        assert self.dimension_weights is not None and len(weights) == len(self.dimensions)
        self.dimension_weights.copy_(torch.tensor(weights))

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        weights = batch.get("dimensions", self.dimension_weights)  # None without dimensions
        if "target" not in batch:
            return {"logits": self.logits(self.features(batch["input"], weights=weights))}
        outputs: dict[str, Tensor] = {}
        if weights is not None and "sample" in batch and not self.training:
            features = self.features(batch["input"], weights=weights * ~ablation_mask(batch["sample"], len(self.dimensions)))
            outputs["ablated_losses"] = token_losses(self.logits(features), batch["target"])
        logits = self.logits(self.features(batch["input"], weights=weights))
        outputs["losses"] = token_losses(logits, batch["target"])
        outputs["loss_sum"] = outputs["losses"].sum()  # inside the compiled part: outside, a step of a small model takes 13 % longer
        return outputs if self.training else outputs | {"predictions": logits.argmax(-1)}

    def features(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        attend: Sequence[Attend] | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Return features [B, T, width] after the final norm, from int64 tokens [B, T].

        `positions`: int64 [B, T], positions of the tokens; default 0 to T - 1. `attend`: one function per block that computes the attention
        in place of the block. `weights`: weights of the dimensions (named adapters), [B, D] or [D]; default: the weights of
        `set_dimension_weights`."""
        x = self.token(tokens)
        if self.position is not None:
            x = x + (self.position.weight[: tokens.shape[1]] if positions is None else self.position(positions))
        x = self.dropout(x)
        rotary, weights = self.rotary, self.dimension_weights if weights is None else weights
        if rotary is not None:
            rotary = rotary[:, : tokens.shape[1]] if positions is None else rotary[:, positions].unsqueeze(2)
        for i, block in enumerate(self.blocks):
            x = block(x, rotary, None if attend is None else attend[i], weights)
        return self.norm(x)

    def logits(self, features: Tensor) -> Tensor:
        """Return logits [..., rows of the embedding] from `features` [..., width]. Some last rows may only pad the embedding."""
        return F.linear(features, self.token.weight if self.head is None else self.head.weight)

    def shared_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the final norm, after the last block."""
        return list(self.norm.parameters())

    def trunk_parameters(self) -> list[nn.Parameter]:
        """Return all parameters, because there is one task."""
        return list(self.parameters())

    @property
    def no_decay(self) -> set[str]:
        """Return the names of norms and biases. Every matrix, the embeddings included, is decayed."""
        return {name for name, parameter in self.named_parameters() if parameter.dim() < 2}

    def maskable_parameters(self) -> list[str]:
        """Return the names of the matrices that may start sparse and become denser (`growth=linear`): the matrices of attention, perceptron
        and adapters. Embedding, head, positions and gates are excluded, because one of their weights affects a whole token, position
        or dimension."""
        return [name for name, _ in self.named_parameters() if name.endswith(MASKABLE)]

    def flops_per_token(self, length: int) -> int:
        """Return the floating-point operations of forward and backward for one token in a context of `length`: 6 N + 12 L H Q T.

        N is the number of parameters without those that are only looked up (learned positions, an embedding that is not the head too), T is
        `length`. The model has L layers with H heads of width Q. 6 stands for a multiplication and an addition, once in forward and twice
        in backward. (Chowdhery et al. 2022, "PaLM", appendix B; the half of the attention that causality makes unnecessary is not
        deducted.)"""
        weights = sum(parameter.numel() for parameter in self.parameters())
        weights -= self.position.weight.numel() if self.position is not None else 0
        weights -= self.token.weight.numel() if self.head is not None else 0
        return 6 * weights + 12 * self.size.layers * self.size.width * length

    def flops_per_sample(self) -> int:
        """Return the floating-point operations of forward and backward for one sample, a window of `block` tokens."""
        return self.block * self.flops_per_token(self.block)


def build_gpt(config: GPTConfig, seed: int, vocabulary: int, block: int) -> GPT:
    """Return the network of `config` on the CPU, with weights that are a function of `seed`.

    `vocabulary` is the number of tokens, `block` the longest context in tokens. Raise `ConfigError` for impossible settings."""
    return initialised(lambda: GPT(config, vocabulary, block), seed)


def rounded_up(number: int, multiple: int) -> int:
    """Return `number` rounded up to a multiple of `multiple`. GPU matrix products are fastest with sides that are multiples of 64 (50,257
    -> 50,304)."""
    return -(-number // multiple) * multiple


def _size(config: GPTConfig) -> Size:
    """Return the layers, heads and width of the named size, replaced by `layers`, `heads` and `width` where the configuration sets them.
    Raise `ConfigError` if the heads do not divide the width."""
    given = {name: value for name in ("layers", "heads", "width") if (value := getattr(config, name)) is not None}
    size = dataclasses.replace(SIZES[config.size], **given)
    if size.width % size.heads:
        raise ConfigError(
            f"model.heads is {size.heads}, which does not divide the width {size.width}; set model.width="
            f"{rounded_up(size.width, size.heads)} or another number of heads"
        )
    return size


def _embedding(rows: int, width: int) -> nn.Embedding:
    """Return an embedding with uninitialised weights. On the meta device torch's own initialisation would import the compiler, which takes
    1.6 s."""
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)


def _rotary_base(config: GPTConfig) -> float | None:
    """Return the base of the rotary angles; None for learned positions. Raise `ConfigError` for a rotary setting with learned positions,
    where it has no effect."""
    if config.positions == "rotary":
        return ROTARY_BASE if config.rotary_base is None else config.rotary_base
    if config.rotary_base is not None:
        raise ConfigError(f"model.rotary_base={config.rotary_base:g} has no effect with model.positions=learned; use null or rotary")
    if config.rotary_fraction != 1:
        raise ConfigError(f"model.rotary_fraction={config.rotary_fraction:g} has no effect with model.positions=learned; use 1 or rotary")
    return None


def _rotary_channels(config: GPTConfig, head_width: int) -> int:
    """Return the number of channels of a head that are rotated. Raise `ConfigError` if it is not an even number from 2 on."""
    channels = int(head_width * config.rotary_fraction)
    if channels < 2 or channels % 2:
        raise ConfigError(
            f"model.positions=rotary needs an even number of rotated channels per head, not {channels} of {head_width}; change "
            "model.heads, width or rotary_fraction"
        )
    return channels
