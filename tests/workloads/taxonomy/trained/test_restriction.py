"""Predictions among the taxa that are possible: laws, names with authorship and homonyms, files of names, and mistakes of the user."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import linnaeus
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.trained.calibrate import calibrate_cli, calibration_fit, labelled
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
from linnaeus.workloads.taxonomy.trained.predict import predict_cli
from linnaeus.workloads.taxonomy.trained.probabilities.calibration import Calibration
from linnaeus.workloads.taxonomy.trained.probabilities.class_probabilities import only_possible
from linnaeus.workloads.taxonomy.trained.probabilities.familiarity import familiarity
from linnaeus.workloads.taxonomy.trained.restrictions import zipped_table
from linnaeus.workloads.taxonomy.trained.restrictions.checklist import read_checklist
from linnaeus.workloads.taxonomy.trained.restrictions.restriction import Listed, Row, of_clades, of_rows
from linnaeus.workloads.taxonomy.trained.restrictions.taxon_index import TaxonIndex
from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from tests.workloads.taxonomy.test_heads import CONFIGS, TEMPERATURE, every, make, node_probabilities
from tests.workloads.taxonomy.test_scores import some_leaves
from tests.workloads.taxonomy.trees import chain

RANKS = ("kingdom", "class", "order", "family", "genus", "species")
LINEAGES = (
    "Plantae Magnoliopsida Fagales Fagaceae Quercus robur",
    "Plantae Magnoliopsida Fagales Fagaceae Quercus petraea",
    "Plantae Magnoliopsida Fagales Fagaceae Fagus sylvatica",
    "Plantae Magnoliopsida Rosales Moraceae Morus alba",
    "Animalia Aves Suliformes Sulidae Morus bassanus",
    "Animalia Mammalia Carnivora Felidae Puma concolor",
    "Animalia Mammalia Carnivora Felidae Iris",  # without a species; also a genus of plants
    "Plantae Liliopsida Asparagales Iridaceae Iris douglasiana",
    "Animalia Mammalia Iris",  # an order of the same name
)


def small_tree() -> TaxonomyTree:
    rows = []
    for line in LINEAGES:
        cells = line.split()
        rows.append([*cells[:5], f"{cells[4]} {cells[5]}"] if len(cells) == 6 else [*cells, *[""] * (6 - len(cells))])
    return TaxonomyTree.from_lineages(RANKS, np.array(rows))[0]


INDEX = TaxonIndex(small_tree())
FINEST = INDEX.tree.names[-1]


def name_of(node: int) -> str:
    rank = int(INDEX.tree.node_rank[node])
    return INDEX.tree.names[rank][node - INDEX.tree.offsets[rank]]


def names_of(found) -> set[str]:
    """Return the names of the allowed leaves."""
    return {name_of(node) for node in np.flatnonzero(found.leaves).tolist()}


def listed(*names: str):
    return of_rows(INDEX, [Row(name, (Listed(name),)) for name in names], "list")


# -- names -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Quercus robur", {"species Quercus robur"}),
        ("  Quercus   robur L. ", {"species Quercus robur"}),
        ("Puma concolor (Linnaeus, 1771)", {"species Puma concolor"}),
        ("Quercus petraea (Matt.) Liebl.", {"species Quercus petraea"}),
        ("Fagus sylvatica de Vries", {"species Fagus sylvatica"}),
        ("Quercus L.", {"genus Quercus"}),
        ("Felidae Fischer, 1817", {"family Felidae"}),
        ("Quercus Robur", set()),  # not the genus
        ("Quercus rubra L.", set()),
        ("Quercus robur var. alba", set()),
        ("Quercus sp.", set()),
        ("Morus", {"genus Morus"}),
        ("Plantae|Magnoliopsida|Rosales|Moraceae|Morus", {"genus Morus"}),
        ("order:Iris", {"order Iris"}),
        ("Iris", {"order Iris", "genus Iris"}),
        ("quercus robur", set()),
        ("", set()),
    ],
)
def test_a_name_is_matched_with_and_without_its_authorship(text, expected):
    assert {f"{INDEX.tree.ranks[INDEX.tree.node_rank[node]]} {name_of(node)}" for node in INDEX.nodes(text)} == expected


def test_homonyms_are_told_apart_by_rank_or_lineage():
    assert len(INDEX.nodes("genus:Morus")) == 2 and len(INDEX.nodes("Plantae|Magnoliopsida|Rosales|Moraceae|Morus")) == 1
    found = listed("Morus", "Quercus")
    assert found.unmatched == ("Morus (the name of several taxa)",) and names_of(found) == {"Quercus robur", "Quercus petraea"}
    with pytest.raises(ConfigError, match=r"several taxa; choose .*genus:Animalia\|Aves\|Suliformes\|Sulidae\|Morus") as error:
        of_clades(INDEX, ["Morus"])
    described = str(error.value).partition("choose ")[2].split(", ")
    assert [names_of(of_clades(INDEX, [one])) for one in described] == [{"Morus bassanus"}, {"Morus alba"}]


def test_the_labels_of_calibrate_are_matched_alike():
    rows = np.array([["Plantae", "", "", "", "", "Quercus robur L."], ["Plantae", "", "", "", "", "Quercus rubra L."]])
    theirs, labels = TaxonomyTree.from_lineages(RANKS, rows)
    found = labelled.matched(theirs, labels, INDEX.tree)
    assert FINEST[found.labels[0, -1]] == "Quercus robur" and found.unknown[:, -1].tolist() == [False, True]


PLANTS = ("Plantae", "Magnoliopsida", "Rosales", "Moraceae", "Morus")
BIRDS = ("Animalia", "Aves", "Suliformes", "Sulidae", "Morus")


@pytest.mark.parametrize("ranks", [RANKS[3:5], RANKS[1:5], ("kingdom", "phylum", *RANKS[1:5])])
def test_homonyms_of_the_model_are_told_apart_by_the_coarser_ranks_of_a_table(ranks, tmp_path):
    """The tables have fewer or more ranks than the model, so that no lineage is equal."""
    rows = np.array([[dict(zip(RANKS, line, strict=False)).get(rank, "some") for rank in ranks] for line in (PLANTS, BIRDS)])
    theirs, labels = TaxonomyTree.from_lineages(ranks, rows)
    found = labelled.matched(theirs, labels, INDEX.tree)
    families = [INDEX.tree.names[3][c] for c in INDEX.tree.ancestors("genus", found.labels[:, 4], "family")]
    assert families == ["Moraceae", "Sulidae"] and not found.unknown.any()
    (tmp_path / "list.csv").write_text("\n".join(",".join(line) for line in (ranks, rows[1])))
    assert names_of(read_checklist(tmp_path / "list.csv", INDEX)[0]) == {"Morus bassanus"}


def test_a_homonym_that_the_model_does_not_have_is_not_matched(tmp_path):
    """Check two cases: a homonym that the model lacks is not matched, and a genus that was moved to another family is."""
    plants = [line.split() for line in LINEAGES if line.startswith("Plantae") and len(line.split()) == 6]
    index = TaxonIndex(TaxonomyTree.from_lineages(RANKS, np.array(plants))[0])
    moved = ("Plantae", "Magnoliopsida", "Rosales", "Urticaceae", "Morus")
    theirs, labels = TaxonomyTree.from_lineages(RANKS[:5], np.array([BIRDS, PLANTS, moved]))
    found = labelled.matched(theirs, labels, index.tree)
    assert [index.tree.names[4][c] if c >= 0 else None for c in found.labels[:, 4]] == [None, "Morus", "Morus"]
    assert found.unknown[:, 4].tolist() == [True, False, False]
    header, oaks = "scientificName,taxonRank,kingdom,class,order,family,genus\n", ("", "", "", "", "Quercus")
    for rank in ("GENUS", ""):
        rows = [",".join([f"{line[4]} {author}", rank, *line]) for line, author in ((BIRDS, "Vieill."), (oaks, "L."))]
        (tmp_path / "list.csv").write_text(header + "\n".join(rows))
        found = read_checklist(tmp_path / "list.csv", index)[0]
        assert names_of_index(index, found) == {"robur", "petraea"} and found.unmatched == ("Morus Vieill.",)


def names_of_index(index: TaxonIndex, found) -> set[str]:
    leaves = np.flatnonzero(found.leaves) - index.tree.offsets[-2]
    return {index.tree.names[-1][leaf] for leaf in leaves.tolist()}


# -- lists -----------------------------------------------------------------------------------------------------------------


def test_a_taxon_allows_all_below_it_unless_the_list_has_finer_ones():
    assert names_of(listed("Fagaceae")) == {"Quercus robur", "Quercus petraea", "Fagus sylvatica"}
    found = listed("Plantae", "Fagaceae", "Quercus robur", "Sulidae")
    assert names_of(found) == {"Quercus robur", "Morus bassanus"} and set(found.coarser) == {"Plantae", "Fagaceae"}
    possible = {name_of(node) for node in np.flatnonzero(found.possible).tolist()}
    assert possible == {"Plantae", "Magnoliopsida", "Fagales", "Fagaceae", "Quercus", "Quercus robur"} | {
        *("Animalia", "Aves", "Suliformes", "Sulidae", "Morus", "Morus bassanus")
    }


def test_a_list_and_a_clade_are_combined_by_intersection():
    both = listed("Fagaceae", "Felidae").within(of_clades(INDEX, ["Animalia"]))
    assert names_of(both) == {"Puma concolor", "Iris"}
    assert names_of(of_clades(INDEX, ["Fagus", "Sulidae"])) == {"Fagus sylvatica", "Morus bassanus"}
    assert names_of(of_clades(INDEX, ["Animalia", "Sulidae"])) == names_of(of_clades(INDEX, ["Animalia"])) > {"Morus bassanus"}
    with pytest.raises(ConfigError, match="no taxon in common"):
        listed("Fagaceae").within(of_clades(INDEX, ["Animalia"]))


GBIF = ("taxonKey", "scientificName", "acceptedScientificName", "taxonRank", "taxonomicStatus", *RANKS)


def gbif_list(path: Path) -> Path:
    """Write a list of species in the form of GBIF's download."""
    fagales = {"kingdom": "Plantae", "class": "Magnoliopsida", "order": "Fagales", "family": "Fagaceae", "genus": "Quercus"}
    rows = [
        {"scientificName": "Plantae", "taxonRank": "KINGDOM", "kingdom": "Plantae"},
        {"scientificName": "Quercus L.", "taxonRank": "GENUS", **fagales},
        {"scientificName": "Quercus robur L.", "taxonRank": "SPECIES", **fagales, "species": "Quercus robur"},
        {"scientificName": 'Quercus rubra "L."', "taxonRank": "SPECIES", **fagales, "species": "Quercus rubra"},
        {"scientificName": "Morus bassana (L.)", "taxonRank": "SPECIES", "acceptedScientificName": "Morus bassanus (Linnaeus, 1758)"},
        {"scientificName": "Fagus sylvatica subsp. x Foo", "taxonRank": "SUBSPECIES", "species": "Fagus sylvatica"},
        {"scientificName": "BOLD:AAA1234", "taxonRank": "UNRANKED", "family": "Felidae"},
        {"scientificName": "Morus L.", "taxonRank": "GENUS", "genus": "Morus"}
        | {"kingdom": "Plantae", "class": "Magnoliopsida", "order": "Rosales", "family": "Moraceae"},
        {"taxonKey": "9"},
    ]
    path.write_text("".join("\t".join(row.get(name, "") for name in GBIF) + "\n" for row in [dict(zip(GBIF, GBIF, strict=True)), *rows]))
    return path


