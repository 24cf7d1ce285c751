"""Whole runs on text with sources, phases and dimensions: independence of the split over processes, metrics against a reference."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from linnaeus.config.load import compose
from linnaeus.errors import ConfigError
from linnaeus.reporting.report.comparison.compared_runs import Compared
from linnaeus.reporting.report.comparison.paired_rows import PairedRows
from linnaeus.reporting.report.metric_tables import final_tables
from linnaeus.reporting.report.run_files import RunFiles
from linnaeus.workloads import build_workload, report_sections
from linnaeus.workloads.language.generation import Sampling, generate
from linnaeus.workloads.language.trained import load_model
from tests import runs
from tests.config import observers

PHASES = (
    "{first: {start: 0%, end: 70%, data: {letters: 1, digits: 1}, dimensions: {x: 3}}, "
    "second: {start: 30%, end: 100%, lr: 0.5, data: {digits: 1, signs: 2}, dimensions: {y: 3}}}"
)
SOURCES = "{letters: ['a*.txt'], digits: ['d*.txt'], signs: ['s*.txt']}"
MIXED = ["trainer.precision=float64", "model.dimensions=[x,y]", f"data.sources={SOURCES}", f"schedule.phases={PHASES}"]
MIXED += ["debug.batch_hashes=true", "data.validation_batch=4", "schedule.checkpoint=[3steps]"]
GROWING = ["model.dropout=0", "growth=linear", "growth.start=0.2", "growth.until=6steps", "growth.every=[2steps]"]
RANDOM = ["trainer.precision=float64", "data.order=random"]
F32 = ["trainer.global_batch_size=96", "trainer.length=1steps", "schedule.validate=[]", "model.dropout=0"]  # 85 windows


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


def mixed(root: Path, *more: str) -> list[str]:
    return [*MIXED, f"data.path={write_sources(root)}", *more]


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """Return a root with runs in root / NAME. `one`, `two`: sources, phases and dimensions in one process with 4 accumulation steps and in
    two processes with 2 and loader workers; `random-*`: one text in random order likewise; `grown`: growth; `f32-*`: a float32 update with
    its gradients."""
    root = tmp_path_factory.mktemp("language")
    runs.run_job(runs.job("language", root / "one", *mixed(root / "one")))
    runs.run_job(runs.job("language", root / "random-one", *RANDOM))
    two = [runs.job("language", root / "two", *mixed(root / "two", "trainer.num_workers=1"))]
    two.append(runs.job("language", root / "random-two", *RANDOM))
    runs.run_group(2, [*two, runs.job("language", root / "f32-two", *F32, watch=["first_gradients"])], root)
    runs.run_job(runs.job("language", root / "grown", *mixed(root / "grown", *GROWING)))
    for micro in (8, 96):
        runs.run_job(runs.job("language", root / f"f32-{micro}", *F32, f"trainer.micro_batch_size={micro}", watch=["first_gradients"]))
    runs.run_job(runs.job("language", root / "f32-own", *F32, watch=["first_gradients", "own_denominators"]))
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


@pytest.mark.slow
@pytest.mark.parametrize("one, other", [("one", "two"), ("random-one", "random-two")])
def test_a_float64_run_does_not_depend_on_the_split(split, one, other):
    a, b = weights(split / one), weights(split / other)
    assert ((a - b).abs().max() / a.abs().max()) < 1e-10
    found = [rows(split / name) for name in (one, other)]
    assert len(found[0]) == len(found[1]) > 6
    for first, second in zip(*found):
        assert first.keys() == second.keys()
        for name, value in first.items():
            exact = not isinstance(value, float) or name.endswith("top1")
            assert value == (second[name] if exact else pytest.approx(second[name], rel=1e-10, abs=1e-12)), name


def test_float32_gradients_of_the_first_update_agree(split):
    """12 micro-batches, one of them with 5 windows and one empty; one micro-batch; and 6 on each of two processes."""
    gradients = {
        name: torch.cat([gradient.reshape(-1).double() for gradient in torch.load(split / f"f32-{name}" / "gradients.pt")])
        for name in ("8", "96", "two", "own")
    }
    distance = {name: float((gradients["8"] - other).abs().max() / gradients["8"].abs().max()) for name, other in gradients.items()}
    assert distance["96"] < 1e-5 and distance["two"] < 1e-5
    assert distance["own"] > 1e-2, "negative control: denominators of each process"


def test_one_and_two_processes_draw_the_same_windows_from_one_store(split):
    (store,) = (split / "two" / "token_stores").iterdir()
    assert sorted(path.name for path in store.iterdir()) == ["store.json", "train.bin", "val.bin"]
    one, two = drawn(split / "one"), drawn(split / "two")
    assert one == two and len(one) > 6
    sources = {step: {name.split("/")[0] for name in names} for step, names in one.items()}
    assert sources[1] == {"letters", "digits"} and sources[len(one)] <= {"digits", "signs"}
    assert all(name.split("/")[1].startswith("window-") for name in one[1])


def test_validation_metrics_equal_a_slow_reference(split):
    """The reference computes one window at a time from the saved weights, with all dimensions and without one of them."""
    run = split / "grown/text/run"
    trained, facts = load_model(run), json.loads((run / "dataset.json").read_text())["splits"]["validation"]
    model, (store,) = trained.network, (split / "grown/token_stores").iterdir()
    tokens = torch.from_numpy(np.fromfile(store / "val.bin", "<u2").astype(np.int64))
    losses, increases, right, read, number = {}, {"x": [], "y": []}, 0, [], 0
    for source, array in zip(("letters", "digits", "signs"), tokens.split([each["tokens"] for each in facts["sources"].values()])):
        losses[source] = []
        for begin in range(0, len(array) - 1, 8):
            window = array[begin : begin + 9]
            ablated = model.dimension_weights * (torch.arange(2) != number % 2)
            with torch.inference_mode():
                with_all, without = (
                    F.log_softmax(model({"input": window[None, :-1], "dimensions": given[None]})["logits"][0], 1)
                    for given in (model.dimension_weights, ablated)
                )
            found, other = (-each.gather(1, window[1:, None])[:, 0] for each in (with_all, without))
            losses[source] += found.tolist()
            increases["xy"[number % 2]] += (other - found).tolist()
            right += int((with_all.argmax(1) == window[1:]).sum())
            read += window[1:].tolist()
            number += 1
    final = json.loads((run / "summary.json").read_text())["final"]
    total = [loss for of_source in losses.values() for loss in of_source]
    wanted = {"loss": np.mean(total), "perplexity": math.exp(np.mean(total)), "top1": right / len(total)}
    wanted["bits_per_byte"] = sum(total) / math.log(2) / len(trained.tokenizer.decode(read).encode())
    wanted |= {f"source/{name}/loss": np.mean(of_source) for name, of_source in losses.items()}
    wanted |= {f"dimension/{name}/score": np.mean(of_dimension) for name, of_dimension in increases.items()}
    assert {f"val/{name}" for name in wanted} <= set(final) and min(abs(wanted[f"dimension/{name}/score"]) for name in "xy") > 1e-5
    for name, value in wanted.items():
        assert final[f"val/{name}"] == pytest.approx(value, rel=1e-12, abs=1e-13), name


@pytest.mark.parametrize("name", ["one", "two", "random-one"])
def test_the_tables_of_windows_and_baselines_give_the_metrics(split, name):
    """Placeholders and an incomplete last window are in the batches; named sources and two processes in the runs."""
    run = RunFiles(split / name / "text/run")
    windows = run.table("samples")
    assert len({row["sample"] for row in windows}) == len(windows) > 8 and len({row["tokens"] for row in windows}) > 1
    means = {name: np.mean([float(row[name]) for row in windows if row[name]]) for name in windows[0] if name not in ("sample", "tokens")}
    assert means.keys() >= {"loss", "top1"} and len(means) == (2 if name == "random-one" else 5)
    for metric, mean in means.items():
        assert mean == pytest.approx(run.final[f"val/{metric}"], rel=1e-12), metric
    other = RunFiles(split / {"one": "two", "two": "one"}.get(name, name) / "text/run").table("samples")
    assert [row["sample"] for row in windows] == [row["sample"] for row in other]
    assert [float(row["loss"]) for row in windows] == pytest.approx([float(row["loss"]) for row in other], rel=1e-10)
    baselines = {row["metric"]: row for row in run.table("baselines")}
    tokens = {part: np.fromfile(next((split / name / "token_stores").glob(f"*/{part}.bin")), "<u2") for part in ("train", "val")}
    counts = np.bincount(tokens["train"], minlength=int(max(map(np.max, tokens.values()))) + 1) + 1
    loss = -np.log(counts / counts.sum())[tokens["val"]].mean()
    assert float(baselines["loss"]["unigram"]) == pytest.approx(loss, rel=1e-6) and baselines["loss"]["constant"] == ""
    assert float(baselines["perplexity"]["unigram"]) == pytest.approx(math.exp(loss), rel=1e-6)
    letters = (tokens["val"] != max(map(np.max, tokens.values()))).mean() if name != "random-one" else 1.0
    bits = loss / math.log(2) / letters
    assert float(baselines["bits_per_byte"]["unigram"]) == pytest.approx(bits, rel=1e-6), "a letter is one byte, the end marker none"
    assert float(baselines["top1"]["constant"]) == (tokens["val"] == counts.argmax()).mean()
    tables = final_tables(run.final, run.table("baselines"))
    assert ">constant<" in tables and ">unigram<" in tables and ">shuffled<" not in tables and f">{loss:.4g}<" in tables


def test_runs_are_compared_window_by_window(split):
    found = [Compared([RunFiles(split / name / "text/run")]).groups[0] for name in ("random-one", "random-two")]
    difference = PairedRows().difference(*found, "val/loss")
    windows = RunFiles(split / "random-one" / "text/run").table("samples")
    assert difference is not None and difference.samples == difference.of == len(windows)
    assert abs(difference.value) < 1e-10 and difference.high - difference.low < 1e-9, "the same run on one and two processes"


def test_training_rows_have_loss_perplexity_and_bits_per_byte(split):
    found = [row for row in rows(split / "random-one") if "train/loss" in row]
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


def test_record_log_summary_and_page(split):
    run = split / "one/text/run"
    facts = json.loads((run / "dataset.json").read_text())
    assert facts["splits"]["train"]["sources"]["signs"]["tokens"] == 216 and facts["left_out"] == {"no source": ["z.txt"]}
    assert json.loads((run / "tokenizer.json").read_text())["kind"] == "character"
    log, final = (run / "train.log").read_text(), json.loads((run / "summary.json").read_text())["final"]
    assert "source signs: 216 training tokens, 25 validation tokens" in log
    workload = build_workload(runs.configuration("language", split / "one", *mixed(split / "one")))
    workload.final_dimension_weights = json.loads((run / "dimensions.json").read_text())
    lines = workload.summary(final)
    assert lines[0].split() == ["nats/token", "perplexity", "bits/byte", "top-1", "%"]
    assert lines[1].split()[:2] == ["val", f"{final['val/loss']:.4f}"] and lines[2] == lines[7] == ""
    assert [line.split()[0] for line in lines[3:7]] == ["source", "letters", "digits", "signs"]
    assert [line.split()[:3] for line in lines[8:]][1] == ["x", "0.2500", f"{final['val/dimension/x/score']:+.5f}"]
    assert all(line in log for line in lines)
    sections = {section.title: section.body for section in report_sections("language", RunFiles(run))}
    assert list(sections) == ["Summary", "Sources and dimensions"]  # texts are saved with logger.report only
    for key in ("val/loss", "val/source/letters/loss", "val/dimension/x/score"):
        assert f'data-key="{key}" data-value="{final[key]!r}"' in "".join(sections.values())
    assert ">0.25<" in sections["Sources and dimensions"]


def test_the_page_has_continuations_and_losses_of_validation_text(tmp_path):
    run = runs.run("language", tmp_path, "logger.report=true", "trainer.length=2steps")
    texts = RunFiles(run).json("texts.json")
    tokens = texts["windows"][0]
    assert len(texts["continuations"]) == 4 and len(tokens) == 8 and all(loss > 0 for _, loss in tokens)
    assert all(len(one["prompt"]) == 8 and len(one["model"]) == 160 for one in texts["continuations"])  # a token is a character
    assert "".join(text for text, _ in tokens).startswith(texts["continuations"][0]["prompt"][1:])
    page = (run / "report.html").read_text()
    assert "The model continues" in page and 'class="hard"' in page and f"{texts['unigram_loss']:.3f} nats" in page


def test_a_run_that_has_diverged_has_a_page_without_continuations(tmp_path):
    run = runs.run("language", tmp_path, "logger.report=true", "trainer.length=3steps", "optimizer.lr=1e30", "lr_scheduler=constant")
    texts = RunFiles(run).json("texts.json")
    assert "continuations" not in texts and len(texts["windows"]) == 4
    assert runs.summary(run)["status"] == "finished" and (run / "report.html").exists()


def test_the_saved_weights_are_those_of_the_last_update(tmp_path):
    """A run of 8 steps stops after 6. Its last update, at step 5, is in the middle of a cross-fade."""
    phases = "schedule.phases={one: {start: 0%, end: 100%, dimensions: {calm: 3}}, two: {start: 25%, end: 100%}}"
    more = ["model.dimensions=[calm,wide]", "model.width=24", "trainer.length=8steps", "schedule.early_stop.max_steps=6", phases]
    run = runs.run("language", tmp_path, *more)
    kept = json.loads((run / "dimensions.json").read_text())
    assert kept == pytest.approx({"calm": (0.75 + 0.5) / 2, "wide": (0.25 + 0.5) / 2}, rel=1e-12)
    last = runs.rows(run / "reports.jsonl")[-1]
    assert last["global_step"] == 6 and {name: last[f"phase/dimension/{name}"] for name in kept} == kept
    assert load_model(run).network.dimension_weights.tolist() == pytest.approx(list(kept.values()))


def test_sources_and_dimensions_that_are_not_used_are_noted(tmp_path):
    def noted(*more):
        notes = observers.built(runs.configuration("language", tmp_path, *mixed(tmp_path, *more))).workload.notes
        return [note.split(":")[0] for note in notes if "no phase uses it" in note or "too few windows, 2, to score it" in note]

    assert noted() == [] == noted("schedule.phases={}")
    assert noted("schedule.phases={only: {start: 0%, end: 100%, data: {digits: 1, signs: 0}}}") == ["source letters", "source signs"]
    assert noted("schedule.early_stop.max_steps=4") == ["source signs"], "the phase that uses it starts at the fifth update"
    assert noted("schedule.early_stop.max_steps=5") == []
    few = ["data.sources=null", "schedule.phases={}", "model.dimensions=[x,y,deep]", "model.width=24", "data.block=40"]
    assert noted(*few, f"data.path={runs.write_text(tmp_path)}") == ["dimension deep"]


def test_the_loss_of_a_source_can_be_the_best_monitor(tmp_path):
    run = runs.run("language", tmp_path, *mixed(tmp_path, "schedule.best_monitor=val/source/signs/loss"))
    summary = json.loads((run / "summary.json").read_text())
    assert summary["best"]["val/source/signs/loss"]["value"] == summary["final"]["val/source/signs/loss"]


@pytest.mark.parametrize("name", ["shakespeare_char_cpu", "shakespeare_char"])
def test_an_experiment_does_not_fall_back_to_another_text(tmp_path, monkeypatch, name):
    """data.path null would select Python's library."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"data.path: tinyshakespeare.txt does not exist"):
        build_workload(compose([f"experiment={name}", f"run.root={tmp_path}"]))


