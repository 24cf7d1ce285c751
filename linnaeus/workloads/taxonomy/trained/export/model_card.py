"""Write the model card, README.md of a bundle, with the front matter that model hubs read. Fields for a person to fill in are marked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from linnaeus.workloads.taxonomy.accuracy_table import validated_passes
from linnaeus.workloads.taxonomy.trained.description import Description
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

OPEN = "*to be filled in*"


def model_card(description: Description, tree: TaxonomyTree, dataset: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
    """Return the text of the model card. `dataset`: content of the run's dataset.json. `metrics`: validation results of these weights."""
    blocks = [
        "---\nlibrary_name: linnaeus\npipeline_tag: image-classification\nlicense: other\n---\n\n# A classifier of "
        f"{tree.sizes[-1]:,} taxa of rank {tree.ranks[-1]}",
        f"Architecture: {description.model.name}{_backbone(description)}, head {description.head.name}, square images of "
        f"{description.image_sizes[-1]} pixels.",
        _use(description),
        "## Taxa\n\n| rank | classes |\n|---|---:|\n" + "\n".join(f"| {r} | {n:,} |" for r, n in zip(tree.ranks, tree.sizes, strict=True)),
        _data(dataset),
        _accuracy(tree, metrics),
        "## Limits\n\nThe model knows the taxa of taxonomy.json only. A photograph of another organism gets one of them. "
        f"Known weak taxa: {OPEN}.",
        f"## Intended use and licence\n\nIntended use: {OPEN}. Licence of the weights: {OPEN}. "
        f"Licence of the photographs: {OPEN}. Contact: {OPEN}.",
    ]
    return "\n\n".join(blocks) + "\n"


def _backbone(description: Description) -> str:
    name = getattr(description.model, "backbone", None) or getattr(description.model, "size", None)
    return f" ({name})" if name else ""


def _use(description: Description) -> str:
    arguments = {"SPATIAL": "latitude=52.1, longitude=4.3", "TEMPORAL": 'date="2026-05-01"', "ELEVATION": "elevation=20"}
    given = "".join(f", {arguments[name]}" for name in description.components)
    known = f"Metadata that the model reads: {', '.join(description.components)}; each may be left out." if description.components else ""
    code = f'from linnaeus import load_model\n\nmodel = load_model("FOLDER")\nmodel.predict("photo.jpg"{given})'
    return f"## Use\n\n```python\n{code}\n```\n\n{known}".rstrip()


def _data(dataset: Mapping[str, Any]) -> str:
    rows = dataset.get("rows") or {}
    counts = f"{rows.get('training', 0):,} photographs for training, {rows.get('validation', 0):,} for validation." if rows else ""
    notes = "".join(f"\n- {note}" for note in dataset.get("notes", []))
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
