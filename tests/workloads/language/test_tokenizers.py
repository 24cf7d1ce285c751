"""Tokenizers: encoding and decoding, bytes of every token, identities, and refused files."""

import itertools
import json
import random

import numpy as np
import pytest

from linnaeus.errors import ConfigError
from linnaeus.workloads.language import tokenizers
from linnaeus.workloads.language.text_pieces import recut
from linnaeus.workloads.language.tokenizers import (
    END,
    BPETokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    fetch_gpt2,
    identity,
    load_tokenizer,
    tokenizer_from,
    train_bpe,
)

TEXT = "To be, or not to be:\n\n  that is the café — naïve, 日本語, 🦋🦋.\r\n\tAnd then\nsome more, and then some more of that.\n\n\n"


@pytest.fixture(scope="module")
def bpe():
    pytest.importorskip("tokenizers")
    return train_bpe([TEXT] * 3, 300)


def every_kind(bpe):
    alphabet = "".join(sorted(set(TEXT)))
    return [CharacterTokenizer(alphabet, False), CharacterTokenizer(alphabet, True), ByteTokenizer(False), ByteTokenizer(True), bpe]


def test_every_tokenizer_restores_the_text_and_counts_its_bytes(bpe):
    for tokenizer in every_kind(bpe):
        ids = tokenizer.encode(TEXT)
        assert ids.dtype == np.int64 and ids.min() >= 0 and ids.max() < tokenizer.size
        assert tokenizer.decode(ids.tolist()) == TEXT
        lengths = tokenizer.byte_lengths()
        assert lengths.shape == (tokenizer.size,)
        assert lengths[ids].sum() == len(TEXT.encode()) != len(TEXT)
        assert tokenizer.encode("").tolist() == []
        if tokenizer.end is not None:
            assert lengths[tokenizer.end] == 0
            assert tokenizer.decode([*ids.tolist(), tokenizer.end]) == TEXT
            assert tokenizer.end not in ids
    assert len(bpe.encode(TEXT)) < len(TEXT), "pairs are merged"


@pytest.mark.parametrize("text, name", [("abé", "'é'"), ("~", "'~'"), ("a🦋", "'🦋'")])
def test_a_character_without_a_token_is_named(text, name):
    with pytest.raises(ConfigError, match=name):
        CharacterTokenizer("ab|\u2014", False).encode(text)


def test_bytes_that_are_not_utf8_become_replacement_characters():
    assert ByteTokenizer(True).decode([0xC3, 0xA9, 0xC3, 256, 65]) == "é\ufffdA"


def test_an_end_marker_inside_a_text_is_encoded_as_text(bpe):
    text = f"before{END}after"
    ids = bpe.encode(text)
    assert bpe.end not in ids
    assert bpe.decode(ids.tolist()) == text
    assert bpe.byte_lengths()[ids].sum() == len(text)


def test_a_bpe_has_the_given_size_and_encodes_anything(bpe):
    assert bpe.size == 300
    strange = "".join(chr(c) for c in (0, 7, 0x7F, 0x80, 0x3A9, 0xFFFF, 0x10FFFF))
    assert bpe.decode(bpe.encode(strange).tolist()) == strange
    with pytest.raises(ConfigError, match=r"data.vocabulary=9000: the text has pairs for \d+ tokens only"):
        train_bpe([TEXT], 9000)


def test_a_text_in_pieces_is_encoded_like_the_whole_text(bpe, monkeypatch):
    words = ["to", "be", " ", "  ", "\n", "\n\n", " \n", "\n ", "that", ",", "\t", "\r\n", "'s", "'", " 5", "7", "é", "日"]
    drawn = random.Random(0)
    cut = 0
    for _ in range(200):
        text = "".join(drawn.choices(words, k=150))
        monkeypatch.setattr(tokenizers, "PIECE_SIZE", 1 << 22)
        whole = bpe.encode(text).tolist()
        monkeypatch.setattr(tokenizers, "PIECE_SIZE", 7)
        assert bpe.encode(text).tolist() == whole
        pieces = list(recut([text], bpe.boundary, 7))
        assert "".join(pieces) == text
        cut += len(pieces) - 1
    assert cut > 200, "texts are cut"


@pytest.mark.parametrize(
    "change, boundary",
    [
        ({}, tokenizers.BEFORE_WORD),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}}, tokenizers.NOWHERE),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}]}}, tokenizers.AFTER_LINE),
        ({"added_tokens": [{"content": "to be", "special": False, "lstrip": False, "rstrip": False}]}, tokenizers.NOWHERE),
        ({"added_tokens": [{"content": "to be", "special": True, "lstrip": False, "rstrip": False}]}, tokenizers.BEFORE_WORD),
    ],
)
def test_a_text_is_cut_only_where_the_pre_tokenizer_cuts(bpe, change, boundary):
    assert tokenizers._boundary(bpe._json | change) is boundary


