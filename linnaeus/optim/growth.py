"""`Growth`: masks over a model's matrices that start sparse and become denser, and what must hold for the weights not connected yet.

A weight that is not connected is exactly 0 in the parameter itself: the forward needs no mask and costs what it always does, and the
backward gives its gradient, by which it may be chosen. Before anything else looks at the gradients of an update (norm, clipping,
optimizer) those of missing weights are set to 0; a weight of 0 without gradient and moments stays 0 through AdamW, SGD, weight decay and
the average. So the masks multiply gradients, once an update; nothing else is done between two growths.

How many entries of a matrix of N are connected once update `s` is made is round(density(s) x N), a function of the step and known
to the host; which ones is decided on the device, alike on every process, by the all-reduced gradient of that very update (RigL's
criterion: Evci et al. 2020, "Rigging the Lottery") or by a random order of the matrix. A connected weight begins at 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linnaeus.config.schema_optimization import GrowthConfig, LinearGrowthConfig
from linnaeus.errors import ConfigError
from linnaeus.optim.growth_selection import initial_mask, order_stream, pack, select_new, unpack
from linnaeus.optim.optimizers import Optimizers
from linnaeus.schedule import OpsSchedule


@dataclass
class Masked:
    """A parameter with its mask: 1 where it is connected, else 0, in the parameter's own dtype, since multiplying by bools is
    several times slower than the optimizer itself."""

    name: str
    parameter: Tensor
    place: int  # among the parameters of the optimizers
    stream: int
    mask: Tensor
    connected: int

    @property
    def size(self) -> int:
        return self.mask.numel()


class NewConnections(NamedTuple):
    """Weights of one parameter that are connected in this update."""

    place: int  # of the parameter among those of the optimizers
    entries: Tensor  # bool, of its shape
    before: int  # how many were connected already


class Growth:
    """`notes` are lines for the start of a run."""

    def __init__(self, places: Mapping[str, int], params: Sequence[Tensor], ops: OpsSchedule, by: str, seed: int, unmasked: int) -> None:
        """`places` of the masked parameters, by name, among `params`; `by` is "gradient" or "random"; `unmasked`: how many other numbers
        of the model are trained. Sets the weights that are missing at the start to 0."""
        self.ops, self.by, self.unmasked = ops, by, unmasked
        self.masked = [self._masked(name, place, params[place], seed) for name, place in places.items()]
        self.size = sum(m.size for m in self.masked)
        self.notes = [f"growth: {self.size:,} weights of {len(self.masked)} matrices, {self._connected():,} of them connected at the start"]
        self._forget()
        self.mask_weights()

    def _masked(self, name: str, place: int, parameter: Tensor, seed: int) -> Masked:
        count, stream = self._wanted(0, parameter.numel()), order_stream(seed, name)
        if count == 0:
            raise ConfigError(
                f"growth.start={self.ops.get_connection_density(0):g} leaves {name} without any of its {parameter.numel()} weights, so it "
                f"could never learn; start with {1 / parameter.numel():.2g} or more"
            )
        mask = initial_mask(parameter.shape, count, stream, parameter.device)
        return Masked(name, parameter, place, stream, mask.to(parameter.dtype), count)

    def _wanted(self, step: int, size: int) -> int:
        return round(self.ops.get_connection_density(step) * size)

    def _connected(self) -> int:
        return sum(m.connected for m in self.masked)

    def _forget(self) -> None:
        """The masks are others now."""
        self._partial = [m for m in self.masked if m.connected < m.size]
        self._row: dict[str, float] | None = None
        self._packed: dict[str, Tensor] | None = None

    @torch.no_grad()
    def mask_weights(self) -> int:
        """Set to 0 what is not connected, after weights came from elsewhere; returns how many were not 0."""
        lost = sum(int(m.parameter.mul(m.mask == 0).count_nonzero()) for m in self._partial)
        for m in self._partial:
            m.parameter.masked_fill_(m.mask == 0, 0.0)
        return lost

    # -- an update -------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def connect(self, number: int, grads: Sequence[Tensor | None]) -> list[NewConnections]:
        """Connect what is due in the update `number` (from 1) by its gradients, in the order of the optimizers' parameters, and set
        those of weights that are still missing to 0. Returns the weights that are new."""
        new = self._grow(number, grads) if self.ops.should_grow(number) else []
        pairs = [(grad, m.mask) for m in self._partial if (grad := grads[m.place]) is not None]
        if pairs:
            masked, masks = [grad for grad, _ in pairs], [mask for _, mask in pairs]
            torch._foreach_mul_(masked, masks)
        return new

    def _grow(self, number: int, grads: Sequence[Tensor | None]) -> list[NewConnections]:
        new: list[NewConnections] = []
        for m in self._partial:
            count = self._wanted(number, m.size) - m.connected
            if count > 0:
                before = m.mask.bool()
                chosen = select_new(before, count, m.stream, grads[m.place] if self.by == "gradient" else None)
                new.append(NewConnections(m.place, chosen, m.connected))
                m.mask.copy_(before | chosen)
                m.connected += count
        if new:
            self._forget()
        return new

    # -- what is told and kept -------------------------------------------------------------------------------------------

    def row(self) -> dict[str, float]:
        """`growth/density`: connected entries of the masks over all of theirs; `growth/connected_now`: how many that are;
        `growth/active_parameters`: these and all that is trained without a mask. Counted in the masks; reads the device after a
        growth only."""
        if self._row is None:
            connected = int(torch.stack([m.mask.sum(dtype=torch.float64) for m in self.masked]).sum())
            self._row = {
                "growth/density": connected / self.size,
                "growth/active_parameters": self.unmasked + connected,
                "growth/connected_now": connected,
            }
        return dict(self._row)

    def state_dict(self) -> dict[str, Any]:
        """{"masks": {parameter name: its mask as bits, uint8}}."""
        if self._packed is None:
            self._packed = {m.name: pack(m.mask.bool()) for m in self.masked}
        return {"masks": dict(self._packed)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ConfigError for masks of another model. Weights are left as they are: those of a checkpoint are masked already."""
        saved = state["masks"]
        for name in sorted({m.name for m in self.masked} ^ saved.keys()):
            raise ConfigError(f"growth: the checkpoint and the model do not mask the same weights, see {name}; check `model` and `growth`")
        for m in self.masked:
            if saved[m.name].shape != pack(m.mask.bool()).shape:
                raise ConfigError(f"growth: the mask of {m.name} in the checkpoint is of another size; check `model`")
            mask = unpack(saved[m.name], m.mask.shape)
            m.connected = int(mask.sum())
            m.mask.copy_(mask)
        self._forget()


