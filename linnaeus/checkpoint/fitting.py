"""Whether weights fit a model, strictly and by name, and what was taken: the second half of `run.init_from` (`initial.py` reads them)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from linnaeus.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from linnaeus.checkpoint.initial_weights import InitialWeights

_SHOWN = 3  # names of a list in one line


@dataclass(frozen=True)
class Report:
    """What of `InitialWeights` a model takes. Names: `matched` are taken, `fresh` were missing, `reshaped` (name -> why) have another
    shape or type, `unused` are in the file alone; these three are all under `run.init_allow`; `skipped` under `run.init_skip`. `values`
    of `all_values` numbers."""

    source: str
    matched: list[str]
    fresh: list[str]
    reshaped: dict[str, str]
    unused: list[str]
    skipped: list[str]
    values: int
    all_values: int
    notes: list[str]

    def lines(self) -> list[str]:
        """A few lines for the log."""
        return [
            f"initial weights from {self.source}: {len(self.matched)} tensors, {self.values:,} of the model's {self.all_values:,} numbers",
            *(f"{title}: {some(names)}" for title, names in self._lists() if names),
            *self.notes,
        ]

    def text(self) -> str:
        """The same with every name."""
        blocks = [f"{title} ({len(names)})\n" + "".join(f"  {name}\n" for name in names) for title, names in self._lists()]
        return "\n".join([*self.lines(), "", *blocks, f"taken ({len(self.matched)})", *(f"  {name}" for name in self.matched)])

    def _lists(self) -> list[tuple[str, list[str]]]:
        return [
            ("left at their initialisation, not in the file", self.fresh),
            ("left at their initialisation, of another shape", [f"{name} {why}" for name, why in self.reshaped.items()]),
            ("in the file and not used", self.unused),
            ("left at their initialisation, as run.init_skip says", self.skipped),
        ]


def check_fit(weights: InitialWeights, model: nn.Module, allow: Sequence[str] = (), skip: Sequence[str] = ()) -> Report:
    """What the bare `model` takes of `weights`, but for the names under `skip`; neither is changed. ConfigError, one line, for anything
    that does not fit and is not under a name of `allow`, for a name of `allow` or `skip` that is none, and for weights that are no
    numbers."""
    everything = model.state_dict()
    _refuse_idle("run.init_allow", allow, [*everything, *weights.state])
    _refuse_idle("run.init_skip", skip, list(everything))
    skipped = [name for name in everything if covers(skip, name)]
    own, state = ({name: tensor for name, tensor in names.items() if not covers(skip, name)} for names in (everything, weights.state))
    twins = _twins(everything)
    _refuse_torn(twins, skipped)
    matched = [name for name in own if name in state and not _unlike(state[name], own[name])]
    reshaped = {name: _unlike(state[name], own[name]) for name in own if name in state and name not in set(matched)}
    fresh = [name for name in own if name not in state and not any(twin in matched for twin in twins[name])]
    unused = [name for name in state if name not in own]
    wrong = [[name for name in names if not covers(allow, name)] for names in (fresh, unused, list(reshaped))]
    if not matched or any(wrong):
        raise ConfigError(_misfit(weights.source, len(own), matched, wrong, reshaped))
    _refuse_bad_values(weights, model, matched, twins)
    counted = {_id_of(own[name]): own[name].numel() for name in matched}
    taken_though = [name for name in matched if covers(allow, name)]
    notes = [f"under run.init_allow, but of the model's own shape, and taken: {some(taken_though)}"] if taken_though else []
    return Report(
        weights.source,
        matched,
        fresh,
        reshaped,
        unused,
        skipped,
        sum(counted.values()),
        sum({_id_of(tensor): tensor.numel() for tensor in everything.values()}.values()),
        [*weights.notes, *notes],
    )


def load_into(weights: InitialWeights, report: Report, model: nn.Module) -> None:
    """Copy what `check_fit` matched into the model's own tensors, whatever their device and precision."""
    import torch

    own = model.state_dict()
    with torch.no_grad():
        for name in report.matched:
            own[name].copy_(weights.state[name])


