"""Define the classifier (trunk, final norm, head), and the parts that trunks use: metadata encoder, late fusion, stochastic depth,
initialisation.

All taxonomic ranks share the trunk and the norm. The norm's scale and bias are the last shared parameters, and GradNorm uses the gradients
of these two. The trunk is a separate module, so that `model.trunk.compile()` compiles everything up to the norm and nothing after it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnaeus.checkpoint.initial_weights import InitialWeights
from linnaeus.data.samples import Batch
from linnaeus.distributed import DistributedContext
from linnaeus.workloads.base import Model
from linnaeus.workloads.repeated_blocks import block_distances, find_repeated_blocks
from linnaeus.workloads.taxonomy.heads import Head
from linnaeus.workloads.taxonomy.heads.sharded import shard_head
from linnaeus.workloads.taxonomy.models.place_quantiles import COLUMNS, PlaceQuantiles
from linnaeus.workloads.taxonomy.observations.components import WIDTHS, column_slices

TOKEN_STD = 0.02


class Trunk(Protocol):
    """Network that computes features [B, R, width] or [B, 1, width] from image [B, 3, H, W], metadata [B, F] and presence bool [B, M].

    In training it may return two such features, with the metadata and of the image alone. The loss is then the mean of the losses of
    both."""

    width: int

    @property
    def no_decay(self) -> set[str]: ...

    def init_weights(self) -> None: ...

    def __call__(self, image: Tensor, meta: Tensor, present: Tensor) -> Tensor | tuple[Tensor, Tensor]: ...


class Classifier(Model):
    """Complete network of a run: trunk, norm and head.

    `model(batch)` reads `image`, `meta` and `present` of a prepared batch and returns a dictionary: `scores` (`heads.Scores`), `per_rank`
    [B, R, width] (the normalised features that the head reads) and `features` [B, width] (the normalised features of the finest rank). If
    the trunk returns two features, these outputs are of the first one, and `image_scores` has the scores of the second one."""

    def __init__(self, trunk: Trunk, head: Head, ranks: int, dropout: float) -> None:
        super().__init__()
        self.trunk, self.head, self.ranks = trunk, head, ranks
        self.norm = nn.LayerNorm(trunk.width)
        self.dropout = nn.Dropout(dropout)

    def init_weights(self) -> None:
        """Initialise every parameter from torch's default generator, except parameters with pretrained weights."""
        self.trunk.init_weights()
        nn.init.ones_(self.norm.weight)
        nn.init.zeros_(self.norm.bias)
        self.head.init_weights()

    def forward(self, batch: Batch) -> dict[str, Any]:
        image = batch["image"].to(self.norm.weight.dtype)
        features = self.trunk(image, batch["meta"].to(image.dtype), batch["present"])
        if not isinstance(features, tuple):
            return self._outputs(features)
        fused, alone = map(self._outputs, features)
        return fused | {"image_scores": alone["scores"]}

    def _outputs(self, features: Tensor) -> dict[str, Any]:
        features = self.norm(features)
        per_rank = self.dropout(features).expand(-1, self.ranks, -1)
        return {"scores": self.head(per_rank), "per_rank": per_rank, "features": features[:, -1]}

    def compiled_parts(self) -> list[nn.Module]:
        """Return the trunk. The trunk ends before the norm, so GradNorm's gradients at the norm do not run a compiled backward."""
        return [cast(nn.Module, self.trunk)]

    def repeated_blocks(self) -> list[nn.Module]:
        """Return the repeated blocks of the trunk."""
        return find_repeated_blocks(cast(nn.Module, self.trunk))

    def layer_distances(self) -> dict[str, int]:
        """Return the distances that the trunk defines in a method `layer_distances`, or else those by the order of its blocks."""
        own = getattr(self.trunk, "layer_distances", None)
        found = own() if own is not None else block_distances(cast(nn.Module, self.trunk), self.repeated_blocks())
        return {f"trunk.{name}": distance for name, distance in found.items()}

    def shared_parameters(self) -> list[nn.Parameter]:
        """Return scale and bias of the final norm. Their gradient is not zero at the start of the training. (The gradient of the last
        convolution is zero then, if it is in a residual branch whose scale is initialised to zero.)"""
        return [self.norm.weight, self.norm.bias]

    def head_parameters(self) -> list[list[nn.Parameter]]:
        """Return the parameters of the output layer of each rank, see `Head.task_parameters`."""
        return self.head.task_parameters()

    def shard(self, context: DistributedContext) -> dict[str, int]:
        """With `head.sharded` and several processes, replace the head by the part of it that this process holds."""
        head = shard_head(self.head, context)
        if head is None:
            return {}
        self.head = head
        return {f"head.{name}": rows for name, rows in head.rows.items()}

    def reduced_in_bf16(self) -> set[str]:
        """With `head.reduce_precision=bf16`, return the names of all parameters of the head."""
        return {f"head.{name}" for name, _ in self.head.named_parameters()} if self.head.reduce_precision == "bf16" else set()

    def trunk_parameters(self) -> list[nn.Parameter]:
        """Return all parameters that all ranks share, for exact gradients of each task."""
        return [*cast(nn.Module, self.trunk).parameters(), *self.norm.parameters()]

    @property
    def no_decay(self) -> set[str]:
        """Return the names of parameters without weight decay: norms, biases and scales (all 1-D), and learned tokens."""
        tokens = {f"trunk.{name}" for name in self.trunk.no_decay}
        return {name for name, parameter in self.named_parameters() if parameter.dim() <= 1 or name in tokens}


