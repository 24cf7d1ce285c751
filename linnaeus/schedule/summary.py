"""The schedule as text, printed by `plan=true` and at every start and saved as `schedule.txt`."""

from __future__ import annotations

from collections.abc import Sequence

from linnaeus.schedule.durations import first_step_at
from linnaeus.schedule.every import Every
from linnaeus.schedule.ramps import Ramp
from linnaeus.schedule.resolved import PARTIAL, ResolvedSchedule

_SHOWN = 6  # steps of an event before its list is abbreviated
_WIDTH = 28


def schedule_summary(resolved: ResolvedSchedule, config: object = None, world_size: int = 1) -> str:
    """What will happen when, in steps counted from 1. `config` is accepted for its place in the call and not needed."""
    accumulation = resolved.global_batch // (resolved.micro_batch * world_size)
    lines = ["schedule"]
    processes = "1 process" if world_size == 1 else f"{world_size} processes"
    lines += _line("global batch", f"{resolved.global_batch} = {resolved.micro_batch} micro x {accumulation} accumulated x {processes}")
    lines += _line("steps per epoch", str(resolved.steps_per_epoch))
    lines += _line("total steps", f"{resolved.total_steps} = {_epochs(resolved)}")
    if resolved.last_step < resolved.total_steps:
        lines += _line("last step", f"{resolved.last_step} (schedule.early_stop.max_steps)")
    marks = (f"{p}% step {first_step_at(resolved.total_steps * p / 100)}" for p in (25, 50, 75, 100))
    lines += _line("marks", ", ".join(marks))
    lines += _line("learning rate", ", ".join(f"{what} at step {step}" for what, step in resolved.lr_moments) or "no warm-up")
    lines += ["events"]
    for name, every in resolved.events().items():
        lines += _line(name, describe_event(every))
        if name == PARTIAL:
            lines += _combinations(resolved)
    lines += ["probabilities"]
    for name, ramp in resolved.ramps().items():
        lines += _line(name, describe_ramp(ramp))
    levels = (f"{level} from epoch {epoch + 1} (step {epoch * resolved.steps_per_epoch})" for epoch, level in resolved.mixing_levels)
    lines += _line("mixing level", ", ".join(levels) or "none")
    lines += _line("early stop", _early_stop(resolved))
    lines += [f"  note: {note}" for note in resolved.notes]
    return "\n".join(lines)


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