# -- learnable data ----------------------------------------------------------------------------------------------------------------


def trained_on(root, tokens, vocabulary):
    """Return the final metrics, the model, and by how many standard errors the validation loss is below ln(vocabulary), after a run on
    tokens. The second half validates."""
    for name, half in zip(("train.bin", "val.bin"), np.split(np.array(tokens, "<u2"), 2)):
        half.tofile(root / name)
    more = ["data=tokens", f"data.path={root}", f"data.vocabulary={vocabulary}", "data.block=16", "model.dropout=0"]
    more += ["trainer.global_batch_size=16", "trainer.micro_batch_size=16", "optimizer.lr=0.005", "schedule.log=[50%]"]
    config = runs.configuration("language", root, *more, "trainer.length=150steps", "data.validation_batch=64")
    assert runs.start(config) == 0
    workload = build_workload(config)
    model = workload.build_model().eval()
    model.load_state_dict(runs.newest(runs.run_path(config)).model_state)
    windows = workload.validation_set
    batch = windows.__getitems__([(0, i, i, 0, True) for i in range(len(windows))])
    with torch.inference_mode():
        losses = model(batch)["losses"][batch["target"] >= 0].double()
    below = (math.log(vocabulary) - losses.mean()) / (losses.std() / len(losses) ** 0.5)
    return runs.rows(runs.run_path(config) / "metrics.jsonl")[-1], model, float(below)


def test_a_model_trained_on_counting_continues_it_beyond_its_block(tmp_path):
    """With targets shifted by one more position, which the loss does not show, 9 would continue with 11, 13, 15."""
    final, model, _ = trained_on(tmp_path, np.arange(8000) % 50, 50)
    found = generate(model, [[5, 6, 7, 8, 9], [40, 41]], 24, Sampling(temperature=0), slide=8)
    assert found == [[(10 + i) % 50 for i in range(24)], [(42 + i) % 50 for i in range(24)]]
    assert final["val/top1"] > 0.99
    assert final["val/bits_per_byte"] is None, "the bytes of these tokens are unknown"


@pytest.mark.slow
def test_the_loss_on_uniform_tokens_is_not_below_their_entropy(tmp_path):
    """A model that reads its targets would be below. Negative control: repeated tokens."""
    drawn = np.random.default_rng(0).integers(0, 8, 24000)
    (tmp_path / "repeated").mkdir()
    final, _, below = trained_on(tmp_path, drawn, 8)
    assert final["val/loss"] == pytest.approx(math.log(8), abs=0.05) and below < 3
    assert trained_on(tmp_path / "repeated", np.repeat(drawn[:12000], 2), 8)[2] > 30
