"""Format the table of changes for a run that continues with another configuration or another number of training samples: length, remaining
events (validations, checkpoints, ...), probabilities, phases, learning rates.

For example, `run.allow=[trainer.length]` lets a run of 9 steps continue to 18: every percentage, the cosine and the final validations move.
The table compares the resolved schedules of the saved and of the new configuration. It is printed when the run continues, and saved as
launches/<n>/moved.txt.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from linnaeus.config.schema import Config
from linnaeus.durations import first_step_at
from linnaeus.errors import ConfigError
from linnaeus.reporting.plans.plan import clock_cadences, describe_augmentation, describe_image_sizes, describe_phases, describe_ramp
from linnaeus.schedule.events import Every
from linnaeus.schedule.length import training_length
from linnaeus.schedule.resolved import RAMPS, ResolvedSchedule, resolve_all_schedule_params

MARKS = (25, 50, 75, 100)  # per cent of the new length at which learning rates are compared


class _Plan(NamedTuple):
    """Resolved schedule of one configuration. `lr(step)` is the learning rate of the update made at `global_step` = `step`."""

    resolved: ResolvedSchedule
    lr: Callable[[int], float]
    config: Config


def describe_changes(
    old: Mapping[str, Any],
    new: Config,
    train_size: int,
    components: Sequence[str] | None,
    step: int,
    old_train_size: int | None = None,
    probabilities: Sequence[str] = RAMPS,
    tasks: int | None = None,
) -> str:
    """Return the table of changes as text, for a run that continues with the configuration `new` instead of the saved configuration `old`.

    If this version of the program cannot read `old`, a line that says so replaces the table. step: number of updates made so far.
    train_size: number of training samples now. old_train_size: number of training samples before; None if unchanged. components: names of
    the metadata components of the data now. probabilities: names of the scheduled probabilities that affect the data now. tasks: number of
    tasks; None: unknown."""
    from linnaeus.config.environment import saved_tree
    from linnaeus.config.typed_config import typed_config
    from linnaeus.rundir.identity import config_difference

    changed = config_difference(old, saved_tree(new)).refused(())[0]
    changed += [f"{old_train_size:,} -> {train_size:,} training samples"] if old_train_size not in (None, train_size) else []
    lines = [f"changes from step {step} with {'; '.join(changed) or 'no key that alters updates'}"]
    try:
        saved, size = typed_config(dict(old)), old_train_size or train_size
        try:
            before = _planned(saved, size, components, probabilities, tasks)
        except ConfigError:  # the data no longer have the components of the old schedule
            before = _planned(saved, size, None, probabilities, tasks)
    except ConfigError as error:
        return "\n".join([*lines, f"  unknown: this version of the program cannot read the old configuration ({error})"])
    after = _planned(new, train_size, components, probabilities, tasks)
    sections: dict[str, Callable[[_Plan], dict[str, str]]] = {
        "length": lambda plan: _length(plan.resolved, step),
        f"events after step {step}": lambda plan: {name: _remaining(every, step) for name, every in plan.resolved.events().items()},
        "probabilities": lambda plan: _ramps(plan.resolved, step),
        "phases": lambda plan: _phases(plan.resolved, step),
        "learning rate of the update": lambda plan: _learning_rates(plan, step, after.resolved.total_steps),
    }
    lines += _table({title: (rows(before), rows(after)) for title, rows in sections.items()})
    if step >= after.resolved.last_step:
        lines.append(f"step {step} is at or after the new last step {after.resolved.last_step}: no further update is made")
    return "\n".join(lines)


def _planned(config: Config, train_size: int, components: Sequence[str] | None, probabilities: Sequence[str], tasks: int | None) -> _Plan:
    """Return the resolved schedule and the learning rates of a configuration. The arguments are those of `describe_changes`.

    With `components` None, the metadata components that the configuration names are not checked."""
    from linnaeus.optim.lr_schedulers import build_scheduler, scaled_lr

    length = training_length(config, train_size)
    sizes = (length.total_steps, length.steps_per_epoch)
    resolved = resolve_all_schedule_params(config, *sizes, components, tasks, probabilities)
    base, _ = scaled_lr(config.optimizer, config.trainer.global_batch_size)
    return _Plan(resolved, build_scheduler(config.lr_scheduler, base, *sizes, resolved.phases).at, config)


# -- the rows of a section for one plan: name -> text --------------------------------------------------------------------------


def _length(r: ResolvedSchedule, step: int) -> dict[str, str]:
    return {
        "total steps": str(r.total_steps),
        "last step": str(r.last_step),
        "steps per epoch": str(r.steps_per_epoch),
        "epochs": f"{r.total_steps / r.steps_per_epoch:g}",
        "global batch size": str(r.global_batch_size),
        "completed": f"{min(1.0, step / r.total_steps):.1%}",
        "position": f"epoch {step // r.steps_per_epoch + 1}, after {step % r.steps_per_epoch} of {r.steps_per_epoch} updates",
    }


def _remaining(every: Every, step: int) -> str:
    """Return the steps after `step` at which the event occurs as text: their number, a colon, and the steps, such as `5: 20, 30 ... 60`.

    Up to four steps are listed; of more, only the first two and the last. Intervals in wall time follow, such as `every 15min`. The text is
    `none` if the event does not occur after `step`."""
    steps = [s for s in every.steps() if s > step]
    parts = [f"every {cadence}" for cadence in clock_cadences(every)]
    if steps:
        shown = ", ".join(map(str, steps)) if len(steps) <= 4 else f"{steps[0]}, {steps[1]} ... {steps[-1]}"
        parts.insert(0, f"{len(steps)}: {shown}")
    return "; ".join(parts) or "none"


def _ramps(r: ResolvedSchedule, step: int) -> dict[str, str]:
    rows = {
        name: describe_ramp(ramp) if ramp.is_constant else f"{ramp.at(step):.4g} now: {describe_ramp(ramp)}"
        for name, ramp in r.ramps().items()
    }
    if "mixup_prob" in rows:
        rows["mixing level"] = ", ".join(f"{level} from epoch {epoch + 1}" for epoch, level in r.mixup_group_levels) or "none"
    if r.augmentation_end is not None:
        rows["augmentation"] = describe_augmentation(r)
    if r.image_sizes is not None:
        rows["image size"] = f"{r.image_sizes.at(step)} now: {describe_image_sizes(r.image_sizes)}"
    return rows


def _phases(r: ResolvedSchedule, step: int) -> dict[str, str]:
    """Return {name: text} of the rows about curriculum phases; {} without phases.

    The rows are the phase of the next update, and the steps and weights of every phase that ends after `step`."""
    if r.phases is None:
        return {}
    rows = {f"phase at step {step} (now)": r.phases.at(step)[0]} if step < r.last_step else {}
    for phase, texts in zip(r.phases.phases, describe_phases(r.phases).values(), strict=True):
        rows |= {f"{name} of {phase.name}": text for name, text in texts.items() if phase.end > step}
    return rows


def _learning_rates(plan: _Plan, step: int, total: int) -> dict[str, str]:
    """Return {name of the row: learning rate as text} at `step`, the current step, and at later steps.

    The later steps are at `MARKS` per cent of the new length `total`. The text is `ended` for steps after the end of `plan`."""
    steps = {f"at step {step} (now)": step}
    steps |= {f"at step {s} ({p}%)": s for p in MARKS for s in [min(first_step_at(total * p / 100), total - 1)] if s > step}
    reduced = ", before plateau reductions" if plan.config.lr_scheduler.name == "plateau" else ""
    return {name: f"{plan.lr(s):.6g}{reduced}" if s < plan.resolved.last_step else "ended" for name, s in steps.items()}


# -- the table of two plans ----------------------------------------------------------------------------------------------------


def _table(sections: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]]) -> list[str]:
    """Return the lines of the table. sections: title -> (rows before, rows after); rows are dicts name -> text.

    A section has a line with its title, a line with name, text before and text after for each changed row, and a line with the names of the
    unchanged rows. A row that is missing on one side has the text `none`."""
    rows = [
        (title, name, before.get(name, "none"), after.get(name, "none"))
        for title, (before, after) in sections.items()
        for name in {**before, **after}
    ]
    moved = [row for row in rows if row[2] != row[3]]
    name_width = 4 + max((len(name) for _, name, _, _ in moved), default=0)
    width = max(8, 2 + max((len(before) for _, _, before, _ in moved), default=0))
    lines = [f"{'':<{name_width}}{'before':<{width}}after"] if moved else []
    for title in dict.fromkeys(row[0] for row in rows):
        lines += [title, *(f"{f'  {name}':<{name_width}}{before:<{width}}{after}" for of, name, before, after in moved if of == title)]
        unchanged = [name for of, name, before, after in rows if of == title and before == after]
        lines += [f"  unchanged: {', '.join(unchanged)}"] if unchanged else []
    return lines
