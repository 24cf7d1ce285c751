"""Whole runs on named sources that phases mix: independence of the split, resume, metrics of each source, errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from linnaeus.errors import ConfigError
from linnaeus.workloads import build_workload
from tests import runs
from tests.config import observers

PHASES = (
    "{first: {start: 0%, end: 70%, data: {letters: 1, digits: 1}, dimensions: {x: 3}}, "
    "second: {start: 30%, end: 100%, lr: 0.5, data: {digits: 1, signs: 2}}}"
)
SOURCES = "{letters: ['a*.txt'], digits: ['d*.txt'], signs: ['s*.txt']}"
MORE = ["trainer.precision=float64", "model.dimensions=[x,y]", f"data.sources={SOURCES}", f"schedule.phases={PHASES}"]
MORE += ["debug.batch_hashes=true", "data.validation_batch=4", "schedule.checkpoint=[3steps]"]


def write_sources(root: Path) -> Path:
    """Write three sources of different sizes, one of them a single text."""
    folder = root / "texts"
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(7):
        (folder / f"a{i}.txt").write_text("".join("abcdefghij"[j * j * (i + 1) % 10] for j in range(50)))
    for i in range(4):
        (folder / f"d{i}.txt").write_text("".join("0123456789"[j * (i + 2) % 10] for j in range(40)))
    (folder / "s.txt").write_text("+-*/" * 60)
    (folder / "z.txt").write_text("without source")
    return folder


def job(root: Path, *more: str) -> dict:
    return runs.job("language", root, *MORE, f"data.path={write_sources(root)}", *more)


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """Return a root with runs in root / NAME: one process with 4 accumulation steps or with one, two processes with two workers each."""
    root = tmp_path_factory.mktemp("mixture")
    runs.run_job(job(root / "one"))
    runs.run_job(job(root / "whole", "trainer.micro_batch_size=32", "model.dropout=0"))
    runs.run_job(job(root / "still", "model.dropout=0"))
    runs.run_group(2, [job(root / "two", "trainer.num_workers=2")], root)
    return root


def rows(root: Path) -> list[dict]:
    return runs.rows(root / "text/run/metrics.jsonl")


def weights(root: Path) -> torch.Tensor:
    state = runs.newest(root / "text/run").model_state
    return torch.cat([tensor.reshape(-1).double() for _, tensor in sorted(state.items())])


def drawn(root: Path) -> dict[int, list[str]]:
    """Return the sample names of each update, in the order of its micro-batches, without placeholders."""
    found: dict[int, list[tuple[int, list[str]]]] = {}
    for path in (root / "text/run").glob("batches-rank*.jsonl"):
        for row in runs.rows(path):
            found.setdefault(row["global_step"], []).append((row["micro_batch"], row["samples"]))
    return {step: [name for _, names in sorted(batches) for name in names] for step, batches in sorted(found.items())}


@pytest.mark.parametrize("one, other", [("one", "two"), ("still", "whole")])
def test_a_run_does_not_depend_on_the_split(split, one, other):
    a, b = weights(split / one), weights(split / other)
    assert ((a - b).abs().max() / a.abs().max()) < 1e-10
    found = [rows(split / name) for name in (one, other)]
    assert len(found[0]) == len(found[1]) > 6
    for first, second in zip(*found):
        assert first.keys() == second.keys()
        for name, value in first.items():
            assert value == (pytest.approx(second[name], rel=1e-10) if isinstance(value, float) else second[name]), name


def test_one_and_two_processes_draw_the_same_windows(split):
    one, two = drawn(split / "one"), drawn(split / "two")
    assert one == two and len(one) > 6
    sources = {step: {name.split("/")[0] for name in names} for step, names in one.items()}
    assert sources[1] == {"letters", "digits"} and sources[len(one)] <= {"digits", "signs"}
    assert all(name.split("/")[1].startswith("window-") for name in one[1])


def test_the_loss_of_a_source_equals_a_reference(split):
    root = split / "still"
    workload = build_workload(runs.configuration("language", root, *MORE, f"data.path={root / 'texts'}"))
    found = [row for row in rows(root) if "val/loss" in row][-1]
    windows = workload.validation_set
    batch = windows.__getitems__([(0, i, i, 0, True) for i in range(len(windows))])
    plan = json.loads((root / "text/run/dimensions.json").read_text())
    workload.final_dimension_weights = list(plan.values())
    model = workload.build_model().double().eval()
    model.load_state_dict(runs.newest(root / "text/run").model_state)
    with torch.inference_mode():
        losses = model(batch)["losses"].numpy()
    begin, total = 0, []
    for name, size in zip(("letters", "digits", "signs"), workload.store.validation.source_sizes):
        number = -(-(size - 1) // 8)
        own = losses[begin : begin + number].reshape(-1)[: size - 1]
        assert found[f"val/source/{name}/loss"] == pytest.approx(own.mean(), rel=1e-12)
        begin, total = begin + number, [*total, *own]
    assert begin == len(windows) and found["val/loss"] == pytest.approx(np.mean(total), rel=1e-12)


def test_dataset_record_and_log_have_the_sources(split):
    facts = json.loads((split / "one/text/run/dataset.json").read_text())
    assert facts["splits"]["train"]["sources"]["signs"]["tokens"] == 216
    assert sum(each["tokens"] for each in facts["splits"]["train"]["sources"].values()) == facts["splits"]["train"]["tokens"]
    assert facts["left_out"] == {"no source": ["z.txt"]}
    assert "source signs: 216 training tokens, 25 validation tokens" in (split / "one/text/run/train.log").read_text()


def test_a_source_that_no_phase_uses_is_noted(tmp_path):
    def noted(*more):
        texts = write_sources(tmp_path)
        notes = observers.notes(runs.configuration("language", tmp_path, *MORE, f"data.path={texts}", *more))
        return [note.split(":")[0] for note in notes if "no phase uses it" in note]

    assert noted() == [] == noted("schedule.phases={}")
    assert noted("schedule.phases={only: {start: 0%, end: 100%, data: {digits: 1, signs: 0}}}") == ["source letters", "source signs"]
    assert noted("schedule.early_stop.max_steps=4") == ["source signs"], "the phase that uses it starts at the fifth update"
    assert noted("schedule.early_stop.max_steps=5") == []


def test_the_loss_of_a_source_can_be_the_best_monitor(tmp_path):
    run = runs.run("language", tmp_path, *MORE, f"data.path={write_sources(tmp_path)}", "schedule.best_monitor=val/source/signs/loss")
    summary = json.loads((run / "summary.json").read_text())
    assert summary["best"]["val/source/signs/loss"]["value"] == summary["final"]["val/source/signs/loss"]


@pytest.mark.parametrize(
    "more, message",
    [
        (["schedule.phases={p: {start: 0%, end: 100%, data: {words: 1}}}"], r"schedule.phases.p.data names words, which is not a source"),
        (["data.sources=null"], r"schedule.phases.first.data names letters, but this data has no named sources"),
        (["schedule.best_monitor=val/source/words/loss"], r"schedule.best_monitor is val/source/words/loss, which no validation"),
        (["data.sources={words: ['*.md']}"], r"data.sources.words: nothing in .* matches"),
    ],
)
def test_unknown_names_are_refused_in_one_line(tmp_path, more, message):
    config = runs.configuration("language", tmp_path, *MORE, f"data.path={write_sources(tmp_path)}", *more)
    with pytest.raises(ConfigError, match=message) as refused:
        runs.start(config)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "text").exists()
