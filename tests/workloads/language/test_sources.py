"""Named sources: the files of each, files left out, the split and store of each source, and its validation loss."""

import dataclasses

import numpy as np
import pytest

from linnaeus.errors import ConfigError
from linnaeus.workloads.language.corpus import held_out, scan_texts
from tests.workloads.language.test_token_store import documents, made, text

SOURCES = {"notes": ["*.md"], "numbers": ["**/*.txt"], "all": ["**/*"]}


@pytest.fixture
def folder(tmp_path):
    """Nine texts of numbers in two folders, three notes, and one file that only `**/*` matches."""
    root = tmp_path / "texts"
    (root / "b").mkdir(parents=True)
    for i in range(9):
        (root / ["", "b"][i % 2] / f"{i}.txt").write_text(f"number {i} " * (i + 3))
    for i in range(3):
        (root / f"n{i}.md").write_text(f"# note {i}\n" * 5)
    (root / "z.rst").write_text("a text by itself, long enough to be cut in two")
    (root / ".hidden.md").write_text("not to be read")
    return root


def sourced(folder, sources=SOURCES, **changes):
    return text(folder, sources=sources, **changes)


# -- files -----------------------------------------------------------------------------------------------------------------------


def test_a_file_belongs_to_the_first_source_that_matches(folder):
    corpus = scan_texts(sourced(folder))
    assert corpus.sources == ("notes", "numbers", "all")
    found = {name: [file.name for file in corpus.files if file.source == i] for i, name in enumerate(SOURCES)}
    assert found["notes"] == ["n0.md", "n1.md", "n2.md"] and found["all"] == ["z.rst"]
    assert found["numbers"] == sorted(found["numbers"]) and len(found["numbers"]) == 9
    assert [file.source for file in corpus.files] == corpus.document_sources.tolist() == [0] * 3 + [1] * 9 + [2]
    turned = scan_texts(sourced(folder, {"b": ["b/*"], **SOURCES}))
    assert [file.name for file in turned.files if file.source == 0] == ["b/1.txt", "b/3.txt", "b/5.txt", "b/7.txt"]


def test_all_files_left_out_are_listed(folder, tmp_path):
    """Files with a suffix of the sources or the default suffix are listed; others are not text."""
    (folder / "b" / "n9.md").write_text("# one more")
    (folder / "blank.md").write_text(" \n")
    (folder / "bad.md").write_bytes(b"caf\xe9")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    config = sourced(folder, {"notes": ["*.md"]}, max_bad_fraction=0.5)
    corpus = scan_texts(config)
    strays = [*(f"{i}.txt" for i in (0, 2, 4, 6, 8)), *(f"b/{i}.txt" for i in (1, 3, 5, 7)), "b/n9.md"]
    assert corpus.left_out == {"no source": strays, "empty": ["blank.md"], "encoding": ["bad.md"]}
    assert corpus.notes[-1] == "left out: 10 files without a source: 0.txt, 2.txt, 4.txt, 6.txt, 8.txt, ..."
    assert made(config, tmp_path / "stores").facts["left_out"] == corpus.left_out
    assert scan_texts(text(folder, files=["**/*.txt"])).left_out == {}
    few = scan_texts(sourced(folder, {"b": ["b/*.txt", "0.txt", "2.txt", "4.txt"], "notes": ["n*.md"]}))
    assert few.notes[1] == "left out: 5 files without a source: 6.txt, 8.txt, b/n9.md, bad.md, blank.md"
    assert few.notes[0].endswith(f"10 files, 10 documents, {sum(len(t) for _, t in documents(few)):,} characters")


def test_patterns_that_match_nothing_are_noted(folder):
    sources = {"notes": ["*.md", "*.markdown", "gone/*"], "numbers": ["**/*.txt"], "rest": ["*.rst", ".hidden*"]}
    lines = ("data.sources.notes: nothing matches *.markdown, gone/*", "data.sources.rest: nothing matches .hidden*")
    assert scan_texts(sourced(folder, sources)).notes[1:] == lines
    assert scan_texts(sourced(folder)).notes[1:] == (), "negative control"
    assert scan_texts(text(folder, files=["*.rst", "*.tex"])).notes[1:] == ("data.files: nothing matches *.tex",)