def test_a_text_is_not_cut_between_a_line_break_and_a_slash():
    """GPT-4o merges punctuation with the line breaks and slashes after it."""
    library = pytest.importorskip("tokenizers")
    cut, text = library.pre_tokenizers.Split(library.Regex(r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\p{L}+|\s+"), "isolated"), "a.\n/b.\nc"
    bpe = library.Tokenizer(library.models.BPE())
    bpe.pre_tokenizer = library.pre_tokenizers.Sequence([cut, library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    bpe.decoder = library.decoders.ByteLevel()
    letters = library.pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator([text] * 3, library.trainers.BpeTrainer(vocab_size=300, initial_alphabet=letters, show_progress=False))
    found = BPETokenizer(bpe.to_str(), "bpe")
    pieces = list(recut([text], found.boundary, 1))
    assert pieces == ["a.\n/b.\n", "c"]
    assert np.concatenate(found.encode_batch(pieces)).tolist() == found.encode(text).tolist()


def test_a_surrogate_raises_the_same_error_with_every_tokenizer(bpe):
    for tokenizer in every_kind(bpe):
        with pytest.raises(UnicodeEncodeError):
            tokenizer.encode("to \ud800")


def test_negative_control_a_cut_at_any_line_break_changes_the_tokens(bpe):
    text = "be\n\n\nto\n\n\nbe"
    lines = text.splitlines(keepends=True)
    assert list(itertools.chain(*(bpe.encode(line).tolist() for line in lines))) != bpe.encode(text).tolist()


def test_identities_are_unique_and_survive_saving(bpe, tmp_path):
    kinds = [*every_kind(bpe), CharacterTokenizer("ba", False), CharacterTokenizer("ab", False)]
    names = [identity(tokenizer) for tokenizer in kinds]
    assert len(set(names)) == len(names)
    assert names[0].startswith(f"character-{kinds[0].size}-") and names[4].startswith("bpe-300-")
    for tokenizer, name in zip(kinds, names):
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps(tokenizer.to_dict()))
        again = load_tokenizer(path, tokenizer.kind, "key")
        assert identity(again) == name
        assert identity(tokenizer_from(tokenizer.to_dict())) == name


def test_training_a_bpe_is_deterministic(bpe):
    assert identity(train_bpe([TEXT] * 3, 300)) == identity(bpe)


def test_files_of_the_library_and_of_gpt2_are_read(bpe, tmp_path):
    """tokenizer.json and vocab.json with merges.txt differ in settings that do not affect ids, so they have one identity."""
    (tmp_path / "library.json").write_text(bpe.content)
    assert load_tokenizer(tmp_path / "library.json", "bpe", "key").encode(TEXT).tolist() == bpe.encode(TEXT).tolist()
    bpe._bpe.model.save(str(tmp_path))
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary | {END: bpe.end}))
    found = load_tokenizer(tmp_path, "gpt2", "key")
    assert isinstance(found, BPETokenizer) and (found.kind, found.size, found.end) == ("gpt2", 300, bpe.end)
    assert found.encode(TEXT + END).tolist() == bpe.encode(TEXT + END).tolist()
    assert found.decode(found.encode(TEXT)) == TEXT
    assert found.byte_lengths().tolist() == bpe.byte_lengths().tolist()
    content = json.loads(bpe.content)
    content["pre_tokenizer"]["trim_offsets"] = not content["pre_tokenizer"]["trim_offsets"]
    content["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    for merges, same in ((content["model"]["merges"], True), (content["model"]["merges"][::-1], False)):
        content["model"]["merges"] = merges
        (tmp_path / "other.json").write_text(json.dumps(content))
        assert (identity(load_tokenizer(tmp_path / "other.json", "gpt2", "key")) == identity(found)) == same


def test_tokenizers_that_change_text_are_refused(bpe, tmp_path):
    library = pytest.importorskip("tokenizers")
    words = library.Tokenizer(library.models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    spaces = library.Tokenizer(library.models.BPE())
    spaces.pre_tokenizer, spaces.decoder = library.pre_tokenizers.Metaspace(), library.decoders.Metaspace()
    lower = library.Tokenizer.from_str(bpe.content)
    lower.normalizer = library.normalizers.Lowercase()
    blank = library.Tokenizer.from_str(bpe.content)
    blank.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=True)
    refused = [(words, "it is WordPiece"), (spaces, "its pre_tokenizer is not byte-level"), (lower, "it has a normalizer")]
    for found, why in (*refused, (blank, "it adds a blank before a text")):
        (tmp_path / "tokenizer.json").write_text(found.to_str())
        with pytest.raises(ConfigError, match=f"is not a usable tokenizer .{why}"):
            load_tokenizer(tmp_path, "bpe", "key")


def test_gpt2_without_a_network_is_one_line_with_two_solutions_at_once(monkeypatch):
    pytest.importorskip("tokenizers")
    import huggingface_hub
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def unreachable(*_, **__):
        assert constants.HF_HUB_OFFLINE, "its client would retry for half a minute"
        raise huggingface_hub.errors.LocalEntryNotFoundError("no network\nhere")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    with pytest.raises(
        ConfigError, match=r"data.tokenizer=gpt2: .* cannot be downloaded .* data.tokenizer_file .* data.tokenizer=bpe"
    ) as caught:
        fetch_gpt2()
    assert "\n" not in str(caught.value)


def test_files_that_are_not_tokenizers_are_refused(bpe, tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(ConfigError, match=r"key: .*tokenizer.json cannot be read"):
        load_tokenizer(path, "bpe", "key")
    for content in ("{", "[]", '{"kind": "words"}', '{"version": 1}'):
        path.write_text(content)
        with pytest.raises(ConfigError, match="is not a usable tokenizer"):
            load_tokenizer(path, "bpe", "key")
    path.write_text(json.dumps(ByteTokenizer(True).to_dict()))
    with pytest.raises(ConfigError, match=r"contains the tokenizer byte-257-.*, but data.tokenizer is character"):
        load_tokenizer(path, "character", "key")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"has no tokenizer.json, nor vocab.json and merges.txt"):
        load_tokenizer(tmp_path / "empty", "gpt2", "key")
