"""Token files of nanoGPT, llm.c and numpy: layouts, types, several files, and refused ones."""

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
    with pytest.raises(ConfigError, match=r"has no val.bin and no other \*val\*.bin or \*val\*.npy; .* data.validation_files"):
        check_token_files(config)


# -- types, headers and several files ------------------------------------------------------------------------------------------------


WIDE = np.arange(70_000, dtype="<u4")


def tokens_of(folder, *overrides):
    """Return the tokens of both splits, each read one by one."""
    config = compose(["workload=language", "data=tokens", f"data.path={folder}", *overrides]).data
    found = open_token_files(config, check_token_files(config))
    return [array.read(np.arange(array.size).reshape(-1, 1))[:, 0].tolist() for array in (found.train, found.validation)]


def headed(tokens, magic=20240520, version=1, dtype="<u2", number=None):
    """Return the bytes of a file of llm.c."""
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens) if number is None else number
    return header.tobytes() + np.array(tokens, dtype).tobytes()


def test_a_vocabulary_above_65536_is_read_as_tokens_of_32_bits(tmp_path):
    for file in ("train.bin", "val.bin"):
        WIDE.tofile(tmp_path / file)
    assert tokens_of(tmp_path, "data.vocabulary=70000") == [WIDE.tolist()] * 2
    np.arange(1, 70_002, dtype="<u2").tofile(tmp_path / "val.bin")
    with pytest.raises(ConfigError, match=r"has 140002 bytes, which is not a whole number of tokens of 4 bytes \(data.dtype\)"):
        tokens_of(tmp_path, "data.vocabulary=70000")
    np.arange(1, 70_001, dtype="<u2").tofile(tmp_path / "val.bin")
    with pytest.raises(ConfigError, match=r"val.bin has token \d+ at \d+, but the vocabulary size is 70000; .*data.dtype .* not uint32"):
        tokens_of(tmp_path, "data.vocabulary=70000")


@pytest.mark.parametrize("name, wide, vocabulary", [("uint16", "uint32", 50257), ("uint32", "uint64", 70_000)])
def test_tokens_of_twice_the_width_are_refused_unless_the_type_is_set(tmp_path, name, wide, vocabulary):
    for file in ("train.bin", "val.bin"):
        np.arange(900, dtype=wide).tofile(tmp_path / file)
    size = f"data.vocabulary={vocabulary}"
    with pytest.raises(
        ConfigError, match=f"as {name}, every second token of .*train.bin is 0, .* set data.dtype={wide}, or data.dtype={name}"
    ):
        tokens_of(tmp_path, size)
    assert tokens_of(tmp_path, size, f"data.dtype={wide}")[0] == list(range(900))
    assert tokens_of(tmp_path, size, f"data.dtype={name}")[0][:4] == [0, 0, 1, 0]


def test_headers_of_llm_c_and_numpy_are_recognised(tmp_path):
    (tmp_path / "train.bin").write_bytes(headed([5, 6, 50_256]))
    np.save(tmp_path / "val.npy", np.array([7, 8], np.int64))
    assert tokens_of(tmp_path) == [[5, 6, 50_256], [7, 8]]
    (tmp_path / "train.bin").write_bytes(headed([70_000, 1], 20240801, 7, "<u4"))
    assert tokens_of(tmp_path, "data.vocabulary=128256")[0] == [70_000, 1]
    with pytest.raises(ConfigError, match=r"data.dtype=uint16: the header of .*train.bin has the type uint32; use data.dtype=auto"):
        tokens_of(tmp_path, "data.dtype=uint16")


@pytest.mark.parametrize(
    "content, message",
    [
        (headed([5, 6], number=3), "has version 1 and 4 bytes after its header; expected version 1 and 6 bytes"),
        (headed([5, 6], version=2), "has version 2"),
        (b"\x93NUMPY\x01", "train.bin is damaged"),
        (b"\x93NUMPY\x01\x00\x40\x00{'descr': '<u2', 'fortran_order': False, 'shape': (5, }".ljust(80), "train.bin is damaged"),
    ],
)
def test_a_damaged_header_is_refused(tmp_path, content, message):
    (tmp_path / "train.bin").write_bytes(content)
    (tmp_path / "val.bin").write_bytes(headed([1, 2]))
    with pytest.raises(ConfigError, match=message):
        tokens_of(tmp_path)


@pytest.mark.parametrize("array", [np.zeros((3, 4), np.int32), np.zeros(4), np.array([1, -2, 3])])
def test_an_array_that_is_not_of_tokens_is_refused(tmp_path, array):
    np.save(tmp_path / "train.npy", array)
    np.save(tmp_path / "val.npy", np.array([1, 2]))
    with pytest.raises(ConfigError, match=r"it must have one dimension of integers|has token -2 at 1, but the vocabulary size is 50257"):
        tokens_of(tmp_path)


def test_several_files_are_read_in_the_order_of_their_numbers(tmp_path):
    parts = np.split(np.arange(1, 41), [7, 7, 20])
    for number, part in zip((1, 2, 10, 11), parts):
        (tmp_path / f"fineweb_train_{number}.bin").write_bytes(headed(part))
    for number in (0, 1):
        np.array([number + 1, 9], "<u2").tofile(tmp_path / f"fineweb_val_{number}.bin")
    np.zeros(3, "<u2").tofile(tmp_path / "test.bin")
    assert tokens_of(tmp_path) == [list(range(1, 41)), [1, 9, 2, 9]]
    config = compose(["workload=language", "data=tokens", f"data.path={tmp_path}"]).data
    found = open_token_files(config, check_token_files(config))
    assert found.notes[:2] == (
        f"text: token files in {tmp_path}: 4 files for train, 2 files for validation, uint16",
        f"left out: test.bin in {tmp_path}, for neither training nor validation",
    )
    index = np.array([[5, 6, 7], [38, 39, 0], [19, 20, 21]])  # windows over the bounds of files
    assert found.train.read(index).tolist() == (index + 1).tolist() == pickle.loads(pickle.dumps(found.train)).read(index).tolist()
    assert tokens_of(tmp_path, "data.train_files=['*_train_1.bin']", "data.validation_files=['test*','*val_1*']") == [
        list(range(1, 8)),
        [2, 9, 0, 0, 0],
    ]


def test_patterns_that_select_no_file_or_one_file_twice_are_refused(tmp_path):
    write_tokens(tmp_path, [1, 2], [3, 4])
    for override, message in (
        ("data.train_files=['a*']", r"nothing matches data.train_files=\['a\*'\]"),
        ("data.validation_files=['*.bin']", r"train.bin is a file for training and for validation; set data.train_files and"),
        ("data.train_files=['/etc/*']", r"data.train_files=.*; use patterns such as \*train\*.bin"),
    ):
        with pytest.raises(ConfigError, match=message):
            tokens_of(tmp_path, override)