def test_the_species_list_of_gbif(tmp_path):
    """Of nine rows a kingdom and a genus have finer taxa, a species and a barcode are not in the model, and one has no name."""
    found, notes = read_checklist(gbif_list(tmp_path / "list.csv"), INDEX)
    assert names_of(found) == {"Quercus robur", "Morus bassanus", "Fagus sylvatica", "Morus alba"}
    assert set(found.unmatched) == {'Quercus rubra "L."', "BOLD:AAA1234"} and set(found.coarser) == {"Plantae", "Quercus L."}
    assert notes == ["1 row of list.csv left out: no name"]


FILES = {
    "lines": "Quercus robur L.\nPuma concolor (Linnaeus, 1771)\n\nFelis catus\n",
    "one column with its name": "scientificName\nQuercus robur L.\nPuma concolor (Linnaeus, 1771)\nFelis catus\n",
    "a byte order mark and CRLF": "\ufeffQuercus robur\r\nPuma concolor\r\nFelis catus\r\n",
    "columns without a header": "1;Eiche;Quercus robur\n2;Puma;Puma concolor\n3;Katze;Felis catus\n",
    "quotes": 'id,"Scientific Name"\n1,"Quercus robur L., 1753"\n2,Puma concolor\n3,Felis catus\n',
    "ranks": "Genus\tSpecies\nQuercus\tQuercus robur\nPuma\tPuma concolor\nFelis\tFelis catus\nQuercus\t\n",
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_names(tmp_path, name):
    path = tmp_path / "list.txt"
    path.write_bytes(FILES[name].encode())
    found, _ = read_checklist(path, INDEX)
    assert names_of(found) == {"Quercus robur", "Puma concolor"}
    assert [text for text in found.unmatched if text != "Felis catus"] == [] and len(found.unmatched) == 1


def test_a_header_that_is_not_known_is_a_name_that_is_not_matched(tmp_path):
    path = tmp_path / "list.csv"
    path.write_bytes("Deutsch,Wissenschaftlich\nEiche,Quercus robur\n".encode("utf-16"))
    assert read_checklist(path, INDEX)[0].unmatched == ("Wissenschaftlich",)


def zipped(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def test_the_species_list_of_gbif_as_it_is_downloaded(tmp_path):
    """GBIF's zip has one table, which is named after the download."""
    content = gbif_list(tmp_path / "list.csv").read_bytes()
    archive = zipped(tmp_path / "0001234-261124.zip", {"0001234-261124.csv": content, "__MACOSX/._0001234-261124.csv": b"?"})
    found, plain = (read_checklist(path, INDEX)[0] for path in (archive, tmp_path / "list.csv"))
    assert names_of(found) == names_of(plain) and found.unmatched == plain.unmatched


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({"a.csv": b"species\nx\n", "b.tsv": b"species\nx\n"}, r"has 2 tables \(a.csv, b.tsv\); give an archive with one"),
        ({"photo.jpg": b""}, r"has 0 tables \(.csv, .tsv, .txt\)"),
        ({"a.csv": b"n,species\n1,Felis catus\n"}, "no taxon of the model among 1 name"),
        ({"a.csv": b"species,n\n"}, "list.zip' has a header but no rows"),
    ],
)
def test_an_archive_without_a_checklist_is_one_line(tmp_path, files, line):
    with pytest.raises(ConfigError, match=line) as error:
        read_checklist(zipped(tmp_path / "list.zip", files), INDEX)
    assert "\n" not in str(error.value) and "table.csv" not in str(error.value)


