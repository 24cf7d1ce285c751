"""`--region`: tables of taxa and regions, and predictions, scores and services among the taxa of a region."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import linnaeus
import linnaeus.__main__
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.serving import serve_cli
from linnaeus.workloads.taxonomy.trained.classifier.possible_taxa import restrict
from linnaeus.workloads.taxonomy.trained.predict import predict_cli
from linnaeus.workloads.taxonomy.trained.restrictions.regions import Regions, split_region
from tests.workloads.taxonomy.serving.client import exchange
from tests.workloads.taxonomy.serving.test_service import close_to
from tests.workloads.taxonomy.trained.test_restriction import INDEX, names_of

TABLE = """scientificName,region
Quercus robur L.,Here
Fagus sylvatica,Here
"Puma concolor (Linnaeus, 1771)",There
Quercus robur,There
Felis catus,There
Felidae,"West, Bank"
Morus bassanus,
"""


def table(folder: Path, text: str = TABLE) -> Path:
    (folder / "regions.csv").write_text(text)
    return folder / "regions.csv"


def test_a_table_of_taxa_and_regions(tmp_path):
    regions = Regions(table(tmp_path), INDEX)
    assert regions.names == ["Here", "There", "West, Bank"]
    assert names_of(regions.restriction("Here")) == {"Quercus robur", "Fagus sylvatica"}
    there = regions.restriction("There")
    assert names_of(there) == {"Quercus robur", "Puma concolor"} and there.unmatched == ("Felis catus",)
    assert names_of(regions.restriction("West, Bank")) == {"Puma concolor", "Iris"}
    codes = Regions(table(tmp_path, "species\tcountryCode\tcountry\nQuercus robur\tNL\tNetherlands\n"), INDEX)
    assert codes.names == ["NL"] and names_of(codes.restriction("NL")) == {"Quercus robur"}


def test_the_country_code_of_namibia_is_a_region(tmp_path):
    text = "species,countryCode\nQuercus robur,NL\nFagus sylvatica,NA\nPuma concolor,NA\nMorus alba,\nNA,NL\n"
    regions = Regions(table(tmp_path, text), INDEX)
    assert regions.names == ["NA", "NL"] and names_of(regions.restriction("NA")) == {"Fagus sylvatica", "Puma concolor"}
    assert regions.notes == ["1 row of regions.csv left out: no name", "1 row of regions.csv left out: no countrycode"]
    missing = Regions(table(tmp_path, "species,region,countryCode\nQuercus robur,NA,NL\nFagus sylvatica,,NL\n"), INDEX)
    assert missing.names == ["NL"] and not missing.notes, "a column of NA alone has no regions if another column has them"


@pytest.mark.parametrize(
    ("region", "text", "line"),
    [
        ("Here", TABLE, "--region: 'Here' is not NAME=FILE; give a region and the table that has its taxa"),
        ("=regions.csv", TABLE, "is not NAME=FILE"),
        ("Nowhere=regions.csv", TABLE, "region: 'Nowhere' is not in regions.csv, which has Here, There, West, Bank"),
        ("Here=gone.csv", TABLE, "--region: 'gone.csv' does not exist; give a table of taxa and regions"),
        (
            "Here=regions.csv",
            "scientificName\nQuercus robur\n",
            "--region: 'regions.csv' has no column of regions with values; name one region",
        ),
        ("Here=regions.csv", "region,n\nHere,1\n", "--region: 'regions.csv' has no column of names"),
        ("Here=regions.csv", "region,species\nHere,Felis catus\n", "region 'Here': no taxon of the model among 1 name: Felis catus"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, monkeypatch, region, text, line):
    monkeypatch.chdir(tmp_path)
    table(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        name, path = split_region(region)
        Regions(path, INDEX).restriction(name)
    assert line in str(error.value) and "\n" not in str(error.value)


@pytest.fixture(scope="module")
def model(finished):
    return linnaeus.load_model(finished.bundle)


@pytest.fixture(scope="module")
def own(model, tmp_path_factory) -> Path:
    """Return a table of two regions: three species, and the others."""
    names = model.tree.names[-1]
    rows = [f"{name},{'A' if i < 3 else 'B=C'}" for i, name in enumerate(names)]
    return table(tmp_path_factory.mktemp("regions"), "\n".join(["taxon,region", *rows, "Felis catus,A"]))


def test_predictions_are_among_the_taxa_of_the_region(finished, model, own, tmp_path, capsys):
    here = linnaeus.load_model(finished.bundle, region=f"A={own}")
    assert here.restriction.unmatched == ("Felis catus",) and here.restriction.counts()[model.tree.ranks[-1]] == 3
    photograph = finished.photograph(0)
    expected = model.predict(photograph, among=list(model.tree.names[-1][:3]))
    assert here.predict(photograph) == expected
    out = tmp_path / "out.json"
    assert predict_cli.main([str(finished.bundle), str(photograph), "--region", f"A={own}", "--threads", "1", "--out", str(out)]) == 0
    assert "1 name not among the taxa of the model: Felis catus" in capsys.readouterr().out
    found = json.loads(out.read_text())["predictions"][0]
    assert close_to(found["path"], expected.plain()["path"]) and (tmp_path / "out.json.unmatched.txt").read_text() == "Felis catus\n"
    with pytest.raises(ConfigError, match="no taxon in common"):
        restrict(model, None, [model.tree.names[-1][5]], f"A={own}")


def test_scores_are_of_the_photographs_whose_taxon_is_possible(finished, model, own, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torch.set_num_threads", lambda threads: None)
    rank, names = model.tree.ranks[-1], model.tree.names[-1]
    rows = [row for row in finished.rows() if row[rank] in names[:3]]
    lost = sum(row[rank] in names[3:] for row in finished.rows())
    words = ["evaluate", finished.bundle, "--manifest", finished.manifest, "--region", f"A={own}", "--output", tmp_path / "scores"]
    assert linnaeus.__main__.main([*map(str, words)]) == 0
    printed = capsys.readouterr().out
    assert f"not scored at rank {rank}: {lost} photographs of a taxon that is not possible" in printed
    assert f"{rank} 3 of {model.tree.sizes[-1]}" in printed and "Felis catus" in printed
    metrics = json.loads((tmp_path / "scores" / "metrics.json").read_text())["metrics"]
    found = model.restricted(list(names[:3])).predict([finished.manifest.parent / row["path"] for row in rows])
    right = np.mean([one.path[-1].name == row[rank] for one, row in zip(found, rows, strict=True)])
    assert metrics[f"val_mask_meta/{rank}/top1"] == pytest.approx(right) and metrics[f"val/{rank}/loss"] < 20


def test_a_request_chooses_its_region(finished, model, own):
    built = lambda *options: serve_cli.build_service(serve_cli._parse([str(finished.bundle), "--threads", "1", *options]), 1)
    service, photograph = built("--region", str(own)), finished.photograph(0).read_bytes()
    assert service.description["regions"] == ["A", "B=C"]
    beside = own.parent / "a=b.csv"
    beside.write_bytes(own.read_bytes())
    assert built("--region", str(beside)).description["regions"] == ["A", "B=C"], "a path with = in it"
    assert built("--region", f"A={beside}").description["regions"] == []
    queries = ["region=A", f"region=A&clade={model.tree.names[-1][1]}".replace(" ", "%20"), "region=D"]
    replies = exchange(service.served, *(("POST", f"/predict?{query}", photograph) for query in queries))
    for reply, among in zip(replies, (model.tree.names[-1][:3], model.tree.names[-1][1:2]), strict=False):
        answer = reply.json()
        assert answer["possible_taxa"][model.tree.ranks[-1]] == len(among)
        assert close_to(answer["path"], model.predict(photograph, among=list(among)).plain()["path"])
    assert replies[2].status == 400 and "region: 'D' is not in regions.csv, which has A, B=C" in replies[2].error()
    of_all = built("--region", f"A={own}")
    assert of_all.description["possible_taxa"][model.tree.ranks[-1]] == 3 and of_all.description["regions"] == []
    (reply,) = exchange(of_all.served, ("POST", "/predict?region=A", photograph))
    assert reply.status == 400 and "the service has no table of regions" in reply.error()
