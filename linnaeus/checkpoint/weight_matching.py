"""Compare weights read by `initial_weights.py` with a model by name and shape, and copy them into the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from linnaeus.checkpoint.weight_files import tensor_identity
from linnaeus.errors import ConfigError, counted

if TYPE_CHECKING:
    from torch import Tensor, nn

    from linnaeus.checkpoint.initial_weights import InitialWeights

_SHOWN = 3  # number of names in a line


@dataclass(frozen=True)
class WeightMatch:
    """Result of comparing a file of weights with a model, by the names of weights.

    `matched`: weights that are loaded. `missing`: weights that are only in the model. `mismatched`: name -> reason, for weights of another
    shape or type. `unexpected`: weights that are only in the file. `run.init_allow` allows missing, mismatched and unexpected weights.
    `skipped`: weights that match `run.init_skip`. `num_total`: number of elements of all weights of the model. `num_loaded`: number of the
    elements that are loaded. Tied weights count once."""

    source: str
    matched: list[str]
    missing: list[str]
    mismatched: dict[str, str]
    unexpected: list[str]
    skipped: list[str]
    num_loaded: int
    num_total: int
    notes: list[str]

    def lines(self) -> list[str]:
        """Return a summary for the log: a line for the file and one for each kind of difference, with the first names."""
        return [
            f"initial weights from {self.source}: {counted(len(self.matched), 'tensor')}, "
            f"{self.num_loaded:,} of the model's {self.num_total:,} numbers",
            *(f"{title}: {shorten(names)}" for title, names in self._lists() if names),
            *self.notes,
        ]

    def text(self) -> str:
        """Return the summary of `lines`, followed by the complete lists of names."""
        blocks = [f"{title} ({len(names)})\n" + "".join(f"  {name}\n" for name in names) for title, names in self._lists()]
        return "\n".join([*self.lines(), "", *blocks, f"loaded ({len(self.matched)})", *(f"  {name}" for name in self.matched)])

    def _lists(self) -> list[tuple[str, list[str]]]:
        return [
            ("not loaded, missing in the file", self.missing),
            ("not loaded, of another shape or type", [f"{name} {why}" for name, why in self.mismatched.items()]),
            ("in the file and not used", self.unexpected),
            ("not loaded because of run.init_skip", self.skipped),
        ]


def match_weights(weights: InitialWeights, model: nn.Module, allow: Sequence[str] = (), skip: Sequence[str] = ()) -> WeightMatch:
    """Compare `weights` with `model`, which is not wrapped in DDP, and return the result. Nothing is changed.

    Names that match a prefix in `skip` are left out. Raise `ConfigError` for a weight that is missing, unexpected or mismatched and does
    not match a prefix in `allow`, for an entry of `allow` or `skip` that matches no weight, and for weights that are not finite."""
    everything = model.state_dict()
    _check_prefixes("run.init_allow", allow, [*everything, *weights.state])
    _check_prefixes("run.init_skip", skip, list(everything))
    skipped = [name for name in everything if matches_prefix(skip, name)]
    own, state = ({name: value for name, value in names.items() if not matches_prefix(skip, name)} for names in (everything, weights.state))
    tied = _tied_names(everything)
    _check_tied_skips(tied, skipped)
    matched = [name for name in own if name in state and not _mismatch(state[name], own[name])]
    mismatched = {name: _mismatch(state[name], own[name]) for name in own if name in state and name not in set(matched)}
    missing = [name for name in own if name not in state and not any(other in matched for other in tied[name])]
    unexpected = [name for name in state if name not in own]
    wrong = [[name for name in names if not matches_prefix(allow, name)] for names in (missing, unexpected, list(mismatched))]
    if not matched or any(wrong):
        raise ConfigError(_mismatch_message(weights.source, len(own), matched, wrong, mismatched))
    _check_values(weights, model, matched, tied)
    loaded = {tensor_identity(own[name]): own[name].numel() for name in matched}
    unneeded = [name for name in matched if matches_prefix(allow, name)]
    notes = [f"under run.init_allow, but of the model's own shape, and loaded: {shorten(unneeded)}"] if unneeded else []
    return WeightMatch(
        weights.source,
        matched,
        missing,
        mismatched,
        unexpected,
        skipped,
        sum(loaded.values()),
        sum({tensor_identity(tensor): tensor.numel() for tensor in everything.values()}.values()),
        [*weights.notes, *notes],
    )


def load_matched(weights: InitialWeights, match: WeightMatch, model: nn.Module) -> None:
    """Copy the matched weights into the tensors of the model, which keep their device and dtype."""
    import torch

    own = model.state_dict()
    with torch.no_grad():
        for name in match.matched:
            own[name].copy_(weights.state[name])


def load_all(weights: InitialWeights, model: nn.Module) -> None:
    """Load all weights of a trained model. Raise `ConfigError` if the names or shapes differ from those of `model`, or if a value is not
    finite."""
    try:
        load_matched(weights, match_weights(weights, model), model)
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix("run.init_from: ").partition("; check `model`")[0]) from None


def _tied_names(own: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Return {name: all names of the same tensor, including this one} for the state dict `own` of the model. A file may contain any of the
    names."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for name, tensor in own.items():
        groups.setdefault(tensor_identity(tensor), []).append(name)
    return {name: groups[tensor_identity(tensor)] for name, tensor in own.items()}


def _mismatch(other: Tensor, own: Tensor) -> str:
    """Return the reason why the tensor `other` of a file cannot be copied into the tensor `own` of the model; "" if it can be copied.

    Two different floating-point dtypes are not a mismatch."""
    if other.shape != own.shape:
        return f"{list(other.shape)} in the file, {list(own.shape)} here"
    kinds = [(tensor.is_floating_point(), tensor.is_complex()) for tensor in (other, own)]
    return "" if kinds[0] == kinds[1] else f"{other.dtype} in the file, {own.dtype} here"


def matches_prefix(prefixes: Iterable[str], name: str) -> bool:
    """Return True if one of `prefixes` is equal to `name` or is the dotted name of a module around it: `head` matches `head.weight`, but
    not `heads.weight`."""
    return any(name == prefix.rstrip(".") or name.startswith(prefix.rstrip(".") + ".") for prefix in prefixes)


def _check_prefixes(key: str, prefixes: Sequence[str], names: Sequence[str]) -> None:
    unused = [prefix for prefix in prefixes if not any(matches_prefix([prefix], name) for name in names)]
    if unused:
        parts = sorted({name.partition(".")[0] for name in names})
        raise ConfigError(f"{key}: no weight name begins with {', '.join(unused)}; the names begin with {', '.join(parts[:12])}")


def _check_tied_skips(tied: Mapping[str, list[str]], skipped: Sequence[str]) -> None:
    split = [(name, other) for name in skipped for other in tied[name] if other not in skipped]
    if split:
        raise ConfigError(f"run.init_skip: {' and '.join(split[0])} are one weight of the model; name both or neither")


def _mismatch_message(source: str, total: int, matched: Sequence[str], wrong: Sequence[list[str]], reasons: Mapping[str, str]) -> str:
    """Return the error message for `wrong`: three lists of names that are missing, unexpected or mismatched and not allowed.

    source: name of the file. total: number of the model's weights. matched: names that fit. reasons: mismatched name -> reason."""
    missing, unexpected, mismatched = wrong
    found = [f"{counted(len(missing), 'weight')} of the model missing ({shorten(missing)})"] if missing else []
    found += [f"{counted(len(unexpected), 'weight')} not in the model ({shorten(unexpected)})"] if unexpected else []
    if mismatched:
        found += [f"{len(mismatched)} of another shape or type ({shorten([f'{name} {reasons[name]}' for name in mismatched])})"]
    if not matched:
        return f"run.init_from: nothing in {source} fits any of the model's {total} weights: {'; '.join(found)}; check `model`"
    prefixes = sorted({name.partition(".")[0] for name in (*missing, *unexpected, *mismatched) if name.isprintable()})[:8]
    return f"run.init_from: {source} does not fit: {'; '.join(found)}; check `model`, or allow it: run.init_allow=[{','.join(prefixes)}]"


def _check_values(weights: InitialWeights, model: nn.Module, matched: Sequence[str], tied: Mapping[str, list[str]]) -> None:
    """Raise `ConfigError` if a matched parameter is not finite (buffers may be), or if weights that are tied in the model differ in the
    file."""
    import torch

    state, parameters = weights.state, {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name in matched:
        if name in parameters and not bool(torch.isfinite(state[name]).all()):
            raise ConfigError(f"run.init_from: {name} in {weights.source} contains values that are not finite; use an earlier checkpoint")
        first = next(other for other in tied[name] if other in state)
        if not torch.equal(state[first], state[name]):
            raise ConfigError(f"run.init_from: {first} and {name} are one weight of the model and two in {weights.source}; check `model`")


def shorten(names: Sequence[str]) -> str:
    """Return the first three names, comma-separated, and the number of the others. Unprintable characters are escaped."""
    shown = [name if name.isprintable() else ascii(name) for name in names[:_SHOWN]]
    return ", ".join(shown) + (f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
