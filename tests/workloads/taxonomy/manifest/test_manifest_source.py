"""Test the manifest as a source: rows left out are counted, errors have one line, and equal data have equal fingerprints."""

import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from linnaeus.config import compose
from linnaeus.errors import ConfigError
from linnaeus.workloads import build_workload
from linnaeus.workloads.taxonomy.images import jpeg
from linnaeus.workloads.taxonomy.manifest import build_source
from linnaeus.workloads.taxonomy.observations import VALIDATION
from tests.workloads.taxonomy.trees import is_path

PLANTS = Path(__file__).resolve().parents[5] / "shared/data/plants480/manifest.csv"


def rows(count=40, **extra):
    return [
        {"path": f"{i}.png", "kingdom": "P", "family": f"F{i % 2}", "genus": f"G{i % 4}", "species": f"S{i % 4}"} | extra
        for i in range(count)
    ]


def noted(source, text):
    return any(text in note for note in source.notes)


def test_a_plain_manifest(build_rows):
    source = build_rows(rows())
    assert source.tree.ranks == ("family", "genus", "species") and source.tree.sizes == (2, 4, 4)
    assert noted(source, "left out because they have fewer than two classes: kingdom")
    assert source.labels.dtype == np.int64 and (source.labels >= 0).all() and is_path(source.tree, source.labels).all()
    assert (source.split == VALIDATION).sum() == pytest.approx(8, abs=4) and source.group is None
    assert source.tree.lineage_ids("species")[0] == "P|F0|G0|S0"
    assert source.ids.tolist() == [f"{i}.png" for i in range(40)]  # in the order of the manifest
    assert source.images.read(np.array([3]))[0].shape == (5, 6, 3)
    assert pickle.loads(pickle.dumps(source)).fingerprint == source.fingerprint


def test_null_labels_and_rows_without_labels(build_rows):
    table = rows()
    table[0] |= {"species": "", "genus": "unknown"}
    table[1] |= {"species": "Genus sp."}
    table[2] |= dict.fromkeys(("kingdom", "family", "genus", "species"), "NA")
    table[3] |= dict.fromkeys(("family", "genus", "species"), "")  # only the kingdom, which is not predicted
    source = build_rows(table)
    assert source.labels[0].tolist() == [0, -1, -1] and source.labels[1, 2] == -1
    assert source.excluded == {"no label at any rank": 1, "no label at the predicted ranks": 1}
    assert len(source.labels) == 38 and noted(source, "species: 3 of 39 rows without a name")


def test_missing_and_empty_files_are_named_up_to_a_limit_and_undecodable_ones_are_kept(write_manifest, manifest_config):
    path = write_manifest(rows())
    (path.parent / "5.png").unlink()
    (path.parent / "6.png").write_bytes(b"")
    (path.parent / "7.png").write_text("no photograph")
    write_manifest([*rows(), rows(1)[0] | {"path": ""}], photographs=False)
    source = build_source(manifest_config(path, max_bad_fraction=0.1))
    assert source.excluded == {"no image path": 1, "image file missing": 1, "image file empty": 1}
    assert set(source.unreadable) == {("5.png", "image file missing"), ("6.png", "image file empty"), ("row 41", "no image path")}
    assert len(source.ids) == 38
    with pytest.raises(ConfigError, match=r"data.max_bad_fraction: 3 of 41 .*5.png \(image file missing\)"):
        build_source(manifest_config(path, max_bad_fraction=0.07))


@pytest.mark.parametrize(
    ("name", "there", "difference"),
    [
        ("B\u00f6cke 1.png", "Bo\u0308cke 1.png", "the encoding of accents"),
        ("IMG_1.png", "img_1.PNG", "upper and lower case"),
        ("IMG_1", "img_1.png", "the ending"),
        ("IMG_1.png", "IMG_2.png", None),
    ],
)
def test_an_error_about_missing_files_names_one_that_looks_the_same(write_manifest, manifest_config, name, there, difference):
    path = write_manifest(rows())
    (path.parent / "5.png").rename(path.parent / there)
    write_manifest([row | {"path": name if row["path"] == "5.png" else row["path"]} for row in rows()], photographs=False)
    with pytest.raises(ConfigError, match=r"\(image file missing\)") as raised:
        build_source(manifest_config(path, max_bad_fraction=0.0))
    text = f"the folder has {there!r}, which differs from {name!r} in {difference}" if difference else "check data.root"
    assert text in str(raised.value)


