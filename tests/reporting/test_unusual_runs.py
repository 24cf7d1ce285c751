"""report.html of runs in progress, resumed or damaged: current numbers, none of another step, and no script of a file of the run."""

import base64
import csv
import hashlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from linnaeus.commands.report import main, sections_of
from linnaeus.distributed.processes import identity
from linnaeus.reporting import LogSinks
from linnaeus.reporting.formatting import format_tick
from linnaeus.reporting.report import configuration
from linnaeus.reporting.report.comparison.compared_runs import Compared
from linnaeus.reporting.report.comparison.comparison_page import comparison_page
from linnaeus.reporting.report.metric_names import direction
from linnaeus.reporting.report.pass_differences import paired_intervals
from linnaeus.reporting.report.previous_best import previous_best
from linnaeus.reporting.report.run_charts import by_task, learning_charts, speed_charts
from linnaeus.reporting.report.run_files import RunFiles, read_table
from linnaeus.reporting.report.run_report import better_before, report_page
from linnaeus.reporting.report.time_breakdown import time_breakdown, time_parts, total_parts
from linnaeus.reporting.results import write_summary
from linnaeus.workloads import report_sections
from linnaeus.workloads.taxonomy.report.answer_tables import AnswerTables
from linnaeus.workloads.taxonomy.report.clades import MOST, clade_tree
from linnaeus.workloads.taxonomy.report.metadata_ablation import metadata_ablation
from linnaeus.workloads.taxonomy.report.overview import overview
from linnaeus.workloads.taxonomy.report.sample_table import taxon_name

RANKS = ("order", "breed")  # not in the order of the alphabet


def result(run: Path, step: int, value: float) -> None:
    """Write the result of the normal validation pass at a step."""
    folder = run / "validation" / f"step-{step:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    metrics = {"val/loss": value, **{f"val/{rank}/top1": value for rank in RANKS}}
    (folder / "val.json").write_text(json.dumps({"global_step": step, "pass": "val", "metrics": metrics}))


def rows(run: Path, *found: dict) -> None:
    """Write rows, each with a `step`; those with times to timings.jsonl."""
    sinks = LogSinks(run)
    for row in found:
        row = dict(row)
        step = row.pop("step")
        sinks.log(step, row, "timings" if any(name.startswith(("time", "recent")) for name in row) else "metrics")
    sinks.close()


@pytest.fixture
def resumed(tmp_path: Path) -> Path:
    """Return a run that was interrupted at step 40 and is at step 70 now: summary.json is that of step 40 but for its status."""
    times = {"time/training_seconds": 4.0, "time/wall_seconds": 5.0}
    values = {
        "best": {"val/loss": {"value": 0.25, "global_step": 40}},
        "final": {"val/loss": 0.25, "val/order/top1": 0.25},
        "timings": times,
    }
    write_summary(tmp_path / "summary.json", "running", 40, total_steps=80, stop_reason="SIGTERM", wall_seconds=5.0, **values)
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "config.yaml").write_text("workload: {name: taxonomy}\nrun: {name: x}\n")
    for step, value in ((40, 0.25), (60, 0.75)):
        result(tmp_path, step, value)
    metrics = [
        {"step": s, "train/loss": 1.0, **({"val/breed/top1": 0.75, "val/order/top1": 0.75} if s == 60 else {})} for s in (40, 60, 70)
    ]
    clocks = [{"step": 40, "time/training_seconds": 4.0, "time/wall_seconds": 5.0}]
    clocks += [{"step": 70, "time/training_seconds": 3.0, "time/wall_seconds": 9.0, "time/samples_per_second": 123.0}]
    rows(tmp_path, *metrics, *clocks)
    return tmp_path


def test_a_run_in_progress_shows_its_own_numbers_and_not_those_of_the_launch_before(resumed: Path) -> None:
    run = RunFiles(resumed)
    text = report_page(run, sections_of(run))
    assert ">running</span>70 of 80 updates" in text and "SIGTERM" not in text
    assert run.final["val/loss"] == 0.75 and 'data-key="val/breed/top1" data-value="0.75"' in text
    assert ">9s<" in text and ">123<" in text  # wall time of all launches, samples per second
    assert "The breed is right for" in text  # the finest rank: rows of metrics.jsonl are sorted by name
    write_summary(resumed / "summary.json", "finished", 80, final={"val/order/top1": 0.5}, total_steps=80)
    assert RunFiles(resumed).final == {"val/order/top1": 0.5} and RunFiles(resumed).step == 80


