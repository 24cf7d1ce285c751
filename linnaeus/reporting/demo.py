"""Progress reports without a model: the real sections, throughput and schedule over an imagined run on an imagined clock.

    python -m linnaeus.reporting.demo --max-iters 100
    python -m linnaeus.reporting.demo --max-iters 50000 --every 5% --sections progress,loss,time,rates

Reports come at 0 %, then as `--every` says (a value of `schedule.report`), and at the last iteration: 101 of them for 100 iterations or
more by default. The clock is imagined too, 0.1 s an iteration, with a slow first one and a validation every 25 %; the phases are real.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

from linnaeus.config.messages import user_errors
from linnaeus.config.schema_schedule import PhaseConfig
from linnaeus.durations import Duration
from linnaeus.errors import ConfigError
from linnaeus.reporting.report_data import ReportData
from linnaeus.reporting.report_sections import SECTIONS
from linnaeus.reporting.reporter import Reporter
from linnaeus.reporting.throughput import Reading, Throughput, expected_seconds
from linnaeus.schedule.events import Every
from linnaeus.schedule.phases import Phases

SECONDS, FIRST, VALIDATION = 0.1, 4.0, 3.0  # of an iteration, of the first one besides, of a validation
MICRO_BATCH, ACCUMULATION, TOKENS, PARAMETERS = 12, 4, 64, 804_096
MASKABLE = 786_432  # of the parameters: attention and perceptrons of four layers, 128 wide
PHASES = {
    "beginning": PhaseConfig("0%", "30%", "what all texts have in common"),
    "descent": PhaseConfig("20%", "75%", "most is learnt here", lr=1.5),
    "refinement": PhaseConfig("65%", "100%", "small steps", lr=0.5),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-iters", "--max_iters", type=int, default=100, help="iterations of the imagined run")
    parser.add_argument("--every", default="1%", help="when a report is made: 1%%, 500steps")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="what it tells, in this order")
    options = parser.parse_args(arguments)
    with user_errors(2):
        imagine(options.max_iters, options.every, options.sections.split(","))
    return 0


def imagine(total: int, every: str, sections: Sequence[str]) -> int:
    """Print the reports of a run of `total` iterations; returns how many. `ConfigError` for what cannot be."""
    unknown = [name for name in sections if name not in SECTIONS]
    if unknown:
        raise ConfigError(f"--sections: {unknown[0]} is none of {', '.join(SECTIONS)}")
    if total < 1:
        raise ConfigError(f"--max-iters is {total}; it takes 1 or more")
    if Duration.parse(every, "--every").is_time:
        raise ConfigError(f"--every is {every}; an imagined clock asks for steps or %, such as 1%")
    due = Every.resolve([every], "--every", total, total, total, at_end=True)
    phases = Phases.resolve(PHASES, total, total)
    assert phases is not None
    reporter = Reporter(sections, print, lambda step, row: None)
    reporter.report(_standing(0, total, phases, {}), keep=True)
    throughput = Throughput()
    for step in range(1, total + 1):
        if step == 1:
            throughput.restart(_reading(step))
        if due.due(step):
            throughput.take(_reading(step))
            reporter.report(_standing(step, total, phases, _clocks(step, total, throughput)), keep=True)
    return reporter.count


def _reading(step: int) -> Reading:
    samples = step * MICRO_BATCH * ACCUMULATION
    return Reading(FIRST + SECONDS * step, 0.002 * step, step, samples, samples * TOKENS)


def _clocks(step: int, total: int, throughput: Throughput) -> dict[str, float]:
    done = len(_validated(step, total))
    clocks = {f"recent/{name}": value for name, value in throughput.rates("tokens").items()}
    clocks |= {"time/wall_seconds": _reading(step).seconds + done * VALIDATION}
    clocks["time/eta_seconds"] = (total - step) * clocks.get("recent/ms_per_step", 1000 * SECONDS) / 1000
    validation = expected_seconds(_validations(total), step + (step == total), done * VALIDATION, done)
    if validation is not None:
        clocks["time/eta_validation_seconds"] = validation
        clocks["time/eta_seconds"] += validation
    return clocks


def _validations(total: int) -> list[int]:
    return sorted({math.ceil(total * k / 4) for k in range(1, 5)})


def _validated(step: int, total: int) -> list[int]:
    """Those that the report of `step` knows of: it comes before the one of its step, and at the end after it."""
    return [s for s in _validations(total) if s < step or step == total]


def _standing(step: int, total: int, phases: Phases, clocks: dict[str, float]) -> ReportData:
    share, samples = step / total, step * MICRO_BATCH * ACCUMULATION
    validated = max(_validated(step, total), default=-1)
    connected = round((0.1 + 0.9 * min(1.0, 2 * share)) * MASKABLE)
    name, description = phases.at(max(0, step - 1))  # in the update made last, as in a run
    more: dict[str, float | str] = {"phase": name, "phase/description": description, "growth/density": connected / MASKABLE}
    more["phase/lr_multiplier"] = phases.lr_multiplier(max(0, step - 1))
    return ReportData(
        step=step,
        total_steps=total,
        steps_per_epoch=total,
        tasks=("tokens",),
        row=_row(step, total, phases),
        samples=samples,
        units=("tokens", samples * TOKENS),
        batch=(MICRO_BATCH, ACCUMULATION, 1),
        global_batch_size=MICRO_BATCH * ACCUMULATION,
        parameters=PARAMETERS,
        active_parameters=PARAMETERS - MASKABLE + connected,
        validated=validated,
        validation={"val/loss": 1.6 + 2.7 * math.exp(-5 * validated / total)} if validated > 0 else {},
        more=more,
        clocks=clocks,
    )


def _row(step: int, total: int, phases: Phases) -> dict[str, float]:
    """Of training; its rate is that of the update made last: a warm-up, then a cosine, times what the phases say."""
    share, update = step / total, max(0, step - 1)
    shape = min(1.0, 10 * (update + 1) / total) * (1 + math.cos(math.pi * update / total)) / 2
    row = {"train/lr": 1e-3 * shape * phases.lr_multiplier(update)}
    if step:
        row["train/smoothed_loss"] = 1.5 + 2.7 * math.exp(-5 * share)
        row["train/loss"] = row["train/smoothed_loss"] + 0.05 * math.sin(12.9 * step)
        row["train/grad_norm"] = 0.4 + 2 * math.exp(-8 * share)
    return row


if __name__ == "__main__":
    sys.exit(main())
