"""report.html contains the numbers of the run, loads nothing from anywhere, and is written for any amount of data."""

import html
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from linnaeus.commands.report import main
from linnaeus.reporting import LogSinks
from linnaeus.reporting.charts import Chart, Scale, nice_ticks
from linnaeus.reporting.report.downsampling import BLOCKS, Curve, read_curves
from linnaeus.reporting.report.html_parts import Cell, Column, Section, table
from linnaeus.reporting.report.line_chart import line_chart
from linnaeus.reporting.report.metric_names import column_name, meaning, passes_and_tasks, show_difference, show_value
from linnaeus.reporting.report.metric_tables import final_tables
from linnaeus.reporting.report.run_files import RunFiles
from linnaeus.reporting.report.run_report import glossary, report_page, write_report
from linnaeus.reporting.results import write_summary
from linnaeus.workloads.dictionary.results_section import TABLE

FINAL = {
    "val/order/top1": 0.9731,
    "val/species/top1": 0.6437,
    "val/species/top5": 0.9,
    "val/order/macro_top1": 0.95,
    "val/species/macro_top1": 0.6,
    "val/loss": 1.2345,
    "val/inconsistent_paths": 0.05,
    "val_mask_meta/order/top1": 0.9,
    "val_mask_meta/species/top1": 0.5437,
    "val_mask_meta/loss": 1.5,
    "val_mask_SPATIAL_TEMPORAL/species/top1": None,
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    sinks = LogSinks(tmp_path)
    for step in range(1, 151):
        loss = math.nan if step == 70 else 3.0 / step
        sinks.log(step, {"train/loss": loss, "train/species/loss": loss, "train/species/weight": 1 + step / 900, "train/lr": 1e-3 / step})
        sinks.log(step, {"time/samples_per_second": 100.0 + step}, "timings")
        if step % 50 == 0:
            sinks.log(step, {k: v for k, v in FINAL.items() if v is not None})
    sinks.close()
    best = {"val/loss": {"value": 1.2, "global_step": 100}}
    write_summary(tmp_path / "summary.json", "finished", 150, best=best, final=FINAL, samples_per_second=321.0, wall_seconds=75.0)
    (tmp_path / "config.yaml").write_text("name: <script>alert(1)</script>\n")
    (tmp_path / "schedule.svg").write_text('<?xml version="1.0"?>\n<!DOCTYPE svg SYSTEM "http://x/y.dtd">\n<svg id="sched"></svg>')
    return tmp_path


class Checker(HTMLParser):
    """Checks that tags are balanced, and collects every address that an element would load and every value that a program can check."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.values: list[tuple[str, str]] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "data", "action", "srcset")]
        self.ids += [found["id"] or ""] if "id" in found else []
        if "data-key" in found:
            self.values.append((found["data-key"] or "", found["data-value"] or ""))
        if tag not in ("meta", "br", "img", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def charts_of(text: str) -> dict[str, list]:
    found = re.findall(r'<figcaption>(?:<span[^>]*>)?([^<]*)<.*?data-series="([^"]*)"', text, re.S)
    return {html.unescape(title): json.loads(html.unescape(data)) for title, data in found}


def test_the_page_contains_the_data(run: Path) -> None:
    text = report_page(RunFiles(run), [Section("Ceilings & floors", "<p id='mine'>0.83</p>")])
    assert "<h2>Ceilings &amp; floors</h2><p id='mine'>0.83</p>" in text and 'id="sched"' in text
    for shown in ("64.4 %", "97.3 %", "1.234", "1m15s", "321", "-10.0", "+0.266", "without metadata"):
        assert shown in text, shown
    charts = charts_of(text)
    assert set(charts) >= {"Loss", "Top-1 accuracy", "Top-1 accuracy of species by pass", "Task weights", "Learning rate", "Throughput"}
    validation = next(s for s in charts["Loss"] if s["name"] == "validation")
    assert validation["p"] == [[50, 1.2345], [100, 1.2345], [150, 1.2345]]
    training = next(s for s in charts["Loss"] if s["name"] == "training")  # a smoothed line, with the measured values
    assert len(training["p"]) == 149 and all(math.isclose(value, 3.0 / step, rel_tol=1e-4) for step, value in training["p"])
    assert [s["name"] for s in charts["Macro top-1 accuracy"]] == ["order", "species"]
    assert [s["name"] for s in charts["Top-1 accuracy"]] == ["order", "species"]  # coarse to fine, in the order of the summary
    assert charts["Throughput"][0]["p"][-1] == [150, 250]


@pytest.mark.parametrize("sections", [[], [Section("Summary", "mine", lead=True)]])
def test_a_better_value_before_the_last_validation_is_said_at_the_top(run: Path, sections: list[Section]) -> None:
    """During a launch the best value is that of metrics.jsonl. Negative control: the last value is the best."""
    (run / "checkpoints" / "step-00000100").mkdir(parents=True)
    top = report_page(RunFiles(run), sections).partition("</header>")[0]
    assert (
        "The validation loss was 1.2 at step 100 (saved: checkpoints/step-00000100). In the last validation, shown here, it is 1.234."
        in top
    )
    for value, step, shown in ((1.2345, 150, False), (1.2344, 100, False), (1.1, 50, True)):  # the second has equal digits
        write_summary(run / "summary.json", "finished", 150, best={"val/loss": {"value": value, "global_step": step}}, final=FINAL)
        assert ("better before" in report_page(RunFiles(run), sections).partition("<script>")[0]) == shown
    write_summary(run / "summary.json", "running", 150, final=FINAL)
    assert "better before" not in report_page(RunFiles(run), sections).partition("<script>")[0]
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"global_step": 160, "val/loss": 1.5}\n')
    assert "was 1.234 at step 50. In the last validation, shown here, it is 1.5." in report_page(RunFiles(run), sections)


def test_every_figure_equals_the_summary(run: Path) -> None:
    checker = Checker()
    checker.feed(report_page(RunFiles(run), []))
    assert {key for key, exact in checker.values if exact} == {key for key, value in FINAL.items() if value is not None}
    for key, exact in checker.values:
        assert (float(exact) if exact else None) == FINAL.get(key)


def test_the_page_is_well_formed_and_loads_nothing(run: Path) -> None:
    text = write_report(RunFiles(run), []).read_text()
    checker = Checker()
    checker.feed(text)
    assert checker.open == [] and all(address.startswith("#") for address in checker.addresses)
    assert {address[1:] for address in checker.addresses} <= set(checker.ids) and len(set(checker.ids)) == len(checker.ids)
    assert "default-src 'none'" in text and "url(" not in text and "@import" not in text and "y.dtd" not in text
    assert "<script>alert(1)" not in text and "&lt;script&gt;alert(1)" in text
    outside = [address for address in re.findall(r"https?://[^\s'\"<]+", text) if address != "http://www.w3.org/2000/svg"]
    assert outside == []
    script = re.search(r"<script>(.*)</script>", text, re.S)
    assert script is not None and len(script[1]) < 15_000


def test_missing_and_short_data(tmp_path: Path) -> None:
    assert "No rows have been logged yet." in report_page(RunFiles(tmp_path), [])
    (tmp_path / "metrics.jsonl").write_text(
        '{"global_step": 1, "train/loss": null}\n{"global_step": 2, "train/loss": 1e999, "x": "text"}\n{"glo'
    )
    assert "No rows have been logged yet." in report_page(RunFiles(tmp_path), [])
    (tmp_path / "metrics.jsonl").write_text('{"global_step": 1, "train/loss": 2.5, "val/loss": 2.5, "train/grad_norm": 0.0}\n')
    write_summary(tmp_path / "summary.json", "failed", 1, final={"val/mse": 0.25}, error="disk full")  # of a workload without tasks
    (tmp_path / "alarms.jsonl").write_text('{"global_step": 1, "alarm": "loss spike", "value": 3.25}\n{"half')
    (tmp_path / "train.log").write_text(
        "2026-01-01 10:00:00 WARNING odd <b>\n2026-01-01 10:00:01 WARNING odd <b>\n2026-01-01 10:00:02 fine\n"
    )
    text = report_page(RunFiles(tmp_path), [])
    for shown in ("failed", "disk full", "mse", "0.25", "<circle", "loss spike", "3.25", '<line class="alarm"', "odd &lt;b&gt;", "2 times"):
        assert shown in text, shown
    shown_text = text.partition("<script>")[0]
    assert "NaN" not in shown_text and "fine" not in shown_text


# -- the command ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["running", "interrupted", "failed"])
def test_the_command_shows_a_run_that_has_not_finished(run: Path, status: str, capsys: pytest.CaptureFixture) -> None:
    (run / "run.json").write_text("{" if status == "failed" else "{}")  # a damaged file makes a shorter page
    (run / "config.yaml").unlink()
    write_summary(run / "summary.json", status, 120, total_steps=400)
    assert main([str(run)]) == 0 and capsys.readouterr().out.strip() == str(run / "report.html")
    text = (run / "report.html").read_text()
    step = 150 if status == "running" else 120  # during a launch summary.json is that of the launch before
    assert f">{status}</span>{step} of 400 updates" in text and 'data-value="0.6437"' in text  # before the end: the newest row


@pytest.mark.parametrize(
    "files, message",
    [({}, "it has no run.json"), ({"run.json": "{", "report.html": None}, "cannot be written"), ({"sweep.json": "{}"}, "without a run")],
)
def test_an_error_of_the_command_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture, files: dict, message: str) -> None:
    for name, text in files.items():
        (tmp_path / name).mkdir() if text is None else (tmp_path / name).write_text(text)
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path)])
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert ended.value.code == 2 and message in line and str(tmp_path) in line


# -- charts --------------------------------------------------------------------------------------------------------------------


def test_ticks_are_round_and_inside() -> None:
    assert nice_ticks(0, 4000, 6) == [0, 1000, 2000, 3000, 4000]
    assert nice_ticks(0.203, 0.911, 6) == [0.4, 0.6, 0.8]
    for values in ((0.0, 1e-9), (5.0, 5.0), (-3.0, 1e7), (1e300, 1.1e300), (0.0, 0.0), (1.0, 1.0 + 2**-52)):
        scale = Scale.around(values, 200, 0)
        ticks = scale.ticks(5)
        assert 1 <= len(set(ticks)) <= 12 and ticks == sorted(ticks), values
        assert all(-1e-6 <= scale(tick) <= 200 + 1e-6 for tick in ticks)
    for values in ((0.3, 2.2), (1e-8, 1e4), (5.0, 5.0), (5.2, 8.8)):
        assert len(Scale.around(values, 200, 0, log=True).ticks(6)) >= 2


def test_labels_that_would_overlap_are_left_out() -> None:
    chart = Chart(Scale(0, 100, 0, 200), Scale(0, 1, 100, 0))
    chart.x_axis({0: "first", 1: "second", 60: "third"}, tick=4)
    drawn = "".join(chart.parts)
    assert "first" in drawn and "second" not in drawn and "third" in drawn and drawn.count("<line") == 3


def test_downsampling_keeps_spikes_ends_and_means(tmp_path: Path) -> None:
    rows = (
        {"global_step": i, "train/loss": 100.0 if i == 7777 else i % 3, **({"val/loss": i / 10} if i % 500 == 0 else {})}
        for i in range(20001)
    )
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    curves = read_curves(tmp_path / "metrics.jsonl")
    loss = curves["train/loss"]
    assert len(loss.points) <= 2 * BLOCKS and (7777, 100.0) in loss.points and loss.count == 20001
    assert loss.first == (0, 0.0) and loss.last == (20000, 20000 % 3)
    assert math.isclose(sum(value for _, value in loss.means) / len(loss.means), 1.0, abs_tol=0.01)
    assert curves["val/loss"].points == [(i, i / 10) for i in range(0, 20001, 500)]


def test_smoothing_does_not_lag() -> None:
    line = Curve.of([(float(i), 2.0 * i) for i in range(100)])
    assert all(math.isclose(y, 2 * x, abs_tol=1e-9) for x, y in line.smooth())


@pytest.mark.parametrize("log", [False, True])
def test_charts_stay_in_their_frame(log: bool) -> None:
    points = {"a": [(0.0, 5.0), (3.0, 17.0)], "b": [], "c": [(float(i), i + 1.0) for i in range(99)]}
    lines = {name: Curve.of(found) for name, found in points.items()}
    drawn = line_chart("t", lines, smoothed=True, log=log)
    numbers = [float(n) for path in re.findall(r' d="M([^"]*)"', drawn) for n in re.split("[L ]", path)]
    assert numbers and all(0 <= n <= 560 for n in numbers)
    assert [line["name"] for line in json.loads(html.unescape(re.search('data-series="([^"]*)"', drawn)[1]))] == ["a", "c"]
    assert drawn.count("faint") == 1 and drawn.count("<circle") == 2
    assert line_chart("t", {"a": Curve()}) == "" == line_chart("t", {"a": Curve.of([(1.0, -1.0)])}, log=True)


@pytest.mark.parametrize("values", [(1.0, 1.0), (0.0, 0.0), (0.5, 1.0), (0.2, 0.9)])
def test_the_axis_of_shares_ends_at_0_and_100_per_cent(values: tuple[float, float]) -> None:
    drawn = line_chart("t", {"a": Curve.of(list(enumerate(values)))}, share=True)
    ticks = [float(text) for text in re.findall(r">(-?[\d.]+) %</text>", drawn)]
    assert len(ticks) >= 2 and all(0 <= tick <= 100 for tick in ticks)
    assert "120 %" in line_chart("t", {"a": Curve.of([(0.0, 1.2), (1.0, 1.0)])}, share=True), "a value above 1 stays visible"


# -- tables --------------------------------------------------------------------------------------------------------------------


def test_a_table_keeps_every_row_and_says_what_it_hides() -> None:
    text = table("a & b", [Column("x", "why"), Column("y")], [[Cell(str(i), i), Cell("–")] for i in range(5)], shown=2)
    assert text.count("<tr") == 6 and text.count('class="rest"') == 3 and "Show all 5 rows" in text
    assert 'aria-label="a &amp; b"' in text and 'data-about="why"' in text and text.count("data-v=") == 5
    assert table("t", [Column("x")], []) == ""


def test_names() -> None:
    names = {
        "val": "normal",
        "val_mask_meta": "without metadata",
        "val_mask_SPATIAL_TEMPORAL": "without spatial + temporal",
        "val_ema_mask_meta": "without metadata (EMA)",
    }
    assert {name: column_name(name) for name in names} == names
    assert passes_and_tasks({"val_mask_meta/x/top1": 1, "val/x/top1": 1, "train/loss": 1}) == (["val", "val_mask_meta"], ["x"])
    assert show_difference("val/loss", 0.1 + 0.2 - 0.3) == "+0" and show_difference("val/loss", -2e-9) == "-2e-09"
    assert show_value("val/species/top1", 0.5) == "50.0 %" and show_value("val/loss", 0.5) == "0.5" and show_value("x", None) == "–"
    assert "most probable class" in meaning("val/species/top1_low") and meaning("of_a_plugin") == ""


@pytest.mark.parametrize(
    "metric, words",
    [
        ("loss", "Loss"),
        ("chain_low", "All ranks right, low end of 95 %"),
        ("severity_high", "Distance in the tree of the errors, high end of 95 %"),
        ("crm_hd5", "Least expected height: distance in the tree, mean of the first 5"),
        ("depth_f1", "F1 by depth"),
        ("info_recall", "Recall by information"),
    ],
)
def test_a_row_of_the_final_metrics_has_words(metric: str, words: str) -> None:
    assert f">{words}<" in final_tables({f"val/{metric}": 0.5})


def test_only_differences_beyond_the_intervals_are_coloured_and_rows_have_words() -> None:
    """Severity is not coloured: it also falls if a model fails on easy samples."""
    values = {"species/top1": (0.88, 0.80), "genus/top1": (0.90, 0.89), "hd1": (0.5, 0.9), "severity": (2.5, 1.5), "loss": (1.0, 2.0)}
    final: dict[str, float | None] = {"val/crm_hd5": 1.0, "val_mask_meta/crm_hd5": 2.0}
    for name, pair in values.items():
        for key, value in zip(("val", "val_mask_meta"), pair, strict=True):
            final |= {f"{key}/{name}": value}
            if name != "loss":
                final |= {f"{key}/{name}_low": value - 0.02, f"{key}/{name}_high": value + 0.02}

    def coloured(text: str) -> list[tuple[str, str, str]]:
        marks = r'data-key="val_mask_meta/([^"]*)"[^>]*>[^<]*</span><span class="delta (\w+)"><span class="hidden">\w+ </span>([^<]*)<'
        return re.findall(marks, text)

    text = final_tables(final)
    assert coloured(text) == [("species/top1", "bad", "-8.0"), ("hd1", "bad", "+0.4")]
    assert all(f'delta">{change}<' in text for change in ("-1.0", "-1", "+1"))
    paired = final_tables(final, differences={"val_mask_meta/species/top1": (-0.1, 0.01), "val_mask_meta/genus/top1": (-0.02, -0.001)})
    assert coloured(paired) == [("genus/top1", "bad", "-1.0"), ("hd1", "bad", "+0.4")]
    assert "Least expected height: distance in the tree, mean of the first 5" in text


def test_metrics_of_one_task_alone_are_one_table() -> None:
    final = {"val/loss": 1.0, "val/density/0": 0.5, "val/density/1e-5": 0.25, "val/optimum/slots_1": 0.9}
    text = final_tables(final)
    assert re.findall("<caption>([^<]*)", text) == ["Over all tasks", "density", "optimum"] and text.count('data-value="0.25"') == 1
    both = final_tables({f"val/{task}/{metric}": 0.5 for task in ("a", "b") for metric in ("l0", "dead")})
    assert re.findall("<caption>([^<]*)", both) == ["L0", "Dead features"]


def test_predictions_without_skill_stand_beside_the_results() -> None:
    rows = [{"metric": "species/top1", "constant": "0.125", "shuffled": "0.0625"}]
    text = final_tables({"val/species/top1": 0.5, "val/loss": 1.0}, rows)
    assert ">constant<" in text and "12.5 %" in text and "6.2 %" in text and text.count(">shuffled<") == 1


def test_every_metric_of_a_dictionary_is_in_the_glossary() -> None:
    names = [*TABLE, "loss", "nmse", "decoder_cosine", "decoder_cosine_p90", "decoder_cosine_max"]
    listed = re.findall("<dt>(.*?)</dt>", glossary({f"val/{name}": 0.5 for name in names if name != "f1"}))
    assert len(listed) == len(names) - 1 and {"L0", "Sparse gain", "Dead features", "Normalised squared error"} <= {*listed}
