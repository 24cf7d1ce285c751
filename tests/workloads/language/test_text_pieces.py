"""Texts in pieces: reading, splitting and cutting give the same for any pieces, in constant memory."""

import hashlib
import random
import tracemalloc

import pytest

from linnaeus.workloads.language import text_pieces, tokenization
from linnaeus.workloads.language.corpus import scan_texts
from linnaeus.workloads.language.text_pieces import halves, read_pieces, reading_progress, recut, split_documents
from linnaeus.workloads.language.token_store import text_store
from linnaeus.workloads.language.tokenizers import ANYWHERE, BEFORE_WORD, BPETokenizer, train_bpe
from tests.workloads.language.test_token_store import made, text


def cut_at_random(whole, drawn):
    """Return pieces of 0 to 5 characters that join to `whole`."""
    pieces = []
    while whole:
        size = drawn.randrange(6)
        pieces, whole = [*pieces, whole[:size]], whole[size:]
    return pieces


@pytest.mark.parametrize("separator", ["|", "ab", "aab", "<|end|>", None])
def test_documents_do_not_depend_on_the_pieces(separator):
    drawn = random.Random(0)
    for _ in range(200):
        whole = "".join(drawn.choices(["a", "b", "|", " ", "\n", "<|end|>", "<|", "end"], k=30))
        expected = [part for part in ([whole] if separator is None else whole.split(separator)) if part.strip()]
        pieces = cut_at_random(whole, drawn)
        assert ["".join(document) for document in split_documents(pieces, separator)] == expected
        assert len(list(split_documents(pieces, separator))) == len(expected), "documents that are not read are skipped"


def test_halves_and_recut_pieces_join_to_the_text():
    drawn = random.Random(1)
    for _ in range(200):
        whole = "".join(drawn.choices(["a", "bc", " ", "\n"], k=20))
        length = drawn.randrange(len(whole) + 2)
        found = {side: "".join(texts) for side, texts in halves(cut_at_random(whole, drawn), length)}
        assert (found.get(False, ""), found.get(True, "")) == (whole[:length], whole[length:])
        for boundary in (ANYWHERE, BEFORE_WORD):
            sizes = []
            pieces = list(recut(cut_at_random(whole, drawn), boundary, 4))
            assert "".join(pieces) == whole and pieces == list(recut([whole], boundary, 4)) and "" not in pieces
            sizes += [len(piece) for piece in pieces]
            assert boundary is BEFORE_WORD or set(sizes[:-1]) <= {4}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "shift_jis", "gb18030", "iso2022_jp", "utf-7", "latin-1"])
def test_a_character_may_be_torn_between_two_chunks(tmp_path, monkeypatch, encoding):
    whole = "né" * 20 if encoding == "latin-1" else "a日本\r\n語b" * 9
    (tmp_path / "a.txt").write_bytes(whole.encode(encoding))
    for size in (1, 2, 3, 7, 1 << 20):
        monkeypatch.setattr(text_pieces, "CHUNK", size)
        digest, progress = hashlib.sha256(), reading_progress("reading", 9)
        assert "".join(read_pieces(tmp_path / "a.txt", encoding, digest, progress)) == whole
        assert digest.digest() == hashlib.sha256(whole.encode(encoding)).digest() and progress.done == len(whole.encode(encoding))


def test_the_offset_of_a_wrong_byte_is_that_in_the_file(tmp_path, monkeypatch):
    for content in (b"caf\xc3\xa9 au lait \xff" + b"x" * 30, b"a" * 17 + b"\xe6\x97"):  # a wrong byte; an end inside of a character
        (tmp_path / "a.txt").write_bytes(content)
        with pytest.raises(UnicodeDecodeError) as expected:
            content.decode()
        for size in (1, 2, 3, 7, 1 << 20):
            monkeypatch.setattr(text_pieces, "CHUNK", size)
            with pytest.raises(UnicodeDecodeError) as found:
                list(read_pieces(tmp_path / "a.txt", "utf-8", hashlib.sha256(), reading_progress("reading", 9)))
            assert found.value.start == expected.value.start and found.value.reason == expected.value.reason


@pytest.mark.parametrize("tokenizer", ["character", "byte"])
def test_tokenizing_takes_constant_memory(tmp_path, tokenizer):
    """In one piece, this text of 16 MB takes 15 times its size."""
    (tmp_path / "one.txt").write_text("abcdefg " * (1 << 21))
    config = text(tmp_path / "one.txt", tokenizer=tokenizer)
    tracemalloc.start()
    try:
        text_store(scan_texts(config), tmp_path / "stores")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 << 20


@pytest.mark.parametrize("separator", [None, ","])
def test_a_bpe_encodes_small_batches_to_the_tokens_of_the_whole_text(tmp_path, monkeypatch, separator):
    pytest.importorskip("tokenizers")
    content = "".join(random.Random(2).choices(["to be", " or not", "\n", " ", "\r\n", ", that"], k=4000))
    bpe, sizes = train_bpe([content], 300), []
    (tmp_path / "tokenizer.json").write_text(bpe.content)
    (tmp_path / "one.txt").write_text(content, newline="")
    config = text(tmp_path / "one.txt", tokenizer="bpe", tokenizer_file=str(tmp_path / "tokenizer.json"), separator=separator)
    whole, encode = made(config, tmp_path / "whole"), BPETokenizer.encode_batch
    monkeypatch.setattr(BPETokenizer, "encode_batch", lambda self, texts: sizes.append(sum(map(len, texts))) or encode(self, texts))
    monkeypatch.setattr(tokenization, "PIECE_SIZE", 50)
    monkeypatch.setattr(tokenization, "BATCH", 200)
    monkeypatch.setattr(text_pieces, "CHUNK", 64)
    assert made(config, tmp_path / "parts").facts["splits"] == whole.facts["splits"]
    assert max(sizes) < 400 and len(sizes) > 50
