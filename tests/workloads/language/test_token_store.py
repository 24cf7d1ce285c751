"""Texts, their split, and token stores."""

import dataclasses
import functools
import json
import multiprocessing
import os
import pickle
import time
from collections import Counter

import numpy as np
import pytest

from linnaeus.config.load import compose
from linnaeus.errors import ConfigError
from linnaeus.files import ABANDONED_AFTER, TEMPORARY
from linnaeus.workloads.language import token_store
from linnaeus.workloads.language.corpus import held_out, scan_texts
from linnaeus.workloads.language.token_store import open_store, text_store
from linnaeus.workloads.language.tokenizers import CharacterTokenizer, train_bpe

TEXT = compose(["workload=language"]).data


def text(path, **changes):
    return dataclasses.replace(TEXT, path=None if path is None else str(path), **changes)


def made(config, folder):
    corpus = scan_texts(config)
    return open_store(folder / text_store(corpus, folder), left_out=corpus.left_out)


def documents(corpus):
    """Return (file name, text) of each document."""
    return [(name, "".join(pieces)) for name, pieces in corpus.documents("reading")]


def decoded(array, tokenizer):
    return tokenizer.decode(array.tokens.tolist())


@pytest.fixture
def folder(tmp_path):
    """Twelve documents in three folders, two of them equal, and files that are not documents."""
    root = tmp_path / "texts"
    (root / "b" / "c").mkdir(parents=True)
    for i in range(11):
        (root / ["", "b", "b/c"][i % 3] / f"{i}.txt").write_text(f"document {i} " * (i + 3))
    (root / "twin.txt").write_text("document 4 " * 7)
    (root / "empty.txt").write_text(" \n")
    (root / "notes.md").write_text("# notes")
    (root / ".hidden.txt").write_text("not to be read")
    return root


# -- files and documents ---------------------------------------------------------------------------------------------------------


def test_a_folder_is_read_in_order_of_file_names(folder):
    corpus = scan_texts(text(folder))
    names = [file.name for file in corpus.files]
    assert names == sorted(names) and len(names) == 12 and "b/c/2.txt" in names
    assert [name for name, _ in documents(corpus)] == names
    assert dict(documents(corpus))["b/4.txt"] == "document 4 " * 7
    assert corpus.notes[0].endswith(f"12 files, 12 documents, {sum(len(t) for _, t in documents(corpus)):,} characters")
    assert corpus.notes[1:] == ("left out: 1 empty file",)
    chosen = scan_texts(text(folder, files=["*.md", "b/*.txt"])).files
    assert [file.name for file in chosen] == ["b/1.txt", "b/10.txt", "b/4.txt", "b/7.txt", "notes.md"]


def test_a_file_in_another_encoding_is_named_with_the_offset(folder):
    (folder / "b" / "bad.txt").write_bytes(b"caf\xe9 au lait")
    with pytest.raises(ConfigError, match=r"data.encoding: .*b/bad.txt is not utf-8 at byte 3 .*data.max_bad_fraction=0.08 of the files"):
        scan_texts(text(folder))
    corpus = scan_texts(text(folder, max_bad_fraction=0.08))
    assert len(corpus.files) == 12 and "b/bad.txt is not utf-8 at byte 3" in corpus.notes[1]
    assert dict(documents(scan_texts(text(folder, encoding="latin-1"))))["b/bad.txt"] == "café au lait"
    with pytest.raises(ConfigError, match=r"data.encoding=klingon is not a codec of Python"):
        scan_texts(text(folder, encoding="klingon"))


@pytest.mark.parametrize("encoding", ["undefined", "unicode_escape"])
def test_unusual_encodings_are_refused_in_one_line(tmp_path, encoding):
    (tmp_path / "a.txt").write_text("\\ud800 is half a character")
    with pytest.raises(ConfigError, match=f"data.encoding: .*a.txt is not {encoding} "):
        scan_texts(text(tmp_path, encoding=encoding))
    with pytest.raises(ConfigError, match=r"all 1 files are empty, except 1 that are not in data.encoding"):
        scan_texts(text(tmp_path, encoding=encoding, max_bad_fraction=1.0))


