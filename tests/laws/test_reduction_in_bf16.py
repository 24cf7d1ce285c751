"""`head.reduce_precision=bf16`: the processes exchange the gradients of the head in bf16, and all others as before."""

from __future__ import annotations

import json

import pytest
import torch

from linnaeus.errors import ConfigError
from tests import runs

# one update: later ones would differ everywhere; SGD, whose first update is lr x gradient
SETTINGS = ["trainer.length=1steps", "optimizer=sgd", "optimizer.lr=1", "optimizer.weight_decay=0", "lr_scheduler=constant"]
SETTINGS += ["trainer.max_grad_norm=null", "schedule.validate=[]", "schedule.validate_at_end=false", "weighting=fixed"]
BF16 = "head.reduce_precision=bf16"
RUN = "biota/run"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """root / full, bf16: runs of an update on two processes; stopped and whole: the same run of three updates in two parts and in one."""
    root = tmp_path_factory.mktemp("reduction")
    watch = ["bytes_of_updates"]
    jobs = [runs.job("biota", root / name, *SETTINGS, f"head.reduce_precision={name}", watch=watch) for name in ("full", "bf16")]
    long = ["trainer.length=3steps", "schedule.validate=[]", "schedule.validate_at_end=false", BF16]
    jobs += [runs.job("biota", root / "stopped", *long, stop=2)]
    jobs += [runs.job("biota", root / "stopped", *long)]
    runs.run_jobs(2, [*jobs, runs.job("biota", root / "whole", *long)], root)
    return root


def test_only_the_gradients_of_the_head_are_rounded(root):
    """A few steps of bf16, whose mantissa has 8 bits, are allowed."""
    full, half = (runs.newest(root / name / RUN).model_state for name in ("full", "bf16"))
    differing = {key for key in full if not torch.equal(full[key], half[key])}
    assert differing and all(key.startswith("head.") for key in differing)
    for key in differing:
        update = runs.newest(root / "full" / RUN).model_state[key] - half[key]
        assert update.abs().max() < 2**-6, key


def test_the_message_is_half_as_large(root):
    """In the run with full precision DDP sends the gradients without the functions whose bytes are counted."""
    state = runs.newest(root / "full" / RUN).model_state
    sizes = {key: value.numel() for key, value in state.items() if ".quantiles." not in key}  # a buffer, without a gradient
    head = sum(size for key, size in sizes.items() if key.startswith("head."))
    sent = {name: sum(json.loads((root / name / "bytes-rank0.json").read_text())[0].values()) for name in ("full", "bf16")}
    assert sent["bf16"] - sent["full"] == 2 * head + 4 * (sum(sizes.values()) - head)


def test_a_stopped_run_continues_with_the_same_bits(root):
    assert runs.differences(root / "stopped" / RUN, root / "whole" / RUN) == []


def test_one_process_reduces_nothing(tmp_path):
    one, other = (runs.run("biota", tmp_path / name, *SETTINGS, f"head.reduce_precision={name}") for name in ("full", "bf16"))
    assert runs.unequal(runs.newest(one).model_state, runs.newest(other).model_state) == []


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (["trainer.deterministic=true"], "head.reduce_precision=bf16 is not possible with trainer.deterministic=true"),
        (["trainer.deterministic=anywhere"], "head.reduce_precision=bf16 is not possible with trainer.deterministic=anywhere"),
        (["head.sharded=true"], "head.sharded=true exchanges no gradients of the head; leave out head.reduce_precision"),
    ],
)
def test_other_settings_are_refused(tmp_path, settings, text):
    with pytest.raises(ConfigError, match=text):
        runs.run("biota", tmp_path, *SETTINGS, BF16, *settings)
