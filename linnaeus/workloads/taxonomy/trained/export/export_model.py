"""Run `linnaeus export` for a classifier: write a bundle (`classifier/bundle.py`), or formats of other programs (`export_forms.py`).

The folder is read again and compared with the model before the command ends.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
from typing import Any

from linnaeus.config.model_options import load_options
from linnaeus.errors import ConfigError, quoted
from linnaeus.files import read_json, to_json
from linnaeus.reporting.formatting import format_size
from linnaeus.workloads.trained_models import validated


def export_model(options: argparse.Namespace) -> list[str]:
    """Write a bundle, or, with --form, the model in formats of other programs. Return the lines to print.

    Raise `ConfigError` for a model that cannot be loaded, a folder that exists, and a form that does not exist or cannot be made."""
    if options.tokenizer is not None:
        raise ConfigError("--tokenizer has no effect with a classifier; leave it out")
    return _export_bundle(options) if options.form is None else _export_forms(options)


def _export_forms(options: argparse.Namespace) -> list[str]:
    from linnaeus.workloads.taxonomy.trained.classifier.bundle import is_bundle
    from linnaeus.workloads.taxonomy.trained.classifier.load_parts import load_model
    from linnaeus.workloads.taxonomy.trained.export.export_forms import FORMS, write_forms

    forms = list(dict.fromkeys(options.form.split(",")))
    if unknown := [form for form in forms if form not in FORMS]:
        raise ConfigError(f"--form: {quoted(unknown[0])} is not a form; choose from {', '.join(FORMS)}")
    model = load_model(options.run, **load_options(options))
    lines = write_forms(model, None if is_bundle(options.run) else options.run, options.out, forms)
    return [*model.weights.notes, *lines]


def _export_bundle(options: argparse.Namespace) -> list[str]:
    from linnaeus.workloads.taxonomy.trained.classifier import bundle
    from linnaeus.workloads.taxonomy.trained.classifier.load_parts import Parts, load_parts, prior_path
    from linnaeus.workloads.taxonomy.trained.export.model_card import model_card
    from linnaeus.workloads.taxonomy.trained.export.weak_clades import validated_classes

    if bundle.is_bundle(options.run):
        raise ConfigError(f"RUN: {options.run} is a bundle already; give the directory of a run, or --form")
    if options.plugins:
        raise ConfigError("--plugins has no effect with a run, which uses the plugins of its configuration; leave it out")
    parts = load_parts(options.run, options.checkpoint)
    metrics = validated(options.run, parts.weights.source)
    classes = validated_classes(options.run, parts.weights.source)
    dataset = read_json(options.run / "dataset.json") or {}
    card = model_card(parts.description, parts.tree, dataset, metrics, classes, parts.calibration)
    texts = {bundle.METRICS: to_json(metrics), bundle.CARD: card}
    if parts.calibration is not None:
        texts[bundle.CALIBRATION] = to_json(parts.calibration.plain())
    if (options.run / bundle.COUNTS).is_file():
        texts[bundle.COUNTS] = (options.run / bundle.COUNTS).read_text(encoding="utf-8")
    copied = {}
    if parts.calibration is not None and parts.calibration.prior is not None:
        copied[bundle.PRIOR] = prior_path(options.run, parts.calibration.prior)
    bundle.write_bundle(options.out, parts.description, parts.tree, parts.weights, texts, copied)
    try:
        written = Parts(*bundle.load_bundle(options.out, parts.description.plugins))
        check_equal(parts, written)
    except ConfigError:
        shutil.rmtree(options.out, ignore_errors=True)
        raise
    size = sum(file.stat().st_size for file in options.out.iterdir())
    lines = [
        *parts.weights.notes,
        f"{options.out}: {format_size(size)}; {bundle.CARD} is the model card: please fill in its marked fields",
    ]
    plugins = ["--plugins", *parts.description.plugins] if parts.description.plugins else []
    return [*lines, shlex.join(["linnaeus", "predict", str(options.out), "photo.jpg", *plugins])]


def check_equal(parts: Any, written: Any) -> None:
    """Raise `ConfigError` if the `Parts` of a bundle, `written`, differ from the `Parts` of its run, `parts`, or if no network can be built
    from `written`.

    Weights must be equal in every element."""
    import torch

    from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier

    state, again = parts.weights.state, written.weights.state
    same = state.keys() == again.keys() and all(torch.equal(state[name].nan_to_num(), again[name].nan_to_num()) for name in state)
    if (
        (written.description, written.calibration) != (parts.description, parts.calibration)
        or written.tree.fingerprint() != parts.tree.fingerprint()
        or not same
    ):
        raise ConfigError("OUT: the bundle differs from the run when it is read again; the disk may be damaged")
    TrainedClassifier(*written)
