"""`linnaeus complete`: legal builds that keep the given gear, in batches as alone, and one line for every mistake."""

import json
from unittest import mock

import numpy as np
import pytest
import torch

from linnaeus.errors import ConfigError
from linnaeus.workloads.loadout import complete_cli
from linnaeus.workloads.loadout.builds.archetypes import make_world
from linnaeus.workloads.loadout.completion.build_decoding import METHODS
from linnaeus.workloads.loadout.completion.gear_requests import make_request
from linnaeus.workloads.loadout.game.gear import count_items, is_full, parse_gear, slot_items, to_text
from linnaeus.workloads.loadout.trained import load_model, loadout_model
from linnaeus.workloads.loadout.trained.loadout_model import LoadoutModel
from tests import runs


@pytest.fixture(scope="module", params=["slots", "points"])
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    sizes = ["data.builds=200", "trainer.global_batch_size=64", "trainer.micro_batch_size=64", "model.width=32", "optimizer.lr=0.01"]
    return runs.run("loadout", folder, *sizes, f"data.code={request.param}", "data.validation_batch=100")


@pytest.fixture(scope="module")
def model(run):
    return load_model(run)


@pytest.fixture
def refused(run, capsys):
    def command(*options):
        with pytest.raises(SystemExit) as ended:
            complete_cli.main([str(run), *options])
        out, line = capsys.readouterr()
        assert ended.value.code == 2 and line.startswith("error: ") and line.count("\n") == 1 and out == ""
        return line

    return command


def requests(number, model):
    """Return random requests: parts of builds with 0 to 12 slots."""
    weapon, builds = make_world(5, 130).draw(5, 0, number)
    kept = np.random.default_rng(0).random((number, 12)).argsort(1) < (np.arange(number) % 13)[:, None]
    return [
        make_request(model.weapons, model.weapons.keys[w], to_text(part))
        for w, part in zip(weapon, count_items(slot_items(builds), kept), strict=True)
    ]


QUICK = {("slots", "beam"), ("points", "direct"), ("slots", "closure")}
EVERY = [(code, method) for code in ("slots", "points") for method in METHODS]
MARKED = [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in EVERY]
METHOD = pytest.mark.parametrize("run, method", MARKED, indirect=["run"])


@METHOD
def test_answers_are_full_legal_builds_with_the_given_gear(model, method):
    asked = requests(130, model)
    for request, answers in zip(asked, model.answers(asked, method, 1 if method == "closure" else 3), strict=True):
        assert answers and all(is_full(answer.build) and (answer.build >= request.given).all() for answer in answers)
        assert len({answer.build.tobytes() for answer in answers}) == len(answers)
        scores = [answer.log_probability if method == "beam" else answer.expected_right for answer in answers]
        assert sorted(scores, reverse=True) == scores


def test_the_first_of_several_answers_is_the_single_one(model):
    """Also where several builds have the same expected number of right slots: a model of one probability for everything."""
    asked = requests(39, model)
    flat = LoadoutModel(model.network, model.code, model.weapons, "")
    flat.tails = lambda builds, weapon: torch.full((len(builds), 40, 9), 0.25)
    for chosen in (model, flat):
        for alone, several in zip(chosen.answers(asked, "direct", 1), chosen.answers(asked, "direct", 4), strict=True):
            assert (alone[0].build == several[0].build).all() and alone[0].expected_right >= several[-1].expected_right


@METHOD
def test_batched_answers_equal_single_ones(model, method):
    asked = requests(39, model)
    together = model.answers(asked, method, 1)
    for request, answers in zip(asked, together, strict=True):
        (alone,) = model.answers([request], method, 1)
        assert [answer.build.tolist() for answer in answers] == [answer.build.tolist() for answer in alone]


def test_many_answers_are_computed_for_fewer_requests_at_once(model):
    """Memory of the exact ranking grows with the number of requests and of answers."""
    part = LoadoutModel(model.network, model.code, model.weapons, "")
    for top, wanted in ((8, [4, 1]), (16, [2, 2, 1])):
        sizes = []
        part.tails = lambda builds, weapon, sizes=sizes: (sizes.append(len(builds)), model.tails(builds, weapon))[1]
        with mock.patch.object(loadout_model, "BATCH", 4):
            part.answers(requests(5, model), "direct", top)
        assert sizes == wanted


