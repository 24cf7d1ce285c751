"""Print the progress reports of a simulated run, to show their sections, throughput and schedule without a model.

    python -m linnaeus.reporting.demo --max-iters 100
    python -m linnaeus.reporting.demo --max-iters 50000 --every 5% --sections progress,loss,time,rates

Reports are printed at 0 %, at the interval `--every` (a value of `schedule.report`), and at the last iteration: by default 101 reports for
100 iterations or more. Time is simulated: 0.1 s per iteration, a slower first one, and a validation every 25 %.
"""

import argparse
import math
import sys
from collections.abc import Sequence

from linnaeus.config.messages import user_errors
from linnaeus.config.schema_schedule import PhaseConfig
from linnaeus.durations import Duration
from linnaeus.errors import ConfigError
from linnaeus.reporting.performance.throughput import Reading, Throughput, expected_seconds
from linnaeus.reporting.terminal.progress_report import SECTIONS, ReportData, describe_report
from linnaeus.schedule.events import Every
from linnaeus.schedule.phases import Phases

SECONDS, FIRST, VALIDATION = 0.1, 4.0, 3.0  # seconds per iteration; further seconds of the first one; seconds per validation
MICRO_BATCH, ACCUMULATION, TOKENS, PARAMETERS = 12, 4, 64, 804_096
MASKABLE = 786_432  # of the parameters: attention and MLPs of four layers of width 128
PHASES = {
    "start": PhaseConfig("0%", "30%", "common patterns"),
    "descent": PhaseConfig("20%", "75%", "high learning rate", lr=1.5),
    "refinement": PhaseConfig("65%", "100%", "small steps", lr=0.5),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the reports of a simulated run and return 0. A wrong argument ends the program with status 2.

    arguments: words of the command line; None: `sys.argv[1:]`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-iters", "--max_iters", type=int, default=100, help="iterations of the simulated run")
    parser.add_argument("--every", default="1%", help="interval between reports: 1%%, 500steps")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="sections of a report, in this order")
    options = parser.parse_args(arguments)
    with user_errors(2):
        simulate(options.max_iters, options.every, options.sections.split(","))
    return 0


def simulate(total: int, every: str, sections: Sequence[str]) -> None:
    """Print the reports of a simulated run of `total` iterations.

    every: interval of the reports, such as `1%`. sections: sections of a report. Raise `ConfigError` for an invalid argument, such as a
    wall time in `every`."""
    unknown = [name for name in sections if name not in SECTIONS]
    if unknown:
        raise ConfigError(f"--sections: {unknown[0]!r} is not a section; choose from {', '.join(SECTIONS)}")
    if total < 1:
        raise ConfigError(f"--max-iters is {total}; it must be at least 1")
    if Duration.parse(every, "--every").is_time:
        raise ConfigError(f"--every is {every}; it must be in steps or %, such as 1%, because time is simulated")
    due = Every.resolve([every], "--every", total, total, total, at_end=True)
    phases = Phases.resolve(PHASES, total, total)
    assert phases is not None
    throughput = Throughput()
    for step in range(total + 1):
        if step == 1:
            throughput.restart(_reading(step))
        if step == 0 or due.due(step):
            throughput.update(_reading(step))
            print(describe_report(sections, _data(step, total, phases, throughput))[0])


def _reading(step: int) -> Reading:
    samples = step * MICRO_BATCH * ACCUMULATION
    return Reading((step > 0) * FIRST + SECONDS * step, 0.002 * step, step, samples, samples * TOKENS)


def _data(step: int, total: int, phases: Phases, throughput: Throughput) -> ReportData:
    """Return the simulated data of the report at `step`.

    Validations before `step` are included; in the last report also a validation at `step` itself."""
    validations = [math.ceil(total * k / 4) for k in range(1, 5)]
    validated = [s for s in validations if s < step or step == total]
    connected = round((0.1 + 0.9 * min(1.0, 2 * step / total)) * MASKABLE)
    update = max(0, step - 1)  # phases and learning rate are those of the last update, as in a run
    name, description = phases.at(update)
    samples = step * MICRO_BATCH * ACCUMULATION
    return ReportData(
        step=step,
        total_steps=total,
        steps_per_epoch=total,
        tasks=("tokens",),
        row=_row(step, total, phases.lr_multiplier(update)),
        samples=samples,
        units=("tokens", samples * TOKENS),
        batch=(MICRO_BATCH, ACCUMULATION, 1),
        parameters=PARAMETERS,
        active_parameters=PARAMETERS - MASKABLE + connected,
        validated=max(validated, default=-1),
        validation={"val/loss": 1.6 + 2.7 * math.exp(-5 * validated[-1] / total)} if validated else {},
        more={
            "phase": name,
            "phase/description": description,
            "growth/density": connected / MASKABLE,
            "phase/lr_multiplier": phases.lr_multiplier(update),
        },
        clocks=_clocks(step, total, throughput, sorted(set(validations)), len(set(validated))) if step else {},
    )


def _clocks(step: int, total: int, throughput: Throughput, validations: Sequence[int], done: int) -> dict[str, float]:
    clocks = throughput.rates("tokens") | {"time/wall_seconds": _reading(step).seconds + done * VALIDATION}
    clocks["time/eta_seconds"] = (total - step) * clocks.get("recent/ms_per_step", 1000 * SECONDS) / 1000
    validation = expected_seconds(validations, step + (step == total), done * VALIDATION, done)
    if validation is not None:
        clocks["time/eta_validation_seconds"] = validation
        clocks["time/eta_seconds"] += validation
    return clocks


def _row(step: int, total: int, lr_multiplier: float) -> dict[str, float]:
    """Return simulated training metrics after `step` of `total` updates; at step 0 only the learning rate.

    `train/lr` is the learning rate of the last update: warm-up and cosine, times `lr_multiplier`."""
    share, update = step / total, max(0, step - 1)
    shape = min(1.0, 10 * (update + 1) / total) * (1 + math.cos(math.pi * update / total)) / 2
    row = {"train/lr": 1e-3 * shape * lr_multiplier}
    if step:
        row["train/smoothed_loss"] = 1.5 + 2.7 * math.exp(-5 * share)
        row["train/loss"] = row["train/smoothed_loss"] + 0.05 * math.sin(12.9 * step)
        row["train/grad_norm"] = 0.4 + 2 * math.exp(-8 * share)
    return row


if __name__ == "__main__":
    sys.exit(main())
