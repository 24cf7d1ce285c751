"""Optuna proposes the same trials after a kill and in any order of their ends."""

import functools
import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from linnaeus.config import compose
from linnaeus.config.command_line import parse_command_line
from linnaeus.errors import ConfigError
from linnaeus.sweep import optuna_study
from linnaeus.sweep.request import read_request
from linnaeus.sweep.trial_results import TrialResult
from linnaeus.sweep.trial_source import sweep_header
from tests.sweep.conftest import kill_when, started

pytest.importorskip("optuna")

SEARCH = ("sweep=optuna", "optimizer.lr=tag(log,interval(1e-4,1e-1))", "model.dropout=interval(0,0.5)", "seed=range(0,9)")


def proposals(sweep):
    return [trial["values"] for trial in json.loads(sweep.text("sweep.json"))["trials"]]


@pytest.mark.slow
def test_a_killed_study_continues_with_the_same_proposals(sweep):
    search = (*SEARCH[:-1], "seed=0,13", "sweep.trials=5", "sweep.seed=2")
    whole = sweep("whole", *search)
    status, _, err = whole.run()
    assert status == 1 and err == "" and {"failed", "finished"} == set(whole.statuses())
    cut = sweep("cut", *search)
    process = cut.start(0.05)
    kill_when(lambda: len(cut.statuses()) >= 3 and "running" in cut.statuses() and "failed" in cut.statuses(), process)
    before = proposals(cut)
    status, out, err = cut.run()
    assert status == 1 and err == ""
    assert proposals(cut)[: len(before)] == before and "failed before" in out and "finished" in out
    for name in ("trials.csv", "table.txt"):
        assert cut.text(name) == whole.text(name)
    more = sweep("cut", *search[:-2], "sweep.trials=6", "sweep.seed=2")
    status, out, _ = more.run()
    assert len(started(out)) == 1 and len(proposals(more)) == 6 and proposals(more)[:5] == proposals(whole)


CONFIG = functools.cache(compose)


class Replayed:
    """A study without runs: trials end in a random order, with results computed from their values."""

    def __init__(self, monkeypatch, parallel: int, **settings: int) -> None:
        def make_trial(_, number, values, **__):
            return SimpleNamespace(number=number, values=values, config=CONFIG(), directory=Path("outputs/biota/one"))

        monkeypatch.setattr(optuna_study, "make_trial", make_trial)
        more = [f"sweep.{key}={value}" for key, value in settings.items()]
        self.request = read_request(parse_command_line(["-m", *SEARCH, "sweep.trials=24", f"sweep.parallel={parallel}", *more]))

    def run(self, order: int, trials: int = 24, before: dict | None = None, shift: float = 0.0) -> dict:
        """Return sweep.json after `trials` proposals."""
        study, running = optuna_study.OptunaStudy(self.request), []
        header = sweep_header(self.request, study.metric)
        study.resume(before or {}, header)
        draw = random.Random(order)
        while True:
            trial = study.next() if len(study.trials) < trials and len(running) < self.request.sweep.parallel else None
            if trial is not None:
                running.append(trial)
                continue
            if not running:
                ends = {"status": "running", "directory": "elsewhere/biota/one"}
                rows = [{"values": t.values, "after": after, **ends} for t, after in zip(study.trials, study.after)]
                return {**header, "trials": rows}
            ended = running.pop(draw.randrange(len(running)))
            loss = sum(float(value) for value in ended.values.values()) + shift
            study.results[ended.number] = TrialResult("failed") if ended.number % 7 == 3 else TrialResult("finished", loss)


@pytest.mark.parametrize("parallel", [1, 3])
def test_proposals_depend_on_the_seed_and_the_results_alone(monkeypatch, parallel):
    replayed = Replayed(monkeypatch, parallel)
    whole = replayed.run(order=0)
    values = [row["values"] for row in whole["trials"]]
    assert replayed.run(order=1) == whole, "in any order of their ends"
    for cut in (4, 15):
        assert replayed.run(order=2, before=replayed.run(order=3, trials=cut)) == whole
    assert len({json.dumps(v) for v in values}) == 24
    assert all(
        1e-4 <= float(v["optimizer.lr"]) <= 0.1 and 0 <= float(v["model.dropout"]) <= 0.5 and int(v["seed"]) in range(9) for v in values
    )
    assert Replayed(monkeypatch, parallel, seed=1).run(order=0) != whole
    begun = replayed.run(order=0, trials=12)
    assert Replayed(monkeypatch, 2).run(order=0, before=begun)["trials"][:12] == begun["trials"], "with another sweep.parallel"
    late = [float(v["optimizer.lr"]) + float(v["model.dropout"]) + float(v["seed"]) for v in values]
    assert sum(late[-8:]) < sum(late[:8]), "the later proposals are better"


def test_other_results_and_another_study_are_refused(monkeypatch):
    """Negative control of the replay."""
    replayed = Replayed(monkeypatch, 1)
    before = replayed.run(order=0, trials=20)
    before["trials"][-1]["values"] = before["trials"][0]["values"]
    with pytest.raises(ConfigError, match=r"trial 20 was run with .* a result has changed"):
        replayed.run(order=0, before=before)
    with pytest.raises(ConfigError, match=r"that study has seed 0, not 1"):
        Replayed(monkeypatch, 1, seed=1).run(order=0, before=before)
    before["trials"][0]["directory"] = "outputs/biota/other"  # the name of a run depends on all its settings
    with pytest.raises(ConfigError, match="trial 1 of that study is outputs/biota/other, not outputs/biota/one: settings differ"):
        replayed.run(order=0, before=before)


def test_an_invalid_value_is_refused_before_the_first_proposal():
    request = read_request(parse_command_line(["-m", *SEARCH[:2], "optimizer=adamw,sgd,adamv"]))
    with pytest.raises(ConfigError, match="there is no optimizer=adamv; did you mean adamw"):
        optuna_study.OptunaStudy(request)
    with pytest.raises(ConfigError, match=r"optimizer\.lr is 0\.0; it must be more than 0"):
        optuna_study.OptunaStudy(read_request(parse_command_line(["-m", "sweep=optuna", "optimizer.lr=interval(0,1)"])))
    with pytest.raises(ConfigError, match="has nothing to search"):
        optuna_study.OptunaStudy(read_request(parse_command_line(["-m", "sweep=optuna"])))


@pytest.mark.slow
def test_the_trials_save_if_a_later_proposal_differs_from_the_record(sweep):
    """Trial 4 differs from sweep.json, which shows only after trial 3 has started again."""
    search = (*SEARCH[:-1], "sweep.trials=4", "sweep.parallel=2")
    one = sweep("study", *search)
    assert one.run()[0] == 0
    path = one.directory / "sweep.json"
    record = json.loads(path.read_text())
    record["trials"][3]["values"]["model.dropout"] = "0.1"
    path.write_text(json.dumps(record))
    (one.root / record["trials"][2]["directory"] / "summary.json").unlink()
    (one.root / record["trials"][2]["directory"] / "step.json").unlink()
    status, out, err = one.run(0.1)
    assert status == 2 and err.count("\n") == 1 and "trial 4 was run with" in err
    assert "stopping: 1 run to save and end" in out and "trial 3/4" in out.splitlines()[-1] and "interrupted" in out.splitlines()[-1]
