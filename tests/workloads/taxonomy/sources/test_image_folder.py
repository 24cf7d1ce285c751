"""`data=image_folder`: folders of binomials, of iNat 2021, of several levels, with splits; what is left out, and what is refused."""

import os
import shutil
import unicodedata

import pytest
from PIL import Image

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.arrays.text_lines import TextLines
from linnaeus.workloads.taxonomy.manifest.tables import column
from linnaeus.workloads.taxonomy.sources.folders.image_folder import ranks_of_names
from linnaeus.workloads.taxonomy.store import prepare_store
from tests.workloads.taxonomy.sources.conftest import same_as_manifest, source_of, trains

LABELS = ("path", "genus", "species")
INAT = "05729_Plantae_Tracheophyta_Magnoliopsida_Fagales_Fagaceae_Quercus_robur"


def photograph(path, colour="green"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (24, 24), colour).save(path)


def folder_of(root, *folders, count=2):
    for place, folder in enumerate(folders):
        for i in range(count):
            photograph(root / folder / f"{i}.jpg", (place * 20, i * 20, 0))
    return f"data.path={root}"


def test_folders_of_species_are_the_manifest_with_genus_and_species(records, tmp_path):
    photos = tmp_path / "photos"
    shutil.copytree(records.folder, photos, ignore=shutil.ignore_patterns("*.csv", "export"))
    given = ("data=image_folder", f"data.path={photos}")
    same_as_manifest(records, *given, columns=LABELS)
    summary = trains(tmp_path, *given)
    assert summary["status"] == "finished" and {"val/genus/top1", "val/species/top1"} <= set(summary["final"])


def test_folders_of_splits(records, tmp_path):
    for row in records.rows:
        target = tmp_path / row["split"] / row["path"]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(records.folder / row["path"], target)
    source = source_of("data=image_folder", f"data.path={tmp_path}")
    splits = {name.split("/", 1)[1]: "val" if side else "train" for name, side in zip(source.ids, source.split.tolist(), strict=True)}
    assert splits.items() <= {row["path"]: row["split"] for row in records.rows}.items()
    assert source.tree.ranks == ("genus", "species")


def test_many_photographs_are_kept_as_bytes(tmp_path, monkeypatch):
    path = folder_of(tmp_path, "train/Quercus robur", "train/Fagus sylvatica", "val/Fagus sylvatica", "val/Quercus robur", "val")
    expected = source_of("data=image_folder", path)
    monkeypatch.setattr(column, "FEW", 0)
    found = source_of("data=image_folder", path)
    assert isinstance(found.ids, TextLines) and found.fingerprint == expected.fingerprint and len(found.ids) == 8
    assert found.excluded == expected.excluded == {"photograph outside of a folder of a taxon": 2}


def test_a_photograph_beside_the_folders_of_the_split_is_counted(tmp_path):
    path = folder_of(tmp_path, *(f"{split}/{name}" for split in ("train", "val") for name in ("Quercus robur", "Fagus sylvatica")))
    photograph(tmp_path / "preview.jpg")
    source = source_of("data=image_folder", path)
    assert source.split.tolist() == [0, 0, 0, 0, 1, 1, 1, 1] and source.excluded == {"photograph outside of a folder of a taxon": 1}


def test_photographs_outside_of_folders_are_one_line(tmp_path):
    photograph(tmp_path / "a.jpg")
    with pytest.raises(ConfigError, match=r"no photograph can be used: photograph outside of a folder of a taxon \(1\)$"):
        source_of("data=image_folder", f"data.path={tmp_path}", "data.levels=[species]")


def test_folders_of_inat_have_the_whole_lineage(tmp_path):
    other = INAT.replace("05729", "05730").replace("robur", "alba")
    beech = INAT.replace("05729", "05731").replace("Quercus_robur", "Fagus_sylvatica_f._purpurea")
    source = source_of("data=image_folder", folder_of(tmp_path, INAT, other, beech))
    assert [list(names) for names in source.tree.names] == [
        ["Fagus", "Quercus"],
        ["Fagus sylvatica f. purpurea", "Quercus alba", "Quercus robur"],
    ]


@pytest.mark.parametrize("empty", ["", "not_identified"])
@pytest.mark.parametrize("name, genus, ranks", [(INAT, "Quercus", 7), ("Quercus_robur", "Quercus", 2), ("oak", None, 1)])
def test_a_name_that_is_empty_does_not_change_the_form_of_the_others(empty, name, genus, ranks):
    found = ranks_of_names([name, empty, name])
    assert len(found) == ranks and {cells[1] for cells in found.values()} == {""}
    assert found.get("genus", [None])[0] == genus and found["species"][2] == ("Quercus robur" if genus else "oak")


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_accents_that_a_mac_writes_apart_do_not_change_the_form_of_the_names(form):
    name = unicodedata.normalize(form, "Isoëtes lacustris")
    assert ranks_of_names([name, "Fagus_sylvatica"]) == {"genus": ["Isoëtes", "Fagus"], "species": ["Isoëtes lacustris", "Fagus sylvatica"]}