def test_an_error_about_a_manifest_whose_files_are_all_missing_says_where_one_was_looked_for(write_manifest, manifest_config):
    path = write_manifest([row | {"path": f"photos/{row['path']}"} for row in rows()], photographs=False)
    file = str(path.parent / "photos" / "0.png")
    for fraction, line in ((0.0, "data.max_bad_fraction: 40 of 40"), (1.0, "data.path: no row of ")):
        with pytest.raises(ConfigError, match=f"{line}.*; there is no file {re.escape(repr(file))}; check data.root"):
            build_source(manifest_config(path, max_bad_fraction=fraction))


def test_a_taxon_in_two_spellings_is_noted_and_kept_as_two_taxa(build_rows):
    named = [row | {"species": f"Bellis {'abcd'[i % 4] * 3}"} for i, row in enumerate(rows())]
    assert not noted(build_rows(named), "spelling")
    for row in named[::8]:
        row["species"] += " L."  # five of the ten rows of this species
    named[1]["species"] = "Bellis BBB"
    source = build_rows(named)
    assert source.tree.sizes[-1] == 6
    (line,) = [note for note in source.notes if "spelling" in note]
    assert line.startswith("species: 2 taxa probably in several spellings, kept apart as different taxa: ")
    assert "'Bellis aaa' (5 rows)" in line and "'Bellis aaa L.' (5 rows)" in line and "'Bellis BBB' (1 row)" in line


def test_names_of_which_each_has_an_ending_like_an_author_are_not_noted(build_rows):
    endings = ["Low 1.5%", "Full 3.5%", "(Mill.)", "L."]
    assert not noted(build_rows([row | {"species": f"milk {endings[i % 4]}"} for i, row in enumerate(rows())]), "spelling")


def test_a_line_names_the_slower_decoder_only_where_simplejpeg_is_missing(build_rows, monkeypatch):
    monkeypatch.setattr(jpeg, "simplejpeg", object())
    assert not noted(build_rows(rows()), "simplejpeg")
    monkeypatch.setattr(jpeg, "simplejpeg", None)
    assert noted(build_rows(rows()), "pip install simplejpeg")


def test_duplicates_homonyms_and_case_differences_are_noted(build_rows):
    table = [*rows(), rows()[0]]
    table[1] |= {"genus": "G0", "species": "s1"}
    source = build_rows(table)
    assert noted(source, "photograph that occurs in an earlier row: 1 of 41")
    table[-1] |= {"species": table[1]["species"]}
    assert noted(build_rows(table), "photograph that occurs in an earlier row with another taxon: 1 of 41")
    assert noted(source, "names that differ only in case")
    assert noted(source, "genus: 1 name under several parents") and noted(source, "P|F1|G0 (1 row)")


def test_missing_ancestors_are_filled_from_other_rows_and_noted(build_rows):
    table = rows()
    table[8] |= {"genus": ""}
    source = build_rows(table)
    assert source.tree.sizes == (2, 4, 4) and source.labels[8].tolist() == source.labels[0].tolist()
    assert noted(source, "1 row with a taxon but not all its ancestors")


def test_taxa_that_occur_only_in_validation_become_null(build_rows):
    table = [row | {"split": "val" if i % 5 == 0 else "train"} for i, row in enumerate(rows())]
    table[0] |= {"species": "new", "genus": "alsonew"}
    source = build_rows(table, split_column="split")
    assert source.labels[0].tolist() == [0, -1, -1] and source.tree.sizes == (2, 4, 4)
    assert noted(source, "species: 1 label set to null, of 1 taxon only in validation (new)")
    assert np.flatnonzero(source.split == VALIDATION).tolist() == list(range(0, 40, 5))


def test_groups_stay_together(build_rows):
    table = [row | {"observation": f"o{i // 8 * 4 + i % 4}"} for i, row in enumerate(rows(80))]
    source = build_rows(table, group_column="observation")
    assert all(len(np.unique(source.split[source.group == g])) == 1 for g in np.unique(source.group))
    divided = [row | {"split": "val" if i < 4 else "train"} for i, row in enumerate(table)]
    source = build_rows(divided, group_column="observation", split_column="split")
    assert noted(source, "on both sides of the split in the manifest: 4 groups of 'observation'")


