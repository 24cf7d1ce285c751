"""Growth of connections: weight matrices start sparse and become denser while the model trains.

A weight that is not connected is exactly 0 in the parameter itself, so the forward pass needs no mask, and backward computes the gradient
of every weight. At the start of an update the gradients of unconnected weights are set to 0. A weight of 0 without gradient and moments
stays 0 under AdamW, SGD, weight decay and the moving average, so an update that connects nothing costs only one more multiplication of the
gradients.

After update s, round(density(s) x N) entries of a matrix with N entries are connected: a function of the step, computed on the host. The
device selects which entries, equally on every rank: the entries with the largest all-reduced gradient in that update (the criterion of
RigL: Evci et al. 2020, "Rigging the Lottery"), or the next entries in a random order of the matrix. A newly connected weight starts at
0."""

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
class MaskedParameter:
    """A parameter and its mask: 1 for a connected weight, 0 for an unconnected weight, in the dtype of the parameter.

    The mask is not bool, because multiplying by a bool mask takes several times as long as the optimizer step."""

    name: str
    parameter: Tensor
    index: int  # in `Optimizers.params`
    stream: int  # of its random order
    mask: Tensor
    connected: int  # number of connected weights

    @property
    def size(self) -> int:
        return self.mask.numel()


class NewConnections(NamedTuple):
    """Weights of one parameter that the current update connects."""

    parameter_index: int  # in `Optimizers.params`
    entries: Tensor  # bool, in the shape of the parameter
    connected_before: int  # number of weights that were connected before


