"""Every key of the dictionary workload's groups has an observable effect, and the table has every key."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import tempfile
from typing import Any

import pytest

from linnaeus.workloads import build_workload
from tests import runs
from tests.config import observers as see
from tests.config.observers import Case, validation_batches
from tests.config.test_every_key import changes, keys


def data(config: Any) -> Any:
    """Return the fingerprint of the data, the size of an epoch and the notes."""
    workload = build_workload(config)
    return workload.fingerprint, workload.train_size, workload.notes


def files(config: Any) -> Any:
    """Return the names of the files of the run and of those that its data wrote."""
    return see.ran(config).files, [path.name for path in runs.Path(config.data.folder or "nowhere").glob("*")]


def page(config: Any) -> Any:
    """Return the parts of report.html that show the features."""
    with tempfile.TemporaryDirectory() as root, contextlib.redirect_stdout(io.StringIO()):
        path = dataclasses.replace(config.run, root=root, name="page")
        run = runs.resumed(dataclasses.replace(config, run=path, logger=dataclasses.replace(config.logger, report=True)))
        return [file.read_text() for file in run.glob("validation/*/feature_sections.json")]


READING = (
    "data=activations dictionary.run=FOLDER/read/text/run dictionary.module=blocks.1 data.samples=6 data.source_batch=2 data.window=16"
)
PAGE = f"{READING} logger.report=true trainer.length=2steps dictionary.report_features=2"
STEPS = "model.features=24 model.dead_after=1"
TABLE = {
    "dictionary.run": Case("dictionary.run=FOLDER/other/text/run", data, READING),
    "dictionary.module": Case("dictionary.module=blocks.0", data, READING),
    "dictionary.channels": Case("dictionary.channels=last", see.refusal(data), READING),
    "dictionary.checkpoint": Case("dictionary.checkpoint='1'", data, READING),
    "dictionary.settings": Case("dictionary.settings=['data.validation_fraction=0.3']", data, READING),
    "dictionary.report_features": Case("dictionary.report_features=0", page, PAGE),
    "dictionary.report_samples": Case("dictionary.report_samples=1", page, PAGE),
    "data.name": Case(READING, data),
    "data.last_batch": Case("data.last_batch=drop", see.plan_text, "data.train_samples=41"),
    "data.validation_batch": Case("data.validation_batch=7", validation_batches),
    "data.max_bad_fraction": Case("data.max_bad_fraction=0.5", see.refusal(data)),
    "data.samples@activations": Case("data.samples=5", data, READING),
    "data.source_batch@activations": Case("data.source_batch=3", data, READING),
    "data.window@activations": Case("data.window=32", see.batches, READING),
    "data.stored@activations": Case("data.stored=false", see.refusal(data), f"{READING} data.folder=FOLDER/place"),
    "data.folder@activations": Case("data.folder=FOLDER/place", files, READING),
    **{
        f"data.{text.partition('=')[0]}{'@planted' * text.startswith('world')}": Case(f"data.{text}", see.batches, base)
        for text, base in {
            "width=16": "",
            "features=30": "",
            "roots=1": "",
            "branching=3": "",
            "depth=0": "",
            "frequency=0.6": "",
            "rarest=0.1": "",
            "exponent=2": "",
            "correlation=0.5": "",
            "correlation_rank=3": "data.correlation=0.5",
            "magnitude=9": "",
            "last_magnitude=9": "",
            "magnitude_spread=2": "",
            "bias=2": "",
            "world=1": "",
        }.items()
    },
    "data.train_samples@planted": Case("data.train_samples=50", data),
    "data.validation_samples@planted": Case("data.validation_samples=100", validation_batches),
    "model.name": Case("model=relu", see.updates, "model=topk"),
    "model.features": Case("model.features=30", see.parameters),
    "model.encoder_norm": Case("model.encoder_norm=0.5", see.parameters),
    "model.dead_after": Case("model.dead_after=9", see.updates, STEPS),
    "model.auxiliary": Case("model.auxiliary=0.5", see.updates, STEPS),
    "model.auxiliary_features": Case("model.auxiliary_features=1", see.updates, STEPS),
    "model.frontier": Case("model.frontier=[2,3]", see.parameters),
    "model.usage_target": Case("model.usage_target=0.3", see.updates, "model.usage_penalty=1"),
    "model.usage_penalty": Case("model.usage_penalty=1", see.updates),
    "model.k@topk": Case("model.k=3", see.updates, "model=topk"),
    "model.block@batch_topk": Case("model.block=4", see.updates),
    "model.threshold_rate@batch_topk": Case("model.threshold_rate=1", see.updates),
    "model.widths@matryoshka": Case("model.widths=[4]", see.updates, "model=matryoshka model.widths=[8]"),
    "model.sparsity@relu": Case("model.sparsity=9", see.updates, "model=relu"),
    "model.sparsity_warmup@relu": Case("model.sparsity_warmup=1steps", see.updates, "model=relu model.sparsity_warmup=0steps"),
    "model.threshold@jumprelu": Case("model.threshold=0.5", see.parameters, "model=jumprelu"),
    "model.bandwidth@jumprelu": Case("model.bandwidth=3", see.updates, "model=jumprelu"),
}
SMALL = ["data.width=8", "data.features=20", "data.roots=2", "data.branching=2", "data.depth=1", "data.train_samples=85"]
ALL = ["workload=dictionary", "model.features=24", "trainer.global_batch_size=8", "trainer.micro_batch_size=4", "data.validation_batch=20"]


def test_the_table_has_every_key():
    found = {key for key, _ in keys("dictionary") if key.startswith(("data.", "model.", "dictionary."))}
    assert found - set(TABLE) == set()
    assert set(TABLE) <= found, "the table has keys that do not exist"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("keys")
    runs.run("language", root / "read", "trainer.length=2steps", "schedule.checkpoint=[1steps]", "schedule.validate=[2steps]")
    runs.run("language", root / "other", "trainer.length=1steps", "seed=1")
    return str(root)


@pytest.mark.parametrize("key", TABLE)
def test_a_key_has_an_effect(key, folder):
    case = TABLE[key]
    reads, other = "dictionary.run" in case.base + case.change, "model=" in case.change
    block = [] if other or ("model=" in case.base and "matryoshka" not in case.base) else ["model.block=2"]
    assert changes(case, folder, *ALL, f"run.root={folder}", *block, *([] if reads else SMALL))


def test_negative_control_the_observers_are_deterministic(tmp_path):
    config = see.composed(*ALL, *SMALL, f"run.root={tmp_path}", "model.block=2")
    for observe in (data, see.updates, see.batches, see.parameters, see.plan_text):
        assert observe(config) == observe(config)