def test_a_file_name_that_is_not_utf8_is_escaped(tmp_path):
    (tmp_path / "texts").mkdir()
    for name, content in ((b"caf\xe9.txt", b"some text " * 9), (b"th\xe9.txt", b"\xe9t\xe9"), (b"a.txt", b"more text " * 9)):
        with open(os.path.join(os.fsencode(tmp_path / "texts"), name), "wb") as file:
            file.write(content)
    config = text(tmp_path / "texts", max_bad_fraction=0.5)
    corpus = scan_texts(config)
    assert [file.name for file in corpus.files] == ["a.txt", "caf\\xe9.txt"] and corpus.left_out == {"encoding": ["th\\xe9.txt"]}
    "".join(corpus.notes).encode()
    made(config, tmp_path)
    with pytest.raises(ConfigError, match="is not one of the tokenizer's 8 tokens") as caught:  # a message with such a file name
        (tmp_path / "abc.json").write_text(json.dumps(CharacterTokenizer("more tx", True).to_dict()))
        made(dataclasses.replace(config, tokenizer_file=str(tmp_path / "abc.json")), tmp_path)
    str(caught.value).encode()


def test_a_tokenizer_that_loses_text_is_refused(tmp_path):
    """It is byte-level, but has no token for one of the bytes."""
    pytest.importorskip("tokenizers")
    content = train_bpe(["some text " * 9], 258).to_dict()
    del content["bpe"]["model"]["vocab"]["z"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "a.txt").write_text("some text with a z in it " * 9)
    config = text(tmp_path, tokenizer="bpe", tokenizer_file=str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match=r"bpe-\d+-\w+ does not preserve the text: \d+ bytes of a.txt became tokens of \d+ bytes"):
        made(config, tmp_path)


def test_a_separator_splits_a_file_into_documents(tmp_path):
    path = tmp_path / "one.txt"
    path.write_text("first<|endoftext|>second<|endoftext|>\n")
    assert [t for _, t in documents(scan_texts(text(path, separator="<|endoftext|>")))] == ["first", "second"]
    assert [t for _, t in documents(scan_texts(text(path)))] == [path.read_text()]
    with pytest.raises(ConfigError, match=r"data.separator is empty"):
        scan_texts(text(path, separator=""))


def test_a_file_that_changes_while_it_is_read_is_refused(folder):
    corpus = scan_texts(text(folder))
    (folder / "0.txt").write_text("something else")
    with pytest.raises(ConfigError, match=r"0.txt changed while it was being read"):
        documents(corpus)


def test_the_default_text_is_pythons_library():
    corpus = scan_texts(text(None))
    names = [file.name for file in corpus.files]
    assert {"bisect.py", "textwrap.py"} <= set(names) and not any("/" in name for name in names)
    assert 500_000 < sum(file.bytes for file in corpus.files) < 2_000_000, "minutes on a CPU"
    assert "the modules of up to 24,000 bytes of Python" in corpus.notes[0]


# -- the split -------------------------------------------------------------------------------------------------------------------


def split_of(folder, seed=0):
    """Return {file: True if it validates}."""
    corpus = scan_texts(text(folder, validation_fraction=0.3, split_seed=seed))
    return {name: bool(side) for (name, _), side in zip(documents(corpus), held_out(corpus), strict=True)}


def test_a_documents_own_hash_decides_its_split(folder):
    before = split_of(folder)
    assert set(before.values()) == {True, False}
    assert before["b/4.txt"] == before["twin.txt"], "equal texts are on one side"
    for i in range(20):
        (folder / f"new{i}.txt").write_text(f"another text {i}")
    after = split_of(folder)
    assert {name: after[name] for name in before} == before, "other documents do not move it"
    assert split_of(folder, seed=1) != after


def test_the_held_out_fraction_is_as_configured_and_no_side_is_empty(tmp_path):
    (tmp_path / "many.txt").write_text("|".join(f"text {i}" for i in range(4000)))
    corpus = scan_texts(text(tmp_path / "many.txt", separator="|"))
    assert held_out(corpus).mean() == pytest.approx(0.1, abs=4 * (0.09 / 4000) ** 0.5)
    for fraction, number in ((1e-9, 1), (1 - 1e-9, 2)):
        config = dataclasses.replace(corpus.config, validation_fraction=fraction)
        few = dataclasses.replace(corpus, digests=corpus.digests[:3], document_sources=corpus.document_sources[:3], config=config)
        assert held_out(few).sum() == number


def test_a_single_text_is_split_by_position(tmp_path):
    content = "".join(chr(97 + i * i % 26) for i in range(1115))
    (tmp_path / "one.txt").write_text(content)
    found = made(text(tmp_path / "one.txt"), tmp_path / "stores")
    assert decoded(found.train, found.tokenizer) == content[:1003] and decoded(found.validation, found.tokenizer) == content[1003:]
    assert found.tokenizer.end is None and found.vocabulary_size == len(set(content)), "one document has no end marker"


# -- stores ----------------------------------------------------------------------------------------------------------------------