@pytest.mark.parametrize(
    "owner, touched, status",
    [
        ({}, 0, "running"),
        ({"pid": 2**22 + 1}, 0, "killed"),
        ({"boot": "another", "host": "elsewhere"}, 60, "running"),
        ({"boot": "another", "host": "elsewhere"}, 600, "killed"),
    ],
)
def test_a_killed_run_is_said_to_be_killed(resumed: Path, owner: dict, touched: int, status: str) -> None:
    """Write the note of the last owner to `lock`. An owner touches the file while it is alive; `touched`: seconds since then."""
    (resumed / "lock").write_text(json.dumps({**identity(), "since": "then", **owner}))
    os.utime(resumed / "lock", (time.time() - touched,) * 2)
    run = RunFiles(resumed)
    text = report_page(run, sections_of(run))
    assert f">{status}</span>70 of 80 updates" in text and run.final["val/loss"] == 0.75
    assert ("<strong>killed:</strong>" in text) == (status == "killed")


def test_the_best_earlier_run_was_validated_on_equally_many_samples(tmp_path: Path) -> None:
    for number, limit in enumerate(("trainer: {limit_validation_samples: 8}", "trainer: {limit_validation_samples: null}", "")):
        path = tmp_path / f"run{number}"
        path.mkdir()
        write_summary(path / "summary.json", "finished", 9, final={"val/loss": 0.5 + number})
        (path / "run.json").write_text(json.dumps({"data_fingerprint": "a", "created": f"2026-01-0{number + 1}"}))
        (path / "config.yaml").write_text(f"run: {{}}\n{limit}\n")
    found = previous_best(RunFiles(tmp_path / "run2"))
    assert found is not None and found.name == "run1", "the better loss of run0 is that of 8 samples"
    (tmp_path / "run2/config.yaml").write_text("run: {}\ntrainer: {limit_validation_samples: 8}\n")
    assert previous_best(RunFiles(tmp_path / "run2")).name == "run0"


def test_the_earlier_run_is_the_one_that_started_first_in_any_time_zone(tmp_path: Path) -> None:
    """Two hosts share the disk: 20:00 in Zurich is 19:00 UTC, and 03:00 in Tokyo on the next day is 18:00 UTC."""
    for name, created in (("tokyo", "2026-01-02T03:00:00+0900"), ("zurich", "2026-01-01T20:00:00+0100")):
        (tmp_path / name).mkdir()
        write_summary(tmp_path / name / "summary.json", "finished", 9, final={"val/loss": 0.5})
        (tmp_path / name / "run.json").write_text(json.dumps({"data_fingerprint": "a", "created": created}))
    assert previous_best(RunFiles(tmp_path / "zurich")).name == "tokyo" and previous_best(RunFiles(tmp_path / "tokyo")) is None


def test_the_best_earlier_run_of_a_run_in_progress_is_that_of_its_own_metric(tmp_path: Path) -> None:
    for number, (loss, top1) in enumerate([(0.5, 0.25), (1.0, 0.75), (2.0, 0.5)]):
        path = tmp_path / f"run{number}"
        path.mkdir()
        write_summary(path / "summary.json", "finished", 9, final={"val/loss": loss, "val/breed/top1": top1})
        (path / "run.json").write_text(json.dumps({"data_fingerprint": "a", "created": f"2026-01-0{number + 1}"}))
    (tmp_path / "now").mkdir()
    (tmp_path / "now/run.json").write_text('{"data_fingerprint": "a", "created": "2026-02-01"}')
    (tmp_path / "now/config.yaml").write_text("run: {}\nschedule: {best_monitor: val/breed/top1, best_mode: max}\n")
    found = previous_best(RunFiles(tmp_path / "now"))
    assert found is not None and found.name == "run1"


def test_the_best_value_is_that_of_the_metric_that_is_monitored_now(resumed: Path) -> None:
    (resumed / "config.yaml").write_text("run: {}\nschedule: {best_monitor: val/breed/top1}\n")
    best = {"val/loss": {"value": 0.5, "global_step": 40}, "val/breed/top1": {"value": 0.25, "global_step": 60}}  # changed in between
    write_summary(resumed / "summary.json", "finished", 80, best=best)
    assert "The validation breed top-1 accuracy was 25.0 % at step 60. In the last validation, shown here, it is 75.0 %." in better_before(
        RunFiles(resumed)
    )


