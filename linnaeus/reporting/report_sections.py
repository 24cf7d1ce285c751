"""The sections of a progress report: `logger.report_sections` names them, in the order they are read.

A section is a function from a `ReportData` to parts: a name, a value and how it reads. What only the configuration determines goes to
reports.jsonl under its name; clocks are shown alone, their rows are those of timings.jsonl. What is not known has no part. To add a
section, write the function, name it in `SECTIONS`, and among the choices of `logger.report_sections`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from linnaeus.reporting.formatting import format_duration, format_memory, format_rate, format_value
from linnaeus.reporting.report_data import ReportData


class Part(NamedTuple):
    """`text` "" is for the file alone; `name` "" for the reader alone."""

    name: str
    value: float | int | str = 0
    text: str = ""


def progress(s: ReportData) -> list[Part]:
    """Share of the run that is done, step and epoch (1-based, as a person counts)."""
    width, epochs = len(f"{s.total_steps:,}"), -(-s.total_steps // s.steps_per_epoch)
    percent, epoch = 100 * s.step / s.total_steps, min(epochs, s.step // s.steps_per_epoch + 1)
    return [
        Part("progress/percent", percent, f"{percent:5.1f}%"),
        Part("progress/total_steps", s.total_steps, f"step {s.step:>{width},}/{s.total_steps:,}"),
        Part("progress/epoch", s.step / s.steps_per_epoch, f"epoch {epoch}/{epochs}"),
    ]


def loss(s: ReportData) -> list[Part]:
    """The mean since the last row of metrics, and its exponential average."""
    names = {"train/loss": "loss", "train/smoothed_loss": "smooth"}
    return [Part(name, s.row[name], f"{word} {s.row[name]:.4f}") for name, word in names.items() if name in s.row]


def validation(s: ReportData) -> list[Part]:
    """The newest results: the loss of each pass, and what the workload names besides; those of one kind (`val/part/.../score`) read
    as one."""
    if not s.validation:
        return []
    parts, kinds = [], dict[str, list[str]]()
    for name, value in s.validation.items():
        text = f"{value:.4f}" if name.endswith("/loss") else format_value(value)
        words = name.split("/")
        if len(words) == 4:
            kinds.setdefault(f"{words[0]}/{words[1]}/{words[3]}", []).append(f"{words[2]} {text}")
        parts.append(Part(name, value, "" if len(words) == 4 else f"{name} {text}"))
    parts += [Part("", text=f"{kind} {', '.join(items)}") for kind, items in kinds.items()]
    return [*parts, Part("validation/step", s.validated, f"at step {s.validated:,}")]


def tasks(s: ReportData) -> list[Part]:
    """Loss x weight of each task, where there are several."""
    parts = []
    for task in s.tasks if len(s.tasks) > 1 else ():
        found = {name: s.row[name] for name in (f"train/{task}/loss", f"train/{task}/weight") if name in s.row}
        parts += [Part(name, value) for name, value in found.items()]
        numbers = " x ".join(f"{value:.4g}" for value in found.values())
        if found:
            parts.append(Part("", text=f"{task} {numbers}"))
    return parts


def update(s: ReportData) -> list[Part]:
    """Learning rate, norm of the gradient before clipping, updates skipped as non-finite."""
    shown: dict[str, Callable[[float], str]] = {
        "lr": lambda v: f"lr {v:.2e}",
        "grad_norm": lambda v: f"grad {v:.3g}",
        "skipped_updates": lambda v: f"{v:.0f} skipped" if v else "",
    }
    known = {f"train/{name}": show for name, show in shown.items() if f"train/{name}" in s.row}
    return [Part(name, s.row[name], show(s.row[name])) for name, show in known.items()]


def time(s: ReportData) -> list[Part]:
    """Elapsed, and what is left; validation and saving, part of what is left, apart."""
    known = s.clocks
    parts = [Part("", text=f"elapsed {format_duration(known['time/wall_seconds'])}")] if "time/wall_seconds" in known else []
    if "time/eta_seconds" in known:
        names = {"time/eta_validation_seconds": "validation", "time/eta_saving_seconds": "saving"}
        within = [f"{word} {format_duration(known[name])}" for name, word in names.items() if known.get(name, 0) >= 0.5]
        apart = f" ({', '.join(within)})" if within else ""
        unknown = "" if "time/eta_validation_seconds" in known else " + validation"
        parts.append(Part("", text=f"ETA {format_duration(known['time/eta_seconds'])}{apart}{unknown}"))
    return parts


def rates(s: ReportData) -> list[Part]:
    """Speed over the last reports, share of the time spent waiting for data, and of the devices' peak that is used."""
    unit = s.units[0] if s.units else ""
    shown: dict[str, Callable[[float], str]] = {
        "recent/steps_per_second": lambda v: f"{format_rate(v)} steps/s",
        "recent/ms_per_step": lambda v: f"{v:.3g} ms/step",
        "recent/samples_per_second": lambda v: f"{format_rate(v)} samples/s",
        f"recent/{unit}_per_second": lambda v: f"{format_rate(v)} {unit}/s",
        "recent/waiting_for_data": lambda v: f"data wait {100 * v:.0f}%",
        "recent/mfu": lambda v: f"MFU {100 * v:.1f}%",
    }
    return [Part("", text=show(s.clocks[name])) for name, show in shown.items() if name in s.clocks]


