"""What a configuration asks of the schedule that will not happen in the steps of its run."""

from __future__ import annotations

from linnaeus.schedule.events import Ramp
from linnaeus.schedule.resolved import DENSITY, ResolvedSchedule


def unreached(resolved: ResolvedSchedule) -> list[str]:
    """One line each, for the plan."""
    last = resolved.last_step
    notes = [
        f"{name}: {', '.join(e.cadences)} does not come within the {last} steps of the run"
        for name, e in resolved.events().items()
        if e.cadences and not e.seconds and not e.ever_due
    ]
    keys = {name: "growth" if name == DENSITY else f"schedule.{name}" for name in resolved.ramps()}
    notes += [
        f"{keys[name]}: the ramp ends at step {r.until_step}, beyond the last step {last}, and stops at {_reached(resolved, name, r):.4g}"
        for name, r in resolved.ramps().items()
        if not r.is_constant and r.until_step > last
    ]
    notes += [
        f"schedule.mixup_group_level: {level} would begin after the last epoch"
        for epoch, level in resolved.mixup_group_levels
        if epoch * resolved.steps_per_epoch >= last
    ]
    notes += resolved.phases.unused_phases(last) if resolved.phases is not None else []
    if resolved.warmup_end >= last:
        never = f"the learning rate of the run ({last} steps) never reaches its peak"
        notes.append(f"lr_scheduler.warmup: ends at step {resolved.warmup_end}, so {never}")
    return notes


def _reached(resolved: ResolvedSchedule, name: str, ramp: Ramp) -> float:
    """The value of the last update; the density is that of the last update in which weights are connected, or what it began with."""
    return ramp.at(max(resolved.growth.steps(), default=0) if name == DENSITY else resolved.last_step - 1)
