"""Law 1: what is random is a function of the seed and a position, not of workers, processes or the history of a generator.

`batches-rank<r>.jsonl` has the sample ids and a hash of every byte of every batch, so order, augmentation, mixing and masking draws
are compared at once. Golden values of the order are in `tests/data/test_order.py`.
"""

from __future__ import annotations

import random
from unittest import mock

import numpy as np
import pytest
import torch

from linnaeus import workloads
from linnaeus.data.sampler import PositionSampler
from linnaeus.distributed import DistributedContext
from linnaeus.train import resolve_schedule
from linnaeus.workloads.taxonomy.inputs.image_dataset import TaxonomyDataset
from tests import runs

RAMPS = ["schedule.mixup_prob.start=0.2", "schedule.mixup_prob.end=1", "schedule.meta_mask_prob.start=0", "schedule.meta_mask_prob.end=0.5"]
RAMPS += ["schedule.partial_meta_mask_prob.start=0.5", "schedule.partial_meta_mask_prob.end=0.1", "augment.policy=trivialaugment"]
RAMPS += [
    "augment.erasing=0.3",
    "augment.off_last=1steps",
    "augment.hue=0.1",
    "trainer.length=2epochs",
    "debug.batch_hashes=true",
    "schedule.validate=[]",
]
RAMPS += ["schedule.image_size.start=8", "schedule.image_size.multiple=4", "schedule.image_size.until=40%"]
RAMPS += ["schedule.validate_mask_meta=[]", "schedule.validate_partial_mask_meta=[]"]


def batches(root, *more):
    return runs.rows(runs.run("biota", root, *RAMPS, *more) / "batches-rank0.jsonl")


@pytest.fixture(scope="module")
def without_workers(tmp_path_factory):
    return batches(tmp_path_factory.mktemp("w0"))


@pytest.mark.parametrize("workers", (pytest.param(1, marks=pytest.mark.slow), 3))
def test_batches_do_not_depend_on_the_number_of_workers(without_workers, tmp_path, workers):
    assert batches(tmp_path, f"trainer.num_workers={workers}") == without_workers


def test_the_record_covers_two_epochs_and_no_batch_is_like_another(without_workers):
    real = [row for row in without_workers if row["micro_batch"] < 3 or row["global_step"] % 3]
    assert [row["global_step"] for row in without_workers] == [step for step in range(1, 7) for _ in range(4)]
    assert len({row["hash"] for row in real}) == len(real)
    for epoch in range(2):
        seen = [name for row in real if (row["global_step"] - 1) // 3 == epoch for name in row["samples"]]
        assert len(seen) == len(set(seen)) == 85


def test_neither_the_generators_nor_what_they_did_before_matter(without_workers, tmp_path):
    random.seed(5), np.random.seed(6), torch.manual_seed(7)
    torch.rand(100), np.random.rand(3)
    assert batches(tmp_path) == without_workers


def test_another_seed_is_another_run(without_workers, tmp_path):
    other = batches(tmp_path, "seed=1", "trainer.length=1epochs")
    assert [row["samples"] for row in other] != [row["samples"] for row in without_workers[: len(other)]]


def test_the_order_does_not_depend_on_the_micro_batch_and_a_sample_neither(without_workers, tmp_path):
    """Twice the micro-batch: the same samples in the same order; `tests/laws/test_factorisation.py` has the updates."""
    joined = [row["samples"] for row in batches(tmp_path, "trainer.micro_batch_size=16")]
    pairs = [a["samples"] + b["samples"] for a, b in zip(without_workers[::2], without_workers[1::2])]
    last = [i for i in range(len(pairs)) if i % 6 == 5]  # 21 samples: 16 and 5, of which the fourth micro-batch of 8 is a stand-in
    assert [row for i, row in enumerate(joined) if i not in last] == [pair for i, pair in enumerate(pairs) if i not in last]
    assert [joined[i] for i in last] == [pairs[i][:5] for i in last]


def test_the_batches_hold_what_the_law_is_about(tmp_path):
    """Mixed pairs, null labels, masked and missing metadata, stand-ins: else the tests above would prove less than they say."""
    config = runs.configuration("biota", tmp_path, *RAMPS)
    context = DistributedContext().initialize(device="cpu")
    workload = workloads.build_workload(config)
    plan = resolve_schedule(config, workload, context)
    workload.build_datasets(plan.ops, tmp_path)
    level = plan.ops.get_mixup_group_level
    sampler = PositionSampler(85, 0, 32, 8, 3, 6, groups=lambda epoch: workload.train_set.groups(level(epoch)))
    sampler.set_epoch(1)
    found = [workload.train_set.__getitems__(indices) for indices in sampler]
    context.shutdown()
    rows = {name: torch.cat([batch[name] for batch in found]) for name in found[0]}
    assert (rows["label2"] != rows["label"]).any() and (rows["share"] < 1).any() and (rows["box"][:, 2] > 0).any()
    assert (rows["label"][rows["weight"] > 0] < 0).any(), "no null labels"
    assert rows["mask"].any() and not rows["mask"].all() and not rows["present"].all()
    assert (found[-1]["weight"] == 0).all(), "no empty micro-batch"


def test_negative_control_a_generator_with_a_history_is_noticed(tmp_path):
    """One that goes on from batch to batch. (The global ones cannot: they are seeded again for each sample.)"""
    original = TaxonomyDataset.__getitems__

    def careless(self, indices):
        batch = original(self, indices)
        noise = generator.standard_normal(batch["meta"].shape).astype(np.float32)
        return batch | {"meta": batch["meta"] + torch.from_numpy(noise)}

    found = []
    with mock.patch.object(TaxonomyDataset, "__getitems__", careless):
        for workers in (0, 2):
            generator = np.random.default_rng(0)
            found.append(batches(tmp_path / str(workers), f"trainer.num_workers={workers}", "trainer.length=3steps"))
    assert found[0] != found[1]
    assert [row["samples"] for row in found[0]] == [row["samples"] for row in found[1]]
