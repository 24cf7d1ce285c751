"""Format progress reports: the state of a run at one step becomes lines for a person and a row of reports.jsonl.

A report has sections, in the order of `logger.report_sections`. A section is a function that takes a `ReportData` and returns parts; a part
has a name, a value and a text. Values that the configuration determines go to reports.jsonl under the name of the part. Times and rates are
only shown; timings.jsonl has their rows. A value that is not available has no part. To add a section, write its function, and add it to
`SECTIONS` and to the choices of `logger.report_sections`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from linnaeus.errors import counted
from linnaeus.reporting.formatting import format_duration, format_memory, format_rate, format_seconds, format_value, layout


@dataclass(frozen=True)
class ReportData:
    """State of a run at one step, as plain values. All fields except `clocks` are determined by the configuration, the number of processes
    and `step`.

    row: newest training metrics (`train/loss`, `train/<task>/weight`, ...); empty before the first row of metrics.
    units: name and number of units (such as tokens) in the samples so far: `("tokens", 3_932_160)`.
    batch: (samples per micro-batch, micro-batches per update on one process, processes).
    validation: newest metrics of each validation pass (`val/loss`). validated: step of the last pass; -1 before the first one.
    more: values of the curriculum, of the growth of connections and of the workload, by name.
    clocks: known times and memory: `time/...` (means and sums of this launch; `wall_seconds` of all launches), `recent/...` (over the
      last reports) and `memory/...`.
    any_processes: True if the row must not depend on the number of processes."""

    step: int
    total_steps: int
    steps_per_epoch: int
    tasks: tuple[str, ...] = ()
    row: Mapping[str, float] = field(default_factory=dict)
    samples: int = 0
    units: tuple[str, int] | None = None
    batch: tuple[int, int, int] = (1, 1, 1)
    parameters: int = 0
    active_parameters: int = 0
    validated: int = -1
    validation: Mapping[str, float] = field(default_factory=dict)
    more: Mapping[str, float | int | str] = field(default_factory=dict)
    clocks: Mapping[str, float] = field(default_factory=dict)
    any_processes: bool = False


class Part(NamedTuple):
    """One value of a report. `text` is shown unless it is empty. `value` is written to the row of reports.jsonl unless `name` is empty."""

    name: str
    value: float | int | str = 0
    text: str = ""


def _available(values: Mapping[str, Any], texts: Mapping[str, Callable[[Any], str]]) -> list[Part]:
    """Return a part for each name that is in both `texts` and `values`. values: name -> value. texts: name -> function that formats the
    value."""
    return [Part(name, values[name], text(values[name])) for name, text in texts.items() if name in values]


def progress(s: ReportData) -> list[Part]:
    """Return the percentage of the run, the step, and the epoch, which is 1-based in the text."""
    width, epochs = len(f"{s.total_steps:,}"), -(-s.total_steps // s.steps_per_epoch)
    percent, epoch = 100 * s.step / s.total_steps, min(epochs, s.step // s.steps_per_epoch + 1)
    return [
        Part("progress/percent", percent, f"{percent:5.1f}%"),
        Part("progress/total_steps", s.total_steps, f"step {s.step:>{width},}/{s.total_steps:,}"),
        Part("progress/epoch", s.step / s.steps_per_epoch, f"epoch {epoch}/{epochs}"),
    ]


def loss(s: ReportData) -> list[Part]:
    """Return two parts: the mean loss since the last row of metrics, and the exponential moving average of the loss."""
    return _available(s.row, {"train/loss": "loss {:.4f}".format, "train/smoothed_loss": "smoothed {:.4f}".format})


def validation(s: ReportData) -> list[Part]:
    """Return the newest loss of each validation pass, and the further results that the workload reports.

    Results whose names differ only in the third of four parts (`val/part/<item>/score`) share one text."""
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
    """Return loss and loss weight of each task, from the newest row of training metrics; [] if there is only one task."""
    parts = []
    for task in s.tasks if len(s.tasks) > 1 else ():
        found = {name: s.row[name] for name in (f"train/{task}/loss", f"train/{task}/weight") if name in s.row}
        parts += [Part(name, value) for name, value in found.items()]
        numbers = " x ".join(f"{value:.4g}" for value in found.values())
        if found:
            parts.append(Part("", text=f"{task} {numbers}"))
    return parts


def update(s: ReportData) -> list[Part]:
    """Return learning rate, gradient norm before clipping, and number of updates skipped because of non-finite values."""
    texts = {
        "train/lr": "lr {:.2e}".format,
        "train/grad_norm": "grad norm {:.3g}".format,
        "train/skipped_updates": lambda number: f"{counted(round(number), 'update')} skipped" if number else "",
    }
    return _available(s.row, texts)


def time(s: ReportData) -> list[Part]:
    """Return the time elapsed, the time left, and the parts of the time left that validation and saving take."""
    clocks = s.clocks
    parts = [Part("", text=f"elapsed {format_duration(clocks['time/wall_seconds'])}")] if "time/wall_seconds" in clocks else []
    if "time/eta_seconds" in clocks:
        names = {"time/eta_validation_seconds": "validation", "time/eta_saving_seconds": "saving"}
        included = [f"{word} {format_duration(clocks[name])}" for name, word in names.items() if clocks.get(name, 0) >= 0.5]
        details = f" ({', '.join(included)})" if included else ""
        not_included = "" if "time/eta_validation_seconds" in clocks else " + validation"  # before the first pass
        parts.append(Part("", text=f"ETA {format_duration(clocks['time/eta_seconds'])}{details}{not_included}"))
    return parts


def rates(s: ReportData) -> list[Part]:
    """Return the speed over the last reports, the share of time spent waiting for data, and the model FLOPs utilisation."""
    unit = s.units[0] if s.units else ""
    texts = {
        "recent/steps_per_second": lambda v: f"{format_rate(v)} steps/s",
        "recent/ms_per_step": lambda v: f"{format_seconds(v / 1000)}/step",
        "recent/p95_ms_per_step": lambda v: f"95 % under {format_seconds(v / 1000)}",
        "recent/samples_per_second": lambda v: f"{format_rate(v)} samples/s",
        f"recent/{unit}_per_second": lambda v: f"{format_rate(v)} {unit}/s",
        "recent/waiting_for_data": lambda v: f"data wait {100 * v:.0f}%",
        "recent/mfu": lambda v: f"MFU {100 * v:.1f}%",
        "recent/hfu": lambda v: f"HFU {100 * v:.1f}%",
        "recent/steps": lambda v: f"over {counted(int(v), 'update')}",
    }
    return [part._replace(name="") for part in _available(s.clocks, texts)]


def memory(s: ReportData) -> list[Part]:
    """Return the memory in use: resident memory of this process (rank 0); resident memory of the rank that uses most, if it is another
    rank; private memory of the loader workers; shared memory of this process; memory of this process's device: allocated now, peak and
    total; peak of the rank whose device uses most, if it is another rank."""
    parts = []
    if "memory/host_now_MiB" in s.clocks:
        parts.append(Part("", text=f"host {format_memory(s.clocks['memory/host_now_MiB'])}"))
    if s.clocks.get("memory/host_now_most_rank"):
        most, rank = s.clocks["memory/host_now_most_MiB"], s.clocks["memory/host_now_most_rank"]
        parts.append(Part("", text=f"rank {rank:.0f} {format_memory(most)}"))
    if s.clocks.get("memory/workers_MiB"):
        parts.append(Part("", text=f"workers {format_memory(s.clocks['memory/workers_MiB'])}"))
    if s.clocks.get("memory/host_shm_MiB", 0.0) >= 1:
        parts.append(Part("", text=f"shared memory {format_memory(s.clocks['memory/host_shm_MiB'])}"))
    if "memory/device_MiB" in s.clocks:
        now, peak, total = (format_memory(s.clocks[f"memory/device{which}_MiB"]) for which in ("_now", "", "_total"))
        parts.append(Part("", text=f"device {now}, peak {peak} of {total}"))
    if s.clocks.get("memory/device_most_rank"):
        most, rank = s.clocks["memory/device_most_MiB"], s.clocks["memory/device_most_rank"]
        parts.append(Part("", text=f"rank {rank:.0f} device peak {format_memory(most)}"))
    return parts


def samples(s: ReportData) -> list[Part]:
    """Return the number of training samples so far, the number of units (such as tokens) in them if the workload has units, and the global
    batch size as micro-batch x accumulation steps x processes."""
    parts = [Part("progress/samples_seen", s.samples, f"{s.samples:,} samples")]
    if s.units is not None:
        name, seen = s.units
        parts.append(Part(f"progress/{name}_seen", seen, f"{seen:,} {name}"))
    names = ("micro_batch_size",) if s.any_processes else ("micro_batch_size", "accumulation", "processes")
    parts += [Part(f"batch/{name}", size) for name, size in zip(names, s.batch)]
    size, factors = math.prod(s.batch), " x ".join(map(str, s.batch))
    return [*parts, Part("batch/global_batch_size", size, f"batch {factors} = {size:,}")]


def model(s: ReportData) -> list[Part]:
    """Return the number of parameters and the number of active parameters.

    Active parameters are trained. Weights that are not connected yet (`growth=linear`) and parts of the model that one forward pass does
    not use do not count."""
    total, active = s.parameters, s.active_parameters
    text = f"{total:,} parameters" if active == total else f"{active:,} of {total:,} parameters active"
    return [Part("model/parameters", total, text), Part("model/active_parameters", active)]


def phase(s: ReportData) -> list[Part]:
    """Return the phase of the curriculum with its description, and all other values `phase/...`.

    Values whose names differ only in the third of three parts (`phase/mixture/<item>`) share one text."""
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
    """Return the fraction and the number of connected weights of a network whose connections grow (`growth=linear`)."""
    return _available(s.more, {"growth/density": lambda v: f"{100 * v:.2f}% connected", "growth/connected_now": lambda v: ""})


def workload(s: ReportData) -> list[Part]:
    """Return the values of `more` whose names do not begin with `phase` or `growth`."""
    rows = {name: value for name, value in s.more.items() if name.partition("/")[0] not in ("phase", "growth")}
    return [Part(name, value, f"{name} {format_value(value)}") for name, value in rows.items()]


SECTIONS: dict[str, Callable[[ReportData], list[Part]]] = {
    section.__name__: section
    for section in (progress, loss, validation, tasks, update, time, rates, memory, samples, model, growth, phase, workload)
}


def describe_report(sections: Sequence[str], data: ReportData) -> tuple[str, dict[str, Any]]:
    """Return the text of a report with the given sections (names in `SECTIONS`), and its row for reports.jsonl."""
    parts = [SECTIONS[name](data) for name in sections]
    text = layout([part.text for part in section if part.text] for section in parts)
    return text, {part.name: part.value for section in parts for part in section if part.name}
