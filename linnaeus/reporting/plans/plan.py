"""Format the plan of a run: its schedule as text. The plan is printed with `plan=true` and at every start, and saved as schedule.txt."""

from collections.abc import Sequence
from itertools import pairwise

from linnaeus.durations import first_step_at
from linnaeus.errors import counted
from linnaeus.schedule.events import Every, Ramp
from linnaeus.schedule.image_sizes import ImageSizes
from linnaeus.schedule.phases import Phases
from linnaeus.schedule.resolved import DENSITY, ResolvedSchedule
from linnaeus.schedule.validation_passes import PARTIAL

MAX_SHOWN = 6  # steps of an event; longer lists are abbreviated
NAME_WIDTH = 28  # columns


def schedule_summary(resolved: ResolvedSchedule, world_size: int = 1) -> str:
    """Return the schedule of a run as text, one setting per line. world_size: number of processes.

    For an event, such as a validation, the text gives `global_step` after an update (1 after the first). For the beginning of a learning
    rate, phase, probability or image size, it gives `global_step` before an update (0 before the first)."""
    micro = resolved.micro_batch_size or resolved.global_batch_size // world_size
    accumulation = resolved.global_batch_size // (micro * world_size)
    lines = ["schedule"]
    processes = counted(world_size, "process")
    factors = f"micro-batch {micro} x {counted(accumulation, 'accumulation step')} x {processes}"
    lines += _line("global batch", f"{resolved.global_batch_size} = {factors}")
    lines += _line("steps per epoch", str(resolved.steps_per_epoch))
    lines += _line("total steps", f"{resolved.total_steps} = {_epochs(resolved)}")
    if resolved.last_step < resolved.total_steps:
        lines += _line("last step", f"{resolved.last_step} (schedule.early_stop.max_steps)")
    marks = (f"{p}% at step {first_step_at(resolved.total_steps * p / 100)}" for p in (25, 50, 75, 100))
    lines += _line("progress", ", ".join(marks))
    lines += _line("learning rate", ", ".join(f"{change} at step {step}" for change, step in resolved.lr_milestones) or "no warm-up")
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
    """Return the lines about values that change over the run.

    The section "probabilities" also has mixing level, augmentation and image size, if these change. The section "growth" (fraction of
    connected weights) is present if connections grow."""
    lines: list[str] = []
    ramps = resolved.ramps()
    density = ramps.pop(DENSITY, None)
    lines += ["probabilities"] * bool(ramps)
    for name, ramp in ramps.items():
        lines += _line(name, describe_ramp(ramp))
    if "mixup_prob" in ramps:
        lines += _line("mixing level", _levels(resolved))
    if resolved.augmentation_end is not None:
        lines += _line("augmentation", describe_augmentation(resolved))
    if resolved.image_sizes is not None:
        lines += _line("image size", describe_image_sizes(resolved.image_sizes))
    if density is not None:
        lines.append("growth")
        lines += _line(DENSITY, describe_ramp(density))
    return lines


def _line(name: str, text: str) -> list[str]:
    return [f"  {name:<{NAME_WIDTH}}{text}"]


def _epochs(resolved: ResolvedSchedule) -> str:
    epochs, rest = divmod(resolved.total_steps, resolved.steps_per_epoch)
    if not epochs:
        return f"{rest} of the {resolved.steps_per_epoch} steps of an epoch"
    more = f" and {rest} more" if rest else ""
    return f"{epochs} epoch{'s' * (epochs != 1)} of {resolved.steps_per_epoch} steps{more}"


def describe_event(every: Every) -> str:
    """Return the steps of an event as text: `12 times: 20, 40, 60, 80, 100, ... 240  (every 20steps)`; `never` if it does not occur."""
    steps = every.steps()
    clock = clock_cadences(every)
    times = "once" if len(steps) == 1 else f"{len(steps)} times"
    parts = [f"{times}: {abbreviate(steps)}"] * bool(steps) + [f"every {c} of wall time" for c in clock]
    if not parts:
        return "never"
    cadences = [c for c in every.cadences if c not in clock]
    return ", and ".join(parts) + (f"  (every {', '.join(cadences)})" if cadences else "")