def test_sources_of_pythons_library():
    corpus = scan_texts(text(None, sources={"json": ["json/*.py"], "texts": ["textwrap.py", "string.py", "string/*.py"]}))
    names = {file.name: file.source for file in corpus.files}
    assert names["json/decoder.py"] == 0 and names["textwrap.py"] == 1
    assert "files of Python" in corpus.notes[0] and "files without a source" in corpus.notes[-1]
    assert "calendar.py" in corpus.left_out["no source"] and "asyncio/tasks.py" in corpus.left_out["no source"]


def test_installed_packages_are_not_part_of_pythons_library(folder, monkeypatch):
    (folder / "site-packages").mkdir()
    (folder / "site-packages" / "x.py").write_text("import y")
    (folder / "own.py").write_text("import z")
    sources = {"code": ["**/*.py"]}
    assert len(scan_texts(sourced(folder, sources)).files) == 2, "in other folders the name has no meaning"
    monkeypatch.setattr("linnaeus.workloads.language.text_files.LIBRARY", folder)
    assert [file.name for file in scan_texts(text(None, sources=sources)).files] == ["own.py"]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"sources": {}}, r"data.sources is \{\}; name a source"),
        ({"sources": {"a b": ["*"]}}, "data.sources: 'a b' cannot be part of a metric's name"),
        ({"sources": {"a/b": ["*"]}}, "data.sources: 'a/b' cannot be part of a metric's name"),
        (
            {"sources": {"code": ["**/*.py"]}},
            r"data.sources.code: nothing in .* 9 .txt, 4 .md, 1 without suffix; use for example \['\*\*/\*.txt'\]",
        ),
        (
            {"sources": {"all": ["**/*"], "notes": ["*.md"]}},
            r"data.sources.notes: all files that match \['\*.md'\] belong to earlier sources \(all\)",
        ),
        ({"sources": {"etc": ["/etc/*"]}}, r"data.sources.etc=\['/etc/\*'\]: .*use patterns such as"),
        ({"sources": {"empty": ["blank"], "notes": ["*.md"]}}, "data.sources.empty: its 1 file in .* do not contain text"),
        ({"files": ["*.md"]}, "data.files has no effect with data.sources"),
        ({"path": "z.rst"}, "data.sources has no effect if data.path=z.rst is a file"),
        ({"sources": None, "path": "gone"}, "data.path: gone does not exist"),
        ({"sources": None, "files": ["*.py"]}, r"nothing in .* 9 .txt, 4 .md, 1 without suffix; use for example \['\*\*/\*.txt'\]"),
        ({"sources": None, "files": ["/etc/*"]}, r"data.files=\['/etc/\*'\]: .*use patterns such as"),
        ({"sources": None, "path": None, "files": ["*.py"]}, "data.files has no effect without data.path"),
        ({"sources": None, "path": "0.txt", "files": ["*"]}, "data.files has no effect if data.path=.*0.txt is a file"),
    ],
)
def test_invalid_paths_and_sources_are_refused(folder, monkeypatch, change, message):
    (folder / "blank").write_text(" \n")
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match=message) as refused:
        scan_texts(dataclasses.replace(sourced(folder), **change))
    assert "\n" not in str(refused.value)


# -- split and store -------------------------------------------------------------------------------------------------------------


def parts_of(array, tokenizer):
    """Return the text of each source in the store, with | for end markers."""
    ends, words = np.cumsum(array.source_sizes), [*tokenizer.alphabet, "|"]
    return ["".join(words[token] for token in array.tokens[end - size : end]) for end, size in zip(ends, array.source_sizes)]


def test_each_source_is_split_by_itself_and_contiguous(folder, tmp_path):
    config = sourced(folder, validation_fraction=0.3)
    found, corpus = made(config, tmp_path / "stores"), scan_texts(config)
    chosen = held_out(corpus)
    assert found.tokenizer.end == len(found.tokenizer.alphabet)
    contents = [content for _, content in documents(corpus)]
    for array, side in ((found.train, False), (found.validation, True)):
        notes, numbers, alone = parts_of(array, found.tokenizer)
        for content, source in ((notes, 0), (numbers, 1)):
            own = [text for text, owner, out in zip(contents, corpus.document_sources, chosen) if owner == source and out == side]
            assert own and content == "".join(text + "|" for text in own)
        assert alone == (contents[-1][32:] + "|" if side else contents[-1][:32]), "a source of one text is split by position"
        assert sum(array.source_sizes) == array.size == len(array.tokens)
    counted = found.facts["splits"]["train"]
    assert list(counted["sources"]) == list(SOURCES)
    for what in ("documents", "characters", "bytes", "tokens"):
        assert sum(each[what] for each in counted["sources"].values()) == counted[what]
    assert [each["tokens"] for each in counted["sources"].values()] == list(found.train.source_sizes)
    for name, train, validation in zip(SOURCES, found.train.source_sizes, found.validation.source_sizes):
        assert f"source {name}: {train:,} training tokens, {validation:,} validation tokens" in found.notes