def test_ranks_can_be_selected_and_have_any_name(build_rows):
    assert build_rows(rows(), ranks=["family", "species"]).tree.ranks == ("family", "species")
    assert build_rows(rows(), rank_columns={"clade": "family", "kind": "species"}).tree.ranks == ("clade", "kind")
    upper = [{k.capitalize() if k != "path" else k: v for k, v in row.items()} for row in rows()]
    assert build_rows(upper).tree.ranks == ("family", "genus", "species")


@pytest.mark.parametrize("count", [31, 32])
def test_more_ranks_than_metrics_can_record_are_refused_in_a_line(count, write_manifest):
    table = [{"path": f"{i}.png"} | {f"r{r}": f"{r}-{i % 4}" for r in range(count)} for i in range(40)]
    data = ["data=manifest", f"data.path={write_manifest(table)}", "data.components=[]"]
    config = compose([*data, f"data.rank_columns={{{','.join(f'r{r}: r{r}' for r in range(count))}}}"])
    if count == 32:
        with pytest.raises(ConfigError, match=r"data.ranks: 32 ranks to predict; set at most 31 of them, such as \[r29,r30,r31\]"):
            build_workload(config)
    else:
        assert build_workload(config).metrics(torch.device("cpu")).counts


def test_a_split_without_divisible_species_is_stratified_by_a_coarser_rank(build_rows):
    table = [row | {"species": f"S{i}", "genus": f"G{i}"} for i, row in enumerate(rows())]
    source = build_rows(table)
    assert noted(source, "stratified by family") and 4 <= (source.split == VALIDATION).sum() <= 12
    assert (source.labels[source.split == VALIDATION][:, 0] >= 0).all()
    named = build_rows(table, ranks=["family"])
    assert not noted(named, "stratified by family")  # no note: family is the predicted rank


def test_metadata_and_components_without_a_column(build_rows):
    table = [row | {"lat": 10 + i, "lon": 0, "on": "2021-07-02"} for i, row in enumerate(rows())]
    columns = {"latitude_column": "lat", "longitude_column": "lon", "date_column": "on"}
    source = build_rows(table, components=["SPATIAL", "TEMPORAL", "ELEVATION"], **columns)
    assert source.metadata.latitude[3] == 13 and np.isnan(source.metadata.elevation).all()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"image_column": "Path"},
            "data.image_column: the manifest does not have a column 'Path' (did you mean 'path'?); the columns are path, kingdom",
        ),
        ({"date_column": "when"}, "data.date_column: the manifest does not have a column 'when'"),
        ({"rank_columns": {"genus": "Gattung"}}, "data.rank_columns.genus: the manifest does not have a column 'Gattung'"),
        ({"latitude_column": "path"}, "data.longitude_column must be set together"),
        ({"elevation_missing": 0.0}, "data.elevation_missing has no effect"),
        ({"uncertainty_column": "path"}, "data.uncertainty_column has no effect"),
        ({"ranks": ["genus", "tribe"]}, "data.ranks: 'tribe' is not a taxonomic rank of the data; use kingdom, family"),
        ({"ranks": ["kingdom", "genus"]}, "data.ranks: 'kingdom' has 1 class"),
        ({"ranks": ["species", "genus"]}, "coarse to fine; set ['genus', 'species']"),
        ({"ranks": []}, "data.ranks"),
        ({"root": "nowhere"}, "data.root: 'nowhere' is not a folder"),
        ({"validation_fraction": 0.0}, "data.validation_fraction: 0 of 40 photographs leaves no validation rows; set a larger fraction"),
        (
            {"validation_fraction": 0.0, "group_column": "genus"},
            "groups of 'genus' leaves no validation rows; set a larger fraction, or anoth",
        ),
        ({"validation_fraction": 1.0}, "data.validation_fraction: 1 leaves no training rows"),
        ({"split_column": "genus"}, "data.split_column: 'genus' contains 'G0', 'G1'"),
    ],
)
def test_mistakes_are_errors_of_one_line(build_rows, keys, message):
    with pytest.raises(ConfigError) as caught:
        build_rows(rows(), **keys)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_manifest_without_ranks_classes_or_file_is_an_error(build_rows, manifest_config, tmp_path):
    with pytest.raises(ConfigError, match="no column is named like a taxonomic rank"):
        build_rows([{"path": "a.png", "label": "x"}])
    with pytest.raises(ConfigError, match=r"coarse to fine: .data.rank_columns=\{group: group, item: item\}"):
        build_rows([{"path": "a.png", "group": "x", "item": "y"}], ranks=["group", "item"])
    with pytest.raises(ConfigError, match="more than one class"):
        build_rows([{"path": f"{i}.png", "species": "x"} for i in range(9)])
    with pytest.raises(ConfigError, match=r"data\.path"):
        build_source(manifest_config(tmp_path / "absent.csv"))


