"""What moves when a run goes on with another configuration: its length, what is still to come, and the learning rates.

`run.allow=[trainer.length]` lets a run of 9 steps become one of 18: every percentage, the cosine and the final validations move. The
table is printed at that start and kept as launches/<n>/moved.txt. It is made of both plans, the saved configuration's and the new
one's, so nothing in it is a guess.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from linnaeus.config.schema import Config
from linnaeus.durations import Duration, first_step_at
from linnaeus.errors import ConfigError
from linnaeus.reporting.plan import describe_phases, describe_ramp
from linnaeus.schedule.events import Every, Ramp
from linnaeus.schedule.length import training_length
from linnaeus.schedule.resolved import RAMPS, ResolvedSchedule, resolve_all_schedule_params

MARKS = (25, 50, 75, 100)  # percent of the new length at which learning rates are compared


@dataclasses.dataclass(frozen=True)
class _Plan:
    """One of the two: what it resolves to, and the learning rate of the update that begins at a step."""

    resolved: ResolvedSchedule
    lr: Callable[[int], float]
    config: Config


def describe_changes(
    old: Mapping[str, Any] | Config,
    new: Config,
    train_size: int,
    components: Sequence[str] | None,
    step: int,
    old_train_size: int | None = None,
    probabilities: Sequence[str] = RAMPS,
) -> str:
    """The table for a run that goes on at `step` (updates made) with `new` instead of `old`, a saved configuration.

    `train_size`, `components` and the `probabilities` it asks for are those of the data now; `old_train_size` where it was another. Rank 0
    alone needs it."""
    before, now = _tree(old), dataclasses.asdict(new)
    lines = [f"changes from step {step} on, with {_altering(before, now)}"]
    try:
        was = _planned(_typed(old), old_train_size or train_size, components, probabilities, old_plan=True)
    except ConfigError as error:
        return "\n".join([*lines, f"  unknown: the configuration before is none for this version of the program ({error})"])
    will = _planned(new, train_size, components, probabilities)
    sections = {
        "length": _length(was, will, step),
        f"events after step {step}": _events(was.resolved, will.resolved, step),
        "probabilities": _ramps(was.resolved, will.resolved, step),
        "phases": _phases(was.resolved, will.resolved, step),
        "learning rate of the update": _learning_rates(was, will, step),
    }
    lines += _table(sections)
    if step >= will.resolved.last_step:
        lines.append(f"step {step} is at or past the new end, step {will.resolved.last_step}: no further update is made")
    return "\n".join(lines)


def _tree(config: Mapping[str, Any] | Config) -> Mapping[str, Any]:
    return dataclasses.asdict(config) if isinstance(config, Config) else config


def _typed(config: Mapping[str, Any] | Config) -> Config:
    from linnaeus.config.load import typed_config

    return config if isinstance(config, Config) else typed_config(dict(config))


def _altering(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    from linnaeus.rundir.identity import config_difference

    return "; ".join(config_difference(before, now).refused(())[0]) or "no key that alters updates"


def _planned(
    config: Config, train_size: int, components: Sequence[str] | None, probabilities: Sequence[str], old_plan: bool = False
) -> _Plan:
    """`components` of the data now may not be those the old plan names; then its own are taken as they are written."""
    from linnaeus.optim.lr_schedulers import build_scheduler, scaled_lr

    length = training_length(config, train_size)
    sizes = (length.total_steps, length.steps_per_epoch)
    try:
        resolved = resolve_all_schedule_params(config, *sizes, components, probabilities=probabilities)
    except ConfigError:
        if not old_plan:
            raise
        resolved = resolve_all_schedule_params(config, *sizes, None, probabilities=probabilities)
    base, _ = scaled_lr(config.optimizer, config.trainer.global_batch_size)
    return _Plan(resolved, build_scheduler(config.lr_scheduler, base, *sizes, resolved.phases).at, config)


# -- the rows: name -> (before, after) -----------------------------------------------------------------------------------------

Rows = dict[str, tuple[str, str]]


def _length(was: _Plan, will: _Plan, step: int) -> Rows:
    def rows(plan: _Plan) -> dict[str, str]:
        r = plan.resolved
        return {
            "total steps": str(r.total_steps),
            "last step": str(r.last_step),
            "steps per epoch": str(r.steps_per_epoch),
            "epochs": f"{r.total_steps / r.steps_per_epoch:g}",
            "samples of an update": str(r.global_batch_size),
            "done": f"{min(1.0, step / r.total_steps):.1%}",
            "position": f"epoch {step // r.steps_per_epoch + 1}, after {step % r.steps_per_epoch} of {r.steps_per_epoch} updates",
        }

    return _paired(rows(was), rows(will))


def _events(was: ResolvedSchedule, will: ResolvedSchedule, step: int) -> Rows:
    before = {name: _to_come(every, step) for name, every in was.events().items()}
    return _paired(before, {name: _to_come(every, step) for name, every in will.events().items()})


def _to_come(every: Every, step: int) -> str:
    """`4: 20, 30 ... 50`: how many, the first two and the last."""
    steps = [s for s in every.steps() if s > step]
    parts = [f"every {cadence}" for cadence in every.cadences if Duration.parse(cadence).is_time]
    if steps:
        shown = ", ".join(map(str, steps)) if len(steps) <= 4 else f"{steps[0]}, {steps[1]} ... {steps[-1]}"
        parts.insert(0, f"{len(steps)}: {shown}")
    return "; ".join(parts) or "none"


def _ramps(was: ResolvedSchedule, will: ResolvedSchedule, step: int) -> Rows:
    def rows(resolved: ResolvedSchedule) -> dict[str, str]:
        found = {name: _ramp(ramp, step) for name, ramp in resolved.ramps().items()}
        levels = (f"{level} from epoch {epoch + 1}" for epoch, level in resolved.mixup_group_levels)
        return found | ({"mixing level": ", ".join(levels) or "none"} if "mixup_prob" in found else {})

    return _paired(rows(was), rows(will))


def _ramp(ramp: Ramp, step: int) -> str:
    return describe_ramp(ramp) if ramp.is_constant else f"{ramp.at(step):.4g} now: {describe_ramp(ramp)}"


def _phases(was: ResolvedSchedule, will: ResolvedSchedule, step: int) -> Rows:
    """The one the next update is in, and each that has updates still to come."""

    def rows(resolved: ResolvedSchedule) -> dict[str, str]:
        if resolved.phases is None:
            return {}
        rows = {f"phase at step {step} (now)": resolved.phases.at(step)[0]} if step < resolved.last_step else {}
        for phase, texts in zip(resolved.phases.phases, describe_phases(resolved.phases).values(), strict=True):
            rows |= {f"{what} of {phase.name}": text for what, text in texts.items() if phase.end > step}
        return rows

    return _paired(rows(was), rows(will))


def _learning_rates(was: _Plan, will: _Plan, step: int) -> Rows:
    """At the present step and at marks of the new length; an update beyond a plan's end is not made."""
    total = will.resolved.total_steps
    points = {f"at step {step} (now)": step}
    points |= {f"at step {s} ({p}%)": s for p in MARKS for s in [min(first_step_at(total * p / 100), total - 1)] if s > step}

    def rate(plan: _Plan, at: int) -> str:
        reduced = ", times its reductions" if plan.config.lr_scheduler.name == "plateau" else ""
        return f"{plan.lr(at):.6g}{reduced}" if at < plan.resolved.last_step else "ended"

    return {name: (rate(was, at), rate(will, at)) for name, at in points.items()}


def _paired(before: Mapping[str, str], after: Mapping[str, str]) -> Rows:
    return {name: (before.get(name, "none"), after.get(name, "none")) for name in {**before, **after}}


def _table(sections: Mapping[str, Rows]) -> list[str]:
    """Rows that differ, under the title of their section; the others by name."""
    moved = [(name, before, after) for rows in sections.values() for name, (before, after) in rows.items() if before != after]
    name_width = 4 + max((len(name) for name, _, _ in moved), default=0)
    width = 2 + max((len(before) for _, before, _ in moved), default=0)

    def row(name: str, before: str, after: str) -> str:
        return f"{name:<{name_width}}{before:<{max(width, 8)}}{after}"

    lines = [row("", "before", "after")] if moved else []
    for title, rows in sections.items():
        if not rows:
            continue
        still = [name for name, (before, after) in rows.items() if before == after]
        lines += [title, *(row(f"  {name}", *pair) for name, pair in rows.items() if pair[0] != pair[1])]
        lines += [f"  as before: {', '.join(still)}"] if still else []
    return lines
