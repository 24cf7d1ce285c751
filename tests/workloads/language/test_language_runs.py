"""Whole runs on text: independence of the split over processes, resume, metrics against references, learnable and random data."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from linnaeus.config.load import compose
from linnaeus.errors import ConfigError
from linnaeus.workloads import build_workload
from tests import runs

F64 = ["trainer.precision=float64"]
F32 = ["trainer.global_batch_size=96", "trainer.length=1steps", "schedule.validate=[]", "model.dropout=0"]  # 85 windows
GROWING = ["growth=linear", "growth.start=0.2", "growth.until=6steps", "growth.every=[2steps]"]
STILL = [*F64, "schedule.checkpoint=[3steps]", "model.dropout=0", "data.validation_batch=4"]


def directory(root: Path) -> Path:
    return next(root.glob("*/run"))


def rows(root: Path) -> list[dict]:
    return runs.rows(directory(root) / "metrics.jsonl")


def weights(root: Path) -> torch.Tensor:
    state = runs.newest(directory(root)).model_state
    return torch.cat([tensor.reshape(-1).double() for _, tensor in sorted(state.items())])


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """Return a root with runs in root / NAME: the same text in one process with 4 accumulation steps and in two processes with 2, in both
    orders; without dropout also in one micro-batch; with phases, sources, dimensions and growth; and one float32 update with its
    gradients."""
    root = tmp_path_factory.mktemp("language")
    jobs = {order: ("language", *F64, f"data.order={order}") for order in ("windows", "random")}
    jobs["phases"] = ("nanecho", *F64, "trainer.length=20steps")
    for name, (workload, *more) in jobs.items():
        runs.run_job(runs.job(workload, root / f"one-{name}", *more))
    two = [runs.job(workload, root / f"two-{name}", *more) for name, (workload, *more) in jobs.items()]
    runs.run_group(2, [*two, runs.job("language", root / "f32-two", *F32, watch=["first_gradients"])], root)
    for micro in (8, 32):
        runs.run_job(runs.job("language", root / f"still-{micro}", *STILL, f"trainer.micro_batch_size={micro}"))
        runs.run_job(runs.job("language", root / f"grown-{micro}", *STILL, *GROWING, f"trainer.micro_batch_size={micro}"))
    for micro in (8, 96):
        runs.run_job(runs.job("language", root / f"f32-{micro}", *F32, f"trainer.micro_batch_size={micro}", watch=["first_gradients"]))
    return root


PAIRS = [("one-windows", "two-windows"), ("one-random", "two-random"), ("one-phases", "two-phases"), ("still-8", "still-32")]


@pytest.mark.parametrize("one, other", [*PAIRS, ("grown-8", "grown-32")])
def test_a_float64_run_does_not_depend_on_the_split(split, one, other):
    a, b = weights(split / one), weights(split / other)
    assert ((a - b).abs().max() / a.abs().max()) < 1e-10
    found = [rows(split / name) for name in (one, other)]
    assert len(found[0]) == len(found[1]) > 9
    for first, second in zip(*found):
        assert first.keys() == second.keys()
        for name, value in first.items():
            exact = not isinstance(value, float) or name.endswith("top1")
            assert value == (second[name] if exact else pytest.approx(second[name], rel=1e-10, abs=1e-12)), name


def test_growth_does_not_depend_on_the_accumulation(split):
    """Connections are chosen by the gradients of whole updates."""
    one, other = (runs.newest(directory(split / name)).training_state["growth"] for name in ("grown-8", "grown-32"))
    assert runs.unequal(one, other) == []
    densities = [row["growth/density"] for row in rows(split / "grown-8") if "growth/density" in row]
    assert len(set(densities)) == 4 and densities[0] == pytest.approx(0.2, abs=1e-3) and densities[-1] == 1.0
    assert not torch.allclose(weights(split / "grown-8"), weights(split / "still-8"))


def gradients(root: Path) -> torch.Tensor:
    return torch.cat([gradient.reshape(-1).double() for gradient in torch.load(root / "gradients.pt")])


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / a.abs().max())


@pytest.mark.parametrize("other", ["f32-96", "f32-two"])
def test_float32_gradients_of_the_first_update_agree(split, other):
    """12 micro-batches, one of them with 5 windows and one empty; one micro-batch; and 6 on each of two processes."""
    assert distance(gradients(split / "f32-8"), gradients(split / other)) < 1e-5


def test_negative_control_per_process_denominators_change_the_gradients(split, tmp_path):
    runs.run_job(runs.job("language", tmp_path, *F32, watch=["first_gradients", "own_denominators"]))
    assert distance(gradients(split / "f32-8"), gradients(tmp_path)) > 1e-2


def test_negative_control_order_and_dropout_change_the_weights(split):
    assert not torch.allclose(weights(split / "one-windows"), weights(split / "one-random"))
    assert not torch.allclose(weights(split / "one-windows"), weights(split / "still-8"))


def test_two_processes_share_one_store(split):
    (store,) = (split / "two-windows" / "token_stores").iterdir()
    assert sorted(path.name for path in store.iterdir()) == ["store.json", "train.bin", "val.bin"]


def test_validation_metrics_equal_a_slow_reference(split):
    """The reference computes one token at a time in float64 from the saved weights, over the whole validation split."""
    root = split / "still-8"
    config = runs.configuration("language", root, *STILL)
    workload = build_workload(config)
    model = workload.build_model().double().eval()
    model.load_state_dict(runs.newest(root / "text/run").model_state)
    text = (root / "text.txt").read_text()
    part = text[int(len(text) * 0.9) :]
    alphabet = sorted(set(text))
    losses, right = [], 0
    for i in range(1, len(part)):
        context = part[(i - 1) // 8 * 8 : i]
        with torch.inference_mode():
            scores = model({"input": torch.tensor([[alphabet.index(c) for c in context]])})["logits"][0, -1]
        losses.append(-F.log_softmax(scores, 0)[alphabet.index(part[i])].item())
        right += int(scores.argmax()) == alphabet.index(part[i])
    found = [row for row in rows(root) if "val/loss" in row][-1]
    mean = sum(losses) / len(losses)
    assert len(losses) == 75
    assert found["val/loss"] == pytest.approx(mean, rel=1e-12)
    assert found["val/perplexity"] == pytest.approx(math.exp(mean), rel=1e-12)
    assert found["val/bits_per_byte"] == pytest.approx(sum(losses) / math.log(2) / len(part[1:].encode()), rel=1e-12)
    assert found["val/top1"] == right / 75


def test_training_rows_have_loss_perplexity_and_bits_per_byte(split):
    found = [row for row in rows(split / "one-windows") if "train/loss" in row]
    assert [row["progress/samples_seen"] for row in found[:3]] == [32, 64, 85]
    for row in found:
        assert row["train/perplexity"] == pytest.approx(math.exp(row["train/loss"]))
        assert row["train/bits_per_byte"] == pytest.approx(row["train/loss"] / math.log(2)), "each letter is one byte"
    assert found[-1]["train/loss"] < found[0]["train/loss"]


def test_a_constant_density_stays_constant(tmp_path):
    more = ["growth=linear", "growth.start=0.3", "growth.end=0.3", "growth.every=[]", "trainer.length=2steps", "schedule.validate=[]"]
    run = runs.run("language", tmp_path, *more)
    densities = [row["growth/density"] for row in runs.rows(run / "metrics.jsonl") if "growth/density" in row]
    assert densities == [pytest.approx(0.3, abs=1e-3)] * 2


def test_dataset_record_notes_and_summary(split):
    run = split / "one-windows/text/run"
    facts = json.loads((run / "dataset.json").read_text())
    assert facts["splits"]["train"]["tokens"] == 681 and facts["splits"]["validation"]["bytes"] == 76
    assert json.loads((run / "tokenizer.json").read_text())["kind"] == "character"
    config = runs.configuration("language", split / "one-windows", *F64)
    workload = build_workload(config)
    assert workload.notes[1].endswith("681 training tokens, 76 validation tokens")
    summary = json.loads((run / "summary.json").read_text())
    lines = workload.summary(summary["final"])
    assert lines[0].split() == ["nats/token", "perplexity", "bits/byte", "top-1", "%"]
    assert lines[1].split()[:2] == ["val", f"{summary['final']['val/loss']:.4f}"]
    assert "val" in workload.report_sections(summary["final"])[0][1]


def test_an_experiment_does_not_fall_back_to_another_text(tmp_path, monkeypatch):
    """data.path null would select Python's library."""
    monkeypatch.chdir(tmp_path)
    for name in ("shakespeare_char_cpu", "shakespeare_char"):
        config = compose([f"experiment={name}", f"run.root={tmp_path}"])
        with pytest.raises(ConfigError, match=r"data.path: tinyshakespeare.txt does not exist"):
            build_workload(config)


