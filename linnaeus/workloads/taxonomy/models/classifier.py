"""The classifier: a trunk, the final shared norm, and the heads of every taxonomic rank.

The norm's scale and bias are the last parameters all ranks share, so gradients of GradNorm are taken there. The trunk is
a module of its own so that it can be compiled up to that point (`model.trunk.compile()`) while the rest stays separate.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

from torch import Tensor, nn

from linnaeus.data.samples import Batch
from linnaeus.workloads.base import Model
from linnaeus.workloads.taxonomy.heads import Head


class Trunk(Protocol):
    """Features [B, R or 1, width] of image [B, 3, H, W], meta [B, F] and present bool [B, M]."""

    width: int

    @property
    def no_decay(self) -> set[str]: ...

    def init_weights(self) -> None: ...

    def __call__(self, image: Tensor, meta: Tensor, present: Tensor) -> Tensor: ...


class Classifier(Model):
    """`model(batch)` reads `image`, `meta` and `present` of a prepared batch and returns `scores` (`heads.Scores`), `per_rank`
    [B, R, width], the normed features that the heads read, and `features` [B, width], those of the finest rank."""

    def __init__(self, trunk: Trunk, head: Head, ranks: int, dropout: float) -> None:
        super().__init__()
        self.trunk, self.head, self.ranks = trunk, head, ranks
        self.norm = nn.LayerNorm(trunk.width)
        self.dropout = nn.Dropout(dropout)

    def init_weights(self) -> None:
        """Every parameter, from torch's default generator (pretrained weights excepted)."""
        self.trunk.init_weights()
        nn.init.ones_(self.norm.weight)
        nn.init.zeros_(self.norm.bias)
        self.head.init_weights()

    def forward(self, batch: Batch) -> dict[str, Any]:
        image = batch["image"].to(self.norm.weight.dtype)
        features = self.norm(self.trunk(image, batch["meta"].to(image.dtype), batch["present"]))
        per_rank = self.dropout(features).expand(-1, self.ranks, -1)
        return {"scores": self.head(per_rank), "per_rank": per_rank, "features": features[:, -1]}

    def compiled_parts(self) -> list[nn.Module]:
        """The trunk ends before the layer GradNorm differentiates by, so that its measurement does not run a compiled backward."""
        return [cast(nn.Module, self.trunk)]

    def shared_parameters(self) -> list[nn.Parameter]:
        """Scale and bias of the final shared norm: what GradNorm differentiates by. Unlike the last convolution's, their
        gradient is not zero behind a zero-initialised residual branch."""
        return [self.norm.weight, self.norm.bias]

    def trunk_parameters(self) -> list[nn.Parameter]:
        """All parameters that all ranks share, for gradients of tasks that are exact."""
        return [*cast(nn.Module, self.trunk).parameters(), *self.norm.parameters()]

    @property
    def no_decay(self) -> set[str]:
        """Names of norms, biases, scales (all of one dimension) and tokens: never decayed."""
        tokens = {f"trunk.{name}" for name in self.trunk.no_decay}
        return {name for name, parameter in self.named_parameters() if parameter.dim() <= 1 or name in tokens}