def test_levels_of_folders_are_ranks_of_any_name(tmp_path):
    path = folder_of(tmp_path, "Fruit/Apple/Golden", "Fruit/Apple/Gala", "Fruit/Pear/Conference", "Dairy/Milk/Oat")
    source = source_of("data=image_folder", path, "data.levels=[group,coarse,fine]")
    assert source.tree.ranks == ("group", "coarse", "fine") and source.tree.sizes == (2, 3, 4)


def test_a_folder_unknown_is_a_missing_label(tmp_path):
    path = folder_of(tmp_path, "Fagaceae/Quercus", "Fagaceae/Fagus", "Fagaceae/unknown", "Rosaceae/Rosa")
    source = source_of("data=image_folder", path, "data.levels=[family,genus]")
    assert source.tree.sizes == (2, 3) and (source.labels < 0).sum(axis=0).tolist() == [0, 2]


def test_hidden_files_links_and_other_files_are_accounted_for(tmp_path):
    path = folder_of(tmp_path, "Quercus robur", "Fagus sylvatica")
    (tmp_path / "Quercus robur/notes.txt").write_text("seen by the gate")
    (tmp_path / "Quercus robur/.DS_Store").write_text("")
    (tmp_path / "Quercus robur/again").symlink_to(tmp_path, target_is_directory=True)
    photograph(tmp_path / "loose.jpg")
    shutil.copy(tmp_path / "loose.jpg", os.fsencode(tmp_path / "Quercus robur") + b"/\xff.jpg")
    source = source_of("data=image_folder", path)
    assert len(source.ids) == 4
    assert source.excluded == {
        "photograph outside of a folder of a taxon": 1,
        "file whose suffix is not that of a photograph": 1,
        "file whose path is not in UTF-8": 1,
    }


@pytest.mark.parametrize(
    "folders, keys, message",
    [
        ([], (), "does not contain a photograph"),
        (["Fagaceae/Quercus", "Fagus"], (), "data.levels: the folders 'Fagaceae/Quercus', 'Fagus' have 1 or 2 levels"),
        (
            ["Fagaceae/Quercus", "Fagus"],
            ("data.levels=[family,genus]",),
            "data.levels: 2 ranks, but 'Fagus' has 1 folder; name the rank of each",
        ),
        (["Fagaceae/Quercus"], ("data.levels=[genus,genus]",), r"data.levels: \['genus', 'genus'\] must be different names of ranks"),
        (["Fagaceae/Quercus"], ("data.levels=[split,genus]",), "must be different names of ranks, other than path and split"),
    ],
)
def test_a_folder_that_does_not_fit_is_one_line(tmp_path, folders, keys, message):
    with pytest.raises(ConfigError, match=message) as caught:
        source_of("data=image_folder", folder_of(tmp_path, *folders), *keys)
    assert "\n" not in str(caught.value)


def test_a_path_that_is_not_a_folder(tmp_path):
    with pytest.raises(ConfigError, match=r"data.path: .* is not a folder"):
        source_of("data=image_folder", f"data.path={tmp_path / 'none'}")


def test_a_backslash_is_a_letter_of_a_name(tmp_path):
    """A Windows archive that was unpacked without its folders has such names."""
    path = folder_of(tmp_path, "Quercus robur", "Fagus sylvatica", count=4)
    photograph(tmp_path / "Quercus robur" / "a\\1.jpg")
    source = source_of("data=image_folder", path)
    assert not source.excluded and len(source.ids) == 9


def test_a_space_at_the_start_of_a_folder_is_a_letter_of_its_name(tmp_path):
    """Without it, the path is that of the photograph in another folder. The taxon is the same."""
    path = folder_of(tmp_path, "Abies alba", " Abies alba", "Quercus robur", count=4)
    source = source_of("data=image_folder", path)
    assert [str(name) for name in source.ids[:5]] == [*(f" Abies alba/{i}.jpg" for i in range(4)), "Abies alba/0.jpg"]
    assert source.tree.names[-1] == ("Abies alba", "Quercus robur") and not any("earlier row" in note for note in source.notes)


def test_a_link_to_itself_is_a_missing_photograph(tmp_path):
    path = folder_of(tmp_path, "Quercus robur", "Fagus sylvatica", count=4)
    (tmp_path / "Quercus robur/loop.jpg").symlink_to("loop.jpg")
    source = source_of("data=image_folder", path, "data.max_bad_fraction=0.2")
    assert source.excluded == {"image file missing": 1} and len(source.ids) == 8


def test_a_store_in_the_folder_of_the_photographs_is_refused(tmp_path, capsys):
    """Its files would be counted as records when the preparation continues."""
    path = folder_of(tmp_path / "photos", "Quercus robur")
    for out in (tmp_path / "photos/store", tmp_path / "photos/../photos/a/b"):
        with pytest.raises(SystemExit):
            prepare_store.main(["image_folder", str(out), path])
        assert "is in the folder of the photographs" in capsys.readouterr().err and not (tmp_path / "photos/store").exists()
    assert prepare_store.main(["image_folder", str(tmp_path / "photos-store"), path, "--processes=1"]) == 0