class MetadataEncoder(nn.Module):
    """Encoder of metadata [B, F] and presence bool [B, M] as tokens [B, M, width], with one small MLP per component.

    The MLP of SPATIAL also reads quantiles of the place among the training photographs (`PlaceQuantiles`), which `fit_places` sets.

    The token of an absent component is learned. The columns of an absent component are set to 0 before the MLP, and the output of the MLP
    is replaced by the learned token. So neither output nor gradient depends on a masked value, even if the value is NaN. Every parameter
    stays in the graph whether components are present or not, as DDP requires."""

    def __init__(self, components: Sequence[str], hidden: int, width: int) -> None:
        super().__init__()
        self.slices = column_slices(components)
        sizes = [columns.stop - columns.start for columns in self.slices]
        self.spatial = components.index("SPATIAL") if "SPATIAL" in components else None
        self.quantiles = None if self.spatial is None else PlaceQuantiles()
        if self.spatial is not None:
            sizes[self.spatial] += COLUMNS
        layers = lambda size: (nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, width), nn.LayerNorm(width))
        self.encoders = nn.ModuleList(nn.Sequential(*layers(size)) for size in sizes)
        self.missing = nn.Parameter(torch.empty(len(sizes), width))

    def init_weights(self) -> None:
        """Initialise the learned tokens, which stand for missing components."""
        nn.init.trunc_normal_(self.missing, std=TOKEN_STD)

    def forward(self, meta: Tensor, present: Tensor) -> Tensor:
        tokens = []
        for m, (encoder, columns) in enumerate(zip(self.encoders, self.slices, strict=True)):
            available = present[:, m : m + 1]
            values = meta[:, columns].masked_fill(~available, 0.0)
            if m == self.spatial and self.quantiles is not None:
                values = torch.cat([values, self.quantiles(values[:, :COLUMNS])], dim=1)
            encoded = encoder(values)
            tokens.append(torch.where(available, encoded, self.missing[m].to(encoded.dtype)))
        return torch.stack(tokens, dim=1)

    def completed(self, state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """Return the weights `state` with the inputs of `PlaceQuantiles` added, if they are those of a program until November 2026, which
        had none. The added weights are 0, so the result of the network is the same as then.

        `prefix`: name of this module in `state`, with a dot at its end."""
        first = f"{prefix}encoders.{self.spatial}.0.weight"
        if self.quantiles is None or first not in state or state[first].shape[1] != WIDTHS["SPATIAL"]:
            return dict(state)
        buffers = {f"{prefix}quantiles.{name}": value.clone() for name, value in self.quantiles.state_dict().items()}
        return {**state, first: F.pad(state[first], (0, COLUMNS)), **buffers}


class LateFusion(nn.Module):
    """Residual MLP that adds metadata to the final features: features [B, R or 1, width] plus an MLP of features and flattened metadata
    tokens [B, M x token width].

    With attention alone the model learns late to use metadata: metadata help to separate species that look alike, and this requires image
    features that are not learned yet. `LateFusion` is a short path from the metadata to the loss, so the metadata encoders get useful
    gradients from the first steps."""

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width + tokens, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, features: Tensor, tokens: Tensor) -> Tensor:
        joined = torch.cat([self.norm(features), tokens.unsqueeze(1).expand(-1, features.shape[1], -1)], dim=2)
        return features + self.mlp(joined)


class DropPath(nn.Module):
    """Stochastic depth (Huang et al. 2016): in training, set whole samples of x [B, ...] to 0 with probability `rate`, and divide the
    others by 1 - `rate` if `scaled`.

    Random numbers are drawn from torch's global generator, which the loop seeds for each micro-batch by its position. At rate 0 none are
    drawn, unless the rate is a tensor."""

    keep: Tensor | None  # float32 [], 1 - rate; None: the rate is a number of Python

    def __init__(self, rate: float, scaled: bool = True) -> None:
        super().__init__()
        self.rate, self.scaled = rate, scaled
        self.register_buffer("keep", None, persistent=False)

    def use_tensor(self, device: torch.device) -> None:
        """Keep the rate in a tensor on `device`, from which a compiled graph reads it. A number of Python would be a constant of the graph,
        and the rates, which grow with depth, would each need a graph of their own."""
        self.keep = torch.tensor(1 - self.rate, device=device)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        shape = (len(x),) + (1,) * (x.dim() - 1)
        if self.keep is not None:
            kept = (torch.rand(shape, device=x.device) < self.keep).to(x.dtype)
            return x * (kept / self.keep.clamp(min=1e-3).to(x.dtype)) if self.scaled else x * kept
        if self.rate == 0:
            return x
        keep = 1 - self.rate
        kept = x.new_empty(shape).bernoulli_(keep)
        return x * (kept / max(keep, 1e-3)) if self.scaled else x * kept


def with_place_inputs(weights: InitialWeights, model: nn.Module) -> InitialWeights:
    """Return weights for `model`, completed by each of its metadata encoders (`MetadataEncoder.completed`)."""
    state: dict[str, Tensor] = weights.state
    for name, module in model.named_modules():
        if isinstance(module, MetadataEncoder):
            state = module.completed(state, f"{name}.")
    return replace(weights, state=state)


def init_affine(module: nn.Module) -> None:
    """Initialise a linear layer, a convolution or a layer norm; leave any other module unchanged.

    Weights are truncated normal with variance 1 / fan_in, which keeps the variance of activations at any width. The usual standard
    deviation of 0.02 suits a width of 768 and above, and is too small for narrow nets."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        std = module.weight[0].numel() ** -0.5
        nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.LayerNorm):
        nn.init.ones_(module.weight)
        nn.init.zeros_(module.bias)