# -- learnable data ----------------------------------------------------------------------------------------------------------------


def trained_on(tmp_path, train, validation, vocabulary, *more):
    """Return (rows, model, workload) of a run on tokens."""
    folder = tmp_path / "tokens"
    folder.mkdir()
    np.array(train, dtype="<u2").tofile(folder / "train.bin")
    np.array(validation, dtype="<u2").tofile(folder / "val.bin")
    tiny = ["trainer.threads=1", "trainer.device=cpu", "logger.report=false", "logger.console=quiet", "schedule.log=[50%]"]
    tiny += ["workload=language", "data=tokens", f"data.path={folder}", f"data.vocabulary={vocabulary}", "data.block=16"]
    tiny += [
        "model.size=gpt_nano",
        "trainer.global_batch_size=16",
        "trainer.micro_batch_size=16",
        "optimizer.lr=0.005",
        "schedule.validate=[100%]",
    ]
    config = compose([*tiny, f"run.root={tmp_path}", "run.name=run", "run.experiment=text", *more])
    assert runs.start(config) == 0
    workload = build_workload(config)
    model = workload.build_model().eval()
    model.load_state_dict(runs.newest(tmp_path / "text/run").model_state)
    return rows(tmp_path), model, workload


def test_a_model_trained_on_counting_continues_9_with_10_11_12(tmp_path):
    """With targets shifted by one more position, which the loss does not show, 9 would continue with 11, 13, 15."""
    counting = np.arange(6000) % 50
    found, model, _ = trained_on(tmp_path, counting, counting[:500], 50, "trainer.length=150steps")
    tokens = [5, 6, 7, 8, 9]
    for _ in range(3):
        with torch.inference_mode():
            tokens.append(int(model({"input": torch.tensor([tokens])})["logits"][0, -1].argmax()))
    assert tokens[5:] == [10, 11, 12]
    assert found[-1]["val/top1"] > 0.99
    assert found[-1]["val/bits_per_byte"] is None, "the bytes of these tokens are unknown"


def above_floor(workload, model, floor):
    """Return by how many standard errors the validation loss is above `floor` nats."""
    windows = workload.validation_set
    batch = windows.__getitems__([(0, i, i, 0, True) for i in range(len(windows))])
    with torch.inference_mode():
        losses = model(batch)["losses"][batch["target"] >= 0].double()
    return float((losses.mean() - floor) / (losses.std() / len(losses) ** 0.5))


def test_the_loss_on_uniform_tokens_is_not_below_their_entropy(tmp_path):
    """A model that reads its targets would be below."""
    drawn = np.random.default_rng(0).integers(0, 8, 24000)
    found, model, workload = trained_on(tmp_path, drawn[:12000], drawn[12000:], 8, "trainer.length=150steps")
    assert found[-1]["val/loss"] == pytest.approx(math.log(8), abs=0.05)
    assert above_floor(workload, model, math.log(8)) > -3


def test_negative_control_repeated_tokens_are_below_the_entropy(tmp_path):
    drawn = np.repeat(np.random.default_rng(0).integers(0, 8, 12000), 2)
    _, model, workload = trained_on(tmp_path, drawn[:12000], drawn[12000:], 8, "trainer.length=150steps")
    assert above_floor(workload, model, math.log(8)) < -30