def test_the_fingerprint_changes_with_the_data_and_nothing_else(build_rows, write_manifest, manifest_config, tmp_path):
    first = build_rows(rows()).fingerprint
    moved = tmp_path / "elsewhere"
    shutil.copytree(tmp_path, moved, ignore=shutil.ignore_patterns("elsewhere"))
    assert build_source(manifest_config(moved / "manifest.csv")).fingerprint == first
    assert build_rows(rows(), split_seed=1).fingerprint != first
    assert build_rows([rows()[0] | {"species": "S1"}, *rows()[1:]]).fingerprint != first
    assert build_rows(rows()).fingerprint == first
    (tmp_path / "2.png").write_bytes((tmp_path / "2.png").read_bytes() + b"x")  # another photograph under the same name
    assert build_rows(rows()).fingerprint != first


@pytest.mark.skipif(not PLANTS.exists(), reason=f"needs the real data in {PLANTS}")
def test_real_plants(manifest_config):
    source = build_source(manifest_config(PLANTS, date_column="date", group_column="observation"))
    assert np.isfinite(source.metadata.day).any()
    assert source.tree.ranks == ("class", "order", "family", "genus", "species") and source.tree.sizes == (4, 9, 9, 13, 16)
    assert noted(source, "left out because they have fewer than two classes: kingdom, phylum") and not source.excluded
    counts = np.bincount(source.labels[source.split == VALIDATION][:, 4])
    assert len(source.ids) == 480 and counts.tolist() == [6] * 16
    photographs = source.images.read(np.arange(0, 480, 40))
    assert all(p.dtype == np.uint8 and min(p.shape[:2]) == 64 and p.shape[2] == 3 for p in photographs)
    with pytest.raises(ConfigError, match="'phylum' has 1 class"):
        build_source(manifest_config(PLANTS, ranks=["phylum", "species"]))


def test_weights_of_rows_are_relative_to_the_mean_of_the_training_rows(build_rows):
    table = [row | {"w": str(1 + i % 4), "side": "val" if i < 8 else "train"} for i, row in enumerate(rows())]
    table[9] |= {"w": ""}
    table[10] |= {"w": "0"}
    table[11] |= {"w": "much"}
    keys = {"weight_column": "w", "split_column": "side"}
    source = build_rows(table, **keys)
    given = np.array([1 + i % 4 for i in range(40)], dtype=float)
    given[[9, 10, 11]] = 1, 0, 1
    mean = given[8:].mean()
    assert source.weight.dtype == np.float32 and source.weight == pytest.approx(given / mean)
    assert source.weight[8:].mean() == pytest.approx(1, rel=1e-6)
    assert noted(source, f"weights of 'w': 0 to 4, mean {mean:g} over the training rows")
    assert noted(source, "2 rows without a weight in 'w' got 1")
    assert noted(source, "1 training row with weight 0, without effect")
    assert noted(source, "weight: not a number, set to missing: 1 of 40 rows, first 11.png")
    plain = build_rows(table, split_column="side")
    assert plain.weight is None and plain.fingerprint != source.fingerprint
    table[12] |= {"w": "3.5"}
    assert build_rows(table, **keys).fingerprint != source.fingerprint


def test_impossible_weights_are_an_error(build_rows):
    table = rows(w="0")
    with pytest.raises(ConfigError, match="every training row has weight 0 in 'w'"):
        build_rows(table, weight_column="w")
    table[20] |= {"w": "-2"}
    with pytest.raises(ConfigError, match=r"data\.weight_column: 'w' of '20\.png' is -2; it must be at least 0"):
        build_rows(table, weight_column="w")
