"""Trials that Optuna proposes: the same whatever was killed, and whatever ended first."""

from __future__ import annotations

import functools
import json
import random
from types import SimpleNamespace

import pytest

from linnaeus.config import compose
from linnaeus.config.command_line import parse_command_line
from linnaeus.errors import ConfigError
from linnaeus.sweep import study
from linnaeus.sweep.outcomes import Outcome
from linnaeus.sweep.request import read_request
from tests.sweep.conftest import killed, started, wait_until

pytest.importorskip("optuna")

SEARCH = ("sweep=optuna", "optimizer.lr=tag(log,interval(1e-4,1e-1))", "model.dropout=interval(0,0.5)", "seed=range(0,9)")


def proposals(sweep):
    return [trial["values"] for trial in json.loads(sweep.text("sweep.json"))["trials"]]


def test_killed_and_started_again_it_is_the_same_study(sweep):
    search = (*SEARCH[:-1], "seed=0,13", "sweep.trials=5", "sweep.seed=2")
    whole = sweep("whole", *search)
    status, _, err = whole.run()
    assert status == 1 and err == "" and {"failed", "finished"} == set(whole.statuses())
    cut = sweep("cut", *search)
    process = cut.begin(0.05)
    wait_until(lambda: len(cut.statuses()) >= 3 and cut.statuses().count("running") >= 1 and "failed" in cut.statuses())
    killed(process)
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
    """A study without runs: trials end in a random order, with results that follow from their values."""

    def __init__(self, monkeypatch, parallel: int, **settings: int) -> None:
        def make_trial(_, number, values, **__):
            return SimpleNamespace(number=number, values=values, config=CONFIG())

        monkeypatch.setattr(study, "make_trial", make_trial)
        more = [f"sweep.{key}={value}" for key, value in settings.items()]
        self.request = read_request(parse_command_line(["-m", *SEARCH, "sweep.trials=24", f"sweep.parallel={parallel}", *more]))

    def run(self, order: int, trials: int = 24, before: dict | None = None, shift: float = 0.0) -> dict:
        """What sweep.json has after `trials` trials were proposed."""
        found, outcomes, running, rows = study.Study(self.request), {}, [], []
        found.resume(before or {})
        draw = random.Random(order)
        while True:
            trial = found.next(outcomes) if len(rows) < trials and len(running) < self.request.sweep.parallel else None
            if trial is not None:
                running.append(trial)
                rows.append({"trial": trial.number, "values": trial.values, "after": found.after[trial.number], "status": "running"})
                continue
            if not running:
                return {**found.head, "trials": rows}
            ended = running.pop(draw.randrange(len(running)))
            loss = sum(float(value) for value in ended.values.values()) + shift
            outcomes[ended.number] = Outcome("failed") if ended.number % 7 == 3 else Outcome("finished", loss, 1)


@pytest.mark.parametrize("parallel", [1, 3])
def test_proposals_follow_from_the_seed_and_the_results_alone(monkeypatch, parallel):
    replayed = Replayed(monkeypatch, parallel)
    whole = replayed.run(order=0)
    values = [row["values"] for row in whole["trials"]]
    assert replayed.run(order=1) == whole, "whatever ended first"
    for cut in (4, 15):
        assert replayed.run(order=2, before=replayed.run(order=3, trials=cut)) == whole
    assert len({json.dumps(v) for v in values}) == 24
    assert all(
        1e-4 <= float(v["optimizer.lr"]) <= 0.1 and 0 <= float(v["model.dropout"]) <= 0.5 and int(v["seed"]) in range(9) for v in values
    )
    assert Replayed(monkeypatch, parallel, seed=1).run(order=0) != whole
    late = [float(v["optimizer.lr"]) + float(v["model.dropout"]) + float(v["seed"]) for v in values]
    assert sum(late[-8:]) < sum(late[:8]), "it learns: less is better"


def test_a_study_goes_on_with_another_number_at_once(monkeypatch):
    begun = Replayed(monkeypatch, 3).run(order=0, trials=12)
    more = Replayed(monkeypatch, 1).run(order=0, before=begun)
    assert more["trials"][:12] == begun["trials"]


def test_other_results_or_another_study_are_noticed(monkeypatch):
    """The negative control of the replay."""
    replayed = Replayed(monkeypatch, 1)
    before = replayed.run(order=0, trials=20)
    before["trials"][-1]["values"] = before["trials"][0]["values"]
    with pytest.raises(ConfigError, match=r"trial 20 was run with .* a result has changed"):
        replayed.run(order=0, before=before)
    with pytest.raises(ConfigError, match=r"holds a study with other seed \(0, now 1\)"):
        Replayed(monkeypatch, 1, seed=1).run(order=0, before=before)


def test_a_mistake_in_a_choice_is_found_before_anything_is_proposed():
    asked = read_request(parse_command_line(["-m", *SEARCH[:2], "optimizer=adamw,sgd,adamv"]))
    with pytest.raises(ConfigError, match="there is no optimizer=adamv; did you mean adamw"):
        study.Study(asked)
    with pytest.raises(ConfigError, match=r"optimizer\.lr is 0\.0; it must be more than 0"):
        study.Study(read_request(parse_command_line(["-m", "sweep=optuna", "optimizer.lr=interval(0,1)"])))
    with pytest.raises(ConfigError, match="has nothing to search"):
        study.Study(read_request(parse_command_line(["-m", "sweep=optuna"])))


def test_a_proposal_that_cannot_be_run_lets_the_others_save(sweep):
    """Each value is right by itself, and the first trials run; trial 4 is then found to be another one than was recorded."""
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
    assert "stopping: 1 trial to save and end" in out and "trial 3/4" in out.splitlines()[-1] and "interrupted" in out.splitlines()[-1]