def clocks(step: int, startup: float, training: float, wall: float, **more: float) -> dict[str, float]:
    """Return a row of timings.jsonl: a launch with this start-up time, 2 s of validation and no other time."""
    names = {"startup_seconds": startup, "training_seconds": training, "validation_seconds": 2.0, "wall_seconds": wall, **more}
    return {"step": step, **{f"time/{name}": value for name, value in names.items()}}


def test_the_parts_of_the_time_are_those_of_all_launches(tmp_path: Path) -> None:
    """Write three launches: the second has a longer training time than the first, so that it is known by its start-up alone."""
    first = [clocks(50, 10.0, 30.0, 42.0, processes=4), clocks(99, 10.0, 60.0, 72.0, processes=4)]
    rows(tmp_path, *first, clocks(100, 20.0, 61.0, 155.0, processes=4), clocks(101, 20.0, 6.0, 184.0, processes=1))
    (tmp_path / "run.json").write_text('{"world_size": 1}')
    run = RunFiles(tmp_path)
    assert [row["time/training_seconds"] for row in run.launch_timings] == [60.0, 61.0, 6.0]
    parts = total_parts(run.launch_timings, run.last_timings["time/wall_seconds"])
    assert parts == pytest.approx({"startup": 50, "computing": 127, "validation": 6, "waiting": 0, "unknown": 1})
    text = time_breakdown(run)
    assert "Time of all 3 starts" in text and ">127.0 s<" in text and ">not recorded<" in text and ">69.0 %<" in text
    assert Compared([run]).groups[0].seconds == 4 * 60 + 4 * 61 + 6
    timings = {"time/startup_seconds": 20.0, "time/training_seconds": 7.0, "time/validation_seconds": 2.0, "time/wall_seconds": 185.0}
    write_summary(tmp_path / "summary.json", "finished", 101, timings=timings)  # continues the last row
    run = RunFiles(tmp_path)
    assert [row["time/training_seconds"] for row in run.launch_timings] == [60.0, 61.0, 7.0]
    assert total_parts(run.launch_timings, 184.0)["computing"] == 128 and "unknown" not in total_parts(run.launch_timings, 184.0)
    assert total_parts([], 5.0) == {} and "Time of the run" in time_breakdown_of_one(tmp_path / "one")


def time_breakdown_of_one(path: Path) -> str:
    """Return the section of a run with one launch."""
    path.mkdir()
    rows(path, clocks(50, 10.0, 30.0, 42.0))
    return time_breakdown(RunFiles(path))


@pytest.mark.parametrize("trainer, shown", [("{}", " of 90 validation photographs"), ("{limit_validation_samples: 8}", "")])
def test_the_accuracy_is_that_of_labelled_photographs(resumed: Path, trainer: str, shown: str) -> None:
    """Before the tables of the last validation exist, the number of photographs is that of dataset.json."""
    (resumed / "config.yaml").write_text(f"run: {{}}\ntrainer: {trainer}\n")
    ranks = {"breed": {"classes": 4, "null": {"training": 0, "validation": 10}}}
    (resumed / "dataset.json").write_text(json.dumps({"rows": {"training": 500, "validation": 100}, "ranks": ranks}))
    assert f"</em>{shown}.</p>" in overview(AnswerTables(RunFiles(resumed)))


def test_samples_that_were_not_validated_are_not_counted(resumed: Path) -> None:
    """With trainer.limit_validation_samples, the table of samples has empty rows."""
    folder = resumed / "validation/step-00000060"
    (folder / "val-samples.csv").write_text("sample,metadata,answer_1\na,SPATIAL,x\nb,,x\nc,SPATIAL,\nd,SPATIAL,\n")
    metrics = {f"{key}/breed/top1": 0.5 for key in ("val", "val_mask_SPATIAL")}
    (folder / "val.json").write_text(json.dumps({"global_step": 60, "metrics": metrics}))
    assert re.findall(r'<td data-v="(\d+)">', metadata_ablation(AnswerTables(RunFiles(resumed)))) == ["2", "1"]