def clock_cadences(every: Every) -> list[str]:
    """Return the intervals of an event that are wall times, such as `15min`; [] if all intervals are in steps, epochs or per cent."""
    return [c for c in every.cadences if c.endswith(("s", "min", "h")) and not c.endswith(("steps", "epochs"))]


def abbreviate(steps: Sequence[int]) -> str:
    """Return steps as text. If there are more than `MAX_SHOWN` + 1 steps, only the first `MAX_SHOWN` - 1 and the last are shown."""
    if len(steps) <= MAX_SHOWN + 1:
        return ", ".join(map(str, steps))
    return f"{', '.join(map(str, steps[: MAX_SHOWN - 1]))}, ... {steps[-1]}"


def describe_ramp(ramp: Ramp) -> str:
    """Return a ramp (a number that changes linearly over steps) as text: `0 -> 0.6, from step 11 to step 63`; `0.6` if it is constant."""
    off = "" if ramp.off_step is None else f"; 0 from step {ramp.off_step}"
    if ramp.is_constant:
        return f"{ramp.start:g}{off}"
    if ramp.begin_step == ramp.until_step:
        return f"{ramp.start:g}, then {ramp.end:g} from step {ramp.until_step}{off}"
    return f"{ramp.start:g} -> {ramp.end:g}, from step {ramp.begin_step} to step {ramp.until_step}{off}"


def describe_augmentation(resolved: ResolvedSchedule) -> str:
    """Return the end of augmentation as text: `on; off from step 90 to step 100 (augment.off_last)`."""
    return f"on; off from step {resolved.augmentation_end} to step {resolved.total_steps} (augment.off_last)"


def describe_image_sizes(sizes: ImageSizes) -> str:
    """Return the image sizes as text: `128, 160 from step 27, ... 224 from step 80`; of many, the first few and the last."""
    (_, first), *others = sizes.stages
    texts = [str(first), *(f"{side} from step {step}" for step, side in others)]
    return ", ".join(texts if len(texts) <= MAX_SHOWN else [*texts[: MAX_SHOWN - 2], f"... {texts[-1]}"])


def describe_phases(phases: Phases) -> dict[str, dict[str, str]]:
    """Return {name of the phase: {key: text}}.

    Key `steps`: `from step 15 to step 50, fade-in ends at step 20, learning rate x 1`. Keys `data` and `dimensions`, only if the phase sets
    them: weights of the data sources and weights of the model dimensions, such as `cognitive 2`."""
    described = {}
    for phase, (start, end) in zip(phases.phases, [(0, 0), *phases.crossfades()], strict=True):
        fade = f", fade-in ends at step {end}" if start < end else ""
        texts = {"steps": f"from step {phase.start} to step {phase.end}{fade}, learning rate x {phase.lr:g}"}
        for name, weights in (("data", phase.data), ("dimensions", phase.dimensions)):
            texts |= {name: " ".join(f"{item} {weight:g}" for item, weight in weights)} if weights else {}
        described[phase.name] = texts
    return described


def _phases(phases: Phases) -> list[str]:
    lines = ["phases"]
    for phase, texts in zip(phases.phases, describe_phases(phases).values(), strict=True):
        weights = (f", {name} {text}" for name, text in texts.items() if name != "steps")
        lines += _line(phase.name, texts["steps"] + "".join(weights) + (f": {phase.description}" if phase.description else ""))
    return lines


def _levels(resolved: ResolvedSchedule) -> str:
    levels = (f"{level} from epoch {epoch + 1} (step {epoch * resolved.steps_per_epoch})" for epoch, level in resolved.mixup_group_levels)
    return ", ".join(levels) or "none"