def _id_of(tensor: Tensor) -> tuple[Any, ...]:
    """The same for two names of one tensor; an empty tensor has no memory and is itself alone."""
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype) if tensor.numel() else (id(tensor),)


def _twins(own: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """The names of the same tensor (tied weights) by each of them: a file may have any."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, tensor in own.items():
        groups.setdefault(_id_of(tensor), []).append(name)
    return {name: groups[_id_of(tensor)] for name, tensor in own.items()}


def _unlike(theirs: Tensor, ours: Tensor) -> str:
    """Why a tensor of the file cannot be one of the model's; empty when it can. Precisions may differ, kinds of number not."""
    if theirs.shape != ours.shape:
        return f"{list(theirs.shape)} in the file, {list(ours.shape)} here"
    kinds = [(tensor.is_floating_point(), tensor.is_complex()) for tensor in (theirs, ours)]
    return "" if kinds[0] == kinds[1] else f"{theirs.dtype} in the file, {ours.dtype} here"


def covers(allow: Iterable[str], name: str) -> bool:
    """Whether a weight's name begins with one of `allow`, whole words between dots."""
    return any(name == begin.rstrip(".") or name.startswith(begin.rstrip(".") + ".") for begin in allow)


def _refuse_idle(key: str, begins: Sequence[str], names: Sequence[str]) -> None:
    idle = [begin for begin in begins if not any(covers([begin], name) for name in names)]
    if idle:
        parts = sorted({name.partition(".")[0] for name in names})
        raise ConfigError(f"{key}: no weight begins with {', '.join(idle)}; they begin with {', '.join(parts[:12])}")


def _refuse_torn(twins: Mapping[str, list[str]], skipped: Sequence[str]) -> None:
    torn = [(name, twin) for name in skipped for twin in twins[name] if twin not in skipped]
    if torn:
        raise ConfigError(f"run.init_skip: {' and '.join(torn[0])} are one weight of the model; name both or neither")


def _misfit(source: str, of_model: int, matched: Sequence[str], wrong: Sequence[list[str]], why: Mapping[str, str]) -> str:
    """`wrong`: names of weights that are missing, of such as are in the file alone, and of such as are unlike."""
    missing, unused, unlike = wrong
    found = [f"{len(missing)} weights of the model are not in it ({some(missing)})"] if missing else []
    found += [f"{len(unused)} of its weights are not the model's ({some(unused)})"] if unused else []
    found += [f"{len(unlike)} have another shape or type ({some([f'{name} {why[name]}' for name in unlike])})"] if unlike else []
    if not matched:
        return f"run.init_from: nothing in {source} fits any of the model's {of_model} weights: {'; '.join(found)}; check `model`"
    begins = sorted({name.partition(".")[0] for name in (*missing, *unused, *unlike) if name.isprintable()})[:8]
    return f"run.init_from: {source} does not fit: {'; '.join(found)}; check `model`, or allow it: run.init_allow=[{','.join(begins)}]"


def _refuse_bad_values(weights: InitialWeights, model: nn.Module, matched: Sequence[str], twins: Mapping[str, list[str]]) -> None:
    """Parameters (not buffers: some are infinite by design) must be finite, and tied ones one and the same."""
    import torch

    state, parameters = weights.state, {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name in matched:
        if name in parameters and not bool(torch.isfinite(state[name]).all()):
            raise ConfigError(f"run.init_from: {name} in {weights.source} holds values that are not finite; take an earlier checkpoint")
        first = next(twin for twin in twins[name] if twin in state)
        if not torch.equal(state[first], state[name]):
            raise ConfigError(f"run.init_from: {first} and {name} are one weight of the model and two in {weights.source}; check `model`")


def some(names: Sequence[str]) -> str:
    """The first few; what a terminal would not print as it is, escaped."""
    shown = [name if name.isprintable() else ascii(name) for name in names[:_SHOWN]]
    return ", ".join(shown) + (f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
