"""The laws under balanced sampling: the batches of a whole run, killed, split and spread over workers, and the second stage of two."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from linnaeus.train import loop
from linnaeus.workloads import build_workload
from tests import runs

BALANCED = [
    "data.sampling=class_balanced",
    "data.sampling_rank=order",
    "debug.batch_hashes=true",
    "schedule.checkpoint=[2steps]",
    "trainer.length=2epochs",
]
BALANCED += ["schedule.validate_mask_meta=[]", "schedule.validate_partial_mask_meta=[]", "schedule.all_combinations_at_end=false"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return runs.run("biota", tmp_path_factory.mktemp("whole"), *BALANCED)


def samples(run) -> list[list[str]]:
    return [row["samples"] for row in runs.rows(run / "batches-rank0.jsonl")]


def orders_of(run, root) -> np.ndarray:
    """int64 [epochs, orders]: how often each taxonomic order was drawn."""
    source = build_workload(runs.configuration("biota", root)).data_source
    of = dict(zip(source.ids.tolist(), source.labels[:, 0].tolist()))
    drawn: dict[int, list[int]] = {}
    for row in runs.rows(run / "batches-rank0.jsonl"):
        drawn.setdefault((row["global_step"] - 1) // 3, []).extend(of[name] for name in row["samples"])
    return np.array([np.bincount(orders, minlength=source.tree.sizes[0]) for orders in drawn.values()])


@pytest.mark.slow
def test_a_run_sees_every_order_equally_often_and_says_so(whole, tmp_path):
    drawn = orders_of(whole, tmp_path)
    assert np.ptp(drawn, axis=1).max() <= 2  # one by the quota, one by the stand-ins of the empty micro-batch
    natural = orders_of(runs.run("biota", tmp_path, *BALANCED, "data.sampling=natural", "data.sampling_rank=null"), tmp_path)
    assert np.ptp(natural, axis=1).min() > 5, "the negative control"
    assert "class_balanced sampling of order: an epoch of 85 contains" in (whole / "train.log").read_text()
    facts = json.loads((whole / "dataset.json").read_text())["ranks"]["order"]
    assert facts["drawn_per_class"]["smallest"] == pytest.approx(facts["drawn_per_class"]["largest"], rel=1e-3)
    assert facts["rows_per_class"]["smallest"] < facts["rows_per_class"]["largest"]


def test_workers_and_micro_batches_change_no_sample(whole, tmp_path):
    assert samples(runs.run("biota", tmp_path / "workers", *BALANCED, "schedule.validate=[]", "trainer.num_workers=1")) == samples(whole)
    joined = samples(runs.run("biota", tmp_path / "joined", *BALANCED, "schedule.validate=[]", "trainer.micro_batch_size=16"))
    pairs = [a + b for a, b in zip(samples(whole)[::2], samples(whole)[1::2])]
    kept = [i for i in range(len(pairs)) if i % 6 != 5]  # the last global batch of an epoch is no whole one
    assert [joined[i] for i in kept] == [pairs[i] for i in kept]


def test_the_second_stage_trains_fresh_heads_alone_and_survives_a_kill(whole, tmp_path):
    """Natural sampling, then `trainer.freeze`, `run.init_skip` and balanced sampling; from the command line it is
    `experiment=..._rebalanced run.init_from=RUN`."""
    second = [*BALANCED, "run.init_skip=[head]", "trainer.freeze=[trunk,norm]", "trainer.ema_decay=0.9", "optimizer.weight_decay=0.5"]
    second += [f"run.init_from={whole}", "seed=3"]
    done = runs.run("biota", tmp_path / "done", *second)
    first, newest = runs.newest(whole), runs.newest(done)
    fresh = build_workload(runs.configuration("biota", tmp_path, *second)).build_model().state_dict()
    for name, tensor in newest.model_state.items():
        heads = name.startswith("head.")
        assert torch.equal(tensor, first.model_state[name]) is not heads, name
        assert torch.equal(newest.ema_state[name], first.model_state[name]) is not heads, name
        assert not (heads and torch.equal(tensor, fresh[name])), name
    killed = runs.configuration("biota", tmp_path / "killed", *second)
    assert runs.differences(done, runs.resumed(killed, (loop, "update_on_window", 4))) == []
