"""Labels by id in a table of taxa: every format, labels at any rank, and each kind of conflict in a table."""

import csv
import json

import numpy as np
import pytest

from linnaeus.config.load import compose
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.manifest.labels.ranks import tree_ranks
from linnaeus.workloads.taxonomy.manifest.labels.taxon_table import read_taxa
from tests.runs import TINY, run_path, start
from tests.workloads.taxonomy.trees import is_path

TAXA = [  # id, parent, rank, name; 007 is not 7
    ("P", "", "kingdom", "Plantae"),
    ("A", "", "kingdom", "Animalia"),
    ("10", "P", "family", "Lamiaceae"),
    ("11", "A", "family", "Prunellidae"),
    ("12", "P", "family", "Rosaceae"),
    ("t", "12", "tribe", "Roseae"),
    ("20", "10", "genus", "Prunella"),
    ("21", "11", "genus", "Prunella"),
    ("22", "t", "genus", "Rosa"),
    ("7", "20", "species", "Prunella vulgaris"),
    ("007", "21", "species", "Prunella modularis"),
    ("b0e2-4a", "22", "species", '"Rosa" "Peace"'),
    ("c", "22", "clade", "Caninae"),
    ("31", "c", "species", "Rosa canina"),
    ("sub", "31", "subspecies", "Rosa canina hispida"),
]
LABELS = {  # id -> kingdom, family, genus, species
    "7": ("Plantae", "Lamiaceae", "Prunella", "Prunella vulgaris"),
    "007": ("Animalia", "Prunellidae", "Prunella", "Prunella modularis"),
    "b0e2-4a": ("Plantae", "Rosaceae", "Rosa", '"Rosa" "Peace"'),
    "31": ("Plantae", "Rosaceae", "Rosa", "Rosa canina"),
    "22": ("Plantae", "Rosaceae", "Rosa", None),
    "12": ("Plantae", "Rosaceae", None, None),
    "sub": ("Plantae", "Rosaceae", "Rosa", "Rosa canina"),
    "c": ("Plantae", "Rosaceae", "Rosa", None),
    "21": ("Animalia", "Prunellidae", "Prunella", None),
    "P": ("Plantae", None, None, None),
}
IDS, EXPECTED = list(LABELS), list(LABELS.values())
LEVEL = {"kingdom": 70, "family": 30, "tribe": 25, "genus": 20, "species": 10, "subspecies": 5, "clade": 11}


def lineage(taxon):
    above = next(parent for i, parent, *_ in TAXA if i == taxon)
    return [*lineage(above), above] if above else []


def write_plain(path, taxa=TAXA, header=("id", "parent_id", "rank", "name")):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *taxa])
    return path


def write_lines(path, *rows):
    path.write_text("\n".join("\t".join(row) for row in rows), encoding="utf-8")
    return path


def write_darwin_core(path):
    header = ("dwc:taxonID", "datasetID", "dwc:parentNameUsageID", "taxonRank", "scientificName", "canonicalName", "taxonomicStatus")
    rows = [(i, "x", parent, rank.upper(), f"{name} L., 1753", name, "accepted") for i, parent, rank, name in TAXA]
    return write_lines(path, header, *rows)


def write_ancestry(path, separator="/", rank="rank"):
    rows = [(i, separator.join(lineage(i)), f"{LEVEL[r]:.1f}", r, name, "true") for i, _, r, name in TAXA]
    return write_lines(path, ("taxon_id", "ancestry", "rank_level", rank, "name", "active"), *rows)


def write_parquet(path):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    columns = zip(*[[cell or None for cell in taxon] for taxon in TAXA], strict=True)
    parquet.write_table(pyarrow.table(dict(zip(("id", "parent", "rank", "scientific_name"), map(list, columns), strict=True))), path)
    return path


FORMATS = {
    "plain": lambda folder: write_plain(folder / "taxa.csv"),
    "darwin_core": lambda folder: write_darwin_core(folder / "Taxon.tsv"),
    "inaturalist": lambda folder: write_ancestry(folder / "taxa.tsv"),
    "backslashes": lambda folder: write_ancestry(folder / "taxa.tsv", "\\"),
    "levels": lambda folder: write_ancestry(folder / "taxa.tsv", rank="remark"),
    "parquet": lambda folder: write_parquet(folder / "taxa.parquet"),
}