class Growth:
    """Masks of the parameters whose number of connected (non-zero) weights grows. `notes`: lines to log at the start of a run."""

    def __init__(
        self, indices: Mapping[str, int], params: Sequence[Tensor], ops: OpsSchedule, by: str, seed: int, num_unmasked: int
    ) -> None:
        """Create the masks of the parameters and set their unconnected weights to 0.

        `indices`: name of each parameter to be masked -> index in `params`. `by`: order of connecting, "gradient" or "random".
        `num_unmasked`: number of trained weights that are not masked. Raise `ConfigError` if a matrix would start without any connected
        weight."""
        self.ops, self.by, self.num_unmasked = ops, by, num_unmasked
        self.masked = [self._mask_parameter(name, index, params[index], seed) for name, index in indices.items()]
        self.size = sum(m.size for m in self.masked)
        self.notes = [
            f"growth: {self.size:,} weights of {len(self.masked)} matrices, {self._num_connected():,} of them connected at the start"
        ]
        self._masks_changed()
        self.mask_weights()

    def _mask_parameter(self, name: str, index: int, parameter: Tensor, seed: int) -> MaskedParameter:
        count, stream = self._scheduled_count(0, parameter.numel()), order_stream(seed, name)
        if count == 0:
            raise ConfigError(
                f"growth.start={self.ops.get_connection_density(0):g} connects none of the {parameter.numel()} weights of {name}, so it "
                f"could not train; use {1 / parameter.numel():.2g} or more"
            )
        mask = initial_mask(parameter.shape, count, stream, parameter.device)
        return MaskedParameter(name, parameter, index, stream, mask.to(parameter.dtype), count)

    def _scheduled_count(self, step: int, size: int) -> int:
        return round(self.ops.get_connection_density(step) * size)

    def _num_connected(self) -> int:
        return sum(m.connected for m in self.masked)

    def _masks_changed(self) -> None:
        """Recompute the list of matrices that are not fully connected, and clear the cached metrics and packed masks."""
        self._partial = [m for m in self.masked if m.connected < m.size]
        self._row: dict[str, float] | None = None
        self._packed: dict[str, Tensor] | None = None

    @torch.no_grad()
    def mask_weights(self) -> int:
        """Set the unconnected weights to 0, after weights were loaded. Return the number of unconnected weights that were not 0. This waits
        for the device."""
        lost = sum(int(m.parameter.mul(m.mask == 0).count_nonzero()) for m in self._partial)
        for m in self._partial:
            m.parameter.masked_fill_(m.mask == 0, 0.0)
        return lost

    # -- an update -------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def connect(self, number: int, grads: Sequence[Tensor | None]) -> list[NewConnections]:
        """Connect the weights scheduled for update `number` (from 1), then set the gradients of unconnected weights to 0, in place.

        `grads`: the gradients of all weights, in the order of `Optimizers.params`. Return the new connections."""
        new = self._grow(number, grads) if self.ops.should_grow(number) else []
        pairs = [(grad, m.mask) for m in self._partial if (grad := grads[m.index]) is not None]
        if pairs:
            masked_grads, masks = [grad for grad, _ in pairs], [mask for _, mask in pairs]
            torch._foreach_mul_(masked_grads, masks)
        return new

    def _grow(self, number: int, grads: Sequence[Tensor | None]) -> list[NewConnections]:
        new: list[NewConnections] = []
        for m in self._partial:
            count = self._scheduled_count(number, m.size) - m.connected
            if count > 0:
                before = m.mask.bool()
                selected = select_new(before, count, m.stream, grads[m.index] if self.by == "gradient" else None)
                new.append(NewConnections(m.index, selected, m.connected))
                m.mask.copy_(before | selected)
                m.connected += count
        if new:
            self._masks_changed()
        return new

    # -- rows and state --------------------------------------------------------------------------------------------------

    def row(self) -> dict[str, float]:
        """Return the metrics of growth for a log row.

        `growth/density`: fraction of the maskable weights that is connected. `growth/connected_now`: number of connected maskable weights.
        `growth/active_parameters`: connected maskable weights plus all other trained weights. The numbers are counted in the masks; the
        host waits for the device only if the masks have changed since the last call."""
        if self._row is None:
            connected = int(torch.stack([m.mask.sum(dtype=torch.float64) for m in self.masked]).sum())
            self._row = {
                "growth/density": connected / self.size,
                "growth/active_parameters": self.num_unmasked + connected,
                "growth/connected_now": connected,
            }
        return dict(self._row)

    def state_dict(self) -> dict[str, Any]:
        """Return {"masks": {parameter name: mask of this parameter, packed as bits, uint8}}."""
        if self._packed is None:
            self._packed = {m.name: pack(m.mask.bool()) for m in self.masked}
        return {"masks": dict(self._packed)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the masks. Raise `ConfigError` if names or sizes differ.

        Weights are not changed here: in a checkpoint the unconnected weights are already 0."""
        saved = state["masks"]
        for name in sorted({m.name for m in self.masked} ^ saved.keys()):
            raise ConfigError(f"growth: the checkpoint and the model do not mask the same weights, see {name}; check `model` and `growth`")
        for m in self.masked:
            if saved[m.name].shape != pack(m.mask.bool()).shape:
                raise ConfigError(f"growth: the mask of {m.name} in the checkpoint has another size; check `model`")
            mask = unpack(saved[m.name], m.mask.shape)
            m.connected = int(mask.sum())
            m.mask.copy_(mask)
        self._masks_changed()


@torch.no_grad()
def seed_second_moments(
    optimizers: Optimizers, new: Sequence[NewConnections], grads: Sequence[Tensor | None], divisor: Tensor | None, found_inf: Tensor
) -> None:
    """Set AdamW's second moments of newly connected weights so that their first steps are not larger than the learning rate.

    AdamW divides by sqrt(v / (1 - beta2^t)), where t counts the updates of the whole tensor. If v of a weight connected at update t started
    at 0, the correction 1 - beta2^t would be wrong for this weight: its first step would be (1 - beta1) / sqrt(1 - beta2) times the
    learning rate, 3.2 with 0.9 and 0.999. So before the step that uses `grads`, v is set to the larger of

    - g^2 (1 - beta2^(t-1)): after the update v / (1 - beta2^t) is g^2, so the first step is at most the learning rate for any betas;
    - the mean v of the weights of the tensor that were connected before: the first gradient may be small by chance, and then v would be
      too small for the second step.

    The first moment starts at 0, which only shortens steps. SGD does not need this: the momentum of a new weight has fewer terms than the
    momentum of other weights. `divisor`: number by which the optimizer step divides the gradients, and by which g is divided here; None: 1.
    If `found_inf` is 1 only the mean v is used."""
    for connections in new:
        optimizer, state = optimizers.optimizer_of(connections.parameter_index)
        if optimizer.beta2 is None:
            continue
        second, grad = state["exp_avg_sq"], grads[connections.parameter_index]
        seed = (second.sum() / max(1, connections.connected_before)).expand_as(second)  # unconnected weights have v = 0
        if grad is not None:
            square = (grad if divisor is None else grad / divisor) ** 2 * (1 - optimizer.beta2 ** state["step"])
            seed = torch.maximum(seed, torch.where(found_inf > 0, 0.0, square))
        second.copy_(torch.where(connections.entries, seed, second))


def build_growth(config: GrowthConfig, model: Any, optimizers: Optimizers, ops: OpsSchedule, seed: int) -> Growth | None:
    """Return the growth of the parameters that `model.maskable_parameters()` names, except frozen ones; None for `growth=none`.

    This sets the unconnected weights of the model to 0, so call it before the weights are copied (EMA). Raise `ConfigError` if no parameter
    can be masked, if an optimizer other than AdamW or SGD updates a masked parameter, or if a matrix would start without a connected
    weight."""
    if not isinstance(config, LinearGrowthConfig):
        return None
    names = list(model.maskable_parameters())
    if not names:
        raise ConfigError(f"growth={config.name}: this model does not support growth (it names no maskable_parameters); use growth=none")
    index_of = {id(parameter): index for index, parameter in enumerate(optimizers.params)}
    parameters = dict(model.named_parameters())
    indices = {name: index_of[id(parameters[name])] for name in names if parameters[name].requires_grad}
    if not indices:
        raise ConfigError(f"growth={config.name}: all maskable parameters are frozen (trainer.freeze); use growth=none")
    for name, index in indices.items():
        optimizer, _ = optimizers.optimizer_of(index)
        if optimizer.kind not in ("adamw", "sgd"):
            raise ConfigError(
                f"growth={config.name}: {optimizer.kind} may change unconnected weights of {name}; use optimizer=adamw or sgd"
            )
    trained = sum(parameter.numel() for parameter in parameters.values() if parameter.requires_grad)
    num_unmasked = trained - sum(parameters[name].numel() for name in indices)
    return Growth(indices, optimizers.params, ops, config.by, seed, num_unmasked)
