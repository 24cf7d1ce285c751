"""`run.init_from`: weights from several kinds of files, matched by name; no code in a file is executed."""

import copy
import json
import os
import pickle
import random
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from linnaeus.checkpoint import save_checkpoint
from linnaeus.checkpoint.format import write_manifest
from linnaeus.checkpoint.initial_weights import read_initial_weights
from linnaeus.checkpoint.weight_matching import WeightMatch, load_matched, match_weights
from linnaeus.config import compose
from linnaeus.errors import ConfigError
from tests.checkpoint.test_format import Hostile


class Net(nn.Module):
    """A trunk with batch statistics, two heads, a tied weight, and a submodule whose name looks like a wrapper prefix."""

    def __init__(self, seed: int, classes: int = 3) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.trunk = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.block = nn.ModuleDict({"module": nn.Linear(4, 4)})
        self.head = nn.ModuleDict({"genus": nn.Linear(4, 2), "species": nn.Linear(4, classes)})
        self.embed, self.unembed = nn.Linear(4, 5, bias=False), nn.Linear(4, 5, bias=False)
        self.unembed.weight = self.embed.weight
        self.trunk[1].running_mean.fill_(float(seed))
        self.trunk[1].num_batches_tracked.fill_(seed)


def initial_weights(path: str, model: nn.Module, allow: Sequence[str] = (), skip: Sequence[str] = ()) -> WeightMatch:
    """Read, match and load the weights at `path`."""
    weights = read_initial_weights(path)
    match = match_weights(weights, model, allow, skip)
    load_matched(weights, match, model)
    return match


def same(a: nn.Module, b: nn.Module, prefix: str = "") -> bool:
    """Return True if the weights of two models are equal, as far as their names start with `prefix`."""
    own, other = a.state_dict(), b.state_dict()
    return all(torch.equal(own[name], other[name]) for name in own if name.startswith(prefix))


def refused(path: Any, model: nn.Module, allow: list[str] | None = None) -> str:
    """Return the message of the `ConfigError`, and check that the model did not change."""
    before = copy.deepcopy(model)
    with pytest.raises(ConfigError) as caught:
        initial_weights(str(path), model, allow or [])
    line = str(caught.value)
    assert "\n" not in line and len(line) < 600 and same(model, before)
    return line


# -- what can be read ----------------------------------------------------------------------------------------------------------

