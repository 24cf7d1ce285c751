"""Write the formats `speciesnet` and `megadetector` of `linnaeus predict` for programs for camera traps (Timelapse, AddaxAI, Wildlife
Insights).

Both formats describe animals in boxes. No detector runs here, so each photograph has one box, which covers the whole photograph. Sources of
the formats: `speciesnet.constants` and `speciesnet.utils` of SpeciesNet 5.0.6 (format 20261015), and `megadetector-output-format.md` of
MegaDetector (format 1.6).

Both formats write a taxon as lower-case names joined by `;`. A `;` within a name is written as `%3b`, and a `%` as `%25`. The file also has
the names unchanged, in `taxa` (speciesnet) or `classification_categories` (megadetector)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from linnaeus.workloads.taxonomy.trained.batches.journal import Row
from linnaeus.workloads.taxonomy.trained.predict.answered import Answered, answer_of, kind_of, open_text, probability
from linnaeus.workloads.taxonomy.trained.predict.sequences import each_photograph

WHOLE = [0.0, 0.0, 1.0, 1.0]  # x, y, width and height of a box
UNKNOWN = "f2efdae9-efb8-48fb-8a91-eccf79ab4ffb" + 6 * ";no cv result"
SPECIESNET_LABELS = {  # kind -> label in SpeciesNet
    "blank": "f1856211-cfb7-4a5b-9158-c0f72fd09ee6;;;;;;blank",
    "human": "990ae9dd-7a59-4344-afcb-1b7b21368000;mammalia;primates;hominidae;homo;sapiens;human",
    "vehicle": "e2895ed5-780b-48f6-8a11-9e27cb594511;;;;;;vehicle",
    "unknown": UNKNOWN,
}
CATEGORIES = {"animal": "1", "human": "2", "vehicle": "3"}  # detection categories of MegaDetector
NAMESPACE = uuid.UUID("6f1d4a0e-5f0b-5c8e-9d7c-0b8f8c1f3a52")  # for the ids of taxa in labels


def write_speciesnet(path: Path, answered: Answered) -> None:
    """Write a file in SpeciesNet's format 20261015. `raw_classifications` are the most probable taxa of the finest rank."""
    labels: dict[int, str] = {}
    rows = (_speciesnet_row(row, answered, labels) for row in each_photograph(answered.rows))
    with open_text(path) as file:
        file.write('{\n "info": {"format_version": "20261015"},\n "predictions": [')
        _write_items(file, rows)
        taxa = {label: _taxon(answered, node) for node, label in sorted(labels.items())}
        file.write(f'\n ],\n "taxa": {json.dumps(taxa, ensure_ascii=False, indent=1)}\n}}\n')


def _speciesnet_row(row: Row, answered: Answered, labels: dict[int, str]) -> dict[str, Any]:
    """Return the entry of a photograph in SpeciesNet's format. Add the labels of its taxa to `labels`, a dict node -> label."""
    base = {"filepath": row["photograph"], "model_version": answered.described}
    if "error" in row:
        return {**base, "failures": ["CLASSIFIER"], "error": row["error"]}

    def label(rank: str, taxon: Mapping[str, Any]) -> str:
        node = answered.node(rank, taxon)
        if node not in labels:
            labels[node] = _label(answered, node)
        return labels[node]

    finest = answered.tree.ranks[-1]
    taxa = row["ranks"][finest]
    raw = {"classes": [label(finest, taxon) for taxon in taxa], "scores": [*map(probability, taxa)]}
    answer = answer_of(row)
    processed: dict[str, Any] = {"class": UNKNOWN, "score": 0.0, "source": "classifier"}
    if answer is not None:
        source = "classifier" if answer["rank"] == finest else f"classifier+rollup_to_{answer['rank']}"
        processed = {"class": label(answer["rank"], answer), "score": answer["probability"], "source": source}
    box = {"category": "0", "label": "whole_image_classification", "conf": 1.0, "bbox": WHOLE}
    return {**base, "detections": [{**box, "raw_classifications": raw, "processed_classification": processed}]}