def test_a_damaged_and_a_huge_archive_are_one_line(tmp_path, monkeypatch):
    archive = zipped(tmp_path / "list.zip", {"a.csv": b"species\n" + b"Quercus robur\n" * 100})
    monkeypatch.setattr(zipped_table, "LARGEST", 100)
    with pytest.raises(ConfigError, match="its table is larger than"):
        read_checklist(archive, INDEX)
    data = bytearray(archive.read_bytes())
    data[40:50] = b"0123456789"
    archive.write_bytes(data)
    with pytest.raises(ConfigError, match=r"list\.zip' cannot be read"):
        read_checklist(archive, INDEX)


def test_packed_files_and_parquet(tmp_path):
    (tmp_path / "list.txt.gz").write_bytes(gzip.compress(b"Quercus robur\n"))
    assert names_of(read_checklist(tmp_path / "list.txt.gz", INDEX)[0]) == {"Quercus robur"}
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"n": [1], "scientificName": ["Quercus robur L."]}), tmp_path / "list.parquet")
    assert names_of(read_checklist(tmp_path / "list.parquet", INDEX)[0]) == {"Quercus robur"}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"Felis catus\nCanis lupus\n", "no taxon of the model among 2 names: Felis catus, Canis lupus; give names such as"),
        (b"", "no names; give names such as"),
        (b"\xff\xfe\0", "no taxon of the model among 1 name"),
        (b"species,n\n", "has a header but no rows"),
        (b"n,species,species\n1,a,b\n", "2 columns named 'species'"),
        (b'n,species\n1,"a\n', "correct the quotes"),
    ],
)
def test_a_file_without_a_taxon_of_the_model_is_one_line(tmp_path, content, line):
    (tmp_path / "list.csv").write_bytes(content)
    with pytest.raises(ConfigError, match=line) as error:
        read_checklist(tmp_path / "list.csv", INDEX)
    assert "--checklist" in str(error.value) and "\n" not in str(error.value)


