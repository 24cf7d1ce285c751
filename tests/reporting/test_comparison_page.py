"""Several runs in one page: seeds are folded, differences are paired by sample, and nothing is coloured that is not significant."""

import json
import re
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from linnaeus.commands.report import main
from linnaeus.files import to_csv
from linnaeus.reporting.report.comparison.compared_runs import Compared, find_runs
from linnaeus.reporting.report.comparison.comparison_page import comparison_page
from linnaeus.reporting.report.comparison.paired_rows import PairedRows
from linnaeus.reporting.report.comparison.pareto import Entry, frontier, pareto_chart
from linnaeus.reporting.report.comparison.seed_variation import seed_half_width
from linnaeus.reporting.report.run_files import RunFiles
from linnaeus.reporting.results import write_summary
from tests.reporting.test_html_report import Checker, charts_of

SAMPLES = 300
GROUP = 3  # samples of a group, which are equally hard
HARD = np.random.default_rng(0).random(SAMPLES // GROUP)  # difficulty of each group, common to all runs


def make_run(root: Path, name: str, head: str, seed: int, skill: float, seconds: float, tables: bool = True) -> RunFiles:
    """Write a finished run. Its model is right for a sample that is easier than its skill."""
    path = root / "birds" / name
    (path / "validation" / "step-00000010").mkdir(parents=True)
    right = np.repeat(np.random.default_rng([seed, len(head)]).normal(HARD, 0.05) < skill, GROUP).astype(int)
    final = {"val/species/top1": float(right.mean()), "val/loss": 2.0 - skill, "val/species/top1_low": 0.1, "val/species/top1_high": 0.9}
    timings = {"time/training_seconds": seconds}
    write_summary(path / "summary.json", "finished", 10, final=final, timings=timings, wall_seconds=2 * seconds)
    (path / "run.json").write_text(json.dumps({"run_id": name, "data_fingerprint": "f"}))
    config = {"seed": seed, "head": {"name": head}, "run": {"name": name}, "data": {"fold": None}}
    (path / "config.yaml").write_text(json.dumps(config))
    rows = [{"global_step": step, "train/loss": skill / step} for step in range(1, 11)] + [{"global_step": 10, **final}]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if tables:
        samples = [{"sample": f"p{i}", "group": i // GROUP, "species/top1": int(hit)} for i, hit in enumerate(right)]
        (path / "validation" / "step-00000010" / "val-samples.csv").write_text(to_csv(samples))
    return RunFiles(path)


@pytest.fixture
def six(tmp_path: Path) -> list[RunFiles]:
    kinds = {"linear": (0.50, 60), "marginal": (0.50, 80), "deep": (0.70, 70)}
    return [make_run(tmp_path, f"{head}{seed}", head, seed, *kind) for head, kind in kinds.items() for seed in (0, 1)]


def test_seeds_are_folded_and_only_differing_keys_are_shown(six: list[RunFiles]) -> None:
    compared = Compared(six)
    assert compared.differing == ["seed", "head.name"]
    assert [group.name for group in compared.groups] == ["head.name=linear", "head.name=marginal", "head.name=deep"]
    first = compared.groups[0]
    values = [run.final["val/species/top1"] for run in six[:2]]
    assert first.mean("val/species/top1") == pytest.approx(np.mean(values))
    assert first.deviation("val/species/top1") == pytest.approx(np.std(values, ddof=1)) and first.seconds == 60
    assert compared.main_metric == "val/species/top1"


def test_a_key_that_does_not_change_updates_does_not_divide_the_seeds(six: list[RunFiles]) -> None:
    for run, (key, value) in zip(six, {"max_time": "1h", "num_workers": 2, "timeout": "9min", "threads": 1}.items(), strict=False):
        (run.path / "config.yaml").write_text(json.dumps({**run.config, "trainer": {key: value}, "schedule": {"keep_last": value}}))
    compared = Compared([RunFiles(run.path) for run in six])
    assert [len(group.runs) for group in compared.groups] == [2, 2, 2] and compared.differing == ["seed", "head.name"]


def test_differences_are_paired_by_sample_over_groups(six: list[RunFiles]) -> None:
    """Compare the interval with that of a bootstrap of whole groups of the mean difference over seeds."""
    first, _, deep = Compared(six).groups
    pairs = PairedRows()
    found = pairs.difference(first, deep, "val/species/top1")
    assert found is not None and found.samples == SAMPLES and found.significant
    hits = [[np.array([int(row["species/top1"]) for row in run.table("samples")]) for run in group.runs] for group in (first, deep)]
    change = np.mean(hits[1], axis=0) - np.mean(hits[0], axis=0)
    assert found.value == pytest.approx(change.mean())
    groups = change.reshape(-1, GROUP).mean(1)
    draws = np.random.default_rng(1).choice(groups, (4000, len(groups))).mean(1)
    means = [[hit.mean() for hit in own] for own in hits]
    seeds = seed_half_width(*means)
    assert seeds is not None and seeds > 0
    ends = [found.value + np.sign(end - found.value) * np.hypot(end - found.value, seeds) for end in np.quantile(draws, [0.025, 0.975])]
    assert (found.low, found.high) == pytest.approx(ends, abs=0.015)
    unpaired = pairs.difference(first, deep, "val/loss")
    assert unpaired is not None and unpaired.samples == 0 and not unpaired.significant


def test_only_the_numbers_of_a_table_of_samples_are_kept(tmp_path: Path) -> None:
    """As rows of texts, four tables of 20,000 samples take 106 MB. A damaged number leaves out its column alone."""
    made = [make_run(tmp_path, head, head, 0, skill, 60) for head, skill in (("a", 0.2), ("b", 0.8))]
    path = made[1].tables_folder / "val-samples.csv"
    head, *lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        lines[number] = f"{line},{'x' * 1000}{number},{'1' if number else '0.1.2'}"
    path.write_text("\n".join([f"{head},note,chain", *lines]) + "\n")
    pairs, (first, other) = PairedRows(), Compared(made).groups
    tracemalloc.start()
    found = pairs.difference(first, other, "val/species/top1")
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert found is not None and found.samples == SAMPLES and found.significant
    assert kept < 1000 * SAMPLES / 2 and pairs.table(made[1]).columns.keys() >= {"species/top1"}
    assert not {"note", "chain"} & pairs.table(made[1]).columns.keys()


def test_the_interval_over_seeds_contains_0_in_95_of_100_equal_groups() -> None:
    """Welch's interval is a little wide for two runs in a group. Negative control: with 1.96 in place of Student's quantile it misses."""
    random = np.random.default_rng(0)
    for sizes in ((2, 2), (3, 3), (5, 2)):
        drawn = [[random.normal(size=size).tolist() for size in sizes] for _ in range(4000)]
        widths = [seed_half_width(*pair) or 0.0 for pair in drawn]
        gaps = [abs(np.mean(a) - np.mean(b)) for a, b in drawn]
        assert 0.93 < np.mean([gap <= width for gap, width in zip(gaps, widths, strict=True)]) < 0.995
        normal = [1.96 * np.sqrt(np.var(a, ddof=1) / len(a) + np.var(b, ddof=1) / len(b)) for a, b in drawn]
        assert np.mean([gap <= width for gap, width in zip(gaps, normal, strict=True)]) < 0.92
    assert seed_half_width([1.0], [2.0, 3.0]) is None and seed_half_width([1.0, 1.0], [2.0, 2.0]) is None


def test_a_difference_of_single_samples_is_not_significant_if_the_seeds_differ_more(tmp_path: Path) -> None:
    skills = {"a": (0.40, 0.60), "b": (0.48, 0.72)}
    made = [make_run(tmp_path, f"{head}{seed}", head, seed, skill, 60) for head, both in skills.items() for seed, skill in enumerate(both)]
    first, other = Compared(made).groups
    assert not (found := PairedRows().difference(first, other, "val/species/top1")).significant
    assert (loss := PairedRows().difference(first, other, "val/loss")).samples == 0 and loss.low < 0 < loss.high
    alone = PairedRows().difference(Compared([made[0], made[2]]).groups[0], Compared([made[0], made[2]]).groups[1], "val/species/top1")
    assert alone.significant and alone.high - alone.low < found.high - found.low


def test_the_page_colours_significant_differences_alone(six: list[RunFiles]) -> None:
    text = comparison_page(six, six[0].path.parent)
    checker = Checker()
    checker.feed(text)
    assert checker.open == [] and len(set(checker.ids)) == len(checker.ids)
    assert len(re.findall(r'class="delta good"', text)) == 1 and 'class="delta bad"' not in text  # deep against linear; not marginal
    assert "in 3 configurations" in text and "head.name" in text and "Paired by sample" in text
    assert [line["name"] for line in charts_of(text)["Loss"]] == ["head.name=linear", "head.name=marginal", "head.name=deep"]


def test_runs_that_did_not_finish_are_counted(six: list[RunFiles]) -> None:
    """Means over seeds contain the newest values of such runs."""
    assert "did not finish" not in comparison_page(six, six[0].path.parent)
    for run, status in zip(six, ("stopped_early", "failed", "interrupted")):
        write_summary(run.path / "summary.json", status, 3, final={"val/loss": 9.0})
    text = comparison_page([RunFiles(run.path) for run in six], six[0].path.parent)
    assert '<span class="status warning">unfinished</span>2 runs of 6 did not finish; the tables have the newest values.' in text


def test_runs_without_tables_have_aggregate_differences_only(tmp_path: Path) -> None:
    made = [make_run(tmp_path, head, head, 0, skill, 60, tables=False) for head, skill in (("a", 0.2), ("b", 0.8))]
    text = comparison_page(made, tmp_path)
    assert "Only aggregate results are saved" in text and "delta good" not in text and "delta bad" not in text


def test_the_command_compares_runs_and_sweeps(
    six: list[RunFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    paths = [str(run.path) for run in six]
    assert main(paths) == 0 and capsys.readouterr().out.strip() == str(six[0].path.parent / "comparison.html")
    assert main([*paths, str(six[0].path.parent / "comparison.html")]) == 0, "linnaeus report outputs/birds/*, a second time"
    assert "comparison.html" in capsys.readouterr().out
    sweep = tmp_path / "sweeps" / "heads"
    sweep.mkdir(parents=True)
    trials = [{"trial": i, "directory": f"outputs/birds/{run.path.name}"} for i, run in enumerate(six)]
    trials.append({"trial": 6, "directory": "outputs/birds/not_started"})
    (sweep / "sweep.json").write_text(json.dumps({"trials": trials}))
    assert [run.path.name for run in find_runs([sweep])] == [run.path.name for run in six]
    (tmp_path / "elsewhere/outputs/birds").mkdir(parents=True)
    shutil.copytree(six[0].path, tmp_path / "elsewhere" / trials[0]["directory"])
    monkeypatch.chdir(tmp_path / "elsewhere")  # with a run of the same name
    assert [run.path for run in find_runs([sweep])] == [run.path for run in six]
    assert main([str(sweep)]) == 0 and (sweep / "comparison.html").exists()


def test_the_frontier_has_the_runs_that_no_other_beats() -> None:
    entries = [Entry("a", 10, 0.5, None), Entry("b", 20, 0.4, None), Entry("c", 30, 0.7, 0.1), Entry("d", 30, 0.6, None)]
    assert [entry.name for entry in frontier(entries, higher=True)] == ["a", "c"]
    assert [entry.name for entry in frontier(entries, higher=False)] == ["a", "b"]
    drawn = pareto_chart("val/species/top1", entries)
    assert drawn.count("<circle") == 4 and "c: 70.0 %" in drawn and pareto_chart("val/loss", entries[:1]) == ""
    killed = [*entries, Entry("e", 5, 0.9, None, "killed")]
    assert [entry.name for entry in frontier(killed, higher=True)] == ["a", "c"], "it would beat all others"
    drawn = pareto_chart("val/species/top1", killed)
    assert drawn.count("hollow") == 1 and "e: 90.0 % in 5s, killed" in drawn


def test_eight_processes_cost_eight_times_as_much(tmp_path: Path) -> None:
    one, eight = (make_run(tmp_path, f"{n}", f"{n}", 0, 0.5, seconds) for n, seconds in ((1, 80), (8, 10)))
    (eight.path / "run.json").write_text(json.dumps({"world_size": 8, "data_fingerprint": "f"}))
    assert [group.seconds for group in Compared([one, eight]).groups] == [80, 80]
    (eight.path / "summary.json").write_text("{}")
    text = comparison_page([one, RunFiles(eight.path)], tmp_path)
    assert '8 <span class="status warning">running</span>' in text and '1 <span class="status warning">' not in text


def test_a_difference_over_a_part_of_the_samples_says_so_and_adds_up(tmp_path: Path) -> None:
    first, other = (make_run(tmp_path, head, head, 0, skill, 60) for head, skill in (("a", 0.4), ("b", 0.6)))
    table = other.path / "validation" / "step-00000010" / "val-samples.csv"
    assert "paired samples" not in comparison_page([first, other], tmp_path)
    table.write_text("".join(table.read_text().splitlines(keepends=True)[: 1 + SAMPLES // 2]))
    made = [first, RunFiles(other.path)]
    found = PairedRows().difference(*Compared(made).groups, "val/species/top1")
    assert found is not None and (found.samples, found.of) == (SAMPLES // 2, SAMPLES)
    means = [np.mean([int(row["species/top1"]) for row in run.table("samples")[: SAMPLES // 2]]) for run in made]
    assert found.reference == pytest.approx(means[0]) and found.reference + found.value == pytest.approx(means[1])
    assert f"over 150 paired samples of 300; the reference there: {100 * means[0]:.1f} %" in comparison_page(made, tmp_path)


def test_the_page_says_which_intervals_contain_the_seeds(six: list[RunFiles], tmp_path: Path) -> None:
    folder = six[0].path.parent
    assert "They include the variation over the seeds. " in comparison_page(six, folder)
    assert "over the seeds, except in the 1 column of a single run. " in comparison_page(six[:5], folder)
    assert "They do not include the variation over seeds" in comparison_page(six[1:], folder), "the reference has one run"


@pytest.mark.parametrize(
    "entry",
    [
        {"best": True},
        {"best": "val/loss"},
        {"best": [{}]},
        {"best": {"val/loss": 3}},
        {"best": {"val/loss": {"value": [], "global_step": 3}}},
        {"best": {"val/loss": {"value": 1.0, "global_step": "3"}}},
        {"final": "val/loss", "status": 3},
        {"final": {"val/loss": 10**400, "val/species/top1": []}},
        {"timings": [1.0]},
        {"global_step": 10**400, "total_steps": "40"},
        {"wall_seconds": 10**400, "samples_per_second": {}},
    ],
)
def test_entries_of_a_summary_with_wrong_types_count_as_missing(tmp_path: Path, entry: dict) -> None:
    """Check the pages of this run, of both, and of another run, which lack no section."""
    damaged = make_run(tmp_path, "damaged", "marginal", 0, 0.5, 10, tables=False).path
    other = make_run(tmp_path, "other", "linear", 1, 0.6, 10, tables=False).path
    (damaged / "summary.json").write_text(json.dumps(json.loads((damaged / "summary.json").read_text()) | entry))
    for path, created in ((damaged, "2026-05-01T00:00:00+00:00"), (other, "2026-06-01T00:00:00+00:00")):
        (path / "run.json").write_text(json.dumps({"run_id": path.name, "data_fingerprint": "f", "created": created}))
    assert main([str(damaged), str(other)]) == main([str(damaged)]) == main([str(other)]) == 0
    pages = [(tmp_path / "birds" / "comparison.html"), damaged / "report.html", other / "report.html"]
    assert not [page for page in pages if "left out of the report" in page.read_text()]
