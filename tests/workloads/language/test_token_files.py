"""Token files in nanoGPT's layout."""

import dataclasses
import pickle

import numpy as np
import pytest

from linnaeus.config.load import compose
from linnaeus.errors import ConfigError
from linnaeus.workloads.language.token_files import check_token_files, load_plain_pickle, open_token_files
from tests.checkpoint.test_format import Hostile
from tests.workloads.language.test_token_store import decoded


def write_tokens(folder, train, validation, meta=None):
    """Write a folder of token files; return the data settings that select it."""
    folder.mkdir(exist_ok=True)
    np.array(train, dtype="<u2").tofile(folder / "train.bin")
    np.array(validation, dtype="<u2").tofile(folder / "val.bin")
    if meta is not None:
        (folder / "meta.pkl").write_bytes(pickle.dumps(meta))
    return compose(["workload=language", "data=tokens", f"data.path={folder}"]).data


def letters_of(alphabet):
    return {"vocab_size": len(alphabet), "itos": dict(enumerate(alphabet)), "stoi": {c: i for i, c in enumerate(alphabet)}}


def test_nanogpts_layout_is_read_with_its_characters(tmp_path):
    config = write_tokens(tmp_path, [2, 0, 1], [1, 1], letters_of("né!"))
    found = open_token_files(config, check_token_files(config))
    assert decoded(found.train, found.tokenizer) == "!né" and decoded(found.validation, found.tokenizer) == "éé"
    assert (found.vocabulary_size, found.byte_lengths.tolist()) == (3, [1, 2, 1])
    other = write_tokens(tmp_path, [2, 0, 0], [1, 1], letters_of("né!"))
    assert open_token_files(other, check_token_files(other)).fingerprint != found.fingerprint


def test_without_meta_pkl_the_tokens_are_gpt2s(tmp_path):
    config = write_tokens(tmp_path, [50256, 0, 1], [1, 1])
    found = open_token_files(config, check_token_files(config))
    assert (found.vocabulary_size, found.tokenizer, found.byte_lengths) == (50257, None, None)
    assert "bits per byte: unknown" in found.notes[1]
    with pytest.raises(ConfigError, match=r"train.bin has token 50256 at 0, but the vocabulary size is 300"):
        check_token_files(dataclasses.replace(config, vocabulary=300))


def test_a_pickle_with_code_is_refused_and_not_executed(tmp_path):
    config = write_tokens(tmp_path, [0, 1], [1, 1], {"itos": Hostile(tmp_path / "evil")})
    with pytest.raises(ConfigError, match=r"meta.pkl is refused: it contains (posix|os).mkdir, which is not a plain value"):
        check_token_files(config)
    assert not (tmp_path / "evil").exists()
    pickle.loads((tmp_path / "meta.pkl").read_bytes())
    assert (tmp_path / "evil").exists(), "negative control: the ordinary loader runs it"
    (tmp_path / "meta.pkl").write_bytes(b"\x80\x04.")
    with pytest.raises(ConfigError, match=r"meta.pkl is refused"):
        load_plain_pickle(tmp_path / "meta.pkl")


@pytest.mark.parametrize(
    "meta, message",
    [
        ([1], "has no itos"),
        ({"itos": {0: "a", 2: "b"}}, "has no itos that maps each id to a different character"),
        ({"itos": {0: "a", 1: "bc"}}, "has no itos that maps each id to a different character"),
        ({"itos": {0: "a", 1: "a"}}, "has no itos that maps each id to a different character"),
        ({"itos": {0: "a", 1: "\ud800"}}, "maps id 1 to '.ud800', which is not a character"),
        ({"itos": {0: "a", 1: "b"}, "vocab_size": 3}, "has vocab_size 3 and 2 characters"),
        ({"itos": {0: "a"}}, "train.bin has token 1 at 1, but the vocabulary size is 1"),
    ],
)
def test_an_invalid_meta_pkl_is_refused(tmp_path, meta, message):
    with pytest.raises(ConfigError, match=message):
        check_token_files(write_tokens(tmp_path, [0, 1], [1, 1], meta))


def test_invalid_token_files_are_refused(tmp_path):
    config = write_tokens(tmp_path, [0, 1], [1, 1], letters_of("ab"))
    with pytest.raises(ConfigError, match=r"data.vocabulary=5 has no effect"):
        check_token_files(dataclasses.replace(config, vocabulary=5))
    with pytest.raises(ConfigError, match=r"data.tokenizer_file has no effect"):
        check_token_files(dataclasses.replace(config, tokenizer_file="x"))
    (tmp_path / "val.bin").write_bytes(b"\0\0\1")
    with pytest.raises(ConfigError, match=r"val.bin has 3 bytes, which is not a whole number of tokens"):
        check_token_files(config)
    (tmp_path / "val.bin").unlink()
    with pytest.raises(ConfigError, match=r"has no val.bin"):
        check_token_files(config)