def test_every_document_is_stored_with_an_end_marker(folder, tmp_path):
    found = made(text(folder, validation_fraction=0.3), tmp_path / "stores")
    sides = split_of(folder)
    for array, side in ((found.train, False), (found.validation, True)):
        ids, stored = array.tokens.tolist(), []
        while ids:
            end = ids.index(found.tokenizer.end)
            stored.append(found.tokenizer.decode(ids[:end]))
            ids = ids[end + 1 :]
        assert stored == [content for name, content in documents(scan_texts(text(folder))) if sides[name] == side]
    counted = found.facts["splits"]["validation"]
    assert counted["tokens"] == counted["characters"] + counted["documents"] == found.validation.size
    assert found.byte_lengths[found.validation.tokens].sum() == counted["bytes"]


def test_the_integer_type_fits_the_vocabulary(tmp_path):
    letters = "".join(map(chr, [*range(0x20, 0xD800), *range(0xE000, 0x14000)]))
    assert len(letters) > 1 << 16
    for content, dtype in ((letters, "<u4"), (letters[: 1 << 16], "<u2"), (letters[: (1 << 16) + 1], "<u4")):
        (tmp_path / "one.txt").write_text(content, encoding="utf-8")
        found = made(text(tmp_path / "one.txt"), tmp_path / "stores")
        assert found.train.tokens.dtype == np.dtype(dtype)
        assert decoded(found.train, found.tokenizer) + decoded(found.validation, found.tokenizer) == content


def test_a_store_is_written_once_and_shared(folder, tmp_path, monkeypatch):
    first = made(text(folder), tmp_path / "stores")
    monkeypatch.setattr(token_store, "_build", None)  # it would be called
    again = made(text(folder), tmp_path / "stores")
    assert again.fingerprint == first.fingerprint and again.train.files == first.train.files
    assert not again.train.tokens.flags.writeable
    assert pickle.loads(pickle.dumps(again.train)).tokens.tolist() == first.train.tokens.tolist()
    assert len(pickle.dumps(again.train)) < 500, "tokens are not pickled"


def test_another_text_tokenizer_or_split_gives_another_store(folder, tmp_path):
    stores = [made(text(folder), tmp_path / "stores")]
    alphabet = stores[0].tokenizer.alphabet
    (tmp_path / "tokenizer.json").write_text(json.dumps(CharacterTokenizer(alphabet[::-1], True).to_dict()))
    changes = [{"tokenizer": "byte"}, {"validation_fraction": 0.5}, {"validation_fraction": 0.5, "split_seed": 2}]
    for change in [*changes, {"tokenizer_file": str(tmp_path / "tokenizer.json")}]:
        stores.append(made(text(folder, **change), tmp_path / "stores"))
    (folder / "0.txt").write_text("another document")
    stores.append(made(text(folder), tmp_path / "stores"))
    assert len({store.fingerprint for store in stores}) == 6 == len(list((tmp_path / "stores").iterdir()))


def test_a_store_that_does_not_match_its_record_is_refused(folder, tmp_path):
    root, corpus = tmp_path / "stores", scan_texts(text(folder, files=None, sources={"texts": ["**/*.txt"], "notes": ["*.md"]}))
    name = text_store(corpus, root)
    path = root / name
    sound = {file: (path / file).read_bytes() for file in ("store.json", "train.bin", "val.bin")}

    def refused(file, content, message):
        (path / file).write_bytes(content)
        with pytest.raises(ConfigError, match=f"token store {path} .*{message}"):
            text_store(corpus, root)
        (path / file).write_bytes(sound[file])
        assert text_store(corpus, root) == name

    flipped = bytearray(sound["val.bin"])
    flipped[0] ^= 1
    refused("val.bin", bytes(flipped), "is damaged: val.bin does not match store.json")
    refused("train.bin", sound["train.bin"][:-2], "is damaged: train.bin")
    refused("store.json", b"{", "cannot be read")
    for key, value, message in (
        (("tokenizer", "alphabet"), corpus.config.path[::-1], "store.json does not match its tokenizer"),
        (("expected", "encoding"), "latin-1", "store.json does not match its tokenizer and its name"),
        (("splits", "validation", "sources", "notes", "tokens"), 99, "val.bin does not match store.json"),
    ):
        facts = json.loads(sound["store.json"])
        functools.reduce(dict.__getitem__, key[:-1], facts)[key[-1]] = value
        refused("store.json", json.dumps(facts).encode(), f"is damaged: {message}")


