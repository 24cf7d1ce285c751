"""Make the charts of a run: losses and metrics, quantities of the training such as the learning rate, and speed."""

import re

from linnaeus.reporting.report.downsampling import Curve
from linnaeus.reporting.report.line_chart import Lines, line_chart
from linnaeus.reporting.report.metric_names import column_name, is_share, metric_name, passes_and_tasks
from linnaeus.reporting.report.run_files import RunFiles

MOST_LINES = 12  # lines in a chart
RATIO = "Norm of the last update over the norm of the weights, by parameter group; about 0.001 is usual."
SPEED_WORDS = {
    "ms_per_step": "mean",
    "median_ms_per_step": "median",
    "p95_ms_per_step": "95 % are below",
    "host": "host, peak",
    "device": "GPU, peak",
}
MARKS = "Marks at the lower edge are validations. Red marks at the upper edge are alarms, listed under Incidents."


def learning_charts(run: RunFiles) -> list[str]:
    """Return charts (HTML figures) of losses and metrics over steps: training and validation, by task and by pass. Charts without points
    are left out."""
    curves, last = run.metrics, float(run.step or 0)
    passes, tasks = passes_and_tasks(run.final)
    normal = passes[0] if passes else "val"
    finest = tasks[-1] if tasks else ""
    validations = _validated_steps(run, normal)
    loss = _present({"training": f"{'train'}/loss", "validation": f"{normal}/loss"}, curves)
    loss |= {f"validation {column_name(p)}": curves[f"{p}/loss"] for p in passes[1:] if len(_points(curves, f"{p}/loss")) > 1}
    by_pass = {column_name(p): curves[f"{p}/{finest}/top1"] for p in passes if len(_points(curves, f"{p}/{finest}/top1")) > 1}
    charts = [line_chart("Loss", loss, last, smoothed=True, marks=validations, alarms=_alarm_steps(run), about=MARKS)]
    for metric in ("top1", "macro_top1"):
        lines = by_task(run, metric, normal)
        charts.append(line_chart(metric_name(metric), lines, last, share=True, note="validation", marks=validations))
    if len(by_pass) > 1:
        charts.append(line_chart(f"Top-1 accuracy of {finest} by pass", by_pass, last, share=True, marks=validations))
    charts.append(line_chart("Loss by task", by_task(run, "loss"), last, smoothed=True, note="training"))
    training_accuracy = by_task(run, "top1")
    charts.append(line_chart("Training accuracy by task", training_accuracy, last, smoothed=True, share=True, note="augmented samples"))
    if not any(f"{normal}/{task}/top1" in curves for task in tasks):
        charts += _other_metrics(run, normal, last)
    return [chart for chart in charts if chart]


def _other_metrics(run: RunFiles, normal: str, last: float) -> list[str]:
    """Return charts of the first six validation metrics over all tasks, in the order of the workload.

    The loss, ends of intervals, names that end in `_error`, and metrics with fewer than two points are left out. normal: name of the normal
    pass. last: last step, for the x axis."""
    keys = dict.fromkeys([*run.final, *run.metrics])  # rows are sorted by name
    names = [key for key in keys if re.fullmatch(rf"{re.escape(normal)}/[^/]+", key) and len(_points(run.metrics, key)) > 1]
    names = [key for key in names if not key.endswith(("/loss", "_low", "_high", "_error"))][:6]
    return [
        line_chart(metric_name(k.rpartition("/")[2]), {"validation": run.metrics[k]}, last, share=is_share(k), note="validation")
        for k in names
    ]


def training_charts(run: RunFiles) -> list[str]:
    """Return charts (HTML figures) of quantities of the training over steps: learning rates, gradient norms, task weights, gradient
    conflicts between tasks, masked metadata, clipped and skipped updates, sizes of updates, and perplexity. Charts without points are left
    out."""
    curves, last = run.metrics, float(run.step or 0)
    weights = by_task(run, "weight")
    moving = any(len({value for _, value in curve.points}) > 1 for curve in weights.values())
    ratios = {name or "all": curve for name, curve in matching(curves, r"train/update_ratio(?:/(.+))?").items()}
    conflicts = matching(curves, r"train/(?:conflict|cosine)/(.+)") | matching(curves, r"train/(conflict\w*|cosine\w*)")
    charts = [
        line_chart("Learning rate", {name or "lr": c for name, c in matching(curves, r"train/lr(?:/(.+))?").items()}, last),
        line_chart("Gradient norm", _present({"norm": "train/grad_norm"}, curves), last, smoothed=True, log=True, note="before clipping"),
        line_chart("Task weights", weights if moving else {}, last, note="their sum is the number of tasks"),
        line_chart(
            "Gradient norm by task",
            by_task(run, "grad_norm"),
            last,
            smoothed=True,
            log=True,
            note="at the shared layer, without task weights",
        ),
        line_chart("Gradient conflicts between tasks", conflicts, last, smoothed=True),
        line_chart(
            "Masked metadata", matching(curves, r"train/masked/(.+)"), last, smoothed=True, share=True, note="share of known values"
        ),
        line_chart("Clipped updates", _present({"share": "train/clip_rate"}, curves), last, share=True, note="share of updates"),
        line_chart("Size of an update relative to the weights", ratios, last, log=True, about=RATIO),
    ]
    rest = matching(curves, r"train/(skipped_updates|perplexity|bits_per_byte)")
    charts += [line_chart(metric_name(name), {name: curve}, last, note="training") for name, curve in rest.items() if _varies(curve)]
    return [chart for chart in charts if chart]