def test_builds_are_printed_as_a_player_reads_them(run, capsys):
    assert complete_cli.main([str(run), "--weapon", "splattershot", "--have", "swim_speed_up: main sub sub", "--top", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Splattershot: swim_speed_up: main sub sub" and [line[:2] for line in lines[1::4] if line] == ["1.", "2.", "3."]
    pieces = [line.split()[0] for line in lines[2:5]]
    assert pieces == ["head", "clothes", "shoes"]
    assert sum(line.count("swim_speed_up *") for line in lines[2:5]) == 3 and sum(line.count("%") for line in lines[2:5]) == 9


def test_a_file_of_requests_is_answered_as_json(run, tmp_path, capsys):
    file = tmp_path / "requests.jsonl"
    entries = [{"weapon": "n_zap_85", "have": "comeback"}, {"weapon": "45", "points": {"swim_speed_up": 20}}]
    entries += [{"weapon": "splattershot", "have": "comeback, tenacity"}, {"weapon": "none"}]
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8-sig")  # as editors on Windows write it
    assert complete_cli.main([str(run), "--requests", str(file), "--json", "--top", "2"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(entry["builds"]) for entry in found] == [2, 2, 0, 0]
    assert found[0]["builds"][0]["gear"]["head"]["main"] == "comeback" and found[1]["weapon"] == "sshooter"
    assert found[1]["have"] == "swim_speed_up: main main"
    assert "both need" in found[2]["reason"] and "unknown weapon" in found[3]["reason"]


@pytest.mark.parametrize(
    "options, line",
    [
        (["--weapon", "splatershot"], "did you mean splattershot"),
        (["--weapon", "52gal", "--have", "swim: main"], "unknown ability 'swim'"),
        (["--weapon", "52gal", "--have", "swim_speed_up: sub", "--points", "swim_speed_up: 58"], "whole number from 0 to 57"),
        (["--weapon", "52gal", "--have", "haunt", "--points", "thermal_ink: 10"], "no legal build with the given gear reaches"),
        (["--weapon", "52gal", "--points", "swim_speed_up: 2.5"], "not an ability and a whole number"),
        (["--weapon", "52gal", "--points", "swim_speed_up: \u00b2"], "not an ability and a whole number"),
        (["--weapon", "52gal", "--points", "swim_speed_up: 29, swim_speed_up: 3"], "swim_speed_up are given twice"),
        (["--weapon", "52gal", "--points", "swim_speed_up: 29, Swim Speed Up: 3"], "swim_speed_up are given twice"),
        (["--weapon", "52gal", "--top", "1000000"], "--top is 1000000; it must be from 1 to 1000"),
        (["--weapon", "52gal", "--top", "2", "--method", "closure"], "gives one build"),
        (["--weapon", "52gal", "--top", "0"], "--top is 0; it must be from 1 to 1000"),
        ([], "either --weapon NAME or --requests FILE"),
        (["--requests", "nowhere.jsonl"], "cannot be read"),
        (["--requests", "nowhere.jsonl", "--have", "haunt"], "no effect with --requests"),
        (["--weapon", "52gal", "--checkpoint", "7"], "7"),
    ],
)
def test_mistakes_are_one_line(refused, options, line):
    assert line in refused(*options)


def test_a_file_of_another_form_is_one_line(refused, tmp_path):
    for text, line in {
        '{"weapon": 3}': "line 1",
        '{"weapon": "52gal"}\nnot json': "line 2",
        '{"weapon": "52gal", "top": 1}': "line 1",
        '{"weapon": "52gal", "points": {"haunt": 10, "haunt": 0}}': "line 1",
        "[" * 100_000: "line 1",
        "": "no request",
    }.items():
        (tmp_path / "requests.jsonl").write_text(text)
        assert line in refused("--requests", str(tmp_path / "requests.jsonl"))


def test_a_request_may_have_any_line_break_of_unicode_in_a_text(run, tmp_path, capsys):
    (tmp_path / "requests.jsonl").write_text('{"weapon": "splattershot", "have": "comeback,\u2028swim_speed_up: main"}\n', encoding="utf-8")
    assert complete_cli.main([str(run), "--requests", str(tmp_path / "requests.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["have"] == "comeback, swim_speed_up: main"


def test_damaged_weapons_are_one_line(run, refused):
    file = run / "weapons.json"
    content = file.read_text()
    try:
        for text in ("[" * 100_000, "[3]", content[:-20]):
            file.write_text(text)
            assert "weapons.json is damaged" in refused("--weapon", "45")
    finally:
        file.write_text(content)


def test_a_weapon_without_training_builds_is_named(run, model, capsys):
    """Its embedding keeps its initial values, so it is answered like no weapon in particular."""
    unseen = json.loads((run / "dataset.json").read_text())["unseen_weapons"]
    seen = next(key for key in model.weapons.keys if key not in unseen)
    assert 0 < len(unseen) < len(model.weapons) and model.unseen == {model.weapons.keys.index(key) for key in unseen}
    assert f"{len(unseen)} of 130 weapons have no training build: {unseen[0]}" in (run / "train.log").read_text()
    for weapon, named in ((seen, False), (unseen[-1], True)):
        assert complete_cli.main([str(run), "--weapon", weapon]) == 0
        line = f"no training build has the weapon {model.weapons.name(model.weapons.find(weapon))}"
        assert (line in capsys.readouterr().err) == named


def test_the_model_in_python(model):
    (answer,) = model.complete("splattershot", "swim_speed_up: main", points={"comeback": 10})
    with pytest.raises(ConfigError, match="top is -1; it must be at least 1"):  # as a slice it would leave out one build
        model.complete("splattershot", top=-1)
    assert is_full(answer.build) and (answer.build >= parse_gear("comeback, swim_speed_up: main")).all()