def test_an_unfinished_store_is_not_used_and_later_deleted(folder, tmp_path, monkeypatch):
    root, config = tmp_path / "stores", text(folder)

    def is_refused(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(token_store, "file_digest", is_refused)
        with pytest.raises(ConfigError, match="No space left on device"):
            made(config, root)
    assert list(root.iterdir()) == []
    with monkeypatch.context() as patch:
        patch.setattr(token_store, "_commit", is_refused)
        patch.setattr(token_store, "delete", lambda path: None)  # killed
        with pytest.raises(ConfigError):
            made(config, root)
    (left,) = root.iterdir()
    made(config, root)
    assert left.exists(), "another process may be writing it"
    long_ago = time.time() - 2 * ABANDONED_AFTER
    for path in (*left.iterdir(), left):
        os.utime(path, (long_ago, long_ago))
    made(text(folder, tokenizer="byte"), root)
    assert not left.exists() and len(list(root.iterdir())) == 2


def test_two_runs_that_write_one_store_keep_the_first(folder, tmp_path, monkeypatch):
    root, config, first = tmp_path / "stores", text(folder), []
    write = token_store.write_splits

    def slowly(*arguments):
        with monkeypatch.context() as patch:
            patch.setattr(token_store, "write_splits", write)
            first.append(made(config, root).train.files[0].path.stat().st_ino)
        return write(*arguments)

    monkeypatch.setattr(token_store, "write_splits", slowly)
    assert [made(config, root).train.files[0].path.stat().st_ino] == first and len(list(root.iterdir())) == 1


def test_a_folder_that_cannot_be_written_is_one_line(folder, tmp_path):
    (tmp_path / "stores").write_text("a file")
    with pytest.raises(ConfigError, match=r"run.root: the token store .* cannot be written or read"):
        made(text(folder), tmp_path / "stores")


def test_a_bpe_is_trained_on_the_training_text_only(tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "one.txt").write_text("the cat sat on the mat. " * 90 + "xyzzy " * 40)
    found = made(text(tmp_path / "one.txt", tokenizer="bpe", vocabulary=265), tmp_path / "stores")
    assert found.vocabulary_size == 265
    tokens = Counter(found.tokenizer.decode([i]) for i in range(found.vocabulary_size))
    assert tokens[" the"] == 1 and not any("xy" in token for token in tokens)
    whole = decoded(found.train, found.tokenizer) + decoded(found.validation, found.tokenizer)
    assert whole == (tmp_path / "one.txt").read_text()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"tokenizer": "bpe"}, "data.tokenizer=bpe needs data.vocabulary"),
        ({"vocabulary": 300}, "data.vocabulary=300 has no effect"),
        ({"tokenizer_file": "gone.json"}, "data.tokenizer_file: gone.json cannot be read"),
        ({"tokenizer_file": "few.json"}, "data.tokenizer_file: in .*9.txt, the character '9' is not one of"),
        ({"tokenizer_file": "open.json"}, "data.tokenizer_file: character-19-.* has no end marker for the 12 documents"),
    ],
)
def test_settings_and_tokenizers_that_do_not_fit_are_refused(folder, tmp_path, monkeypatch, changes, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.json").write_text(json.dumps(CharacterTokenizer("document 012345678", True).to_dict()))
    (tmp_path / "open.json").write_text(json.dumps(CharacterTokenizer("document 0123456789", False).to_dict()))
    with pytest.raises(ConfigError, match=message):
        made(text(folder, **changes), tmp_path / "stores")


@pytest.mark.slow
def test_runs_that_begin_at_once_share_a_store(folder, tmp_path):
    """Twelve processes write the same new store. One name stays, no temporary folder, and each process opens it."""
    corpus, stores = scan_texts(text(folder)), tmp_path / "stores"
    context = multiprocessing.get_context("fork")
    for attempt in range(3):
        start = context.Barrier(12)
        processes = [context.Process(target=_write_store, args=(start, corpus, stores / str(attempt))) for _ in range(12)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0] * 12
        assert len(list((stores / str(attempt)).iterdir())) == 1


def _write_store(start, corpus, folder):
    start.wait(30)
    open_store(folder / text_store(corpus, folder))


def test_a_store_that_another_run_finishes_or_deletes_meanwhile_is_no_error(folder, tmp_path, monkeypatch):
    corpus, fill = scan_texts(text(folder)), token_store._fill

    def overtaken(temporary, *more):
        monkeypatch.setattr(token_store, "_fill", fill)
        text_store(corpus, tmp_path / "stores")  # the other run
        fill(temporary, *more)

    monkeypatch.setattr(token_store, "_fill", overtaken)
    open_store(tmp_path / "stores" / text_store(corpus, tmp_path / "stores"))
    (tmp_path / "stores" / f"{TEMPORARY}gone").symlink_to(tmp_path / "nowhere")  # listed, but not there when it is read
    open_store(tmp_path / "stores" / text_store(scan_texts(text(folder, tokenizer="byte")), tmp_path / "stores"))