def _label(answered: Answered, node: int) -> str:
    """Return SpeciesNet's label of a taxon: id, class, order, family, genus, species epithet and name, joined by `;`."""
    names = answered.names(node)
    if (kind := kind_of(names)) != "animal":
        return SPECIESNET_LABELS[kind]
    above = [names.get(rank, "") for rank in ("class", "order", "family", "genus")]
    epithet = names.get("species", "").removeprefix(above[-1] + " ")
    identity = uuid.uuid5(NAMESPACE, json.dumps(names))
    return ";".join([str(identity), *map(_plain, [*above, epithet, [*names.values()][-1]])])


def _taxon(answered: Answered, node: int) -> dict[str, str]:
    """Return rank and unchanged name of a taxon, and its key if taxa have keys, as a dict for JSON."""
    rank, name = [*answered.names(node).items()][-1]
    tree = answered.tree
    r = tree.ranks.index(rank)
    return {"rank": rank, "name": name} | ({"key": tree.keys[r][node - tree.offsets[r]]} if tree.keys else {})


def write_megadetector(path: Path, answered: Answered) -> None:
    """Write a file of MegaDetector's batch results, format 1.6. The confidence of a box is the probability of the predicted taxon."""
    used: set[int] = set()
    rows = (_megadetector_row(row, answered, used) for row in each_photograph(answered.rows))
    info = {"format_version": "1.6", "detector": "none: the box is the whole photograph", "classifier": answered.described}
    with open_text(path) as file:
        file.write(f'{{\n "info": {json.dumps(info, ensure_ascii=False)},\n "images": [')
        _write_items(file, rows)
        names = {node: answered.names(node) for node in sorted(used)}
        tables = {
            "detection_categories": {"1": "animal", "2": "person", "3": "vehicle"},
            "classification_categories": {str(node): [*names[node].values()][-1] for node in names},
            "classification_category_descriptions": {str(node): _description(names[node]) for node in names},
        }
        file.write("\n ]" + "".join(f',\n "{key}": {json.dumps(table, ensure_ascii=False, indent=1)}' for key, table in tables.items()))
        file.write("\n}\n")


def _megadetector_row(row: Row, answered: Answered, used: set[int]) -> dict[str, Any]:
    """Return the entry of a photograph in MegaDetector's format. Add the nodes of its taxa to `used`.

    The classifications begin with the answer, followed by other taxa of the same rank. The format requires descending order, so taxa that
    are more probable than the answer (because they are not on the predicted path) are left out."""
    if "error" in row:
        return {"file": row["photograph"], "failure": row["error"], "detections": None}
    answer = answer_of(row)
    if answer is None:
        return {"file": row["photograph"], "detections": [{"category": "1", "conf": 0.0, "bbox": WHOLE}]}
    rank, own = answer["rank"], answered.node(answer["rank"], answer)
    kind = kind_of(answered.names(own))
    if kind == "blank":
        return {"file": row["photograph"], "detections": []}
    others = [(answered.node(rank, taxon), probability(taxon)) for taxon in row["ranks"][rank]]
    found = [(own, answer["probability"]), *((node, p) for node, p in others if node != own and p <= answer["probability"])]
    used.update(node for node, _ in found)
    box = {"category": CATEGORIES.get(kind, "1"), "conf": answer["probability"], "bbox": WHOLE}
    return {"file": row["photograph"], "detections": [{**box, "classifications": [[str(node), p] for node, p in found]}]}


def _description(names: Mapping[str, str]) -> str:
    """Return kingdom, phylum, class, order, family and name of a taxon, joined by `;`. `names`: rank -> name, as `Answered.names`
    returns."""
    above = [names.get(rank, "") for rank in ("kingdom", "phylum", "class", "order", "family")]
    return ";".join(map(_plain, [*above, [*names.values()][-1]]))


def _plain(name: str) -> str:
    """Return a name in lower case, with `%` and `;` escaped, as a part of a text that is joined by `;`."""
    return name.lower().replace("%", "%25").replace(";", "%3b")


def _write_items(file: Any, rows: Iterable[dict[str, Any]] | Iterator[dict[str, Any]]) -> None:
    """Write the items of a JSON list, one per line, without the brackets."""
    for number, row in enumerate(rows):
        file.write(f"{',' if number else ''}\n  {json.dumps(row, ensure_ascii=False)}")
