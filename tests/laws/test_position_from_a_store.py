"""Law 1 for runs from a prepared store: order, augmentation and resume are equal for 0, 1 and 3 workers and for 1 and 2 processes, with the
order for data in memory (`shuffle`) and the one for data larger than memory (`blocks`).

`batches-rank<r>.jsonl` has the sample ids and a hash of every byte of every batch."""

from __future__ import annotations

from unittest import mock

import pytest

from linnaeus.workloads.taxonomy.inputs.image_dataset import TaxonomyDataset
from tests import runs, watching

SETTINGS = ["trainer.length=2epochs", "debug.batch_hashes=true", "augment.policy=trivialaugment", "augment.erasing=0.3"]
SETTINGS += ["schedule.meta_mask_prob.start=0.4", "schedule.validate=[]", "schedule.validate_mask_meta=[]"]
SETTINGS += ["schedule.validate_partial_mask_meta=[]"]
ORDERS = {"memory": "data.order=shuffle", "disk": "data.order=blocks"}
STOP = 4  # update after which a run is stopped, the first of the second epoch


@pytest.fixture(scope="module", params=ORDERS)
def reference(request, tmp_path_factory):
    """Return the folder for runs, their settings, and the run of one process without workers."""
    root = tmp_path_factory.mktemp(request.param)
    settings = [*SETTINGS, ORDERS[request.param]]
    return root, settings, runs.run("store", root / "one", *settings)


def batches(run):
    """Return (update, micro-batch) -> (samples, hash) of all ranks of a run."""
    rows = [row for path in sorted(run.glob("batches-rank*.jsonl")) for row in runs.rows(path)]
    found = {(row["global_step"], row["micro_batch"]): (row["samples"], row["hash"]) for row in rows}
    assert len(found) == len(rows)
    return found


# slow: the order of data in memory has workers in test_position.py
WORKERS = [("disk", 3), *(pytest.param(*case, marks=pytest.mark.slow) for case in (("memory", 3), ("disk", 1), ("memory", 1)))]


@pytest.mark.parametrize("reference, workers", WORKERS, indirect=["reference"])
def test_the_number_of_workers(reference, workers):
    root, settings, one = reference
    assert batches(runs.run("store", root / f"workers{workers}", *settings, f"trainer.num_workers={workers}")) == batches(one)


@pytest.mark.slow
@pytest.mark.parametrize("before, after", [(0, 3), (1, 0), (3, 1)])
def test_a_resume_with_another_number_of_workers(reference, before, after):
    root, settings, one = reference
    changed = root / f"resume{before}{after}"
    runs.interrupted(runs.configuration("store", changed, *settings, f"trainer.num_workers={before}"), watching.stopped_at(STOP))
    run = runs.resumed(runs.configuration("store", changed, *settings, f"trainer.num_workers={after}"))
    assert batches(run) == batches(one)
    assert runs.unequal(runs.newest(run).model_state, runs.newest(one).model_state) == []


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 3])
def test_two_processes_and_a_resume_with_one(reference, workers):
    """Two processes up to the stop in the second epoch, then one."""
    root, settings, one = reference
    own = [*settings, f"trainer.num_workers={workers}"]
    whole, changed = (root / f"{name}{workers}" for name in ("two", "changed"))
    runs.run_group(2, [runs.job("store", whole, *own), runs.job("store", changed, *own, stop=STOP)], root)
    assert batches(whole / "store" / "run") == batches(one)
    assert {path.name for path in (whole / "store" / "run").glob("batches-*")} == {"batches-rank0.jsonl", "batches-rank1.jsonl"}
    assert batches(runs.resumed(runs.configuration("store", changed, *own))) == batches(one)


def test_the_two_orders_differ_and_every_record_is_seen_once_an_epoch(reference):
    root, settings, one = reference
    rows = batches(one)
    assert max(step for step, _ in rows) == 6
    seen = [[name for (step, micro), (names, _) in sorted(rows.items()) if (step - 1) // 3 == epoch for name in names] for epoch in (0, 1)]
    assert len(set(seen[0])) == len(set(seen[1])) == 85 and seen[0] != seen[1]
    stored = [name for name in (root / "store/names.txt").read_text().splitlines() if name in seen[0]]
    blocks = {stored.index(name) // 4 for name in seen[0][:12]}  # of at most two windows, of up to three blocks of four records
    assert (len(blocks) <= 6) == ("blocks" in settings[-1])


@pytest.mark.slow
def test_negative_control_an_augmentation_that_forgets_the_position(reference):
    root, settings, one = reference
    calls = iter(range(10**6))

    def careless(self, indices):
        return original(self, [index._replace(position=next(calls)) for index in indices])

    original = TaxonomyDataset.__getitems__
    with mock.patch.object(TaxonomyDataset, "__getitems__", careless):
        other = root / "careless"
        runs.interrupted(runs.configuration("store", other, *settings), watching.stopped_at(STOP))
        calls = iter(range(10**6))
        run = runs.resumed(runs.configuration("store", other, *settings))
    assert [samples for samples, _ in batches(run).values()] == [samples for samples, _ in batches(one).values()]
    assert batches(run) != batches(one)