@pytest.fixture
def build(tmp_path, build_rows):
    """Return a function that builds the source of a manifest with the given ids, four rows each, and a table of taxa."""

    def make(table=TAXA, ids=IDS, **keys):
        table = table if not isinstance(table, list) else write_plain(tmp_path / "taxa.csv", table)
        return build_rows(id_rows(ids), taxonomy=str(table), taxon_column="taxon", **keys)

    return make


def id_rows(ids):
    return [{"path": f"{i}.png", "taxon": taxon} for i, taxon in enumerate(np.repeat(ids, 4).tolist())]


def noted(source, *parts):
    return any(all(part in note for part in parts) for note in source.notes)


def names(source):
    """Return row number -> names, with None for null labels."""
    taxa = [tuple(names[c] if c >= 0 else None for names, c in zip(source.tree.names, row)) for row in source.labels.tolist()]
    return {int(path.removesuffix(".png")): row for path, row in zip(source.ids.tolist(), taxa, strict=True)}


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_has_the_same_labels_at_every_rank(kind, build, tmp_path):
    source = build(FORMATS[kind](tmp_path))
    assert source.tree.ranks == ("kingdom", "family", "genus", "species") and source.tree.sizes == (2, 3, 3, 4)
    assert names(source) == {i: EXPECTED[i // 4] for i in range(40)}
    assert is_path(source.tree, source.labels).all()
    assert noted(source, "rows labelled down to kingdom 4, family 4, genus 12, species 20")
    assert noted(source, "genus: 1 name under several parents, kept apart", "Prunella (4 rows)")
    id_of = {name: i for i, _, rank, name in TAXA if rank == "species"}
    assert source.tree.keys[3] == tuple(id_of[name] for name in source.tree.names[3])


def test_labels_by_id_equal_labels_by_name(build, build_rows):
    by_id = build()
    by_name = build_rows([{"path": f"{i}.png"} | dict(zip(by_id.tree.ranks, EXPECTED[i // 4], strict=True)) for i in range(40)])
    assert by_name.tree.fingerprint() == by_id.tree.fingerprint() and by_name.fingerprint == by_id.fingerprint


def test_other_ranks_are_predicted_if_data_ranks_contains_them(build):
    assert noted(build(), "not predicted unless data.ranks contains them", "tribe (1 taxon)", "clade (1 taxon)")
    taxa = [*TAXA, ("t2", "12", "tribe", "Rubeae"), ("23", "t2", "genus", "Rubus")]
    source = build(taxa, [*IDS, "23"], ranks=["family", "tribe", "genus"])
    assert source.tree.ranks == ("family", "tribe", "genus") and source.tree.sizes == (3, 2, 4)
    assert source.tree.ancestors("genus", np.arange(4), "tribe").tolist() == [-1, -1, 0, 1]
    assert source.tree.lineage_ids("genus")[3] == "Plantae|Rosaceae|Rubeae|Rubus"
    with pytest.raises(ConfigError, match=r"^data\.ranks: 'subtribe' is not a rank of the table of taxa; use kingdom, family, tribe,"):
        build(taxa, ranks=["family", "subtribe"])


def test_ranks_of_unknown_order_keep_their_place_in_data_ranks():
    assert tree_ranks(("genus", "clade", "species", "tribe", ""), None) == ("genus", "species")
    assert tree_ranks(("genus", "clade", "species"), ["genus", "clade"]) == ("genus", "clade", "species")
    assert tree_ranks(("genus", "guild", "class", "species"), ["guild", "species"]) == ("class", "genus", "guild", "species")
    assert tree_ranks(("low", "high"), ["high", "low"]) == ("high", "low")
    with pytest.raises(ConfigError, match="set the ranks to predict, coarse to fine, from high, low"):
        tree_ranks(("low", "high"), None)


def test_unknown_ids_are_counted_and_listed_up_to_a_limit(build):
    ids = [*IDS * 2, "99"]
    source = build(ids=ids, max_bad_fraction=0.05)
    assert source.excluded == {"a 'taxon' that is not in the table of taxa ('99' (4 rows))": 4} and len(source.labels) == 80
    message = r"^data.max_bad_fraction: 4 of 84 rows with a 'taxon' .* 'taxa.csv', more than 0.01: '99' \(4 rows\)"
    with pytest.raises(ConfigError, match=message):
        build(ids=ids)
    with pytest.raises(ConfigError, match=r"'7.0' \(4 rows\); '7' is in it; check data.taxon_column"):
        build(ids=["7.0", "007"])
    assert build(ids=[*IDS, ""], max_bad_fraction=0).excluded == {"no 'taxon'": 4}


@pytest.mark.parametrize(
    "taxa, line",
    [
        (
            [*TAXA, ("31", "20", "species", "Rosa canina")],
            r"id with two parents: 31 'Rosa canina' is under 20 'Prunella' and c 'Caninae' \(8 rows\)",
        ),
        (
            [*TAXA, ("12", "", "family", "Rosaceae")],
            r"id with two parents: 12 'Rosaceae' is under no parent and P 'Plantae' \(24 rows\)",
        ),
        (
            [("P", "22", "kingdom", "Plantae"), *TAXA[1:]],
            r"cycle of parents: P 'Plantae' > 22 'Rosa' > t 'Roseae' > 12 'Rosaceae' > P 'Plantae' \(32 rows\)",
        ),
    ],
)
def test_conflicts_in_used_taxa_are_errors_of_one_line(taxa, line, build):
    with pytest.raises(ConfigError, match=rf"^data.taxonomy: 'taxa.csv' has 1 {line}; \w+"):
        build(taxa)


def test_conflicts_in_unused_taxa_are_noted(build):
    taxa = [*TAXA, ("x", "y", "genus", "X"), ("y", "x", "family", "Y"), ("z", "A", "genus", "Z"), ("z", "P", "genus", "Z")]
    source = build(taxa)
    assert names(source) == names(build())
    assert noted(source, "1 cycle of parents: x 'X' > y 'Y' > x 'X' (0 rows)")
    assert noted(source, "1 id with two parents: z 'Z' is under P 'Plantae' and A 'Animalia' (0 rows)")
    assert noted(source, "1 row with the id of an earlier row")


def test_contradicting_ancestries(build, tmp_path):
    table = write_ancestry(tmp_path / "taxa.tsv")
    text = table.read_text().replace("P/12/t/22/c\t10.0", "P/10/t/22/c\t10.0")  # the ancestry of 31 has t under 10
    table.write_text(text)
    message = r"1 id with two parents: t 'Roseae' is under 12 in its own ancestry, 10 in that of others \(20 rows\)"
    with pytest.raises(ConfigError, match=message):
        build(table)
    assert noted(build(table, ids=["7", "007", "12"]), "t 'Roseae' is under 12", "(0 rows)")
    table.write_text(text.replace("P/10/t/22/c\t10.0", f"P/{'1' * 3000}/t/22/c\t10.0"))
    with pytest.raises(ConfigError, match="with two parents") as caught:
        build(table)
    assert len(str(caught.value)) < 400


def test_parents_that_are_not_in_the_table(build, tmp_path):
    known = [i for i in IDS if i != "12"]
    source = build([t for t in TAXA if t[0] != "12"], known)
    assert noted(source, "1 parent not in the table: 12, of t 'Roseae' (20 rows)")
    assert names(source)[12] == (None, None, "Rosa", "Rosa canina")
    table = write_ancestry(tmp_path / "taxa.tsv")
    table.write_text("\n".join(line for line in table.read_text().split("\n") if not line.startswith("12\t")))
    source = build(table, known)
    assert noted(source, "1 parent not in the table: 12, of t 'Roseae', placed under P 'Plantae' (20 rows)")
    assert names(source)[12] == ("Plantae", None, "Rosa", "Rosa canina")


def test_taxa_of_rows_that_are_left_out_are_not_in_the_table(tmp_path):
    path = write_plain(
        tmp_path / "taxa.csv", [*TAXA, ("long", "20", "species", "x" * 5000), ("8", "long", "species", "Prunella grandiflora")]
    )
    taxa = read_taxa(path)
    assert taxa.ids == [*(taxon[0] for taxon in TAXA), "8"]
    assert taxa.parent[-1] == -1 and any("1 row left out: a cell of more than 4096 characters" in note for note in taxa.notes)


def test_an_ancestor_of_a_rank_that_is_not_coarser_is_noted_and_skipped(build):
    source = build([*TAXA, ("50", "31", "genus", "Wrong"), ("51", "50", "species", "Wrong again")], [*IDS, "50", "51"])
    assert noted(source, "1 taxon under a taxon whose rank is not coarser", "genus 50 'Wrong' under species 31 'Rosa canina' (8 rows)")
    assert names(source)[40] == ("Plantae", "Rosaceae", "Wrong", None) and names(source)[44][2:] == ("Wrong", "Wrong again")
    assert not noted(build(), "is skipped")
    through = build([*TAXA, ("v", "31", "clade", "Between"), ("50", "v", "genus", "Wrong")], [*IDS, "50"])
    assert noted(through, "genus 50 'Wrong' under species 31 'Rosa canina' (4 rows)")


def test_ids_with_the_same_name_rank_and_parent_are_one_taxon(build):
    source = build([*TAXA, ("32", "c", "species", "Rosa canina")], [*IDS, "32"])
    assert names(source)[40] == EXPECTED[3] and source.tree.sizes == (2, 3, 3, 4)
    assert noted(source, "1 taxon with several ids for one name, rank and parent, merged into one: 'Rosa canina' is 31, 32 (12 rows)")


def test_homonyms_stay_distinct_if_they_differ_only_at_ranks_that_are_not_read(build):
    source = build([*TAXA, ("u", "12", "tribe", "Other"), ("60", "u", "genus", "Rosa")], [*IDS, "60"])
    assert names(source)[40][2] == "Rosa [60]" and names(source)[16][2] == "Rosa [22]"
    assert noted(source, "2 genus taxa whose lineage differs from that of another only at ranks that are not read")
    assert len(set(source.tree.lineage_ids("genus"))) == source.tree.sizes[2]
    moved = build([("60", "u", "genus", "Rosa"), *TAXA, ("u", "12", "tribe", "Other")], [*IDS, "60"])
    assert moved.fingerprint == source.fingerprint


def test_synonyms_become_their_accepted_taxon(build, tmp_path):
    rows = [(*taxon, "") for taxon in TAXA]
    chain = [
        ("s1", "20", "species", "Rosa lutetiana", "s2"),
        ("s2", "0", "species", "Rosa dumalis", "31"),
        ("s3", "22", "species", "R", "99"),
    ]
    chain += [("s1", "0", "species", "Rosa lutetiana", "s2"), ("under", "s1", "subspecies", "Rosa dumalis alba", "")]
    header = ("taxonID", "parentNameUsageID", "taxonRank", "scientificName", "acceptedNameUsageID")
    source = build(write_plain(tmp_path / "synonyms.csv", rows + chain, header), [*IDS, "s1", "s3", "under"])
    assert not noted(source, "two parents") and not noted(source, "not in the table: 0")
    assert names(source)[40] == names(source)[48] == EXPECTED[3] and names(source)[44] == (*EXPECTED[4][:3], "R")
    assert noted(source, "4 rows with a synonym")
    assert noted(source, "kept as taxa, because the accepted taxon is not in the table: 1 synonym")
    rows += [(f"s{i}", "22", "species", f"S{i}", f"s{other}") for i, other in ((1, 2), (2, 1), (3, 1))]
    source = build(write_plain(tmp_path / "loop.csv", rows, ("id", "parent", "rank", "name", "accepted_id")), [*IDS, "s1", "s2"])
    assert [names(source)[i][3] for i in (40, 44)] == ["S1", "S2"]
    assert noted(source, "kept as taxa, because the chain of synonyms is endless: ")


def test_missing_and_undetermined_names(build):
    taxa = [*TAXA[:-2], ("31", "c", "species", ""), ("33", "22", "species", "Rosa sp."), ("r", "r", "kingdom", "Root")]
    source = build(taxa, [*IDS[:6], "33", "r"])
    assert names(source)[12][3] == "31" and noted(source, "1 taxon without a name, named by id")
    assert names(source)[24] == EXPECTED[4]
    assert names(source)[28][0] == "Root" and noted(source, "roots, because each is its own parent: 1 taxon (r 'Root')")


def test_the_order_of_the_table_has_no_effect(build):
    order = np.random.default_rng(0).permutation(len(TAXA))
    assert build([TAXA[i] for i in order]).fingerprint == build().fingerprint


def test_the_fingerprint_changes_with_the_tree(build):
    ids = ["7", "007", "31"]
    hung = [(i, "12" if i == "20" else parent, rank, name) for i, parent, rank, name in TAXA]
    renumbered = [tuple(cell.replace("20", "2000") if k < 2 else cell for k, cell in enumerate(taxon)) for taxon in TAXA]
    plain, other = build(ids=ids), build(hung, ids)
    assert plain.labels[:, 3].tolist() == other.labels[:, 3].tolist() and plain.tree.names[3] == other.tree.names[3]
    assert plain.fingerprint == build(renumbered, ids).fingerprint != other.fingerprint
    renamed = build([(*taxon[:3], taxon[3].replace("canina", "minor")) for taxon in TAXA], ids)
    assert np.array_equal(renamed.labels, plain.labels) and renamed.fingerprint != plain.fingerprint


@pytest.mark.parametrize(
    "header, message",
    [
        (("key", "parent_id", "rank", "name"), "does not have a column for id (taxonid, taxon_id, id)"),
        (("id", "above", "rank", "name"), "does not have a column for parent ("),
        (("id", "parent_id", "what", "name"), "does not have a column for rank ("),
        (("id", "id", "rank", "parent"), "columns named 'id'"),
    ],
)
def test_tables_without_a_required_column(header, message, tmp_path):
    with pytest.raises(ConfigError) as error:
        read_taxa(write_plain(tmp_path / "taxa.csv", header=header))
    assert str(error.value).startswith("data.taxonomy: ") and message in str(error.value)
    with pytest.raises(ConfigError, match=r"^data\.taxonomy: .* does not exist; choose a CSV or Parquet table"):
        read_taxa(tmp_path / "absent.csv")


BOTH = {"taxonomy": "taxa.csv", "taxon_column": "taxon"}


@pytest.mark.parametrize(
    "keys, message",
    [
        ({"taxonomy": "taxa.csv"}, "data.taxonomy and data.taxon_column must be set together"),
        ({"taxon_column": "taxon"}, "data.taxonomy and data.taxon_column must be set together"),
        (BOTH | {"rank_columns": {"genus": "taxon"}}, "data.rank_columns and data.taxonomy"),
        (BOTH | {"taxon_column": "taxo"}, r"data.taxon_column: the manifest does not have a column 'taxo' \(did you mean 'taxon'\?\)"),
    ],
)
def test_keys_that_do_not_fit_together(keys, message, build_rows):
    with pytest.raises(ConfigError, match=message):
        build_rows([{"path": "a.png", "taxon": "7"}], **keys)


def test_a_run_with_labels_at_mixed_ranks(tmp_path, write_manifest):
    data = ["data=manifest", f"data.path={write_manifest(id_rows(IDS))}", f"data.taxonomy={write_ancestry(tmp_path / 'taxa.tsv')}"]
    data += ["data.taxon_column=taxon", "data.image_size=16", "data.components=[]", "model.size=micro", "augment=none"]
    short = ["trainer.global_batch_size=16", "trainer.length=4steps", "schedule.validate=[100%]"]
    config = compose([*data, *TINY, *short, f"run.root={tmp_path / 'runs'}", "run.name=run"])
    assert start(config) == 0
    tree, facts = (json.loads((run_path(config) / name).read_text()) for name in ("taxonomy.json", "dataset.json"))
    assert tree["keys"][0] == ["A", "P"] and tree["ranks"] == ["kingdom", "family", "genus", "species"]
    assert any("rows labelled down to" in note for note in facts["notes"])
    rows = [json.loads(line) for line in (run_path(config) / "metrics.jsonl").read_text().splitlines()]
    losses = [value for row in rows for key, value in row.items() if key.endswith("loss")]
    assert len(losses) > 8 and np.isfinite(losses).all()
