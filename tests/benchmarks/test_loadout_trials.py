"""Trials of loadout models: a small study writes its results, is not run twice, and says which bars a model misses."""

import json

import pytest

from benchmarks import loadout, loadout_trials

SMALL = ["data.builds=120", "model.width=16", "trainer.length=2steps", "trainer.global_batch_size=32", "data.subsets=1"]


@pytest.mark.slow
def test_worlds_and_variants_are_trained_once(tmp_path, capsys, monkeypatch):
    results = tmp_path / "trials.jsonl"
    words = [*SMALL, "--trials", str(results), "--worlds", "1", "2", "--variants", "default", "visible targets"]
    assert loadout.main(words) == 0
    table = capsys.readouterr().out
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(row["variant"], row["words"][0]) for row in rows] == [
        (variant, f"data.world={world}") for world in (1, 2) for variant in ("default", "visible targets")
    ]
    assert len({json.dumps(row["measures"]["slots_6"]) for row in rows}) > 1 and all(row["measures"]["seconds"] > 0 for row in rows)
    assert "missed: optimum 1" in table and "1.0 x" in table

    def not_again(*arguments):
        raise AssertionError("a finished trial is run again")

    monkeypatch.setattr(loadout_trials, "run_child", not_again)
    assert loadout.main(words) == 0 and capsys.readouterr().out == table
    with pytest.raises(AssertionError, match="run again"):
        loadout.main([*words, "--seeds", "3"])


def test_bars_that_are_missed_are_named():
    good = {"of_optimum_1": 0.98, "of_optimum_6": 0.99, "ece": 0.01, "changed": 0.0, "legal": 1.0}
    good |= {"margin_1": 0.05, "margin_1_error": 0.01, "margin_6": 0.05, "margin_6_error": 0.01}
    assert loadout_trials.missed_bars(good) == []
    for change, name in (
        ({"of_optimum_6": 0.96}, "optimum 6"),
        ({"margin_1_error": 0.02}, "margin 1"),
        ({"ece": 0.03}, "ECE"),
        ({"changed": 0.001}, "changed"),
        ({"legal": 0.99}, "legal"),
    ):
        assert loadout_trials.missed_bars(good | change) == [name]


def test_an_unknown_argument_is_refused(capsys):
    with pytest.raises(SystemExit):
        loadout.main(["--trails", "x"])
    with pytest.raises(SystemExit):
        loadout.main(["trainer.length=1steps"])
    assert "trainer.length=1steps has no effect without --trials" in capsys.readouterr().err