def test_directions_that_the_program_fills_in_are_not_listed_as_changes(resumed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "defaults_for", lambda config, folder: {"a": {"best_mode": "auto", "x": 1, "other": "auto"}})
    changed = configuration.changed_keys({"a": {"best_mode": "min", "x": 2, "other": "cpu"}})
    assert changed == {"a.x": ("1", "2"), "a.other": ("auto", "cpu")}


def test_charts_of_other_metrics_are_the_first_of_the_workload(tmp_path: Path) -> None:
    names = ["perplexity", "z1", "z2", "z3", "z4", "z5", "a"]
    rows(tmp_path, *[{"step": step, **{f"val/{name}": 1.0 * step for name in names}} for step in (1, 2)])
    write_summary(tmp_path / "summary.json", "finished", 2, final={f"val/{name}": 2.0 for name in names})
    titles = re.findall("<figcaption>(?:<span[^>]*>)?([^<]*)", "".join(learning_charts(RunFiles(tmp_path))))
    assert titles == ["Perplexity", "z1", "z2", "z3", "z4", "z5"]


def test_of_many_tasks_the_finest_are_drawn(tmp_path: Path) -> None:
    tasks = [f"t{number:02d}" for number in range(1, 21)]
    rows(tmp_path, *[{"step": step, **{f"train/{task}/loss": 1.0 for task in tasks}} for step in (1, 2)])
    write_summary(tmp_path / "summary.json", "finished", 2, final={f"val/{task}/top1": 0.5 for task in tasks})
    assert list(by_task(RunFiles(tmp_path), "loss")) == tasks[-12:]


def test_the_length_of_a_first_launch_is_that_of_its_reports(resumed: Path) -> None:
    (resumed / "summary.json").unlink()
    (resumed / "reports.jsonl").write_text('{"global_step": 70, "progress/total_steps": 90}\n')
    assert "70 of 90 updates" in report_page(RunFiles(resumed), [])


def test_tables_of_an_earlier_validation_are_not_shown_beside_later_results(resumed: Path) -> None:
    table = "metric,constant,shuffled\norder/top1,0.125,0.0625\n"
    (resumed / "validation/step-00000040/val-baselines.csv").write_text(table)
    assert RunFiles(resumed).table("baselines") == [] and ">constant<" not in report_page(RunFiles(resumed), [])
    (resumed / "validation/step-00000060/val-baselines.csv").write_text(table)
    (resumed / "validation/step-00000070").mkdir()
    (resumed / "validation/step-00000070/.tmp-val.json-1-1").write_text("")  # of a killed process
    assert len(RunFiles(resumed).table("baselines")) == 1 and ">constant<" in report_page(RunFiles(resumed), [])


# -- time ----------------------------------------------------------------------------------------------------------------------


def test_the_parts_of_the_time_add_up_to_the_launch() -> None:
    times = {"startup": 5.0, "compiling": 2.0, "training": 80.0, "validation": 9.0, "saving": 1.0, "reporting": 3.0}
    parts = time_parts({f"time/{name}_seconds": value for name, value in times.items()} | {"time/waiting_for_data": 0.25})
    assert sum(parts.values()) == pytest.approx(97.0) and parts["computing"] == pytest.approx(57.0) and parts["waiting"] == 20.0


def test_speeds_are_those_of_the_last_reports(tmp_path: Path) -> None:
    both = [{"step": s, "recent/samples_per_second": 10.0 * s, "time/samples_per_second": 7.0, "recent/mfu": 0.375} for s in (1, 2)]
    rows(tmp_path, *both)
    charts = {re.findall(r"<figcaption>([^<]*)", text)[0]: text for text in speed_charts(RunFiles(tmp_path))}
    assert "[1,10.0],[2,20.0]" in charts["Throughput"] and "7.0" not in re.findall('data-series="([^"]*)"', charts["Throughput"])[0]
    assert ">37.5 %<" in time_breakdown(RunFiles(tmp_path))  # MFU