@torch.no_grad()
def seed_second_moments(
    optimizers: Optimizers, new: Sequence[NewConnections], grads: Sequence[Tensor | None], divisor: Tensor | None, found_inf: Tensor
) -> None:
    """To be called before the step that uses `grads`, which it will divide by `divisor`. Where `found_inf` is 1 the gradients say
    nothing, and the other weights alone do."""
    for newcomers in new:
        member, kept = optimizers.optimizer_of(newcomers.place)
        if member.beta2 is None:
            continue
        second, grad = kept["exp_avg_sq"], grads[newcomers.place]
        seed = (second.sum() / max(1, newcomers.before)).expand_as(second)  # v is 0 where nothing was connected
        if grad is not None:
            square = (grad if divisor is None else grad / divisor) ** 2 * (1 - member.beta2 ** kept["step"])
            seed = torch.maximum(seed, torch.where(found_inf > 0, 0.0, square))
        second.copy_(torch.where(newcomers.entries, seed, second))


def build_growth(config: GrowthConfig, model: Any, optimizers: Optimizers, ops: OpsSchedule, seed: int) -> Growth | None:
    """None for `growth=none`. Masks the model's weights, so what copies them comes later. `model.maskable_parameters()` names the
    parameters that weights may be missing from; frozen ones keep all of theirs.

    Raises ConfigError for a model or an optimizer that it cannot be done with."""
    if not isinstance(config, LinearGrowthConfig):
        return None
    names = list(model.maskable_parameters())
    if not names:
        raise ConfigError(f"growth={config.name}: this model names no weights that may be missing (maskable_parameters); use growth=none")
    found = {id(parameter): place for place, parameter in enumerate(optimizers.params)}
    parameters = dict(model.named_parameters())
    places = {name: found[id(parameters[name])] for name in names if parameters[name].requires_grad}
    if not places:
        raise ConfigError(f"growth={config.name}: all weights that may be missing are frozen (trainer.freeze); use growth=none")
    for name, place in places.items():
        member, _ = optimizers.optimizer_of(place)
        if member.kind not in ("adamw", "sgd"):
            raise ConfigError(
                f"growth={config.name}: {member.kind} may move entries of {name} that are not connected; use optimizer=adamw or sgd"
            )
    trained = sum(parameter.numel() for parameter in parameters.values() if parameter.requires_grad)
    unmasked = trained - sum(parameters[name].numel() for name in places)
    return Growth(places, optimizers.params, ops, config.by, seed, unmasked)
