"""Format the last lines that a run prints: its result, the time and memory it took, the paths of its files, and commands to type next.
Lines fit 80 columns; a longer path or command is a line of its own, so that it can be copied."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from linnaeus.errors import counted
from linnaeus.reporting.formatting import fit, format_duration, format_loss, format_memory, format_rate, pass_words

WIDTH, NAME = 79, 8  # columns of a line, and of the name of a file or command


def describe_end(
    headline: Sequence[str],
    final: Mapping[str, float],
    timings: Mapping[str, float],
    files: Mapping[str, Path],
    commands: Sequence[str],
    updates: int,
) -> list[str]:
    """Return the last lines of a run.

    headline: the result as lines of text, made by the workload; if empty, the losses in `final` are shown.
    final: the newest result of each validation metric.
    timings: `time/...` and `memory/...` of the run.
    files: name -> path, one line each.
    commands: commands to type next.
    updates: number of updates of the whole run."""
    results = list(headline) or _losses(final)
    named = [(name, str(path)) for name, path in files.items()] + [("next", command) for command in commands]
    return [*results, _cost(timings, updates), *(line for name, text in named for line in _named(name, text))]


def _named(name: str, text: str) -> list[str]:
    return [f"{name:<{NAME}}{text}"] if NAME + len(text) <= WIDTH else [name, text]


def _losses(final: Mapping[str, float]) -> list[str]:
    losses = {name.partition("/")[0]: value for name, value in final.items() if name.count("/") == 1 and name.endswith("/loss")}
    texts = [f"{'validation' if '_' not in key else pass_words(key)}: loss {format_loss(value)}" for key, value in losses.items()]
    return [fit(texts, WIDTH)] if texts else []


def _cost(timings: Mapping[str, float], updates: int) -> str:
    """Return one line: number of updates, wall time (validation and saving in brackets), samples per second if there were updates, and peak
    memory if known."""
    parts = {"validation": timings.get("time/validation_seconds", 0.0), "saving": timings.get("time/saving_seconds", 0.0)}
    included = ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in parts.items() if seconds >= 0.5)
    texts = [f"{counted(updates, 'update')} in {format_duration(timings['time/wall_seconds'])}" + f" ({included})" * bool(included)]
    if "time/samples_per_second" in timings:
        texts.append(f"{format_rate(timings['time/samples_per_second'])} samples/s")
    memory = {"GPU": timings.get("memory/device_MiB"), "memory": timings.get("memory/host_MiB")}
    texts += [f"{name} {format_memory(value)}" for name, value in memory.items() if value is not None]
    return fit(texts, WIDTH)