# -- predictions -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(finished):
    return linnaeus.load_model(finished.bundle)


@pytest.fixture(scope="module")
def photographs(finished) -> list[Path]:
    return [finished.photograph(i) for i in range(8)]


def test_all_taxa_change_nothing_to_the_bit(model, photographs):
    free = model.predict(photographs, top=1000)
    assert model.predict(photographs, top=1000, among=list(model.tree.names[0])) == free
    assert model.predict(photographs, top=1000, among=list(model.tree.names[-1])) == free


def test_a_clade_is_on_every_path_and_the_ratios_below_it_stay(model, photographs):
    rank = next(r for r, size in enumerate(model.tree.sizes) if size > 1)
    free = model.predict(photographs, top=1000)
    for name in model.tree.names[rank]:
        for one, own in zip(model.predict(photographs, top=1000, among=[name]), free, strict=True):
            assert {taxon.rank: taxon.name for taxon in one.path}[model.tree.ranks[rank]] == name
            for taxa, others in zip(one.ranks.values(), own.ranks.values(), strict=True):
                inside = {taxon.lineage: taxon.probability for taxon in others if taxon.lineage in {t.lineage for t in taxa}}
                assert sum(taxon.probability for taxon in taxa) == pytest.approx(1, abs=1e-5)
                for taxon in taxa:
                    assert taxon.probability == pytest.approx(inside[taxon.lineage] / sum(inside.values()), rel=1e-3, abs=1e-6)
    assert {one.path[rank].name for one in free} != {name}  # without the restriction other taxa are answered


