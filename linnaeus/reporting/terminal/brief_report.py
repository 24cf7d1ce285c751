"""Format progress reports in a short form for the console, 80 columns wide including the time stamp. train.log contains the full form."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from linnaeus.errors import counted
from linnaeus.reporting.formatting import (
    INDENT,
    fit,
    format_duration,
    format_loss,
    format_percent,
    format_rate,
    format_seconds,
    format_value,
    pass_words,
)
from linnaeus.reporting.terminal.progress_report import ReportData, loss, memory, model, phase, progress, samples

WIDTH = 70  # columns, without the time stamp


def brief_report(report: ReportData, previous: ReportData | None) -> str:
    """Return one line of text with the progress and speed of the run.

    If settings (`_settings`) differ from those in `previous`, the report before, a second line has the new ones. With `previous` None the
    second line has all settings."""
    percent, step, _ = (part.text for part in progress(report))
    left = f"  {format_duration(report.clocks['time/eta_seconds'])} left" if "time/eta_seconds" in report.clocks else ""
    numbers = brief_numbers(report)
    if "recent/waiting_for_data" in report.clocks:  # second, so that it fits on every line
        numbers.insert(1, f"wait {100 * report.clocks['recent/waiting_for_data']:.0f}%")
    line = f"{percent}  {step}  " + fit(numbers, WIDTH - len(percent + step + left) - 4) + left
    known = set(_settings(previous)) if previous is not None else set()
    changed = "  ".join(text for text in _settings(report) if text not in known)
    return f"{line}\n{INDENT}{changed}" if changed else line


def brief_validation(step: int, key: str, metrics: Mapping[str, float], tasks: Sequence[str]) -> str:
    """Return one line about the result of a validation pass: the loss and the top-1 accuracies, as many tasks as fit, the finest task
    first.

    Without loss and top-1 accuracies, the line has the first metrics that fit. key: name of the pass, such as `val`. metrics:
    `<pass>/loss`, `<pass>/<task>/top1`, ... -> value. tasks: names of the tasks, the finest last."""
    found = {name.partition("/")[2]: value for name, value in metrics.items()}
    texts = [f"loss {format_loss(found['loss'])}"] if "loss" in found else []
    texts += [f"{task} {format_percent(found[f'{task}/top1'])}" for task in reversed(tasks) if f"{task}/top1" in found]
    texts = texts or [f"{name} {format_value(value)}" for name, value in found.items()]
    start = f"validation at step {step:,}" + (f", {pass_words(key)}" if "_" in key else "")
    return f"{start}:  {fit(texts, max(WIDTH - len(start) - 3, len(texts[0]) if texts else 0))}"


def brief_numbers(report: ReportData, curves: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Return the main numbers of a report as texts (loss, samples per second, learning rate, ...), the most important first.

    curves: name in the row -> text that is appended to its number; for `train/grad_norm` and `train/alarms` only."""
    row, clocks = report.row, report.clocks
    first, *smoothed = [part.text for part in loss(report)] or [""]
    texts = [first] if first else []
    if "recent/samples_per_second" in clocks:
        texts.append(f"{format_rate(clocks['recent/samples_per_second'])} samples/s")
    if row.get("train/alarms"):
        texts.append(counted(round(row["train/alarms"]), "alarm") + curves.get("train/alarms", ""))
    gradient = [f"gradient {row['train/grad_norm']:.3g}" + curves.get("train/grad_norm", "")] if "train/grad_norm" in row else []
    texts += [*gradient, *smoothed] if curves else smoothed  # a chart of the losses stands above
    if "train/lr" in row:
        texts.append(f"lr {row['train/lr']:.3g}")
    texts += [] if curves else gradient
    if "recent/ms_per_step" in clocks:
        texts.append(f"{format_seconds(clocks['recent/ms_per_step'] / 1000)}/step")
    return texts + [part.text for part in memory(report)]


def _settings(report: ReportData) -> list[str]:
    """Return texts of the values that rarely change between reports: number of skipped updates (if any), curriculum phase, batch size,
    number of parameters."""
    skipped = report.row.get("train/skipped_updates")
    texts = [f"{counted(round(skipped), 'update')} skipped as non-finite"] if skipped else []
    texts += [part.text for part in phase(report) if part.name == "phase"]
    texts += [part.text for part in samples(report) if part.name == "batch/global_batch_size"]
    return texts + [part.text for part in model(report) if part.text]
