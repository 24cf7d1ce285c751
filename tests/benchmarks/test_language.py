"""The loops that are compared make the same updates, and the command says what it measured."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import language
from benchmarks.drivers import Ours
from linnaeus.distributed import DistributedContext


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def largest_difference(a: Any, b: Any) -> float:
    return max((p - q).abs().max().item() for p, q in zip(a.model.parameters(), b.model.parameters(), strict=True))


def test_our_loop_and_the_plain_one_make_the_same_updates(tmp_path: Path) -> None:
    """A last window of an epoch may reach beyond the text: its targets there count for neither."""
    context = DistributedContext().initialize(device="cpu")
    ours = Ours(language.cpu_config(tmp_path, 3, 2, 1), context)
    plain, drawn = (kind(ours.config, context, ours.workload, ours.plan) for kind in (language.PlainLoop, language.DrawnByHand))
    assert largest_difference(ours, plain) == largest_difference(ours, drawn) == 0
    for epoch in range(2):
        for driver in (ours, plain, drawn):
            driver(epoch)
    assert ours.training.progress.global_step == plain.updates == drawn.updates == 6
    assert largest_difference(ours, plain) < 1e-5
    assert largest_difference(ours, drawn) > 1e-3, "negative control: the batches are others"
    ours.close()


def test_batches_drawn_by_hand_are_windows_of_the_text(tmp_path: Path) -> None:
    context = DistributedContext().initialize(device="cpu")
    ours = Ours(language.cpu_config(tmp_path, 2, 1, 1), context)
    drawn = language.DrawnByHand(ours.config, context, ours.workload, ours.plan)
    tokens, targets = drawn.draw(3, 64)
    assert tokens.shape == targets.shape == (3, 64) and torch.equal(tokens[:, 1:], targets[:, :-1])
    text = drawn.tokens.astype("<i8").tobytes()
    assert all(row.numpy().tobytes() in text for row in tokens)
    ours.close()


@pytest.mark.slow
def test_the_command_writes_every_number(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert language.main(["--rounds", "2", "--updates", "2", "--json", str(tmp_path / "x"), "--only", "cpu"]) == 0
    tables = json.loads((tmp_path / "x").read_text())["tables"]
    assert [bar["at_most"] for table in tables for bar in table["bars"]] == [1.02] * 4
    for table in tables:
        assert list(table["variants"]) == ["linnaeus", "plain loop", "plain loop, our batches"]
        for name, row in table["variants"].items():
            assert len(row["seconds"]) == 2
            assert table["tokens_per_second"][name] == pytest.approx(12 * 64 / (sum(row["seconds"]) / 2))
    assert "tokens/s" in capsys.readouterr().out


def entropy(numbers: np.ndarray) -> float:
    shares = np.bincount(numbers) / len(numbers)
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum())


def test_letters_tell_what_follows_and_nothing_else() -> None:
    """All are as frequent, so only what has learnt the successors of a letter has a loss below ln 65."""
    letters = np.array(language.markov_chain(60_000))
    alone, pairs = entropy(letters), entropy(letters[:-1] * len(language.LETTERS) + letters[1:])
    assert alone == pytest.approx(math.log(65), abs=0.01)
    assert math.log(3) - 0.05 < pairs - alone < math.log(3) + 0.001
    assert pairs - alone + 1 < language.LEARNT < alone - 1


class Idle(language.PlainLoop):
    """Learns nothing, at the same speed."""

    def step(self, tokens: torch.Tensor, targets: torch.Tensor) -> None:
        self.loss(self.model, tokens, targets).backward()
        self.updates += 1


@pytest.mark.slow
def test_a_loop_that_learns_nothing_ends_the_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for after 24 updates, where it is after 300."""
    language.check_learnt({"idle": 9.0}, 299)
    monkeypatch.setattr(language, "LEARNT_AFTER", 24)
    context = DistributedContext().initialize(device="cpu")
    with pytest.raises(SystemExit, match=r"after 24 updates the loss is above 2.64, so nothing was trained: idle 4\.\d\d$"):
        language.compare(language.cpu_config(tmp_path, 12, 2, 1), context, {"idle": Idle}, 1, 12)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_without_a_gpu_one_line_says_so(capsys: pytest.CaptureFixture) -> None:
    assert language.main(["--only", "gpu"]) == 0
    assert "no CUDA device here: gpt2 was not measured" in capsys.readouterr().out


def test_the_part_for_a_gpu(tmp_path: Path) -> None:
    """gpt2 as it is but for its size and the device: bf16, its vocabulary, one micro-batch an update."""
    context = DistributedContext().initialize(device="cpu")
    small = ["model.size=gpt_nano", "model.layers=1", "trainer.compile=false"]
    config = language.gpu_config(tmp_path, 1, 2, 1, "cpu", *small, block=32)
    assert (config.trainer.precision, config.data.block, config.model.vocabulary_multiple) == ("bf16", 32, 64)
    found = language.compare(config, context, {"plain loop": language.DrawnByHand}, 1, 1)
    table = found.table("a look", found.wall, [], peak=1e12)
    expected = 6 * (50304 * 48 + 12 * 48**2 + 3 * 48) + 12 * 48 * 32  # embedding, matrices, norms; attention
    assert table["flops_per_token"] == expected
    rate = 32 / table["variants"]["linnaeus"]["seconds"][0]
    assert table["mfu"]["linnaeus"] == pytest.approx(rate * table["flops_per_token"] / 1e12)


def test_the_experiment_it_measures_compiles() -> None:
    from linnaeus.config.load import compose

    config = compose(["experiment=gpt2"])
    assert config.trainer.compile and config.model.size == "gpt2"
    assert config.trainer.global_batch_size * config.data.block == 491_520