def test_the_split_of_a_source_does_not_depend_on_other_sources(folder):
    """No side of a small source is empty, which a joint split would not ensure."""
    numbers, notes = {"numbers": ["**/*.txt"]}, {"notes": ["*.md"]}
    joint = []
    for seed in range(20):
        changes = {"split_seed": seed, "validation_fraction": 0.3}
        one, both = (scan_texts(sourced(folder, sources, **changes)) for sources in (numbers, numbers | notes))
        apart = held_out(both)
        assert apart[both.document_sources == 0].tolist() == held_out(one).tolist()
        assert 0 < apart[both.document_sources == 1].sum() < 3
        together = scan_texts(text(folder, files=["**/*.txt", "*.md"], **changes))
        joint.append(held_out(together)[[file.name.endswith(".md") for file in together.files]].sum())
    assert {0, 3} & set(joint), "negative control"


def test_a_source_with_too_few_tokens_is_refused(folder, tmp_path):
    (folder / "z.rst").write_text("ab")
    with pytest.raises(ConfigError, match=r"data.sources.all has 1 training token; it needs at least 2"):
        made(sourced(folder, {"all": ["*.rst"], "numbers": ["**/*.txt"]}), tmp_path / "stores")
    assert list((tmp_path / "stores").iterdir()) == []


def test_a_source_of_equal_documents_is_refused(folder):
    """Equal documents are on one side of the split, so the other side would be empty."""
    for i in range(3):
        (folder / f"n{i}.md").write_text("the same note")
    with pytest.raises(ConfigError, match=r"data.sources.notes: all 3 documents are equal, and equal documents stay on one side"):
        scan_texts(sourced(folder))
    with pytest.raises(ConfigError, match=r"data.path: all 3 documents are equal"):
        scan_texts(text(folder, files=["*.md"]))
    (folder / "n3.md").write_text("another")
    assert len(scan_texts(sourced(folder)).files) == 14, "negative control"
    assert len(scan_texts(sourced(folder, {"one": ["n0.md"], "rest": ["*.rst"]})).files) == 2, "a single document is split by position"


def test_a_split_seed_without_effect_is_refused(folder):
    with pytest.raises(ConfigError, match=r"data.split_seed=3 has no effect: a single text is split by position, its end"):
        scan_texts(text(folder / "z.rst", split_seed=3))
    alone = {"one": ["n0.md"], "rest": ["*.rst"]}
    with pytest.raises(ConfigError, match=r"data.split_seed=3 has no effect: each source is a single text, which"):
        scan_texts(sourced(folder, alone, split_seed=3))
    assert scan_texts(sourced(folder, alone | {"numbers": ["*.txt"]}, split_seed=3)).document_sources.max() == 2


def test_the_fingerprint_covers_names_order_and_sizes_of_sources(folder, tmp_path):
    root = tmp_path / "stores"
    plain = made(text(folder, files=["**/*"]), root)
    both = {"notes": ["*.md"], "rest": ["**/*"]}
    stores = [made(sourced(folder, sources), root) for sources in (both, {"memos": both["notes"], "rest": ["**/*"]}, {"rest": ["**/*"]})]
    stores.append(made(sourced(folder, {"rest": ["**/*.txt", "*.rst"], "notes": ["*.md"]}), root))
    assert len({store.fingerprint for store in (plain, *stores)}) == 5 == len(list(root.iterdir()))
    assert stores[0].train.tokens.tolist() == stores[1].train.tokens.tolist(), "only the names differ"
    assert plain.sources == () and plain.train.source_sizes == () and "sources" not in plain.facts["splits"]["train"]
