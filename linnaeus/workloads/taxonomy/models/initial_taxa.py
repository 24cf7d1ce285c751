"""Adapt the weights of `run.init_from` to a classifier: check that they were trained on its taxa, add weights that earlier programs did not
have, and resample the positions of a timm model.

A row of the head belongs to a class by its number only. A run on as many other species has weights of the same shape."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from linnaeus.checkpoint.initial_weights import InitialWeights
from linnaeus.checkpoint.weight_matching import matches_prefix, shorten
from linnaeus.errors import ConfigError
from linnaeus.files import read_json
from linnaeus.workloads.run_weights import folder_of
from linnaeus.workloads.taxonomy.models.classifier import Classifier, with_place_inputs
from linnaeus.workloads.taxonomy.models.timm_backbone import TimmBackbone
from linnaeus.workloads.taxonomy.models.timm_weights import resample_positions
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

TAXONOMY = "taxonomy.json"  # of a run directory or a bundle
OF_CLASSES = re.compile(r"head\.(?:(?:ranks|levels|embeddings)\.(\d+)|leaves)(?=\.|$)")  # weights with a row for each class of a rank


def adapt_weights(weights: InitialWeights, model: Classifier, tree: TaxonomyTree, skipped: Sequence[str]) -> InitialWeights:
    """Return the weights for `model`. Raise `ConfigError` as `check_taxa` does. `tree`: the taxa of this run. `skipped`: the prefixes in
    `run.init_skip`."""
    check_taxa(weights, tree, skipped)
    weights, trunk = with_place_inputs(weights, model), model.trunk
    return resample_positions(weights, trunk.backbone, "trunk.backbone.") if isinstance(trunk, TimmBackbone) else weights


def check_taxa(weights: InitialWeights, tree: TaxonomyTree, skipped: Sequence[str]) -> None:
    """Raise `ConfigError` if `weights` were trained on other taxa than those of `tree`, and rows of the head would be loaded for them.

    The taxa are read from the run or bundle that contains the file of the weights. Nothing is checked without one. A rank with another
    number of taxa is not checked, because the shapes of its weights differ. `skipped`: the prefixes in `run.init_skip`."""
    run = folder_of(weights, TAXONOMY)
    trained = None if run is None else _read_tree(run / TAXONOMY)
    if trained is None or trained.fingerprint() == tree.fingerprint():
        return
    found = {name: match for name in weights.state if (match := OF_CLASSES.match(name)) and not matches_prefix(skipped, name)}
    wrong = {match[0]: name for name, match in found.items() if _numbers_differ(trained, tree, match[1])}
    if wrong:
        raise ConfigError(
            f"run.init_from: {run} was trained on other taxa, so {shorten(list(wrong.values()))} would be loaded for the wrong ones; use "
            f"the data of that run, or leave these weights out: run.init_skip=[{','.join(wrong)}]"
        )


def _read_tree(path: Path) -> TaxonomyTree | None:
    """Return the tree in the file `path`; None if the file is damaged."""
    try:
        return TaxonomyTree.from_dict(read_json(path) or {})
    except (ValueError, LookupError, TypeError):
        return None


def _numbers_differ(trained: TaxonomyTree, tree: TaxonomyTree, rank: str | None) -> bool:
    """Return True if both trees have the same number of classes, but other classes or another order of them. `rank`: index of a rank; None
    for the leaves of the trees."""
    if rank is not None and int(rank) >= min(len(trained.ranks), len(tree.ranks)):
        return False
    before, now = (_leaf_ids(one) if rank is None else one.lineage_ids(int(rank)) for one in (trained, tree))
    return len(before) == len(now) and before != now


def _leaf_ids(tree: TaxonomyTree) -> tuple[str, ...]:
    """Return the lineage id of each taxon without children."""
    ids = [name for rank in tree.ranks for name in tree.lineage_ids(rank)]
    return tuple(ids[node] for node in np.flatnonzero(~tree.has_children[:-1]))
