"""A run writes its compile cache once, the next launch uses it, and one that is damaged or of another machine is ignored with one line."""

import logging

import pytest
import torch

from linnaeus.train.building import compile_cache
from linnaeus.train.building.compile_cache import CompileCache
from tests import runs
from tests.train.building.test_compiling import compiled_with

CPU = torch.device("cpu")
COMPILED = ["trainer.compile=whole", "trainer.length=2epochs", "logger.console=plain"]


@pytest.fixture
def compiler(monkeypatch):
    """Replace torch's functions by a compiler with one miss, whose results are b"graphs". Return the artifacts that were loaded."""
    loaded: list[bytes] = []
    misses = [0]
    monkeypatch.setattr(compile_cache, "cache_misses", lambda: misses[0])
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: (b"graphs", None))
    monkeypatch.setattr(torch.compiler, "load_cache_artifacts", lambda content: loaded.append(content) or "info")
    return loaded, misses


def test_a_cache_is_written_once_and_loaded(tmp_path, compiler):
    loaded, misses = compiler
    first = CompileCache(tmp_path / "cache", CPU)
    first.load()
    misses[0] = 3
    assert first.save() and not first.save() and not first.loaded
    second = CompileCache(tmp_path / "cache", CPU)
    second.load()
    assert second.loaded and loaded == [b"graphs"]
    assert not second.save(), "everything was found"
    misses[0] = 4
    assert second.save() and len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda content: content[:-1], "it is damaged"),
        (lambda content: b"", "it is damaged"),
        (lambda content: b"[1]\n" + content, "it is damaged"),
        (lambda content: content.replace(b"torch ", b"torch 0."), "it was made for torch 0."),
    ],
)
def test_a_damaged_or_alien_cache_is_one_warning(tmp_path, compiler, caplog, content, reason):
    loaded, _ = compiler
    cache = CompileCache(tmp_path, CPU)
    assert cache.save()
    cache.path.write_bytes(content(cache.path.read_bytes()))
    with caplog.at_level(logging.INFO, "linnaeus"):
        cache.load()
    assert not cache.loaded and loaded == []
    (record,) = caplog.records
    assert record.levelname == "WARNING" and reason in record.getMessage()


def test_what_torch_cannot_read_is_one_warning(tmp_path, compiler, caplog, monkeypatch):
    cache = CompileCache(tmp_path, CPU)
    assert cache.save()
    monkeypatch.setattr(torch.compiler, "load_cache_artifacts", lambda content: None)
    cache.load()
    assert [record.getMessage() for record in caplog.records] == [f"{cache.path} is not used: torch cannot read it"]


def test_a_run_keeps_a_cache_and_counts_graphs(tmp_path, compiler, capsys):
    """Whole batches, a partial one with an empty micro-batch, and validation compile once each, in two epochs."""
    with compiled_with("eager"):
        torch._dynamo.reset()
        found = runs.run("vectors", tmp_path, *COMPILED, "data.validation_batch=13", "schedule.validate=[50%]")
    (file,) = (found / "compile_cache").iterdir()
    assert file.name.startswith(f"torch-{torch.__version__}-python-3.")
    assert runs.summary(found)["compiled"] == {"graphs": 4, "recompilations": 0, "cached": False}
    text = capsys.readouterr().out
    assert "torch.compile: 1 graph in " in text and "torch.compile: 4 graphs in " in text and ", 0 recompilations" in text


def test_a_forward_pass_of_famo_is_not_a_recompilation(tmp_path, compiler):
    """Each update of the task weights has a forward pass without gradients, which has a graph of its own."""
    famo = ["weighting=famo", "weighting.every=[3steps]", "data.train_samples=96", "trainer.length=6steps"]
    with compiled_with("eager"):
        torch._dynamo.reset()
        found = runs.run("vectors", tmp_path, *COMPILED, *famo, "data.validation_batch=13")
    assert runs.summary(found)["compiled"] == {"graphs": 3, "recompilations": 0, "cached": False}


def test_the_run_is_the_same_with_and_without_a_cache(tmp_path, compiler):
    with compiled_with("eager"):
        first = runs.run("vectors", tmp_path / "first", *COMPILED)
        (tmp_path / "second/vectors/run").mkdir(parents=True)
        (first / "compile_cache").rename(tmp_path / "second/vectors/run/compile_cache")
        second = runs.run("vectors", tmp_path / "second", *COMPILED)
    assert runs.differences(first, second) == []
    assert (runs.summary(first)["compiled"]["cached"], runs.summary(second)["compiled"]["cached"]) == (False, True)


def test_a_recompilation_is_said_and_counted(tmp_path, compiler, capsys):
    """The compiler forgets its graphs before the second epoch."""
    from linnaeus.progress import TrainingProgress

    original = TrainingProgress.start_training_epoch

    def forgetting(self, epoch):
        torch._dynamo.reset()
        return original(self, epoch)

    with compiled_with("eager"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingProgress, "start_training_epoch", forgetting)
        found = runs.run("vectors", tmp_path, *COMPILED, "schedule.validate=[]", "schedule.best_monitor=val/loss")
    assert runs.summary(found)["compiled"]["recompilations"] >= 2
    assert "torch.compile has compiled the same work again (update, 32, None)" in capsys.readouterr().out