def memory(s: ReportData) -> list[Part]:
    """Of this process (resident now) and of its device (held by tensors now, at most, of what there is)."""
    parts = []
    if "memory/host_now_MiB" in s.clocks:
        parts.append(Part("", text=f"host {format_memory(s.clocks['memory/host_now_MiB'])}"))
    if "memory/device_MiB" in s.clocks:
        now, most, there = (format_memory(s.clocks[f"memory/device{which}_MiB"]) for which in ("_now", "", "_total"))
        parts.append(Part("", text=f"device {now}, at most {most} of {there}"))
    return parts


def samples(s: ReportData) -> list[Part]:
    """What has been seen, and what one update takes: micro-batch x accumulation x processes."""
    parts = [Part("progress/samples_seen", s.samples, f"{s.samples:,} samples")]
    if s.units is not None:
        name, seen = s.units
        parts.append(Part(f"progress/{name}_seen", seen, f"{seen:,} {name}"))
    parts += [Part(f"batch/{name}", size) for name, size in zip(("micro_batch_size", "accumulation", "processes"), s.batch)]
    made_of = " x ".join(map(str, s.batch))
    return [*parts, Part("batch/global_batch_size", s.global_batch_size, f"batch {made_of} = {s.global_batch_size:,}")]


def model(s: ReportData) -> list[Part]:
    """Parameters, and those that are trained and connected."""
    total, active = s.parameters, s.active_parameters
    text = f"{total:,} parameters" if active == total else f"{active:,} of {total:,} parameters active"
    return [Part("model/parameters", total, text), Part("model/active_parameters", active)]


def phase(s: ReportData) -> list[Part]:
    """What a curriculum says: its row `phase`, with `phase/description`, and all other rows `phase/...`; those of one kind
    (`phase/mixture/...`) read as one."""
    rows = {name: value for name, value in s.more.items() if name.partition("/")[0] == "phase"}
    parts, kinds = [], dict[str, list[str]]()
    for name, value in rows.items():
        kind, _, item = name.removeprefix("phase/").rpartition("/")
        text = f"{name.removeprefix('phase/')} {format_value(value)}"
        if name == "phase" and rows.get("phase/description"):
            text += f": {rows['phase/description']}"
        if kind:
            kinds.setdefault(kind, []).append(f"{item} {format_value(value)}")
        parts.append(Part(name, value, "" if kind or name == "phase/description" else text))
    return parts + [Part("", text=f"{kind} {', '.join(items)}") for kind, items in kinds.items()]


def growth(s: ReportData) -> list[Part]:
    """Where connections grow: the share of the masks' entries that are connected, and how many these are."""
    parts = []
    if "growth/density" in s.more:
        parts.append(Part("growth/density", s.more["growth/density"], f"{100 * float(s.more['growth/density']):.2f}% connected"))
    if "growth/connected_now" in s.more:
        parts.append(Part("growth/connected_now", s.more["growth/connected_now"]))
    return parts


def workload(s: ReportData) -> list[Part]:
    """All other rows that the workload adds, by their names."""
    rows = {name: value for name, value in s.more.items() if name.partition("/")[0] not in ("phase", "growth")}
    return [Part(name, value, f"{name} {format_value(value)}") for name, value in rows.items()]


SECTIONS: dict[str, Callable[[ReportData], list[Part]]] = {
    section.__name__: section
    for section in (progress, loss, validation, tasks, update, time, rates, memory, samples, model, growth, phase, workload)
}