@pytest.mark.parametrize(
    ("device", "logger", "shown"),
    [
        ("NVIDIA A30 MIG 1g.6gb", {"peak_tflops": None}, "no peak for NVIDIA A30 MIG 1g.6gb at bf16; set logger.peak_tflops"),
        ("cpu", {"peak_tflops": None}, "no peak for cpu at bf16"),
        ("cpu", {"peak_tflops": 1.5}, ""),
        ("NVIDIA H100 80GB HBM3", {"peak_tflops": None}, ""),  # before the second report
    ],
)
def test_an_unknown_peak_is_said(tmp_path: Path, device: str, logger: dict[str, Any], shown: str) -> None:
    rows(tmp_path, {"step": 1, "time/samples_per_second": 7.0})
    (tmp_path / "run.json").write_text(json.dumps({"devices": device}))
    (tmp_path / "config.yaml").write_text(json.dumps({"run": {}, "trainer": {"precision": "bf16"}, "logger": logger}))
    text = time_breakdown(RunFiles(tmp_path))
    assert ("<b>unknown</b><span>model FLOPs utilisation</span>" in text) == bool(shown) and shown in text


# -- comparisons ---------------------------------------------------------------------------------------------------------------


def compared_run(path: Path, config: str, seconds: list[float]) -> RunFiles:
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(config)
    (path / "run.json").write_text('{"data_fingerprint": "a"}')
    rows(path, *[{"step": s, "time/training_seconds": value} for s, value in enumerate(seconds)], {"step": 9, "train/loss": 1.0})
    write_summary(
        path / "summary.json", "finished", 9, final={"val/loss": 1.0, "val/l0": 3.0}, timings={"time/training_seconds": seconds[-1]}
    )
    return RunFiles(path)


def test_runs_from_other_weights_or_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    plain, warm = (f"run: {{name: {n}, init_from: {w}}}\na: {{b: 1}}\n" for n, w in (("x", "null"), ("y", "other/run")))
    compared = Compared([compared_run(tmp_path / "one/x", plain, [1.0]), compared_run(tmp_path / "one/y", warm, [1.0])])
    assert len(compared.groups) == 2 and compared.differing == ["run.init_from"]
    many = "\n".join(f"k{i}: {{z: 2}}" for i in range(9))  # so many keys differ that the groups have the names of their folders
    same = Compared([compared_run(tmp_path / "two/x", plain, [1.0]), compared_run(tmp_path / "three/x", plain + many, [1.0])])
    assert [group.name for group in same.groups] == ["two / x", "three / x"]
    page = comparison_page(same.runs, tmp_path)
    assert all(page.count(f'"name":"{name}"'.replace('"', "&quot;")) == 1 for name in ("two / x", "three / x"))  # both curves are drawn


def test_metrics_of_the_validated_runs_are_shown_if_others_have_none(tmp_path: Path) -> None:
    runs = [compared_run(tmp_path / f"one/{name}", f"run: {{name: {name}}}\na: {name}\n", [1.0]) for name in "abcd"]
    for run in runs[2:]:
        write_summary(run.path / "summary.json", "failed", 9)
    assert Compared([RunFiles(run.path) for run in runs]).metrics == ["val/loss", "val/l0"]


def test_an_axis_of_huge_values_has_short_labels() -> None:
    assert [format_tick(value) for value in (2e9, 1e12, 1e17)] == ["2G", "1e+12", "1e+17"]


def test_the_cost_of_a_resumed_run_is_that_of_all_launches(tmp_path: Path) -> None:
    run = compared_run(tmp_path / "one/x", "run: {name: x}\n", [10.0, 90.0, 2.0, 11.0])
    assert Compared([run]).groups[0].seconds == 101.0


def test_a_metric_whose_direction_is_unknown_is_not_rated() -> None:
    rated = {
        "top1": 1,
        "with_meta_top1": 1,
        "f1": 1,
        "score": 1,
        "margin_3_low": 1,
        "loss": -1,
        "hd5": -1,
        "perplexity": -1,
        "species/ece": -1,
    }
    rated |= {name: 0 for name in ("l0", "dead", "dense", "explained_variance", "loss_recovered", "severity", "of_a_plugin")}
    assert {name: direction(f"val/{name}") for name in rated} == rated


# -- damaged and hostile files -------------------------------------------------------------------------------------------------


