"""`linnaeus edit`: the answers of the model while features are read, switched off or scaled, and one line for every mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import linnaeus
from linnaeus.workloads.dictionary import edit_cli
from linnaeus.workloads.dictionary.trained.trained_dictionary import TrainedDictionary
from linnaeus.workloads.language.tokenizers import CharacterTokenizer
from tests import runs
from tests.workloads.dictionary.trained.conftest import train_dictionary

INPUTS = {
    "biota": ["PHOTO", "--latitude=52", "--longitude=4"],
    "language": ["abc", "--tokens=5"],
    "loadout": ["splattershot", "--have=swim_speed_up: main sub"],
}
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in INPUTS if name != "language"]
WORKLOADS = pytest.mark.parametrize("workload", ["language", *OTHERS])


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("photo") / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(path)
    return str(path)


@pytest.fixture
def edit(read_by, photo, capsys) -> Any:
    """Return a function that runs `linnaeus edit --json` on the input of a workload, and returns the object that it prints."""

    def command(workload: str, *options: str) -> dict[str, Any]:
        words = [photo if word == "PHOTO" else word for word in INPUTS[workload]]
        run = str(read_by(workload))
        capsys.readouterr()  # of its training
        assert edit_cli.main([run, *words, *options, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return command


def values(found: dict[str, Any], when: str) -> list[float]:
    return [output[when] for group in found["outputs"].values() for output in sorted(group, key=lambda one: one["name"])]


@WORKLOADS
def test_reading_lists_features_and_changes_nothing(edit, workload):
    found = edit(workload, "--top=1000")
    assert found["features"] and "after" not in json.dumps(found["outputs"])
    strongest = found["features"][0]
    assert 0 < strongest["active"] <= strongest["positions"] == {"biota": 64, "language": 3, "loadout": 2}[workload]
    assert [one["activity"] for one in found["features"]] == sorted((one["activity"] for one in found["features"]), reverse=True)
    same = edit(workload, "--top=1000", f"--feature={strongest['feature']}", "--scale=1")
    assert values(same, "after") == values(same, "before") == values(found, "before")


@WORKLOADS
def test_an_edit_is_a_step_along_the_decoder_vector(edit, read_by, workload, monkeypatch):
    """The same answer as with the decoder vector added by hand; without the edit, and with an inactive feature, another one."""
    feature = edit(workload)["features"][0]["feature"]
    found = edit(workload, "--top=1000", f"--feature={feature}", "--scale=40")
    assert values(found, "after") != values(found, "before")

    def by_hand(self: TrainedDictionary, scales: dict[int, float], reconstruct: bool = False) -> Any:
        d = self.dictionary
        assert float(d.scale) == 1.0 and not reconstruct
        return lambda rows: rows + 39 * self.encode(rows)[:, [feature]] * d.decoder[feature].detach()

    monkeypatch.setattr(TrainedDictionary, "editing", by_hand)
    assert values(edit(workload, "--top=1000", f"--feature={feature}", "--scale=40"), "after") == pytest.approx(
        values(found, "after"), abs=2e-6
    )


def test_a_map_whose_channels_are_last_can_be_edited(trained, photo, tmp_path, capsys):
    module = "trunk.convolution.0.mlp.1"
    run = train_dictionary(tmp_path, trained["biota"], module, "dictionary.channels=last", "trainer.length=2steps")
    capsys.readouterr()  # of its training
    assert edit_cli.main([str(run), photo, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["features"][0]["positions"] == 64
    page = next(run.glob("validation/*/feature_sections.json")).read_text()
    assert "heat" in page.partition("</style>")[2], "the photographs have no heat map"


def test_a_feature_that_is_not_active_changes_nothing(edit):
    active = {one["feature"] for one in edit("loadout", "--top=24")["features"]}
    silent = next(i for i in range(24) if i not in active)
    found = edit("loadout", f"--feature={silent}", "--scale=0")
    assert values(found, "after") == values(found, "before")
    assert found["features"][-1] == {"feature": silent, "activity": 0.0, "active": 0, "positions": 2, "place": ""}


def test_positions_are_counted_without_padding(edit):
    found = {one["place"] for one in edit("loadout", "--top=24")["features"]}
    assert found <= {"position 1 'swim_speed_up_main_1'", "position 2 'swim_speed_up_sub_1'"}, found


def test_the_reconstruction_takes_the_place_of_the_output(edit, read_by):
    model = linnaeus.load_model(read_by("loadout"))
    rows = torch.randn(50, model.dictionary.width)
    assert torch.equal(model.editing({}, reconstruct=True)(rows), model.decode(model.encode(rows)))
    off = model.editing({3: 0.0, 5: 2.0}, reconstruct=True)(rows)
    activities = model.encode(rows)
    activities[:, 3], activities[:, 5] = 0.0, 2 * activities[:, 5]
    assert torch.allclose(off, model.decode(activities)) and not torch.allclose(off, model.decode(model.encode(rows)))
    found = edit("loadout", "--reconstruct")
    assert values(found, "after") != values(found, "before")


@WORKLOADS
def test_text_shows_the_answers_side_by_side(read_by, photo, capsys, workload):
    words = [photo if word == "PHOTO" else word for word in INPUTS[workload]]
    run = str(read_by(workload))
    capsys.readouterr()  # of its training
    assert edit_cli.main([run, *words, "--feature", "2", "--feature", "7", "--scale", "0", "--top", "3"]) == 0
    out, err = capsys.readouterr()
    assert "before" in out and "after" in out and "active positions" in out and "24 features of" in err
    groups = {"biota": ["species", "genus"], "language": ["next token"], "loadout": ["token"]}[workload]
    lines = out.splitlines()
    for group in groups:
        start = lines.index(f"  {group}")
        assert all("(+" in line or "(-" in line for line in lines[start + 1 : start + 3])
    assert max(map(len, lines)) < 100 + 8 * len(INPUTS)


@pytest.mark.parametrize(
    ("workload", "options", "line"),
    [
        ("language", ["--feature=24"], "feature 24 does not exist: the dictionary has the features 0 to 23"),
        ("language", ["--feature=-1"], "feature -1 does not exist"),
        ("language", ["--scale=0"], "--scale has no effect without --feature"),
        ("language", ["--feature=1", "--feature=2", "--feature=3", "--scale=0", "--scale=1"], "3 x --feature and 2 x --scale"),
        ("language", ["--feature=1", "--feature=1"], "--feature 1 is given twice"),
        ("language", ["--feature=1", "--scale=nan"], "--scale is nan"),
        ("language", ["--feature=1", "--scale=1e39"], "--scale is 1e+39; it must be from -1e+06 to 1e+06"),  # infinite in float32
        ("language", ["--have=comeback"], "--have has no effect with a language model"),
        ("language", ["--tokens=-1"], "--tokens is -1"),
        ("language", ["--tokens=1000000000000"], "--tokens is 1000000000000; it must be from 0 to 1000000"),  # 8 TB of numbers
        ("language", ["--dictionary=k3"], "dictionary 'k3' does not exist; the run has dictionary"),
        ("language", ["--top=0"], "--top is 0"),
        ("biota", [], "INPUT: give at least one photograph"),
        ("biota", ["none.jpg"], "INPUT: none.jpg cannot be read"),
        ("biota", ["none.jpg", "--tokens=3"], "--tokens has no effect with a classifier"),
        ("loadout", ["no_such_weapon"], "INPUT: "),
        ("loadout", [], "INPUT: give at least one weapon"),
    ],
)
def test_a_mistake_is_one_line(read_by, capsys, workload, options, line):
    run = read_by(workload)
    capsys.readouterr()  # of its training
    with pytest.raises(SystemExit) as ended:
        edit_cli.main([str(run), *options])
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1) and line in err


def test_a_prompt_beyond_the_context_and_the_run_of_each_checkpoint_are_said(read_by, capsys):
    run = str(read_by("language"))
    capsys.readouterr()  # of its training
    assert edit_cli.main([run, "abc", "abc" * 30, "--tokens=0"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "tokens" in line] == [
        "model: the last 14 of 90 tokens of the prompt 'abcabcabcabcab...bcabcabcabc' are read"
    ]
    assert [line.partition(":")[0] for line in lines if line.endswith(" step")] == ["model"]
    assert any(line.startswith("dictionary: checkpoint step-") for line in lines)


def test_a_model_of_tokens_of_another_program_needs_their_tokenizer(tmp_path, capsys):
    np.random.default_rng(0).integers(0, 3, 400).astype(np.uint16).tofile(tmp_path / "train.bin")
    np.random.default_rng(1).integers(0, 3, 90).astype(np.uint16).tofile(tmp_path / "val.bin")
    read = runs.run("language", tmp_path, "data=tokens", f"data.path={tmp_path}", "data.vocabulary=3", "trainer.length=2steps")
    run = str(train_dictionary(tmp_path / "dictionary", read, "blocks.1", "logger.report=false", "trainer.length=2steps"))
    (tmp_path / "tokenizer.json").write_text(json.dumps(CharacterTokenizer("abc", False).to_dict()))
    capsys.readouterr()  # of the training
    with pytest.raises(SystemExit):
        edit_cli.main([run, "abc", "--feature=1"])
    assert "give the tokenizer of its tokens with --tokenizer FOLDER" in capsys.readouterr().err
    assert edit_cli.main([run, "abc", "--feature=1", "--json", "--tokens=2", f"--tokenizer={tmp_path}"]) == 0
    outputs = json.loads(capsys.readouterr().out)["outputs"]["next token"]
    assert {one["name"] for one in outputs} == {"'a'", "'b'", "'c'"}


def test_a_run_of_another_workload_is_one_line(read_by, capsys):
    read = Path(linnaeus.load_model(read_by("language")).place.run)
    capsys.readouterr()  # of its training
    with pytest.raises(SystemExit):
        edit_cli.main([str(read), "--feature=1"])
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "it must be a run of workload=dictionary" in err
