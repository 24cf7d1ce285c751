"""The best accuracy anyone can reach on biota: an oracle that sees the drawn form and knows every distribution exactly.

It computes p(species | form, metadata) by Bayes' rule. The prior is how often species are drawn, in training and validation
alike; a species whose form is another one is ruled out; a component that is missing or masked is left out of the likelihood
(components are independent given the species, and whether one is missing does not depend on it). A coarser rank's posterior is
the sum over its species. Two decision rules, each best for its own measure (Menon et al. 2013 for the second):

    top1   predict the class of the largest posterior
    macro  predict the class of the largest posterior / prior, which maximises the mean of the classes' recalls

Expectations, not one draw of labels: an individual counts for class c with weight p(c | what is seen of it). So a ceiling is that
of the config's own validation individuals, with their forms and metadata, averaged over the labels that they might have had.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from linnaeus.workloads.taxonomy.biota.individuals import labels_of, species_of
from linnaeus.workloads.taxonomy.biota.places import MISSING, draw_metadata, log_densities
from linnaeus.workloads.taxonomy.biota.world import RANKS, World, build_world

if TYPE_CHECKING:
    from linnaeus.workloads.taxonomy.config import BiotaConfig

COMPONENTS = tuple(MISSING)


def posteriors(world: World, form: np.ndarray, densities: dict[str, np.ndarray], masked: Collection[str] = ()) -> np.ndarray:
    """float64 [N, S]: p(species | form, unmasked metadata); `form` int64 [N], `densities` as `places.log_densities` gives them."""
    log = np.where(world.form[None] == form[:, None], np.log(world.prior), -np.inf)
    for name, density in densities.items():
        if name not in masked:
            log = log + density
    log -= log.max(axis=1, keepdims=True)
    likelihood = np.exp(log)
    return likelihood / likelihood.sum(axis=1, keepdims=True)


def up_the_tree(world: World, species: np.ndarray, rank: int) -> np.ndarray:
    """[..., S] summed over the species of each class of `rank`: [..., C]."""
    classes = world.lineage[:, rank]
    order = np.argsort(classes, kind="stable")
    starts = np.searchsorted(classes[order], np.arange(len(world.tree.names[rank])))
    return np.add.reduceat(species[..., order], starts, axis=-1)


def expected_accuracy(posterior: np.ndarray, prior: np.ndarray) -> dict[str, float]:
    """Best top-1 and macro accuracy for posteriors [N, C] and class prior [C]. A class that no individual can be is left out."""
    n = len(posterior)
    balanced = (posterior / prior).argmax(axis=1)
    mass = posterior.sum(axis=0)
    hits = np.bincount(balanced, weights=posterior[np.arange(n), balanced], minlength=len(prior))
    possible = mass > 1e-9
    return {"top1": float(posterior.max(axis=1).mean()), "macro": float((hits[possible] / mass[possible]).mean())}


def conditions() -> dict[str, tuple[str, ...]]:
    """Name of each way of looking -> the components that are masked in it."""
    return {"with_meta": (), "without_meta": COMPONENTS} | {f"mask_{name}": (name,) for name in COMPONENTS}


def ceilings(config: BiotaConfig) -> dict[str, float]:
    """Best possible accuracies on the validation individuals: `<condition>/<rank>/<top1|macro>`, the conditions being
    with_meta, without_meta, mask_SPATIAL, mask_TEMPORAL and mask_ELEVATION. Individuals without a label at a rank do not count."""
    world = build_world(config.world)
    samples = np.arange(config.train_samples, config.train_samples + config.validation_samples)
    species = species_of(world, samples)
    labels = labels_of(world, species, samples)
    densities = log_densities(world, draw_metadata(world, species, samples))
    best: dict[str, float] = {}
    for condition, masked in conditions().items():
        posterior = posteriors(world, world.form[species], densities, masked)
        for rank, name in enumerate(RANKS):
            known = labels[:, rank] >= 0
            result = expected_accuracy(up_the_tree(world, posterior[known], rank), up_the_tree(world, world.prior, rank))
            best |= {f"{condition}/{name}/{measure}": value for measure, value in result.items()}
    return best


def table(best: dict[str, float]) -> str:
    """The ceilings as text: a line per condition, top-1 and macro per rank, finest first."""
    ranks = tuple(reversed(RANKS))
    lines = [f"{'best possible, %':<16}" + "".join(f"{rank:>16}" for rank in ranks), " " * 16 + f"{'top-1   macro':>16}" * len(ranks)]
    for condition in conditions():
        cells = "".join(f"{100 * best[f'{condition}/{r}/top1']:>9.1f}{100 * best[f'{condition}/{r}/macro']:>7.1f}" for r in ranks)
        lines.append(f"{condition:<16}{cells}")
    return "\n".join(lines)