def test_the_best_taxon_is_not_answered_where_it_is_impossible(model, photographs):
    free = model.predict(photographs[0], top=1000).ranks[model.tree.ranks[-1]]
    found = model.predict(photographs[0], top=1000, among=[taxon.lineage for taxon in free[1:]]).ranks[model.tree.ranks[-1]]
    assert [taxon.name for taxon in found] == [taxon.name for taxon in free[1:]]


def test_order_batch_and_way_of_a_list_do_not_matter(model, photographs):
    names = list(model.tree.names[-1][:5])
    restricted = model.restricted(names)
    together = restricted.predict(photographs)
    assert model.restricted(names[::-1]).predict(photographs) == together == model.predict(photographs, among=names)
    for photograph, one in zip(photographs, together, strict=True):
        alone = restricted.predict(photograph)
        for taxa, others in zip(alone.ranks.values(), one.ranks.values(), strict=True):
            assert {t.name: pytest.approx(t.probability, abs=1e-5) for t in taxa} == {t.name: t.probability for t in others}
    assert restricted.restricted(names[:1]).predict(photographs[0]).path[-1].name == names[0]
    assert model.restriction is None and len(model.predict(photographs[0], top=1000).ranks[model.tree.ranks[-1]]) > 5


def test_names_that_the_model_does_not_have_are_a_warning(model, photographs):
    names = [model.tree.names[-1][0], "Felis catus"]
    with pytest.warns(UserWarning, match="1 of 2 names not among the taxa of the model: Felis catus"):
        assert model.restricted(names).restriction.unmatched == ("Felis catus",)
    with pytest.raises(ConfigError, match="among: no taxon of the model among 1 name: Felis catus"):
        model.predict(photographs[0], among="Felis catus")
    with pytest.raises(ConfigError, match="among: 5 is not the name of a taxon"):
        model.predict(photographs[0], among=[5])
    with pytest.raises(ConfigError, match="among: no names"):
        model.predict(photographs[0], among=[])


