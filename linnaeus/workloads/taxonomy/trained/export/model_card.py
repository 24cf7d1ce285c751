"""Write the model card (README.md of a bundle), with the front matter that model hubs read. Marked fields must be filled in by a person."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from linnaeus.errors import counted, redacted_words
from linnaeus.workloads.taxonomy.metrics.accuracy_table import validated_passes
from linnaeus.workloads.taxonomy.trained.classifier.description import Description
from linnaeus.workloads.taxonomy.trained.export.weak_clades import weak_clades
from linnaeus.workloads.taxonomy.trained.probabilities.calibration import Calibration
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

OPEN = "*to be filled in*"


def model_card(
    description: Description,
    tree: TaxonomyTree,
    dataset: Mapping[str, Any],
    metrics: Mapping[str, Any],
    classes: Sequence[Mapping[str, str]],
    calibration: Calibration | None,
) -> str:
    """Return the text of the model card. `dataset`: content of the run's dataset.json. `metrics`: validation results of these weights;
    `classes`: those of each class, as `validated_classes` returns."""
    blocks = [
        "---\nlibrary_name: linnaeus\npipeline_tag: image-classification\nlicense: other\n---\n\n# A classifier of "
        f"{counted(tree.sizes[-1], 'taxon')} of rank {tree.ranks[-1]}",
        f"Architecture: {description.model.name}{_backbone(description)}, head {description.head.name}, square images of "
        f"{description.image_sizes[-1]} pixels.",
        _use(description, calibration),
        "## Taxa\n\n| rank | classes |\n|---|---:|\n" + "\n".join(f"| {r} | {n:,} |" for r, n in zip(tree.ranks, tree.sizes, strict=True)),
        _data(dataset),
        _accuracy(tree, metrics),
        *([weak] if (weak := weak_clades(tree, classes)) else []),
        _calibrated(tree, calibration),
        f"## Limits\n\nThe model knows the taxa of taxonomy.json only. {_strangers(calibration)} Other known weaknesses: {OPEN}.",
        f"## Intended use and licence\n\nIntended use: {OPEN}. Licence of the weights: {OPEN}. "
        f"Licence of the photographs: {OPEN}. Contact: {OPEN}.",
    ]
    return "\n\n".join(blocks) + "\n"


def _backbone(description: Description) -> str:
    name = getattr(description.model, "backbone", None) or getattr(description.model, "size", None)
    return f" ({name})" if name else ""


def _strangers(calibration: Calibration | None) -> str:
    """Return what the model answers for a photograph of something else, in Markdown."""
    if calibration is None or not calibration.familiar or not calibration.kept:
        return "A photograph of anything else gets one of them."
    return (
        'A photograph of anything else gets one of them, or the answer "none of these" if its familiarity is below '
        f"{calibration.familiar:.4f}. {100 * calibration.kept:g} % of the photographs of the model's taxa have at least that."
    )


def _use(description: Description, calibration: Calibration | None) -> str:
    prior = calibration.prior.components if calibration is not None and calibration.prior is not None else ()
    components = (*description.read, *prior)
    arguments = {"SPATIAL": "latitude=52.1, longitude=4.3", "TEMPORAL": 'date="2026-05-01"', "ELEVATION": "elevation=20"}
    given = "".join(f", {arguments[name]}" for name in components)
    known = f"Metadata that the model reads: {', '.join(components)}; each may be left out." if components else ""
    if prior:
        known += f" Of these, {' and '.join(prior)} are read by a prior over place and season, and not by the network."
    code = f'from linnaeus import load_model\n\nmodel = load_model("FOLDER")\nmodel.predict("photo.jpg"{given})'
    return f"## Use\n\n```python\n{code}\n```\n\n{known}".rstrip()


def _data(dataset: Mapping[str, Any]) -> str:
    rows = dataset.get("rows") or {}
    counts = f"{counted(rows.get('training', 0), 'photograph')} for training, {rows.get('validation', 0):,} for validation." if rows else ""
    notes = "".join(f"\n- {html.escape(redacted_words(note), quote=False)}" for note in dataset.get("notes", []))
    return f"## Data\n\n{counts} Source: {OPEN}.\n{notes}".rstrip()


def _accuracy(tree: TaxonomyTree, metrics: Mapping[str, Any]) -> str:
    """Return the section with the accuracy of each validation pass and rank, with 95 % intervals where they are known, in Markdown."""
    lines = []
    for prefix, condition in validated_passes(metrics).items():
        for rank in reversed(tree.ranks):
            value = metrics.get(f"{prefix}/{rank}/top1")
            if value is not None:
                low, high = (metrics.get(f"{prefix}/{rank}/top1_{end}") for end in ("low", "high"))
                interval = f" [{100 * low:.1f}, {100 * high:.1f}]" if low is not None and high is not None else ""
                macro = metrics.get(f"{prefix}/{rank}/macro_top1")
                given = {"with_meta": "as they are", "without_meta": "none"}.get(condition, f"without {condition.removeprefix('mask_')}")
                lines.append(f"| {given} | {rank} | {100 * value:.1f}{interval} | {'' if macro is None else f'{100 * macro:.1f}'} |")
    if not lines:
        return "## Accuracy\n\nThese weights were not validated."
    head = "| metadata | rank | top-1, % [95 % interval] | mean over classes, % |\n|---|---|---:|---:|\n"
    return "## Accuracy\n\nOn the validation photographs of the run.\n\n" + head + "\n".join(lines)


def _calibrated(tree: TaxonomyTree, calibration: Calibration | None) -> str:
    """Return the section on rolled-up answers, in Markdown: thresholds, shares answered at each rank, and temperatures."""
    title = "## Answers with a stated precision\n\n"
    if calibration is None:
        return f"{title}The model is not calibrated: its probabilities are those of the network, which are often too high."
    ranks = list(reversed(tree.ranks))
    rows = []
    for one in calibration.precisions:
        shares = [f"{100 * share:.1f}" for share in reversed(one.answered_at)] or ["-"] * len(ranks)
        thresholds = [f"{value:.4f}" if value <= 1 else "none" for value in (one.threshold, one.on_average)]
        rows.append(f"| {' | '.join([f'{one.precision:g}', *thresholds, f'{100 * one.answered:.1f}', *shares])} |")
    head = f"| {' | '.join(['precision', 'threshold', 'threshold on average', 'answered, %', *(f'{rank}, %' for rank in ranks)])} |"
    heats = "\n".join(f"| {rank} | {t:.3f} |" for rank, t in zip(tree.ranks, calibration.temperature, strict=True))
    of = f" of {calibration.data}" if calibration.data else " that trained nothing"
    about = (
        f"Calibrated on {counted(calibration.photographs, 'photograph')}{of}. An answer is the finest taxon whose probability "
        f"reaches the threshold. {100 * calibration.confidence:g} % of such calibrations have at least the precision among their answers, "
        "for photographs like those of the calibration. The last columns are the share of its photographs answered at each rank."
    )
    table = "\n".join([head, "|---" + "|---:" * (3 + len(ranks)) + "|", *rows])
    return f"{title}{about}\n\n{table}\n\n| rank | temperature |\n|---|---:|\n{heats}"
