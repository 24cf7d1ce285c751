"""Windows of a text: coverage without repeats, and dependence on (seed, epoch, position) only."""

import numpy as np
import pytest
import torch

from linnaeus.data.order import epoch_order
from linnaeus.data.sampler import ValidationBatches
from linnaeus.data.samples import SampleIndex
from linnaeus.errors import ConfigError, counted
from linnaeus.workloads.language.text_windows import TextWindows
from linnaeus.workloads.language.token_array import TokenArray, TokenFile

SIZES = [(2, 8), (3, 1), (8, 8), (9, 8), (10, 8), (16, 8), (17, 8), (100, 8), (103, 7), (1000, 64)]


def windows_of(folder, sizes, block, order, seed=0, names=(), dimensions=(), schedule=None):
    """Return windows of sources of these sizes, or of one text, whose tokens are their own positions."""
    size = int(np.sum(sizes))
    path = folder / f"{size}.bin"
    np.arange(size, dtype="<u2").tofile(path)
    return TextWindows(
        TokenArray((TokenFile(path, "<u2", 0, size),), sizes if names else ()), block, seed, order, "f", names, dimensions, schedule
    )


def epoch_of(windows, epoch):
    """Return the indices of an epoch with updates of 8 positions, 6 updates in each epoch."""
    order = epoch_order(0, epoch, len(windows))
    return [SampleIndex(epoch, position, int(sample), epoch * 6 + position // 8) for position, sample in enumerate(order)]


def targets(batch):
    found = batch["target"].numpy()
    return found[found >= 0]


def check(batch):
    """Check that every target is the token after its input."""
    known = batch["target"] >= 0
    assert ((batch["target"] == batch["input"] + 1) | ~known).all()
    assert (batch["input"][:, 1:][known[:, 1:]] == batch["target"][:, :-1][known[:, 1:]]).all()
    assert known.any(1).all(), "a window without a target"


@pytest.mark.parametrize("size, block", SIZES)
def test_validation_targets_each_token_but_the_first_once(tmp_path, size, block):
    windows = windows_of(tmp_path, size, block, None)
    for batch_size in (1, 3, 64):
        batches = [windows.__getitems__(indices) for indices in ValidationBatches(range(len(windows)), batch_size)]
        for batch in batches:
            check(batch)
        assert np.concatenate([targets(batch) for batch in batches]).tolist() == list(range(1, size))


@pytest.mark.parametrize("size, block", SIZES)
def test_an_epoch_has_no_target_twice_and_leaves_out_less_than_two_windows(tmp_path, size, block):
    windows = windows_of(tmp_path, size, block, "windows")
    assert len(windows) == max(1, (size - 1) // block)
    seen = set()
    for epoch in range(7 * block + 20):
        batch = windows.__getitems__(epoch_of(windows, epoch))
        check(batch)
        found = targets(batch)
        assert len(set(found.tolist())) == len(found)
        assert size - 1 - len(found) < 2 * block
        assert (np.sort(found) == np.arange(found.min(), found.max() + 1)).all()
        seen |= set(found.tolist())
    assert seen == set(range(1, size)), "another epoch has the tokens that one leaves out"


def test_shifts_are_a_function_of_seed_and_epoch(tmp_path):
    all_windows = [windows_of(tmp_path, 1000, 64, "windows", seed) for seed in (0, 0, 1)]
    shifts, again, other = ([int(windows.epoch_shifts(epoch)[0]) for epoch in range(400)] for windows in all_windows)
    assert set(shifts) == set(range(64)) and np.bincount(shifts).max() < 25, "about uniform"
    assert shifts == again != other


@pytest.mark.parametrize("size, block", SIZES)
def test_random_windows_start_anywhere_and_end_with_the_text(tmp_path, size, block):
    windows = windows_of(tmp_path, size, block, "random")
    epochs = [[SampleIndex(epoch, position, 0, 0) for position in range(250)] for epoch in range(40)]
    begins = torch.cat([windows.__getitems__(indices)["input"][:, 0] for indices in epochs])
    last = max(0, size - 1 - block)
    counts = np.bincount(begins.numpy(), minlength=last + 1)
    assert len(counts) == last + 1
    expected = len(begins) / (last + 1)
    if last < 100:
        assert (abs(counts - expected) < 5 * expected**0.5 + 1).all()
    else:
        assert counts[:5].sum() > 0 and counts[-5:].sum() > 0


def test_a_placeholder_has_no_targets(tmp_path):
    windows = windows_of(tmp_path, 100, 8, "windows")
    batch = windows.__getitems__([SampleIndex(0, 0, 3, 0), SampleIndex(0, 0, 3, 0, False)])
    assert (batch["target"][0] >= 0).all() and (batch["target"][1] == -1).all()
    assert batch["weight"].tolist() == [1, 0] and batch["sample"].tolist() == [3, 3]
    assert (batch["input"][1] == batch["input"][0]).all()


@pytest.mark.parametrize("size", [0, 1])
def test_a_split_without_a_target_is_refused(tmp_path, size):
    for order, name in ((None, "validation"), ("windows", "training")):
        with pytest.raises(ConfigError, match=f"the {name} part has {counted(size, 'token')};"):
            windows_of(tmp_path, size, 8, order)


def test_a_batch_must_be_of_one_epoch(tmp_path):
    windows = windows_of(tmp_path, 100, 8, "windows")
    with pytest.raises(AssertionError, match="a batch must be of one epoch"):
        windows.__getitems__([SampleIndex(0, 0, 3, 0), SampleIndex(1, 0, 3, 0)])