def test_a_damaged_file_costs_its_section_and_not_the_page(resumed: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = resumed / "validation/step-00000060"
    (folder / "val-classes.csv").write_text("rank,lineage,training_count,count,right,predicted\nbreed,a|b,many,1,1,1\n")
    (folder / "val-reliability.csv").write_bytes(b"rank,confidence,right,samples\nbreed,0.5,0.5,4\nbreed,0.5,\xff\n")
    run = RunFiles(resumed)
    text = report_page(run, sections_of(run))
    assert "Tree: left out of the report, because a file of the run is damaged (ValueError" in text and "Tree: left out" in caplog.text
    assert "Reliability at breed: stated 50 %" in text and "70 of 80 updates" in text
    (resumed / "metrics.jsonl").unlink()
    (resumed / "metrics.jsonl").mkdir()
    assert "No rows have been logged yet." in report_page(RunFiles(resumed), [])


def test_a_run_without_a_metric_of_a_rank_has_a_page(resumed: Path) -> None:
    write_summary(resumed / "summary.json", "finished", 80, final={"val/loss": 0.5, "val/odd": False})
    run = RunFiles(resumed)
    assert run.final == {"val/loss": 0.5}  # a flag is no metric
    assert sections_of(run) == [] and 'data-key="val/loss" data-value="0.5"' in report_page(run, sections_of(run))


def test_empty_tables_of_samples_have_no_differences() -> None:
    assert paired_intervals([], [], ["order/top1"]) == {}


def test_a_plugin_whose_sections_fail_does_not_fail_the_run(resumed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linnaeus.workloads.taxonomy.report_sections", lambda run: [run.final["missing"]])
    (section,) = report_sections("taxonomy", RunFiles(resumed))
    assert "KeyError: &#x27;missing&#x27;" in section.body


def test_a_table_ends_at_its_first_damaged_row(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3\n4,5\n")
    assert read_table(tmp_path / "t.csv") == [{"a": "1", "b": "2"}]


def test_a_file_that_cannot_be_read_is_named(resumed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("linnaeus.reporting.report.run_files.read_curves", refuse)
    with pytest.raises(SystemExit):
        main([str(resumed)])
    assert f"{resumed / 'metrics.jsonl'} cannot be read (Permission denied)" in capsys.readouterr().err


def test_no_script_of_a_file_of_the_run_is_executed(resumed: Path) -> None:
    (resumed / "schedule.svg").write_text('<svg><script>alert(2)</script></svg><img src=x onerror="alert(3)">')
    text = report_page(RunFiles(resumed), [])
    assert "alert(" not in text
    (resumed / "schedule.svg").write_text('<svg><path d="M0 0"/></svg><img src=x onerror="alert(3)">')
    text = report_page(RunFiles(resumed), [])
    assert 'd="M0 0"' in text and "alert(" not in text
    script = re.search(r"<script>(.*?)</script>", text, re.S)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert script is not None and policy is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy[1] and "script-src 'unsafe-inline'" not in policy[1]


# -- names and sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Rosa canina", "a|b", "a\\", "x\\|y", "<b>&", "ورد, rose"])
def test_the_name_of_a_taxon_is_that_in_its_lineage(name: str) -> None:
    escaped = name.replace("\\", "\\\\").replace("|", "\\|")  # as `TaxonomyTree.lineage_ids`
    assert taxon_name(f"A\\|\\\\|{escaped}") == name


def test_a_single_rank_with_many_taxa_makes_a_short_tree(resumed: Path) -> None:
    metrics = {"global_step": 60, "metrics": {"val/breed/top1": 1.0}}
    (resumed / "validation/step-00000060/val.json").write_text(json.dumps(metrics))
    (resumed / "validation/step-00000040/val.json").unlink()
    with open(resumed / "validation/step-00000060/val-classes.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("rank", "lineage", "training_count", "count", "right", "predicted"))
        writer.writerows(("breed", f"x{i}", 1, 1, 1, 1) for i in range(MOST + 1500))
    tree = clade_tree(AnswerTables(RunFiles(resumed)))
    assert tree.count("<p>") == MOST and "1,500 of breed; see validation/" in tree


def test_a_loss_of_a_token_that_is_not_finite_is_shown(tmp_path: Path) -> None:
    write_summary(tmp_path / "summary.json", "finished", 5, final={"val/loss": 2.0, "val/perplexity": None})
    folder = tmp_path / "validation/step-00000005"
    folder.mkdir(parents=True)
    (folder / "texts.json").write_text(json.dumps({"windows": [[["a", 1.5], ["b", None], ["c", "Infinity"]]]}))
    hard = next(section for section in report_sections("language", RunFiles(tmp_path)) if section.title == "Hard tokens")
    assert hard.body.count("not finite") == 2 and 'data-about="1.50 nats">a<' in hard.body
    assert hard.body.count("tabindex") == 1 and " title=" not in hard.body
