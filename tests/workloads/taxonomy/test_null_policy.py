"""Test null labels: ignored, phased in by schedule, or always learnt as a class; never counted in accuracies."""

import numpy as np
import pytest
import torch

from linnaeus.config import compose
from linnaeus.data.samples import SampleIndex
from linnaeus.errors import ConfigError
from linnaeus.schedule import OpsSchedule, resolve_all_schedule_params
from linnaeus.workloads import build_workload
from linnaeus.workloads.taxonomy.losses import LabelCounts
from linnaeus.workloads.taxonomy.masking import NullPolicy
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

RAMP = ["schedule.null_mask_prob.start=0.75", "schedule.null_mask_prob.end=0.25", "schedule.null_mask_prob.until=100steps"]
PHASE_IN = ["head.nulls=phase_in", *RAMP]
SMALL = ["data.train_samples=4000", "data.validation_samples=60", "data.image_size=16", "trainer.length=100steps"]


def workload(tmp_path, *overrides):
    config = compose([*SMALL, *overrides])
    built = build_workload(config)
    built.build_datasets(OpsSchedule(resolve_all_schedule_params(config, 100, 10, built.components)), tmp_path)
    return built


def labels(built, step):
    return built.train_set.__getitems__([SampleIndex(0, i, i, step) for i in range(4000)])["label"].numpy()


def test_null_labels_are_ignored_phased_in_or_always_learnt(tmp_path):
    ignoring, phasing = workload(tmp_path), workload(tmp_path, *PHASE_IN)
    sizes = np.array(phasing.data_source.tree.sizes)
    plain = labels(ignoring, 0)
    nulls = plain < 0
    assert nulls.sum() > 20
    shares = []
    for step in (0, 50, 100):
        found = labels(phasing, step)
        assert (found[~nulls] == plain[~nulls]).all()
        assert ((found == sizes) | (found == -1))[nulls].all()
        shares.append(float((found == sizes)[nulls].mean()))
    assert shares == pytest.approx([0.25, 0.5, 0.75], abs=0.08)  # three standard errors of some 320 nulls
    always = workload(tmp_path, "head.nulls=predict")
    assert all((labels(always, step) == np.where(nulls, sizes, plain)).all() for step in (0, 50))
    found = always.train_set.__getitems__([SampleIndex(0, 0, 0, 0), SampleIndex(0, 1, 1, 0, real=False)])["label"]
    assert (found[0] >= 0).all() and (found[1] == -1).all(), "a placeholder keeps no labels"


@pytest.mark.parametrize("head", ["linear", "conditional", "hierarchical_softmax", "marginal"])
def test_the_head_has_a_null_class_that_is_never_predicted(tmp_path, head):
    built = workload(tmp_path, *PHASE_IN, f"head={head}", "data.train_samples=200")
    sizes = built.data_source.tree.sizes
    batch = built.prepare(built.validation_set.__getitems__([SampleIndex(0, i, i, 0) for i in range(60)]))
    assert (batch["label"] < torch.tensor(sizes)).all() and (batch["label"] < 0).any(), "validation labels are not converted"
    scores = built.build_model()(batch)["scores"]
    assert [log_p.shape[1] for log_p in scores.log_probs()] == [size + 1 for size in sizes]
    assert all((path < size).all() for path, size in zip(scores.path().unbind(1), sizes, strict=True))


@pytest.mark.parametrize(
    "overrides, message",
    [
        (RAMP, "schedule.null_mask_prob has no effect with head.nulls=ignore; set head.nulls=phase_in"),
        (["head.nulls=predict", *RAMP], "schedule.null_mask_prob has no effect with head.nulls=predict; set head.nulls=phase_in"),
        (PHASE_IN[:1], "needs schedule.null_mask_prob below 1"),
    ],
)
def test_contradicting_settings_are_errors(tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message) as error:
        workload(tmp_path, "data.train_samples=40", *overrides)
    assert "\n" not in str(error.value)


def test_no_learnable_null_labels_is_an_error():
    """The null label of a hole in a lineage is learnable for a linear head, and not for a head on the tree."""
    tree, found = TaxonomyTree.from_lineages(("order", "family", "species"), np.array([("o", "", "s1"), ("o", "f", "s2")]))

    def notes(head):
        policy = NullPolicy.from_config(compose([f"head={head}", "head.nulls=predict"]), tree)
        counts = LabelCounts.from_labels(tree, found, learnable=policy.learnable(found))
        return policy.notes(tree.ranks, [int(rank[-1]) for rank in counts.ranks])

    assert notes("linear") == ("head.nulls=predict: no training sample has a learnable null label at order, species",)
    with pytest.raises(ConfigError, match="below a taxon that has children, so there is nothing to learn"):
        notes("conditional")
