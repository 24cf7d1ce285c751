"""`linnaeus evaluate`: the metrics of the run to the last digit, test rows, a table of classes, and no change of the run's files."""

from __future__ import annotations

import csv
import json
import logging
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from linnaeus.__main__ import main
from linnaeus.config.load import compose
from linnaeus.reporting.report.metric_tables import final_tables
from linnaeus.workloads.taxonomy.workload import TaxonomyWorkload
from tests import runs

SPECIES = {"red": ("Rosa", "alba"), "green": ("Rosa", "canina"), "blue": ("Bellis", "perennis")}


@pytest.fixture(autouse=True)
def without_the_log_of_the_run(monkeypatch: pytest.MonkeyPatch):
    """Each command is a separate process, but the run of these tests was in this one."""
    monkeypatch.setattr(logging.getLogger("linnaeus"), "handlers", [])


def contents(run: Path) -> dict[str, bytes]:
    return {str(f.relative_to(run)): f.read_bytes() for f in run.rglob("*") if f.is_file() and "evaluations" not in f.parts}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on 24 photographs in three colours: 12 to train on, 6 to validate, 6 to test; one test photograph is damaged. All photographs
    have coordinates, except three of validation."""
    folder = tmp_path_factory.mktemp("evaluate")
    rng, rows = np.random.default_rng(0), []
    for i, split in enumerate(["train"] * 12 + ["val"] * 6 + ["test"] * 6):
        colour = [*SPECIES][i % 3]
        noise = rng.integers(0, 60, (24, 24, 3), dtype=np.uint8)
        Image.fromarray(np.asarray(Image.new("RGB", (24, 24), colour)) // 2 + noise).save(folder / f"{i}.png")
        genus, species = SPECIES[colour]
        rows.append({"path": f"{i}.png", "genus": genus, "species": f"{genus} {species}", "split": split})
        rows[-1] |= {"latitude": 50 + i, "longitude": 8} if i not in (12, 13, 14) else {"latitude": "", "longitude": ""}
    (folder / "23.png").write_bytes((folder / "23.png").read_bytes()[:60])
    with open(folder / "photos.csv", "w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    settings = ["data=manifest", f"data.path={folder / 'photos.csv'}", "data.split_column=split", "data.image_size=16"]
    settings += ["schedule.image_size.start=8", "schedule.image_size.multiple=8"]
    settings += ["data.components=[SPATIAL]", "schedule.validate_mask_meta=[100%]", "schedule.partial_combinations=[]"]
    settings += ["schedule.validate_partial_mask_meta=[]"]
    settings += ["data.max_bad_fraction=0.2", "trainer.length=3epochs", "trainer.ema_decay=0.5", "schedule.validate=[1epochs]"]
    tiny = [text for text in runs.TINY if "batch" not in text]
    sizes = ["trainer.global_batch_size=6", "trainer.micro_batch_size=6", "schedule.checkpoint=[1epochs]"]
    given = {text.split("=", 1)[0]: text for text in [*tiny, *settings, *sizes]}
    return runs.resumed(compose([*given.values(), f"run.root={folder}", "run.name=run"]))


def evaluated(run: Path, capsys: pytest.CaptureFixture, *options: str) -> tuple[dict, list[dict], str]:
    assert main(["evaluate", str(run), *options]) == 0
    text = capsys.readouterr().out
    files = {Path(line).name: Path(line) for line in text.splitlines() if line.endswith((".json", ".csv"))}
    assert set(files) == {"metrics.json", "samples.csv", "classes.csv", "confusions.csv", "reliability.csv", "baselines.csv"}
    with open(files["classes.csv"], newline="") as file:
        return json.loads(files["metrics.json"].read_text()), list(csv.DictReader(file)), text


def test_the_metrics_of_the_run_to_the_last_digit(run: Path, capsys: pytest.CaptureFixture):
    before, final = contents(run), runs.summary(run)["final"]
    found, classes, text = evaluated(run, capsys, "--checkpoint", "newest")
    assert found["metrics"] == final and found["rows"] == 6 and found["split"] == "validation"
    assert contents(run) == before, "the run's own files are as they were"
    finest = [row for row in classes if row["rank"] == "species"]
    assert [row["class"] for row in classes if row["rank"] == "genus"] == ["Bellis", "Rosa"]
    assert [int(row["count"]) for row in finest] == [2, 2, 2] and [int(row["training_count"]) for row in finest] == [4, 4, 4]
    top1 = sum(int(row["right"]) for row in finest) / sum(int(row["count"]) for row in finest)
    key = next(name for name in final if name.endswith("/species/top1"))
    assert top1 == final[key] and all(float(row["top1"]) == int(row["right"]) / int(row["count"]) for row in finest)
    assert "step-00000006 is used, the newest of" in text and "6 validation rows" in text and "species" in text


def test_the_cost_of_masking_over_the_photographs_with_coordinates(run: Path, capsys: pytest.CaptureFixture):
    found, _, text = evaluated(run, capsys, "--checkpoint", "newest")
    name = "species/with_meta_top1"
    values = [found["metrics"][f"{key}/{name}"] for key in ("val_ema", "val_ema_mask_meta")]
    assert all(value in (0, 1 / 3, 2 / 3, 1) for value in values), "three photographs"
    line = next(line for line in text.splitlines() if line.startswith("with any metadata") and "species" in line)
    assert line.split()[4:] == [f"{100 * value:.1f}" for value in (*values, values[1] - values[0])]
    row = next(row for row in runs.rows(run / "metrics.jsonl") if f"val_ema_mask_meta/{name}" in row)
    assert row[f"val_ema_mask_meta/{name}"] == values[1]
    assert "Top-1 accuracy, rows with metadata<" in final_tables(found["metrics"]), "of report.html"


def test_the_number_of_scored_rows_is_that_of_the_limit(run: Path, capsys: pytest.CaptureFixture, tmp_path: Path):
    options = ["--checkpoint", "newest", "--output", str(tmp_path), "trainer.limit_validation_samples=4"]
    found, classes, text = evaluated(run, capsys, *options)
    assert found["rows"] == 4 == sum(int(row["count"]) for row in classes if row["rank"] == "species")
    assert "4 of 6 validation rows (trainer.limit_validation_samples=4; =null scores all)" in text


def test_test_rows_and_a_chosen_checkpoint(run: Path, capsys: pytest.CaptureFixture):
    before = contents(run)
    found, classes, text = evaluated(run, capsys, "--split", "test", "--checkpoint", "4")
    assert found["rows"] == 6 and found["global_step"] == 4 and "test-step-00000004" in text
    counts = Counter({row["class"]: int(row["count"]) for row in classes if row["rank"] == "species"})
    assert counts == {"Rosa alba": 2, "Rosa canina": 2, "Bellis perennis": 1}, "the damaged photograph is not scored"
    assert contents(run) == before
    assert not [name for name in found["metrics"] if "with_" in name], "every test photograph has coordinates"
    evaluated(run, capsys)  # the best checkpoint by default
    monitor = next(iter(runs.summary(run)["best"].values()))
    folder = run / "evaluations" / f"validation-step-{monitor['global_step']:08d}"
    plain = (folder / "metrics.json").read_bytes()
    found, *_ = evaluated(run, capsys, "trainer.limit_validation_samples=4")
    (other,) = run.glob(f"evaluations/{folder.name}-*/metrics.json")
    assert found["rows"] == 4 and json.loads(other.read_bytes())["overrides"] == ["trainer.limit_validation_samples=4"]
    assert (folder / "metrics.json").read_bytes() == plain


def test_a_table_of_image_sizes_and_views(run: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    before = contents(run)
    plain = evaluated(run, capsys, "--checkpoint", "newest")[0]["metrics"]
    seen, predict = [], TaxonomyWorkload.predict

    def recorded(self: TaxonomyWorkload, model: torch.nn.Module, batch: dict) -> dict:
        outputs = predict(self, model, batch)
        parts = [model(batch | {"image": image})["scores"].log_probs()[-1].exp() for image in (batch["image"], batch["image"].flip(3))]
        expected = parts[0] if self.config.augment.tta == "none" else (parts[0] + parts[1]) / 2
        assert torch.allclose(outputs["scores"].log_probs()[-1].exp(), expected, rtol=1e-5)
        seen.append((batch["image"].shape[-1], self.config.augment.tta))
        return outputs

    monkeypatch.setattr(TaxonomyWorkload, "predict", recorded)
    assert main(["evaluate", str(run), "--checkpoint", "newest", "--image-size", "16,8", "--tta", "none,flip"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert list(dict.fromkeys(seen)) == [(16, "none"), (16, "flip"), (8, "none"), (8, "flip")]
    first = next(i for i, line in enumerate(lines) if line.split()[:2] == ["image_size", "tta"])
    assert lines[first].split()[2:] == ["loss", "genus/top1", "species/top1"]
    table = {tuple(line.split()[:2]): line.split()[2:] for line in lines[first + 1 : first + 5]}
    assert list(table) == [("16", "none"), ("16", "flip"), ("8", "none"), ("8", "flip")]
    found = {}
    for size, tta in table:
        path = run / "evaluations" / "validation-step-00000006" / f"{size}px-{tta}" / "metrics.json"
        found[size, tta] = json.loads(path.read_text())["metrics"]
        assert table[size, tta][0] == f"{found[size, tta]['val_ema/loss']:.4f}" and str(path) in lines
    assert found["16", "none"] == plain and len({metrics["val_ema/loss"] for metrics in found.values()}) == 4
    assert contents(run) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tta", "flip,rotate"], "augment.tta is 'rotate'; it must be one of none, flip"),
        (["--image-size", "16,4"], "data.image_size is 4; it must be at least 8"),
        (["--checkpoint", "5"], "--checkpoint: .* has no checkpoint of step 5; it has .*4, 6"),
        (["--split", "other"], "invalid choice: 'other'"),
        (["--split=test", "data.split_column=null"], "--split=test: the manifest has no split column"),
        (["data.rank_columns={species: species}"], "the training rows of the data give other taxa"),
        (["nothing"], "nothing"),
        (["trainer.device=cpu", "optimizer.lr=1"], "optimizer.lr has no effect on an evaluation; leave it out"),
        (["run.name=x"], "run.name has no effect on an evaluation; leave it out"),
    ],
)
def test_a_mistake_is_one_line(run: Path, options: list[str], message: str, capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", str(run), *options])
    line = capsys.readouterr().err
    assert ended.value.code == 2 and line.count("\n") == 1
    assert not list(run.glob("evaluations/*/*rotate")) and not list(run.glob("evaluations/*/16px"))
    assert re.search(message, line), line


def test_a_folder_that_is_not_a_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit):
        main(["evaluate", str(tmp_path)])
    assert "is not a run directory: it has no config.yaml" in capsys.readouterr().err


def test_a_workload_without_test_rows(tmp_path: Path, capsys: pytest.CaptureFixture):
    run = runs.run("masked", tmp_path)
    assert main(["evaluate", str(run), "--checkpoint", "newest", "--output", str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["metrics"] == runs.summary(run)["final"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["metrics.json"], "this workload has no tables"
    with pytest.raises(SystemExit):
        main(["evaluate", str(run), "--split", "test"])
    assert "the data of this workload have no test rows" in capsys.readouterr().err
