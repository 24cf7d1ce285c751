"""Test the share of time that training waits for data: in the results, and an alarm with advice above 5 %."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from linnaeus.config.load import compose
from linnaeus.data.loader import DevicePrefetcher
from linnaeus.distributed.processes import CoreSeconds
from linnaeus.reporting.jsonl.alarm_log import read_alarms
from linnaeus.train.measuring import data_wait
from linnaeus.train.measuring.data_wait import DataWait, advice, idle_cores, more_workers, speed_without_waiting
from linnaeus.workloads.taxonomy.inputs import transforms
from linnaeus.workloads.taxonomy.workload import TaxonomyWorkload
from tests import runs, watching


@pytest.mark.parametrize(
    ("share", "workers", "idle", "expected"),
    [
        (0.3, 0, 7.9, (1, 1 / 0.7)),  # one worker loads while the others train
        (0.75, 0, 7.9, (3, 4.0)),
        (0.75, 0, 2.9, (2, 8 / 3)),  # two idle cores
        (0.5, 2, 7.9, (4, 2.0)),
        (0.5, 4, 2.0, (6, 1.5)),
        (0.5, 2, 0.9, (2, 1.0)),
        (1.0, 1, 3.0, (4, 4.0)),
    ],
)
def test_workers_are_proposed_for_idle_cores(share: float, workers: int, idle: float, expected: tuple[int, float]) -> None:
    assert more_workers(share, workers, idle) == pytest.approx(expected)


def test_the_advice_names_one_key_for_each_remedy() -> None:
    assert speed_without_waiting(0.2) == 1.25 and speed_without_waiting(0.0) == 1.0
    start = "training waits for data 30 % of the time; without waiting it would be 1.4 x as fast: "
    assert advice(0.3, 0, 3.2, 0.0, lambda disk: None) == start + (
        "trainer.num_workers=1 (now 0, 3 idle cores) makes it about 1.4 x as fast"
    )
    both = advice(0.3, 2, 1.0, 0.0, lambda disk: f"disk {disk}")
    assert both == start + "trainer.num_workers=3 (now 2, 1 idle core) makes it about 1.4 x as fast, or disk False"
    assert advice(0.3, 2, 6.0, 1.5, lambda disk: f"disk {disk}") == start + "disk True", "more workers do not make a disk faster"
    assert advice(0.3, 2, 0.5, 0.0, lambda disk: None) == start + "all cores are busy: give the run more cores"
    assert advice(0.3, 2, 0.5, 2.0, lambda disk: None) == start + "the disk is too slow"


def test_idle_cores_are_shared_by_the_processes_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert idle_cores(CoreSeconds(100.0, 1.0, 5.0), CoreSeconds(120.0, 9.0, 15.0), 10.0) == (2.5, 0.5)
    assert idle_cores(None, None, 10.0) == (0.0, 0.0)


def test_the_alarm_needs_two_successive_reports_after_a_minute_and_is_raised_again_only_after_two_good_ones() -> None:
    wait = DataWait()
    report = lambda share, seconds, step: wait.report(share, 3, seconds, step, 2, lambda disk: "x")
    assert report(0.5, 100.0, 100) is None, "not started"
    wait.start(5.0, 1)
    early = [(0.5, 60.0, 40), (0.5, 64.9, 50), (0.5, 80.0, 10), (0.5, 80.0, 10), (0.5, 80.0, 51), (0.05, 80.0, 52), (0.5, 80.0, 53)]
    assert [report(*values) for values in early] == [None] * 7, "too early, too few updates, one report, 5 %"
    found = [report(share, 80.0, step) for step, share in enumerate([0.5, 0.5, 0.0, 0.5, 0.5, 0.0, 0.0, 0.5, 0.5, 0.5], 54)]
    assert [alarm.step for alarm in found if alarm is not None] == [54, 62]
    start = "training waits for data 50 % of the time at step 54 on process rank 3; without waiting it would be 2.0 x as fast: "
    assert (found[0].kind, found[0].process_rank, found[0].value) == ("data_wait", 3, 0.5) and found[0].describe().startswith(start)


def test_without_workers_loading_is_part_of_the_work_and_advice_is_given_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "linnaeus")
    wait = DataWait()
    wait.start(5.0, 1)
    shares = [0.05, 0.5, 0.5, 0.7, 0.5, 0.5, 0.7, 0.7]
    found = [wait.report(share, None, 80.0, step, 0, lambda disk: "x") for step, share in enumerate(shares, 50)]
    assert [alarm.step for alarm in found if alarm is not None] == [57] and found[7].value == 0.7
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith("training waits for data 50 % of the time at step 51; without")


def test_a_slow_loader_is_named_in_the_second_report_and_again_only_after_it_was_well(tmp_path: Path) -> None:
    settings = ["trainer.length=70steps", "schedule.report=[5steps]", "trainer.global_batch_size=8", "trainer.micro_batch_size=8"]
    with watching.slow_loader(tmp_path):
        run = runs.run("vectors", tmp_path, *settings)
    alarms = read_alarms(run)
    assert [(alarm.kind, alarm.step, alarm.process_rank, alarm.value) for alarm in alarms] == [
        ("data_wait", step, 0, 0.75) for step in (40, 65)
    ]
    log = (run / "train.log").read_text()
    assert log.count("WARNING training waits for data 75 % of the time at step ") == 2
    assert runs.summary(run)["alarms"]["kinds"] == {"data_wait": 2}
    assert {row.get("train/alarms", 0) for row in runs.rows(run / "metrics.jsonl")} == {0}, "rows of metrics do not depend on times"


def remedy(disk: bool, *given: str, pairs: bool = False) -> str | None:
    own = SimpleNamespace(config=compose([*given, "schedule.mixup_prob.end=0"]), pairs_samples=pairs)
    return TaxonomyWorkload.faster_data(own, disk)  # type: ignore[arg-type]


def test_the_remedies_of_the_sources_of_photographs() -> None:
    prepare = "`linnaeus prepare image_folder STORE data.path=photos` decodes once; then data=store data.path=STORE"
    assert remedy(False, "data=image_folder", "data.path=photos") == remedy(True, "data=image_folder", "data.path=photos") == prepare
    assert remedy(True, "data=store", "data.path=s") == "data.order=blocks reads neighbouring records together"
    smaller = "a smaller image (data.image_size=64 now) takes less time"
    for disk, *given in (
        (False, "data=store", "data.path=s"),
        (True, "data=store", "data.path=s", "data.order=blocks"),
        (True, "data=biota"),
    ):
        assert remedy(disk, *given, "data.image_size=64") == smaller
    assert remedy(True, "data=store", "data.path=s", "data.image_size=64", pairs=True) == smaller, "order=blocks has no pairs"


def test_augmentation_on_the_host_beside_a_gpu_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transforms, "DistributedContext", lambda: SimpleNamespace(device=torch.device("cuda")))
    store = ("data=store", "data.path=s", "augment.place=host")
    assert str(remedy(False, *store)).startswith("augment.place=device augments on the GPU")
    for disk, *given in ((True, "data.order=blocks"), (False, "augment.place=device"), (False, "augment.policy=randaugment")):
        assert str(remedy(disk, *store, *given)).startswith("a smaller image")


def test_a_run_gives_advice_and_has_the_figure_in_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LIMIT_ALONE", -1.0), ("MIN_SECONDS", -1.0), ("MIN_UPDATES", 1)):
        monkeypatch.setattr(data_wait, name, value)
    run = runs.run("vectors", tmp_path, "trainer.length=6steps", "schedule.report=[1steps]", "logger.report=true")
    text = (run / "train.log").read_text()
    assert text.count("training waits for data ") == 1
    timings = json.loads((run / "summary.json").read_text())["timings"]
    assert timings["time/speed_without_waiting"] == pytest.approx(1 / (1 - timings["time/waiting_for_data"])) and (
        timings["time/speed_without_waiting"] > 1
    )
    assert (
        f"<b>{timings['time/speed_without_waiting']:.3g} x</b><span>speed-up without waiting for data</span>"
        in (run / "report.html").read_text()
    )


@pytest.mark.parametrize("busy", [False, True])
def test_a_wait_that_a_gpu_does_not_notice_does_not_count(busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linnaeus.data.loader.SHORT_WAIT", 0.0)
    monkeypatch.setattr(DevicePrefetcher, "_busy", lambda self: busy)
    prefetcher = DevicePrefetcher([{"x": torch.zeros(1)}], torch.device("cpu"))
    assert len(list(prefetcher)) == 1 and (prefetcher.waited == 0) == busy
