"""The line a person reads every 1 % of a run: where it is, how it goes, when it ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping


def format_duration(seconds: float) -> str:
    """`42s`, `3m05s`, `2h07m`, `3d04h`; `?` for what is not known."""
    if not math.isfinite(seconds) or seconds < 0:
        return "?"
    whole = round(seconds)
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // part:02d}{smaller}"
    return f"{whole}s"


def format_rate(per_second: float) -> str:
    """A throughput in three digits: `0.52`, `87.3`, `1.24k`."""
    if not math.isfinite(per_second):
        return "?"
    for factor, suffix in ((1e6, "M"), (1e3, "k")):
        if per_second >= factor:
            return f"{per_second / factor:.3g}{suffix}"
    return f"{per_second:.3g}"


# key of the numbers -> how it reads; the order of the line.
_PARTS: dict[str, Callable[[float], str]] = {
    "loss": lambda v: f"loss {v:.4f}",
    "smoothed_loss": lambda v: f"smooth {v:.4f}",
    "lr": lambda v: f"lr {v:.2e}",
    "grad_norm": lambda v: f"grad {v:.3g}",
    "samples_per_second": lambda v: f"{format_rate(v)} samples/s",
    "step_ms": lambda v: f"{v:.3g} ms/step",
    "wait_fraction": lambda v: f"data wait {100 * v:.0f}%",
    "elapsed_seconds": lambda v: f"elapsed {format_duration(v)}",
    "eta_seconds": lambda v: f"ETA {format_duration(v)}",
}


def report_line(numbers: Mapping[str, float]) -> str:
    """One plain line of `numbers`: `step` and `total_steps`, `epoch` (0-based) and `epochs`, and any of `loss`, `smoothed_loss`,
    `lr`, `grad_norm`, `samples_per_second`, `step_ms`, `wait_fraction` (0 to 1), `elapsed_seconds`, `eta_seconds`. Numbers it
    does not know follow by their name."""
    step, total = int(numbers["step"]), int(numbers["total_steps"])
    head = f"{100 * step / total:5.1f}%  step {step:>{len(str(total))}}/{total}"
    parts = [head]
    if "epoch" in numbers:
        of = f"/{int(numbers['epochs'])}" if "epochs" in numbers else ""
        parts.append(f"epoch {int(numbers['epoch']) + 1}{of}")
    parts += [show(numbers[key]) for key, show in _PARTS.items() if key in numbers]
    known = {"step", "total_steps", "epoch", "epochs", *_PARTS}
    parts += [f"{key} {value:.4g}" for key, value in numbers.items() if key not in known]
    return "  ".join(parts)


def eta_seconds(step: int, total_steps: int, seconds_per_step: float, seconds_to_come: float = 0.0) -> float:
    """Time left: updates at their mean pace so far in this launch, plus what else is to come (validation, saving)."""
    return max(0, total_steps - step) * seconds_per_step + seconds_to_come