def command(finished, out: Path, *more: str) -> int:
    given = [str(finished.bundle), *(str(finished.photograph(i)) for i in range(4)), "--threads", "1", "--out", str(out)]
    return predict_cli.main([*given, *more])


def test_the_command_writes_all_names_and_counts_taxa(finished, model, tmp_path, capsys):
    names = [*model.tree.names[-1][:3], *(f"Felis catus{i}" for i in range(20))]
    (tmp_path / "list.txt").write_text("\n".join(names))
    for out in ("out.json", "out.csv"):
        assert command(finished, tmp_path / out, "--checklist", str(tmp_path / "list.txt")) == 0
    printed = capsys.readouterr().out
    assert f"{model.tree.ranks[-1]} 3 of {model.tree.sizes[-1]}" in printed and "20 names not among the taxa of the model" in printed
    assert (tmp_path / "out.csv.unmatched.txt").read_text().splitlines() == names[3:]
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["possible_taxa"][model.tree.ranks[-1]] == 3
    with (tmp_path / "out.csv").open(newline="") as file:
        found = [row[model.tree.ranks[-1]] for row in csv.DictReader(file)]
    made = model.restricted(list(names[:3])).predict([finished.photograph(i) for i in range(4)])
    assert found == [one.path[-1].name for one in made] and set(found) <= set(names[:3])


@pytest.mark.parametrize("name", ["speciesnet", "megadetector", "darwin_core"])
def test_other_formats_have_possible_taxa_alone(finished, model, tmp_path, name):
    out = tmp_path / ("out.csv" if name == "darwin_core" else "out.json")
    more = [] if name == "darwin_core" else ["--top", "9"]
    assert command(finished, out, "--format", name, "--clade", model.tree.names[-1][0], *more) == 0
    text = out.read_text().lower()
    assert model.tree.names[-1][0].lower() in text and not any(other.lower() in text for other in model.tree.names[-1][2:])
    assert f"among 1 of {model.tree.sizes[-1]} taxa of rank {model.tree.ranks[-1]}" in text  # a reader of the file knows it


