"""The schedule as text, printed by `plan=true` and at every start and saved as `schedule.txt`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from linnaeus.durations import first_step_at
from linnaeus.reporting.unreached import unreached
from linnaeus.schedule.events import Every, Ramp
from linnaeus.schedule.resolved import DENSITY, PARTIAL, ResolvedSchedule

if TYPE_CHECKING:
    from linnaeus.schedule.phases import Phases

_SHOWN = 6  # steps of an event before its list is abbreviated
_WIDTH = 28


def schedule_summary(resolved: ResolvedSchedule, config: object = None, world_size: int = 1) -> str:
    """What will happen when, in steps counted from 1. `config` is accepted for its place in the call and not needed."""
    accumulation = resolved.global_batch_size // (resolved.micro_batch_size * world_size)
    lines = ["schedule"]
    processes = "1 process" if world_size == 1 else f"{world_size} processes"
    lines += _line(
        "global batch", f"{resolved.global_batch_size} = {resolved.micro_batch_size} micro x {accumulation} accumulated x {processes}"
    )
    lines += _line("steps per epoch", str(resolved.steps_per_epoch))
    lines += _line("total steps", f"{resolved.total_steps} = {_epochs(resolved)}")
    if resolved.last_step < resolved.total_steps:
        lines += _line("last step", f"{resolved.last_step} (schedule.early_stop.max_steps)")
    marks = (f"{p}% step {first_step_at(resolved.total_steps * p / 100)}" for p in (25, 50, 75, 100))
    lines += _line("marks", ", ".join(marks))
    lines += _line("learning rate", ", ".join(f"{what} at step {step}" for what, step in resolved.lr_milestones) or "no warm-up")
    if resolved.phases is not None:
        lines += _phases(resolved.phases)
    lines += ["events"]
    for name, every in resolved.events().items():
        lines += _line(name, describe_event(every))
        if name == PARTIAL:
            lines += _combinations(resolved)
    lines += _line("early stop", _early_stop(resolved))
    lines += _ramps(resolved)
    lines += [f"  note: {note}" for note in unreached(resolved)]
    return "\n".join(lines)


def _ramps(resolved: ResolvedSchedule) -> list[str]:
    """Probabilities, and the share of the weights that is connected, each under a title of its own."""
    lines: list[str] = []
    ramps = resolved.ramps()
    density = ramps.pop(DENSITY, None)
    if ramps:
        lines.append("probabilities")
    for name, ramp in ramps.items():
        lines += _line(name, describe_ramp(ramp))
    if "mixup_prob" in ramps:
        lines += _line("mixing level", _levels(resolved))
    if density is not None:
        lines.append("growth")
        lines += _line(DENSITY, describe_ramp(density))
    return lines


def _line(name: str, text: str) -> list[str]:
    return [f"  {name:<{_WIDTH}}{text}"]


def _epochs(resolved: ResolvedSchedule) -> str:
    whole, rest = divmod(resolved.total_steps, resolved.steps_per_epoch)
    if not whole:
        return f"{rest} of the {resolved.steps_per_epoch} of an epoch"
    if not rest:
        return f"{whole} epoch{'s' * (whole != 1)} of {resolved.steps_per_epoch}"
    return f"{whole} epoch{'s' * (whole != 1)} of {resolved.steps_per_epoch} and {rest} steps of another"


def describe_event(every: Every) -> str:
    """`12 times: 20, 40, 60, 80, 100, ... 240 (every 20steps)`."""
    steps = every.steps()
    clock = [c for c in every.cadences if c.endswith(("s", "min", "h")) and not c.endswith(("steps", "epochs"))]
    parts = []
    if steps:
        times = "once" if len(steps) == 1 else f"{len(steps)} times"
        parts.append(f"{times}: {abbreviate(steps)}")
    parts += [f"every {c} of the clock" for c in clock]
    if not parts:
        return "never"
    cadences = [c for c in every.cadences if c not in clock]
    return ", and ".join(parts) + (f"  (every {', '.join(cadences)})" if cadences else "")


def abbreviate(steps: Sequence[int]) -> str:
    """All steps, or the first few and the last."""
    if len(steps) <= _SHOWN + 1:
        return ", ".join(map(str, steps))
    return f"{', '.join(map(str, steps[: _SHOWN - 1]))}, ... {steps[-1]}"


def describe_ramp(ramp: Ramp) -> str:
    if ramp.is_constant:
        return f"{ramp.start:g}"
    if ramp.begin_step == ramp.until_step:
        return f"{ramp.start:g}, from step {ramp.until_step} on {ramp.end:g}"
    return f"{ramp.start:g} -> {ramp.end:g}, from step {ramp.begin_step} to step {ramp.until_step}"


def describe_phases(phases: Phases) -> dict[str, dict[str, str]]:
    """name -> what it says of the steps (`from step 15 to step 50, whole at step 20, learning rate x 1`), of its data and of dimensions
    (`cognitive 2`), each where it says anything."""
    found = {}
    for phase, (begin, whole) in zip(phases.phases, [(0, 0), *phases.crossfades()], strict=True):
        faded = f", whole at step {whole}" if begin < whole else ""
        texts = {"steps": f"from step {phase.start} to step {phase.end}{faded}, learning rate x {phase.lr:g}"}
        for what, weights in (("data", phase.data), ("dimensions", phase.dimensions)):
            texts |= {what: " ".join(f"{name} {weight:g}" for name, weight in weights)} if weights else {}
        found[phase.name] = texts
    return found


def _phases(phases: Phases) -> list[str]:
    lines = ["phases"]
    for phase, texts in zip(phases.phases, describe_phases(phases).values(), strict=True):
        weights = (f", {what} {text}" for what, text in texts.items() if what != "steps")
        lines += _line(phase.name, texts["steps"] + "".join(weights) + (f": {phase.description}" if phase.description else ""))
    return lines


def _levels(resolved: ResolvedSchedule) -> str:
    levels = (f"{level} from epoch {epoch + 1} (step {epoch * resolved.steps_per_epoch})" for epoch, level in resolved.mixup_group_levels)
    return ", ".join(levels) or "none"


def _combinations(resolved: ResolvedSchedule) -> list[str]:
    if not resolved.validate_partial_mask_meta.steps():
        return []
    listed = resolved.combinations[: resolved.listed]
    lines = _line("  masked", ", ".join("+".join(c) for c in listed) or "none listed")
    if resolved.all_combinations_at_end:
        lines += _line("  masked at the end also", ", ".join("+".join(c) for c in resolved.combinations[resolved.listed :]) or "no other")
    return lines


def _early_stop(resolved: ResolvedSchedule) -> str:
    stop = resolved.early_stop
    better = "below" if stop.mode == "min" else "above"
    parts = [
        (stop.patience, f"{stop.patience} validations without a better {stop.monitor} ({stop.mode}, by more than {stop.min_delta:g})"),
        (stop.metric_bound, f"{stop.monitor} at or {better} {stop.metric_bound}"),
        (stop.min_lr, f"learning rate below {stop.min_lr} after step {resolved.warmup_end}"),
        (stop.max_grad_norm, f"gradient norm above {stop.max_grad_norm}"),
        (stop.max_steps, f"step {stop.max_steps}"),
    ]
    return "; ".join(text for value, text in parts if value is not None) or "never"
