"""Compute the best possible accuracy on biota from the exact distributions and the form (appearance) of each individual.

p(species | form, metadata) follows from Bayes' rule; species with another form have probability 0. The prior is the frequency of the
species. A missing or masked component is left out of the likelihood: given the species, components are independent of each other, and a
value is missing with the same probability for every species. The posterior of a class at a coarser rank is the sum over the species of the
class. There are two decision rules, one for each measure (for the second see Menon et al. 2013):

    top1   predict the class of the largest posterior
    macro  predict the class of the largest posterior / prior, which maximises the mean recall of the classes

The results are expectations over the labels that the configured validation individuals could have: an individual counts for class c with
weight p(c | its form and metadata).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from linnaeus.workloads.taxonomy.biota.individuals import MISSING, draw_metadata, labels_of, log_densities, species_of
from linnaeus.workloads.taxonomy.biota.world import RANKS, World, build_world

if TYPE_CHECKING:
    from linnaeus.workloads.taxonomy.config import BiotaConfig

COMPONENTS = tuple(MISSING)
# Condition -> masked components.
CONDITIONS = {"with_meta": (), "without_meta": COMPONENTS} | {f"mask_{name}": (name,) for name in COMPONENTS}


def posteriors(world: World, form: np.ndarray, densities: dict[str, np.ndarray], masked: Collection[str] = ()) -> np.ndarray:
    """Return p(species | form, metadata) of N individuals, float64 [N, S], without the components named in `masked`.

    `form`: form number of each individual, int64 [N]. `densities`: result of `log_densities`."""
    log = np.where(world.form[None] == form[:, None], np.log(world.prior), -np.inf)
    for name, density in densities.items():
        if name not in masked:
            log = log + density
    log -= log.max(axis=1, keepdims=True)
    likelihood = np.exp(log)
    return likelihood / likelihood.sum(axis=1, keepdims=True)


def sum_to_rank(world: World, species: np.ndarray, rank: int) -> np.ndarray:
    """Sum the values `species` [..., S] over the species of each class at the taxonomic rank number `rank`. Return [..., C]."""
    classes = world.lineage[:, rank]
    order = np.argsort(classes, kind="stable")
    starts = np.searchsorted(classes[order], np.arange(len(world.tree.names[rank])))
    return np.add.reduceat(species[..., order], starts, axis=-1)


def expected_accuracy(posterior: np.ndarray, prior: np.ndarray) -> dict[str, float]:
    """Return the best expected top-1 and macro accuracy, from the posteriors [N, C] and the class prior [C].

    A class whose posterior is 0 for every individual is left out of the macro accuracy."""
    n = len(posterior)
    balanced = (posterior / prior).argmax(axis=1)
    mass = posterior.sum(axis=0)
    hits = np.bincount(balanced, weights=posterior[np.arange(n), balanced], minlength=len(prior))
    possible = mass > 1e-9
    return {"top1": float(posterior.max(axis=1).mean()), "macro": float((hits[possible] / mass[possible]).mean())}


def ceilings(config: BiotaConfig) -> dict[str, float]:
    """Return the best possible accuracies on the validation individuals, as `<condition>/<rank>/<top1|macro>` -> accuracy from 0 to 1.

    The conditions are with_meta, without_meta, mask_SPATIAL, mask_TEMPORAL and mask_ELEVATION. Individuals without a label at a rank are
    left out at that rank."""
    world = build_world(config.world)
    samples = np.arange(config.train_samples, config.train_samples + config.validation_samples)
    species = species_of(world, samples)
    labels = labels_of(world, species, samples)
    densities = log_densities(world, draw_metadata(world, species, samples))
    best: dict[str, float] = {}
    for condition, masked in CONDITIONS.items():
        posterior = posteriors(world, world.form[species], densities, masked)
        for rank, name in enumerate(RANKS):
            known = labels[:, rank] >= 0
            result = expected_accuracy(sum_to_rank(world, posterior[known], rank), sum_to_rank(world, world.prior, rank))
            best |= {f"{condition}/{name}/{measure}": value for measure, value in result.items()}
    return best


def format_ceilings(best: dict[str, float]) -> str:
    """Return the result of `ceilings` as a text table: a line for each condition (set of masked components), with the top-1 and macro
    accuracy in per cent at each rank, the finest rank first."""
    ranks = tuple(reversed(RANKS))
    lines = [f"{'best possible, %':<16}" + "".join(f"{rank:>16}" for rank in ranks), " " * 16 + f"{'top-1   macro':>16}" * len(ranks)]
    for condition in CONDITIONS:
        cells = "".join(f"{100 * best[f'{condition}/{r}/top1']:>9.1f}{100 * best[f'{condition}/{r}/macro']:>7.1f}" for r in ranks)
        lines.append(f"{condition:<16}{cells}")
    return "\n".join(lines)
