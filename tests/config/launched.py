"""Effects of the keys of `launch` and `sweep`, without starting a run."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from linnaeus.launch import Job, build_launcher
from linnaeus.sweep.request import Request, check_settings, split_parameters
from linnaeus.sweep.trial_results import Metric, finished_result, metric_of
from linnaeus.sweep.trial_runner import TrialRunner
from linnaeus.sweep.trial_source import TrialSource, sweep_name


def command(config: Any) -> list[str]:
    """Return the command of a run on this machine."""
    launcher: Any = build_launcher(config.launch, 1)
    return launcher.command(Job(["seed=1"], Path("run"), None, None))


def sweep_is_sound(config: Any) -> None:
    check_settings(config.sweep)


def sweep_name_of(config: Any) -> str:
    request = Request([], [], None, config.sweep, config.launch)
    return sweep_name(request, SimpleNamespace(config=config))  # type: ignore[arg-type]


def parameters(config: Any) -> list[Any]:
    return split_parameters(config.sweep.params, [], None)[0]


def compared_by(config: Any) -> Metric:
    return metric_of(config.sweep, config)


def columns_of_a_run(config: Any) -> Any:
    """Return the columns of a finished trial in the table of a sweep."""
    summary = {"status": "finished", "final": {"val/loss": 1.0, "val/order/loss": 2.0}, "timings": {"time/ms_per_step": 3.0}}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "summary.json").write_text(json.dumps(summary))
        found: Any = SimpleNamespace(config=config, directory=Path(folder))
        return finished_result(found, config.sweep).columns


def most_at_once(config: Any) -> int:
    """Return the largest number of trials that run at the same time, of four."""
    running: set[int] = set()
    most = [0]

    def start(job: Any) -> Any:
        number, left = int(job.overrides[0]), [2]
        running.add(number)
        most[0] = max(most[0], len(running))

        def poll() -> int | None:
            left[0] -= 1
            if left[0]:
                return None
            running.discard(number)
            return 1

        return SimpleNamespace(poll=poll, describe=lambda: "")

    waiting = [trial(number, config) for number in range(1, 5)]
    source = TrialSource()
    source.total, source.metric = 4, metric_of(config.sweep, config)
    source.next = lambda: waiting.pop(0) if waiting else None  # type: ignore[method-assign]
    launcher: Any = SimpleNamespace(start=start)
    with tempfile.TemporaryDirectory() as folder:
        TrialRunner(source, launcher, config.sweep, Path(folder)).run(lambda: None)
    return most[0]


def trial(number: int, config: Any) -> Any:
    where = Path(f"/nonexistent/{number}")
    return SimpleNamespace(
        number=number, overrides=[str(number)], config=config, config_dir=None, directory=where, is_finished=lambda: False, describe=str
    )