def speed_charts(run: RunFiles) -> list[str]:
    """Return charts (HTML figures) over steps: throughput, time of an update, wait for data, model FLOPs utilisation (MFU), memory, fastest
    and slowest process, and state of the GPU. Charts without points are left out."""
    curves, last = run.timings, float(run.step or 0)
    recent = "recent" if any(name.startswith("recent/") for name in curves) else "time"  # otherwise the means since the start of the launch
    kinds = {
        "Throughput": (rf"{recent}/(samples_per_second)", "samples per second", False),
        "Time of an update": (rf"{recent}/((?:median_|p95_)?ms_per_step)", "milliseconds, over the last reports", False),
        "Waiting for data": (rf"{recent}/(waiting_for_data)", "share of the training time", True),
        "Model FLOPs utilisation": (r"recent/([mh]fu)", "share of the peak of the device", True),
        "Memory": (r"memory/(.+)_MiB", "MiB", False),
        "Processes": (r"ranks/(.+_ms_(?:least|most))", "milliseconds of an update, the fastest and the slowest process", False),
        "GPU utilisation": (r"gpu/(utilisation)", "of rank 0", True),
        "GPU clock": (r"gpu/(sm_clock_MHz)", "MHz, of rank 0", False),
        "GPU power": (r"gpu/(power_W)", "watts, of rank 0", False),
        "GPU temperature": (r"gpu/(temperature_C)", "°C, of rank 0", False),
    }
    charts = []
    for title, (pattern, note, share) in kinds.items():
        lines = {SPEED_WORDS.get(name, name.replace("_", " ")): curve for name, curve in matching(curves, pattern).items()}
        charts.append(line_chart(title, lines, last, note=note, share=share))
    return [chart for chart in charts if chart]


def by_task(run: RunFiles, metric: str, of: str = "train") -> Lines:
    """Return task -> curve of `<of>/<task>/<metric>`. Tasks are in the order of the final metrics; other tasks come last. Of more than
    `MOST_LINES` tasks, the last, which are the finest, are used. of: `train`, or the name of a validation pass."""
    found = matching(run.metrics, rf"{re.escape(of)}/([^/]+)/{metric}", most=None)
    tasks = passes_and_tasks(run.final)[1]
    ordered = [*(task for task in tasks if task in found), *(task for task in found if task not in tasks)]
    return {task: found[task] for task in ordered[-MOST_LINES:]}


def matching(curves: Lines, pattern: str, most: int | None = MOST_LINES) -> dict[str, Curve]:
    """Return {text of the first group of `pattern`: curve}, for the curves whose whole key matches the regular expression `pattern`.

    The text is None if the group does not take part in the match. Curves without values are left out. most: number of curves to return;
    None: all."""
    found = {match[1]: curve for key, curve in curves.items() if curve.count and (match := re.fullmatch(pattern, key))}
    return dict(list(found.items())[:most])


def _present(names: dict[str, str], curves: Lines) -> dict[str, Curve]:
    return {name: curves[key] for name, key in names.items() if key in curves and curves[key].count}


def _points(curves: Lines, key: str) -> list[tuple[float, float]]:
    return curves[key].points if key in curves else []


def _varies(curve: Curve) -> bool:
    return len({value for _, value in curve.points}) > 1


def _alarm_steps(run: RunFiles) -> list[float]:
    """Return the first 200 different steps with an alarm, in ascending order; [] without alarms."""
    steps = {row.get("step", row.get("global_step")) for row in run.lines("alarms.jsonl")}
    return sorted(float(step) for step in steps if isinstance(step, (int, float)))[:200]


def _validated_steps(run: RunFiles, normal: str) -> list[float]:
    """Return the steps of the first 200 points of the validation loss; [] without a validation loss. normal: name of the normal pass."""
    return [step for step, _ in _points(run.metrics, f"{normal}/loss")][:200]
