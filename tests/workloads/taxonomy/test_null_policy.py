"""Null labels: ignored, or a class of their own phased in by schedule; never counted in accuracies."""

import dataclasses

import numpy as np
import pytest
import torch

from linnaeus.config import ConfigError, compose
from linnaeus.schedule import OpsSchedule, resolve_all_schedule_params
from linnaeus.workloads import build_workload
from linnaeus.workloads.base import SampleIndex
from linnaeus.workloads.taxonomy.metrics import TaxonomyMetrics

PREDICT = ["head.nulls=predict", "schedule.null_mask.start=0.75", "schedule.null_mask.end=0.25", "schedule.null_mask.until=100steps"]
SMALL = ["data.train_samples=4000", "data.validation_samples=60", "data.image_size=16", "trainer.length=100steps"]


def workload(tmp_path, *overrides):
    config = compose([*SMALL, *overrides])
    built = build_workload(config)
    built.build_datasets(OpsSchedule(resolve_all_schedule_params(config, 100, 10, built.components)), tmp_path)
    return built


def labels(built, step):
    return built.train_set.__getitems__([SampleIndex(0, i, i, step) for i in range(4000)])["label"].numpy()


def test_nulls_are_phased_in_as_a_class_of_their_own(tmp_path):
    ignoring, predicting = workload(tmp_path), workload(tmp_path, *PREDICT)
    sizes = np.array(predicting.source.tree.sizes)
    nulls = labels(ignoring, 0) < 0
    assert nulls.sum() > 20
    shares = []
    for step in (0, 50, 100):
        found = labels(predicting, step)
        assert (found[~nulls] == labels(ignoring, 0)[~nulls]).all()
        assert np.isin(np.where(nulls, found - sizes, -1)[nulls], (0, *range(-1 - sizes.max(), 0))).all()
        shares.append(float((found == sizes)[nulls].mean()))
    assert shares == pytest.approx([0.25, 0.5, 0.75], abs=0.08)  # three standard errors of some 320 nulls
    assert (labels(ignoring, 0)[nulls] == -1).all()


def test_the_head_has_the_class_and_metrics_do_not(tmp_path):
    built = workload(tmp_path, *PREDICT)
    model, tree = built.build_model(), built.source.tree
    batch = built.prepare(built.validation_set.__getitems__([SampleIndex(0, i, i, 0) for i in range(60)]))
    outputs = model(batch)
    assert [z.shape[1] for z in outputs["logits"]] == [size + 1 for size in tree.sizes]
    metrics = TaxonomyMetrics(tree, torch.device("cpu"))
    forced = {"logits": [z + 100 * (torch.arange(z.shape[1]) == z.shape[1] - 1) for z in outputs["logits"]]}
    for results in (outputs, forced):
        metrics.count(results, batch)
    plain = TaxonomyMetrics(tree, torch.device("cpu"))
    for _ in range(2):
        plain.count(outputs, batch)
    assert all(torch.equal(metrics.counts[name], plain.counts[name]) for name in plain.counts)


@pytest.mark.parametrize("overrides", [PREDICT[:1], PREDICT[1:]])
def test_contradictions_are_refused(tmp_path, overrides):
    with pytest.raises(ConfigError, match=r"head\.nulls="):
        workload(tmp_path, *overrides)


def test_validation_keeps_its_nulls(tmp_path):
    built = workload(tmp_path, *PREDICT)
    found = built.validation_set.__getitems__([SampleIndex(0, i, i, 0) for i in range(60)])["label"]
    assert (found < torch.tensor(built.source.tree.sizes)).all() and (found < 0).any()
    assert dataclasses.is_dataclass(built.config)
