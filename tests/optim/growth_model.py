"""A small growing model with a real update, for tests that set the gradients themselves."""

from typing import Any

import torch
from torch import Tensor, nn

from linnaeus.config.schema_optimization import AdamWConfig, LinearGrowthConfig, OptimizerConfig, SGDConfig
from linnaeus.optim import Optimizers, build_optimizer
from linnaeus.optim.ema import EMA
from linnaeus.optim.growth import Growth, build_growth
from linnaeus.optim.update import GradScaler, Update
from linnaeus.workloads.base import Model

LR = 0.01
COMMON: dict[str, Any] = {"lr": LR, "lr_scaling": "none", "lr_reference_batch": 1, "param_groups": []}


class Net(Model):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.hidden = nn.Linear(40, 30, dtype=dtype)
        self.out = nn.Linear(30, 3, dtype=dtype)

    def shared_parameters(self) -> list[nn.Parameter]:
        return [self.hidden.weight]

    def maskable_parameters(self) -> list[str]:
        return ["hidden.weight"]


class StepSchedule:
    """A schedule that connects weights only at the updates s in `counts`: `counts[s]` of `size` are connected after update s."""

    def __init__(self, size: int, counts: dict[int, int]) -> None:
        self.size, self.counts = size, counts

    def should_grow(self, step: int) -> bool:
        return step in self.counts

    def get_connection_density(self, step: int) -> float:
        return self.counts[step] / self.size


def optimizer(name: str, weight_decay: float = 0.1, beta2: float = 0.999) -> OptimizerConfig:
    fused, common = not name.endswith("unfused"), {**COMMON, "weight_decay": weight_decay}
    if name.startswith("adamw"):
        return AdamWConfig(name="adamw", fused=fused, beta1=0.9, beta2=beta2, eps=1e-12, **common)
    return SGDConfig(name="sgd", fused=fused, momentum=0.0 if "plain" in name else 0.9, nesterov="nesterov" in name, **common)


class GrowingModel:
    """A `Net` with its optimizers, growth, moving average and update."""

    def __init__(
        self,
        name: str,
        counts: dict[int, int],
        by: str = "random",
        dtype: torch.dtype = torch.float32,
        clip: float | None = None,
        scaled: bool = False,
        **options: Any,
    ) -> None:
        torch.manual_seed(0)
        self.net = Net(dtype)
        self.optimizers: Optimizers = build_optimizer(optimizer(name, **options), self.net)
        self.optimizers.lr = LR
        config = LinearGrowthConfig("linear", 0.2, 1.0, "0%", "100%", ["1steps"], by)
        growth = build_growth(config, self.net, self.optimizers, StepSchedule(1200, counts), 0)  # type: ignore[arg-type]
        assert growth is not None
        self.growth: Growth = growth
        self.ema = EMA(self.net, 0.9)
        self.scaler = GradScaler(torch.device("cpu")) if scaled else None
        self.update = Update(self.optimizers, clip, self.scaler, self.ema, (), growth)
        self.number = 0

    @property
    def weight(self) -> Tensor:
        return self.net.hidden.weight.detach()

    @property
    def connected(self) -> Tensor:
        """Mask of the matrix, bool [30, 40]."""
        return self.growth.masked[0].mask.bool()

    @property
    def state(self) -> dict[str, Tensor]:
        """Optimizer state of the matrix."""
        return self.optimizers.state_dict()["state"]["hidden.weight"]

    def step(self, gradient: Tensor, rest: float = 0.1) -> Tensor:
        """Make an update with `gradient` [30, 40] for the matrix and `rest` for every other weight. Return the change of the matrix."""
        before, scale = self.weight.clone(), 1.0 if self.scaler is None else float(self.scaler.value)
        self.number += 1
        for parameter in self.net.parameters():
            parameter.grad = torch.full_like(parameter, rest * scale)
        self.net.hidden.weight.grad = gradient.to(before.dtype) * scale
        self.update.start(self.number)
        self.update()
        return self.weight - before


def random_signs(seed: int, size: float = 1.0) -> Tensor:
    """Return [30, 40] of plus or minus `size`, at random."""
    return size * (torch.randint(0, 2, (30, 40), generator=torch.Generator().manual_seed(seed)) * 2.0 - 1)