def _combinations(resolved: ResolvedSchedule) -> list[str]:
    if not resolved.validate_partial_mask_meta.steps():
        return []
    listed = resolved.combinations[: resolved.num_listed]
    lines = _line("  combinations", ", ".join("+".join(c) for c in listed) or "none")
    if resolved.all_combinations_at_end:
        lines += _line("  also at the end", ", ".join("+".join(c) for c in resolved.combinations[resolved.num_listed :]) or "none")
    return lines


def _early_stop(resolved: ResolvedSchedule) -> str:
    stop = resolved.early_stop
    bound = "below" if stop.mode == "min" else "above"
    threshold = f" (mode {stop.mode}, min_delta {stop.min_delta:g})"
    parts = [
        (stop.patience, f"after {stop.patience} validations without a better {stop.monitor}{threshold}"),
        (stop.metric_bound, f"{stop.monitor} at or {bound} {stop.metric_bound}"),
        (stop.min_lr, f"learning rate below {stop.min_lr} after step {resolved.warmup_end}"),
        (stop.max_grad_norm, f"gradient norm above {stop.max_grad_norm}"),
        (stop.max_steps, f"at step {stop.max_steps}"),
    ]
    return "; ".join(text for value, text in parts if value is not None) or "never"


def unreached(resolved: ResolvedSchedule) -> list[str]:
    """Return a line for each setting of the schedule that has no effect, or only part of it, within the steps of the run."""
    last = resolved.last_step
    notes = [
        f"{name}: {', '.join(e.cadences)} does not occur within the run of {counted(last, 'step')}"
        for name, e in resolved.events().items()
        if e.cadences and not e.seconds and not e.ever_due
    ]
    for name, r in resolved.ramps().items():
        end = last if r.off_step is None else min(last, r.off_step)
        if not r.is_constant and r.until_step > end:
            key = "growth" if name == DENSITY else f"schedule.{name}"
            step = max(resolved.growth.steps(), default=0) if name == DENSITY else end - 1  # the last update that changes the value
            of = "last step" if end == last else "end of mixing at step"
            notes.append(f"{key}: the ramp ends at step {r.until_step}, after the {of} {end}, and reaches {r.at(step):.4g}")
    notes += [
        f"schedule.mixup_group_level: {level} would start after the last epoch"
        for epoch, level in resolved.mixup_group_levels
        if epoch * resolved.steps_per_epoch >= last
    ]
    notes += [
        f"schedule.mixup_group_level: {level} has no effect, because {following} starts in the same epoch, {epoch + 1}"
        for (epoch, level), (other, following) in pairwise(resolved.mixup_group_levels)
        if epoch == other and epoch * resolved.steps_per_epoch < last
    ]
    if resolved.augmentation_end is not None and resolved.augmentation_end >= last:
        notes.append(f"augment.off_last: augmentation would end at step {resolved.augmentation_end}, not before the last step {last}")
    if resolved.image_sizes is not None and resolved.image_sizes.stages[-1][0] >= last:
        step, side = resolved.image_sizes.stages[-1]
        reached = resolved.image_sizes.at(last - 1)
        notes.append(f"schedule.image_size: {side} would start at step {step}, not before the last step {last}; it reaches {reached}")
    notes += resolved.phases.unused_phases(last) if resolved.phases is not None else []
    of_phases = resolved.phases.lr_milestones(resolved.total_steps) if resolved.phases is not None else []
    notes += [
        f"lr_scheduler: step {step} ({change}) is not before the last step {last}"
        for change, step in resolved.lr_milestones
        if step >= last and (change, step) not in [("warm-up ends", resolved.warmup_end), *of_phases]
    ]
    if (limit := resolved.early_stop.max_steps) is not None and limit >= resolved.total_steps:
        notes.append(f"schedule.early_stop.max_steps={limit} has no effect: the run has {counted(resolved.total_steps, 'step')}")
    if resolved.warmup_end >= last:
        run = counted(last, "step")
        notes.append(f"lr_scheduler.warmup: ends at step {resolved.warmup_end}; the learning rate does not reach its peak in {run}")
    return notes