def test_a_journal_of_another_restriction_is_not_continued(finished, model, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(predict_cli, "predictions", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        command(finished, tmp_path / "out.csv", "--clade", model.tree.names[-1][0])
    for more in ((), ("--clade", model.tree.names[-1][1])):
        with pytest.raises(SystemExit):
            command(finished, tmp_path / "out.csv", *more)
        assert "of another model or other photographs" in capsys.readouterr().err
    monkeypatch.undo()
    assert command(finished, tmp_path / "out.csv", "--clade", model.tree.names[-1][0]) == 0


def test_a_calibration_is_said_to_be_without_restriction(finished, model, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(calibration_fit, "FEWEST", 12)
    run = tmp_path / "run"
    shutil.copytree(finished.run, run)
    assert calibrate_cli.main([str(run)]) == 0
    assert predict_cli.main([str(run), str(finished.photograph(0)), "--clade", model.tree.names[-1][0], "--threads", "1"]) == 0
    assert "the calibration was fitted without a restriction" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        predict_cli.main([str(run), str(finished.photograph(0)), "--clade", "Nowhere"])
    assert "--clade: 'Nowhere' is not a taxon of the model" in capsys.readouterr().err


def test_of_taxa_with_one_name_the_highest_is_meant():
    rows = np.array([["Carnivora", "Puma", "Puma"], ["Rosales", "X", "Y"]])
    index = TaxonIndex(TaxonomyTree.from_lineages(("order", "family", "genus"), rows)[0])
    assert [index.described(node) for node in index.nodes("Puma")] == ["family:Carnivora|Puma"]
    assert [index.described(node) for node in index.nodes("genus:Puma")] == ["genus:Carnivora|Puma|Puma"]


def test_an_impossible_class_has_no_probability_and_is_not_on_the_path():
    """Ranks are independent with head=linear, so that the best class of a rank can be impossible."""
    probabilities, path = [torch.tensor([[0.25, 0.75]]), torch.tensor([[1.0]])], torch.tensor([[1, 0]])
    found, columns = only_possible(probabilities, path, torch.tensor([True, False, True]))
    assert [p.tolist() for p in found] == [[[0.25, 0.0]], [[1.0]]] and columns.tolist() == [[-1, 0]]
    assert only_possible(probabilities, path, torch.tensor([True, True, False]))[1].tolist() == [[1, -1]]


@every(CONFIGS)
@torch.no_grad()
def test_a_restriction_divides_the_calibrated_probabilities_by_their_sum(name, kind, null):
    """The expected sums are over allowed leaves, one at a time. A null class counts for the possible taxa above it."""
    tree, _, head, features = make(name, kind, null)
    allowed, possible = some_leaves(tree)
    scores = head.eval()(features)
    model = object.__new__(TrainedClassifier)
    model.tree, model.possible, model.calibration = tree, possible, Calibration("", 1, TEMPERATURE, 0.95, (), {})
    scored = model.scored_of(scores)
    calibrated = scores.tempered(TEMPERATURE)
    mass = torch.zeros(len(features), tree.offsets[-1], dtype=torch.float64)
    if name == "linear":
        mass += torch.cat([p[:, :size].exp() for p, size in zip(calibrated.log_probs(), tree.sizes, strict=True)], 1) * possible
    else:
        nodes, nulls = node_probabilities("conditional", tree, head, calibrated)  # the tempered scores of every head are of this kind
        ends = [(node, nodes[node]) for node in np.flatnonzero(allowed).tolist()]
        for end, p in ends + [(node, p) for node, p in nulls.items() if node >= 0 and possible[node]]:
            mass[:, chain(tree, end)] += p.unsqueeze(1)
    for found, expected in zip(scored.probabilities, mass.split(tree.sizes, 1), strict=True):
        total = expected.sum(1, keepdim=True)
        assert np.allclose(found, torch.where(total > 0, expected / total, 0.0), rtol=1e-9, atol=1e-300)
    assert possible[(scored.path + np.array(tree.offsets[:-1]))[scored.path >= 0]].all()
    whole = [p[:, :size].exp() for p, size in zip(calibrated.log_probs(), tree.sizes, strict=True)]
    assert np.allclose(scored.familiarity, familiarity([p / p.sum(1, keepdim=True) for p in whole])), "familiarity is not restricted"
