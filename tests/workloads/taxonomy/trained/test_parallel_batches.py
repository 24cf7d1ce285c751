"""Results of `computed` are in order, from parts that lie within batches, and some parts are computed at once."""

import threading

import numpy as np
import pytest
import torch

from linnaeus import load_model
from linnaeus.workloads.taxonomy.trained.batches.parallel_batches import AT_ONCE, computed
from linnaeus.workloads.taxonomy.trained.photographs.photograph_list import from_paths


@pytest.fixture
def model(finished):
    return load_model(finished.bundle)


@pytest.fixture(autouse=True)
def threads_of_torch():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def photographs(finished, count):
    return from_paths([str(finished.photograph(i)) for i in range(count)], {})


@pytest.mark.parametrize("threads", [1, 2, 3, 9])
@pytest.mark.parametrize("done", [0, 4])
def test_parts_are_in_order_and_lie_within_batches(finished, model, threads, done):
    inputs = photographs(finished, 11)
    parts = [*computed(model, inputs, 4, threads, "predicting", lambda part: range(part.first, part.first + len(part)), done)]
    assert [row for part in parts for row in part] == list(range(done, 11))
    assert all(part.start // 4 == (part.stop - 1) // 4 for part in parts)


def test_features_are_equal_for_all_numbers_of_threads(finished, model):
    inputs = photographs(finished, 10)

    def features(threads):
        parts = computed(model, inputs, 4, threads, "embedding", lambda part: model.features(part.images, part.metadata))
        return np.concatenate([*parts])

    whole = model.features([inputs.files.decode(i, model.short_side, 10**8) for i in range(10)], inputs.metadata)
    for threads in (1, 2, 5):
        np.testing.assert_allclose(features(threads), whole, atol=1e-5)


def test_as_many_parts_are_computed_at_once_as_there_are_threads(finished, model):
    """Each part waits until all threads have one. With shared forward passes nobody would come, and the barrier would raise."""
    together, used = threading.Barrier(3), set()

    def compute(part):
        together.wait(timeout=60)
        used.add((threading.get_ident(), torch.get_num_threads()))
        return len(part)

    assert sum(computed(model, photographs(finished, 12), 4, 3, "predicting", compute)) == 12
    assert len(used) == 3 and {threads for _, threads in used} == {1}


def test_one_photograph_is_computed_with_all_threads(finished, model):
    [threads] = computed(model, photographs(finished, 1), 4, 6, "predicting", lambda part: torch.get_num_threads())
    assert threads == 6 == torch.get_num_threads()


def test_activations_of_few_batches_are_in_memory_at_once(finished, model):
    """16 threads with pieces of a whole batch would hold 16 batches."""
    parts = [*computed(model, photographs(finished, 60), 8, 16, "predicting", len)]
    assert max(parts) * 16 <= AT_ONCE * 8 and sum(parts) == 60


def test_an_error_of_a_part_ends_the_command(finished, model):
    def compute(part):
        if part.first == 4:
            raise RuntimeError("part 4")
        return part.first

    results = computed(model, photographs(finished, 12), 4, 2, "predicting", compute)
    assert next(results) == 0
    with pytest.raises(RuntimeError, match="part 4"):
        list(results)