FILES = {
    "bare": lambda state: state,
    "plain": lambda state: {"model_state_dict": state, "optimizer_state_dict": {"state": {}}, "epoch": 3, "best_val_loss": 0.25},
    "model": lambda state: {"model": state, "args": {"lr": 0.1}},
    "ddp": lambda state: {"model_state_dict": {f"module.{k}": v for k, v in state.items()}},
    "compiled": lambda state: {f"_orig_mod.{k}": v for k, v in state.items()},
    "both": lambda state: {"state_dict": {f"module._orig_mod.{k}": v for k, v in state.items()}},
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_a_torch_file(kind: str, legacy: bool, tmp_path: Path) -> None:
    source, model = Net(1), Net(2)
    torch.save(FILES[kind](source.state_dict()), tmp_path / "weights.pt", _use_new_zipfile_serialization=not legacy)
    match = initial_weights(str(tmp_path / "weights.pt"), model)
    assert same(model, source) and not same(model, Net(2))
    assert model.unembed.weight is model.embed.weight
    assert match.matched == list(model.state_dict()) and match.num_loaded == match.num_total
    assert match.num_total == sum(t.numel() for t in model.state_dict().values()) - model.embed.weight.numel(), "tied weights count once"
    text = "\n".join(match.lines())
    assert f"{len(match.matched)} tensors" in text and ("best_val_loss" in text) is (kind == "plain")


def test_a_safetensors_file_of_another_program_contains_tied_weights_once(tmp_path: Path) -> None:
    source, model = Net(1), Net(2)
    state = {name: tensor for name, tensor in source.state_dict().items() if name != "unembed.weight"}
    save_file(state, tmp_path / "weights.bin")  # detected by its content
    match = initial_weights(str(tmp_path / "weights.bin"), model)
    assert same(model, source) and match.missing == []


def test_the_model_keeps_its_precision_and_memory_format(tmp_path: Path) -> None:
    source = nn.Sequential(nn.Conv2d(3, 4, 3)).half()
    torch.save(source.state_dict(), tmp_path / "w.pt")
    model = nn.Sequential(nn.Conv2d(3, 4, 3)).double().to(memory_format=torch.channels_last)
    tensor = model[0].weight
    initial_weights(str(tmp_path / "w.pt"), model)
    assert model[0].weight is tensor and tensor.dtype == torch.float64 and tensor.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(tensor, source[0].weight.double())


def checkpoint(
    folder: Path,
    step: int,
    model: nn.Module,
    average: nn.Module | None = None,
    best: str | None = "val/loss",
    score: float | None = None,
    **more: str,
) -> Path:
    """Write a checkpoint. best: the metric of which the run has a best value; None: it has not been validated yet."""
    state = {"global_step": step, "score": score, "best": {best: {"value": 1.0, "global_step": step}} if best else {}, **more}
    averages = average.state_dict() if average is not None else None
    folder.mkdir(parents=True, exist_ok=True)
    return save_checkpoint(folder, step, model_state=model.state_dict(), ema_state=averages, training_state={}, state=state)


def test_the_newest_checkpoint_of_a_run_that_verifies_is_used(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        newest = checkpoint(tmp_path / "checkpoints", step, Net(step))
    with open(newest / "model.safetensors", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    model = Net(1)
    match = initial_weights(str(tmp_path), model)
    assert same(model, Net(20)) and "step-00000020/model.safetensors" in match.source
    assert any("step-00000030 was skipped: model.safetensors was altered" in line for line in match.lines())
    initial_weights(str(tmp_path / "checkpoints" / "step-00000010"), model)
    assert same(model, Net(10))
    for named in (newest, newest / "model.safetensors"):
        assert "is damaged" in refused(named, model)
    assert "model.safetensors" in refused(newest / "training_state.pt", model)


@pytest.mark.parametrize(("mode", "best"), [("max", 20), ("min", 30)])
def test_a_chosen_checkpoint_of_a_run(mode: str, best: int, tmp_path: Path) -> None:
    """Steps 10, 20, 30 have scores 0.5, 0.9, 0.1; step 40 was not validated."""
    for step, score in ((10, 0.5), (20, 0.9), (30, 0.1), (40, None)):
        checkpoint(tmp_path / "checkpoints", step, Net(step), score=score)
    (tmp_path / "config.yaml").write_text(f"schedule: {{best_monitor: val/loss, best_mode: {mode}}}")
    for choice, step in ((None, 40), ("newest", 40), ("best", best), ("10", 10), (10, 10)):
        for path in (tmp_path, tmp_path / "checkpoints"):
            weights = read_initial_weights(str(path), choice=choice)
            assert f"step-{step:08d}" in weights.source and any(f"step-{step:08d} is used" in note for note in weights.notes)
    for choice, reason in {"15": "has no checkpoint of step 15; it has 10, 20, 30, 40", "last": "use newest, best or a step"}.items():
        with pytest.raises(ConfigError, match=f"^run.init_from: .*{reason}"):
            read_initial_weights(str(tmp_path), choice=choice)
    with pytest.raises(ConfigError, match="contains no checkpoints of a run, so 'best' cannot be chosen"):
        read_initial_weights(str(tmp_path / "checkpoints" / "step-00000010"), choice="best")
    (tmp_path / "config.yaml").unlink()
    with pytest.raises(ConfigError, match="the best checkpoint is unknown"):
        read_initial_weights(str(tmp_path), choice="best")


def test_the_validated_weights_are_loaded(tmp_path: Path) -> None:
    averaged = checkpoint(tmp_path / "a", 1, Net(3), Net(4), best="val_ema/loss")
    raw = checkpoint(tmp_path / "b", 1, Net(3), Net(4), best="val/loss")
    for path, seed in ((averaged, 4), (raw, 3), (averaged / "model.safetensors", 3), (raw / "ema.safetensors", 4)):
        model = Net(1)
        match = initial_weights(str(path), model)
        assert same(model, Net(seed)), path
        assert any("raw and averaged weights" in line for line in match.lines()) is path.is_dir()


@pytest.mark.parametrize(("monitor", "seed"), [("val_ema/loss", 4), ("val/loss", 3)])
def test_before_the_first_validation_the_weights_that_the_run_will_validate_are_loaded(monitor: str, seed: int, tmp_path: Path) -> None:
    """A run without a validation, or stopped before the first one, must not lose its average."""
    path = checkpoint(tmp_path, 1, Net(3), Net(4), best=None, monitor=monitor)
    model = Net(1)
    match = initial_weights(str(path), model)
    assert same(model, Net(seed)) and any("the run validates the " in line for line in match.lines())
    changed = checkpoint(tmp_path, 2, Net(3), Net(4), best="val_ema/loss", monitor=monitor)  # the setting was changed meanwhile
    initial_weights(str(changed), model)
    assert same(model, Net(seed))


def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    for name, seed in (("a.pt", 1), ("b.pt", 1), ("c.pt", 2)):
        torch.save({"model": Net(seed).state_dict()}, tmp_path / name)
    shutil.copy(tmp_path / "a.pt", tmp_path / "d.pt")
    digests = {name: read_initial_weights(str(tmp_path / f"{name}.pt")).digest for name in "acd"}
    assert digests["a"] == digests["d"] != digests["c"]
    path = checkpoint(tmp_path / "run" / "checkpoints", 1, Net(1))
    assert (
        read_initial_weights(str(path)).digest
        == read_initial_weights(str(path / "model.safetensors")).digest
        == read_initial_weights(str(tmp_path / "run")).digest
    )


def test_keys_that_conflict_or_have_no_effect() -> None:
    for given, message in {
        "run.init_from=a run.resume=b": "exclude each other",
        "run.init_checkpoint=best": "has no effect without run.init_from",
        "run.init_allow=[head]": "has no effect without run.init_from",
        "run.init_skip=[head]": "run.init_skip=.head. has no effect without run.init_from",
    }.items():
        with pytest.raises(ConfigError, match=message):
            compose(given.split())
    assert compose(["run.init_from=a", "run.init_allow=head", "run.resume=never"]).run.init_allow == ["head"]


@pytest.mark.parametrize("value", ["1200", "'1200'"])
def test_a_step_needs_no_quotes(value: str) -> None:
    assert compose(["run.init_from=a", f"run.init_checkpoint={value}"]).run.init_checkpoint == "1200"


# -- matching -----------------------------------------------------------------------------------------------------------------


def saved(path: Path, state: dict[str, Any]) -> Path:
    torch.save(state, path)
    return path


def test_another_head_must_be_allowed_and_is_reported(tmp_path: Path) -> None:
    source = Net(1, classes=7)
    source.head["order"] = nn.Linear(4, 2)
    del source.head["genus"]
    path, model = saved(tmp_path / "w.pt", source.state_dict()), Net(2)
    line = refused(path, model)
    for part in (
        "2 weights of the model missing (head.genus.weight, head.genus.bias)",
        "2 weights not in the model (head.order.weight, head.order.bias)",
        "2 of another shape or type (head.species.weight [7, 4] in the file, [3, 4] here",
        "run.init_allow=[head]",
    ):
        assert part in line
    refused(path, model, ["head.genus", "head.species"])  # order is not allowed
    refused(path, model, ["head.order", "head.genus"])
    for allow in (["head"], ["head."], ["head.genus", "head.order.", "head.species"]):
        model = Net(2)
        match = initial_weights(str(path), model, allow)
        assert same(model, Net(2), "head.") and same(model, source, "trunk") and same(model, source, "block")
        assert match.missing == ["head.genus.weight", "head.genus.bias"] and match.unexpected == ["head.order.weight", "head.order.bias"]
        assert list(match.mismatched) == ["head.species.weight", "head.species.bias"]
        assert all(name in match.text() for name in [*match.matched, *match.missing, *match.unexpected, *match.mismatched])
        assert len(match.lines()) == 4


def test_a_weight_that_is_allowed_to_differ_but_matches_is_loaded_and_reported(tmp_path: Path) -> None:
    model = Net(2)
    match = initial_weights(str(saved(tmp_path / "w.pt", Net(1).state_dict())), model, ["head.genus"])
    assert same(model, Net(1)) and "and loaded: head.genus.weight, head.genus.bias" in match.lines()[-1]


def test_a_skipped_weight_is_not_loaded_although_it_matches(tmp_path: Path) -> None:
    source, model = Net(1), Net(2)
    path = saved(tmp_path / "w.pt", source.state_dict())
    match = initial_weights(str(path), model, skip=["head.species."])
    assert same(model, Net(2), "head.species") and same(model, source, "head.genus") and same(model, source, "trunk")
    assert match.skipped == ["head.species.weight", "head.species.bias"] and match.missing == match.unexpected == []
    assert "not loaded because of run.init_skip: head.species.weight, head.species.bias" in match.lines()
    assert match.num_total - match.num_loaded == 4 * 3 + 3
    other = saved(tmp_path / "other.pt", Net(1, classes=7).state_dict())
    assert initial_weights(str(other), Net(2), skip=["head"]).mismatched == {}, "of another tree, and skipped"
    for skip, message in (
        (["tail"], "run.init_skip: no weight name begins with tail"),
        (["embed"], "embed.weight and unembed.weight are one weight"),
    ):
        with pytest.raises(ConfigError, match=message):
            initial_weights(str(path), Net(2), skip=skip)


@pytest.mark.parametrize("allow", [["heads"], ["hea"], ["head.genus", "tail"]])
def test_an_entry_of_init_allow_without_effect_is_refused(allow: list[str], tmp_path: Path) -> None:
    line = refused(saved(tmp_path / "w.pt", Net(1).state_dict()), Net(2), allow)
    assert f"no weight name begins with {allow[-1]}" in line and "begin with block, embed, head, trunk, unembed" in line


def test_a_prefix_in_the_middle_of_a_name_stays(tmp_path: Path) -> None:
    """Only leading wrapper prefixes are removed: `block.module.weight` is a name of the model."""
    state = {name.replace("block.module.", "block."): value for name, value in Net(1).state_dict().items()}
    assert "block.module.weight" in refused(saved(tmp_path / "w.pt", state), Net(2))


@pytest.mark.filterwarnings("ignore:Validating sparse")
def test_other_mismatches(tmp_path: Path) -> None:
    good = Net(1).state_dict()
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "foreign": ({f"encoder.{name}": value for name, value in good.items()}, "nothing in .* fits any of the model's 15 weights"),
        "twice": ({**good, "module.embed.weight": good["embed.weight"]}, "two entries"),
        "nan": ({**good, "trunk.0.weight": torch.full((4, 4), torch.nan)}, r"trunk\.0\.weight .* not finite"),
        "kind": ({**good, "trunk.0.weight": torch.zeros(4, 4, dtype=torch.int64)}, "torch.int64 in the file, torch.float32 here"),
        "untied": ({**good, "unembed.weight": torch.zeros(5, 4)}, "one weight of the model and two"),
        "text": ({"model": {**good, "note": "hello"}}, r"'note' is not a plain tensor \(str\)"),
        "sparse": ({"model": {**good, "trunk.0.weight": good["trunk.0.weight"].to_sparse()}}, "not a plain tensor"),
        "meta": ({"model": {**good, "trunk.0.weight": torch.empty(4, 4, device="meta")}}, "not a plain tensor"),
        "optimizer": ({"optimizer_state_dict": {}, "epoch": 3}, "contains the keys optimizer_state_dict, epoch, and no state dict"),
        "empty": ({}, "no state dict"),
        "list": ([good], "contains a list"),  # type: ignore[dict-item]
    }
    for name, (state, message) in cases.items():
        assert re.search(message, refused(saved(tmp_path / name, state), Net(2))), name
    infinite = {**good, "trunk.1.running_mean": torch.full((4,), torch.inf)}  # allowed in a buffer
    initial_weights(str(saved(tmp_path / "buffer", infinite)), Net(2))


def test_matching_changes_nothing(tmp_path: Path) -> None:
    model, weights = Net(2), read_initial_weights(str(saved(tmp_path / "w.pt", Net(1).state_dict())))
    match = match_weights(weights, model)
    assert same(model, Net(2))
    load_matched(weights, match, model)
    assert same(model, Net(1))


def test_absent_and_empty_files(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.pt").touch()
    (tmp_path / "empty.safetensors").touch()
    (tmp_path / "text.pt").write_text("not a checkpoint\n")
    for name, message in {
        "nowhere": "does not exist",
        "folder": "contains no checkpoint",
        "empty.pt": "not a file of tensors",
        "empty.safetensors": "not a safetensors file",
        "text.pt": "not a file of tensors",
    }.items():
        assert message in refused(tmp_path / name, Net(1)), name


# -- hostile and damaged files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_a_hostile_pickle_is_named_and_never_executed(legacy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    mark = tmp_path / "executed"
    content = {"model": Net(1).state_dict(), "epoch": Hostile(mark)}
    torch.save(content, tmp_path / "w.pt", _use_new_zipfile_serialization=not legacy)
    line = refused(tmp_path / "w.pt", Net(2))
    assert ".mkdir, which is not plain data" in line and "weights_only" not in line
    assert not mark.exists()
    pickle.loads(pickle.dumps(content))  # negative control: the file is hostile
    assert mark.exists()


def test_a_hostile_pickle_called_safetensors_also_in_a_checkpoint_with_a_valid_manifest(tmp_path: Path) -> None:
    mark, path = tmp_path / "executed", checkpoint(tmp_path, 1, Net(1))
    for file, named in ((tmp_path / "w.safetensors", tmp_path / "w.safetensors"), (path / "model.safetensors", path)):
        file.write_bytes(pickle.dumps(Hostile(mark)))
        write_manifest(path, 1, None)
        assert "not a safetensors file" in refused(named, Net(1)) and not mark.exists()


def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path) -> None:
    """The file is truncated anywhere, or has changed bytes outside its tensors."""
    rng, path, refusals = random.Random(0), tmp_path / "w.pt", 0
    for legacy in (False, True):
        torch.save({"model": Net(1).state_dict()}, path, _use_new_zipfile_serialization=not legacy)
        whole = path.read_bytes()
        for _ in range(60):
            damaged = bytearray(whole[: rng.randrange(len(whole))] if rng.random() < 0.4 else whole)
            for _ in range(rng.randrange(4)):
                damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            path.write_bytes(bytes(damaged))
            try:
                initial_weights(str(path), Net(2), [])
            except ConfigError as error:
                refusals += 1
                assert "\n" not in str(error)
    assert refusals > 30


def test_an_invalid_alias_map(tmp_path: Path) -> None:
    for aliases in ("[1]", '{"a": "nowhere"}', "not json", json.dumps({"trunk.0.weight": ["x"]})):
        save_file({"w": torch.zeros(1)}, tmp_path / "w.safetensors", metadata={"aliases": aliases})
        assert "not a safetensors file" in refused(tmp_path / "w.safetensors", Net(1))
