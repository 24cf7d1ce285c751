"""Choices of `linnaeus serve` and of its requests: precision, heat map, nearest photographs, clade and checklist."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import linnaeus
from linnaeus.errors import ConfigError
from linnaeus.files import file_digest
from linnaeus.workloads.taxonomy.serving import serve_cli
from linnaeus.workloads.taxonomy.serving.http_service import HttpService
from linnaeus.workloads.taxonomy.serving.nearest_photographs import SIDE
from linnaeus.workloads.taxonomy.trained.classifier.place_and_time import metadata_of
from linnaeus.workloads.taxonomy.trained.embed import embed_cli
from linnaeus.workloads.taxonomy.trained.heat_map import heat_map
from tests.workloads.taxonomy.serving.client import exchange
from tests.workloads.taxonomy.serving.test_service import close_to
from tests.workloads.taxonomy.trained.kept_bundle import ZIP


def built(finished, *options: object) -> HttpService:
    return serve_cli.build_service(serve_cli._parse([str(finished.bundle), "--threads", "1", *map(str, options)]), 1)


@pytest.fixture(scope="module")
def model(finished):
    return linnaeus.load_model(finished.bundle)


@pytest.fixture(scope="module")
def service(finished, model, tmp_path_factory) -> HttpService:
    """A service with a checklist of four species, and an index of photographs, of a text that was a photograph, and of a pipe."""
    folder = tmp_path_factory.mktemp("served")
    photographs = [finished.photograph(i) for i in range(12)]
    for name in ("pipe.jpg", "text.jpg"):
        (folder / name).write_bytes(photographs[0].read_bytes())
    (folder / "list.txt").write_text("\n".join([*model.tree.names[-1][:4], "Felis catus"]))
    given = [str(finished.bundle), *map(str, photographs), str(folder / "pipe.jpg"), str(folder / "text.jpg")]
    embed_cli.main([*given, "--without-metadata", "--threads", "1", "--out", str(folder / "features.npy")])
    (folder / "pipe.jpg").unlink()
    os.mkfifo(folder / "pipe.jpg")
    (folder / "text.jpg").write_text("secret")
    return built(finished, "--nearest", folder / "features.npy", "--checklist", f"four={folder / 'list.txt'}")


def post(service: HttpService, photograph: Path, *queries: str) -> list[dict]:
    replies = exchange(service.served, *(("POST", f"/predict?{query}", photograph.read_bytes()) for query in queries))
    assert {reply.status for reply in replies} == {200}, replies
    return [reply.json() | {"model": None} for reply in replies]


def test_a_heat_map_is_computed_on_request_only(finished, model, service):
    image = model.read(finished.photograph(0))
    plain, dated = post(service, finished.photograph(0), "heat_map=false", "heat_map=true&date=2021-05-01")
    assert "heat_map" not in plain
    found, finest = dated["heat_map"], list(dated["path"].items())[-1]
    assert (found["rank"], found["name"], found["lineage"]) == (finest[0], finest[1]["name"], finest[1]["lineage"])
    number = model.answers.lineages[-1].index(found["lineage"])
    expected = heat_map(model, image, metadata_of(1, {"date": "2021-05-01"}), len(model.tree.ranks) - 1, number)
    np.testing.assert_allclose(found["values"], expected, atol=2e-3)


def test_a_taxon_that_is_certain_has_a_heat_map_of_zeros(finished, model):
    """Only one species is possible, by the request or in all of the service; a service for one taxon still has heat maps."""
    name = model.tree.names[-1][2]
    among_one = built(finished, "--clade", name)
    assert among_one.description["heat_map"]
    photograph = finished.photograph(0)
    for service, query in ((built(finished), f"clade={name.replace(' ', '%20')}&heat_map=true"), (among_one, "heat_map=true")):
        answer, other = post(service, photograph, query, "top=1")
        assert not np.any(answer["heat_map"]["values"]) and len(answer["heat_map"]["values"]) > 1
        assert "heat_map" not in other


def test_the_nearest_photographs_and_their_thumbnails(finished, service):
    photograph = finished.photograph(3)
    few, none = post(service, photograph, "nearest=3&date=2021-05-01", "nearest=0")
    assert "nearest" not in none and [set(one) for one in few["nearest"]] == [{"number", "photograph", "cosine"}] * 3
    first = few["nearest"][0]
    assert (first["number"], first["photograph"]) == (3, photograph.name) and first["cosine"] == pytest.approx(1, abs=1e-5)
    (reply,) = exchange(service.served, ("GET", "/nearest/3", b""))
    picture = Image.open(io.BytesIO(reply.body))
    assert (reply.status, reply.headers["content-type"]) == (200, "image/jpeg") and (picture.format, picture.size) == ("JPEG", (SIDE, SIDE))
    shown = np.asarray(picture.resize((8, 8), Image.Resampling.BOX), int)
    own = np.asarray(Image.open(photograph).convert("RGB").resize((8, 8), Image.Resampling.BOX), int)
    assert np.abs(shown - own).mean() < 12


@pytest.mark.parametrize(
    "path", ["12", "13", "14", "-1", "999999999999999999999", "1" * 5000, "3.jpg", "../manifest.csv", "%2e%2e/%2e%2e", "", "3/.."]
)
def test_nothing_else_can_be_read(service, path):
    """12 is a pipe, which would be waited for, 13 a text, and the index has no 14th photograph."""
    (reply,) = exchange(service.served, ("GET", f"/nearest/{path}", b""))
    assert reply.status == 404 and reply.error() and b"secret" not in reply.body


def test_each_request_is_restricted_by_itself(finished, model, service):
    names = model.tree.names[-1][:4]
    photograph = finished.photograph(5)
    queries = [
        "top=9",
        f"clade={names[1]}&top=9",
        "checklist=four&top=9",
        f"checklist=four&clade={names[2]}&top=9",
        "clade=&checklist=&top=9",
    ]
    own = post(service, photograph, *(query.replace(" ", "%20") for query in queries))
    lists = [None, [names[1]], list(names), [names[2]], None]
    for answer, among in zip(own, lists, strict=True):
        assert answer.pop("possible_taxa", {}).get(model.tree.ranks[-1]) == (len(among) if among else None)
        assert close_to(answer, model.predict(photograph.read_bytes(), top=9, among=among).plain() | {"model": None}), among
    (reply,) = exchange(service.served, ("POST", f"/predict?checklist=four&clade={model.tree.names[-1][-1]}".replace(" ", "%20"), b"x"))
    assert reply.status == 400 and "no taxon in common" in reply.error()


@pytest.mark.parametrize(
    ("query", "status", "line"),
    [
        ("clade=Nowhere", 400, "clade: 'Nowhere' is not a taxon of the model; give a name such as"),
        ("clade=%3Cscript%3E", 400, "clade: '<script>' is not a taxon"),
        ("checklist=all", 400, "checklist is 'all', which does not exist; choose four"),
        ("checklist=list.txt", 400, "which does not exist"),
        ("heat_map=yes", 422, "heat_map is 'yes'; it must be true or false"),
        ("nearest=51", 422, "nearest is '51'; it must be from 0 to 50"),
    ],
)
def test_a_choice_that_does_not_exist_is_one_line(finished, service, query, status, line):
    (reply,) = exchange(service.served, ("POST", f"/predict?{query}", finished.photograph(0).read_bytes()))
    assert reply.status == status and line in reply.error()


def test_a_service_describes_its_choices_and_refuses_others(finished, model, service):
    description = service.description
    assert (
        description["nearest"] == 14
        and description["checklists"] == ["four"]
        and description["heat_map"]
        and description["precision"] is None
    )
    bare = built(finished)
    assert bare.description["nearest"] is None and bare.description["checklists"] == []
    photograph = finished.photograph(0).read_bytes()
    asked = exchange(
        bare.served, ("POST", "/predict?nearest=1", photograph), ("POST", "/predict?checklist=a", photograph), ("GET", "/nearest/0", b"")
    )
    assert [reply.status for reply in asked] == [422, 400, 404]
    assert "linnaeus serve --nearest" in asked[0].error() and "the service has none" in asked[1].error()
    bare.served.has_heat_map = False
    (reply,) = exchange(bare.served, ("POST", "/predict?heat_map=true", photograph))
    assert reply.status == 422 and "no spatial feature map" in reply.error()


def test_checklists_for_all_and_by_name():
    assert serve_cli.split_checklists(["a.csv", "near=b=c.csv", "far away=./d"]) == (
        Path("a.csv"),
        {"near": Path("b=c.csv"), "far away": Path("d")},
    )
    assert serve_cli.split_checklists(["./a=b.csv"]) == (Path("a=b.csv"), {})
    with pytest.raises(ConfigError, match="--checklist: a, b are for all requests; give one"):
        serve_cli.split_checklists(["a", "b"])
    with pytest.raises(ConfigError, match="the name 'a' is given twice"):
        serve_cli.split_checklists(["a=b", "a=c"])


def test_photographs_that_are_elsewhere_and_another_index_are_named(finished, model, service, tmp_path, capsys):
    nearest = service.served.nearest
    nearest.files.names = np.array(["gone.jpg"])
    assert nearest.notes() == ["--nearest: no thumbnails: ./gone.jpg does not exist; --photographs gives the folder of the photographs"]
    for options, line in {
        ("--photographs", tmp_path): "--photographs has no effect without --nearest",
        ("--nearest", "a.npy", "--photographs", tmp_path / "no"): "is not a folder; give that of the photographs",
        ("--nearest", tmp_path / "a.npy"): "--nearest: a.npy cannot be read",
    }.items():
        with pytest.raises(ConfigError, match=line):
            built(finished, *options)


def test_the_answers_have_the_precision_of_the_option(finished, tmp_path, capsys):
    """Fit three precisions: two have different answers to the photograph, and no threshold reaches the third one."""
    with zipfile.ZipFile(ZIP) as file:
        file.extractall(tmp_path)
    bundle, photograph = tmp_path / "bundle", tmp_path / "photographs" / "square.png"
    content = json.loads((bundle / "calibration.json").read_text())
    low, usual = content["precisions"]
    content["precisions"] = [low | {"threshold": 0.4}, usual | {"threshold": 0.99}, usual | {"precision": 0.97, "threshold": 2.0}]
    (bundle / "calibration.json").write_text(json.dumps(content))
    described = json.loads((bundle / "config.json").read_text())
    described["files"]["calibration.json"] = file_digest(bundle / "calibration.json")
    (bundle / "config.json").write_text(json.dumps(described))
    model, fitted = linnaeus.load_model(bundle), "(calibrated for 0.8, 0.95, 0.97)"
    for precision, rank, note in (
        (0.8, "species", f"precision of the answers: 0.8 {fitted}"),
        (0.97, None, f"no answers: no threshold reaches the precision 0.97 {fitted}; use --precision 0.8 or --precision 0.95"),
        (None, "class", f"precision of the answers: 0.95 {fitted}"),
    ):
        options = [] if precision is None else ["--precision", str(precision)]
        service = serve_cli.build_service(serve_cli._parse([str(bundle), "--threads", "1", *options]), 1)
        assert note in capsys.readouterr().out.splitlines() and service.description["precision"] == (precision or 0.95)
        for query in ("top=2&clade=Aves", "top=2"):
            (answer,) = post(service, photograph, query)
            expected = model.predict(photograph.read_bytes(), top=2, precision=precision, among=["Aves"] if "clade" in query else None)
            assert answer["precision"] == (precision or 0.95) and (answer.pop("possible_taxa", None) is not None) == ("clade" in query)
            assert close_to(answer, expected.plain() | {"model": None})
        assert (answer["answer"] or {"rank": None})["rank"] == rank
    for path, value, line in (
        (bundle, "0.9", "precision is 0.9; the model is calibrated for 0.8, 0.95, 0.97"),
        (finished.bundle, "0.9", "precision needs a calibrated model; calibrate it with `linnaeus calibrate RUN`"),
    ):
        with pytest.raises(ConfigError, match=line):
            serve_cli.build_service(serve_cli._parse([str(path), "--threads", "1", "--precision", value]), 1)
