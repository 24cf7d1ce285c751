"""One world of organisms: its tree of taxa, how common each species is, and what each looks like.

Traits are inherited down the tree, so that closer kin look more alike: the order gives the body plan, the family its
proportions and its range of colours, the genus the kind of pattern and the colour of the marks, the species its ground colour,
the number and extent of the marks and one small accent. A *form* is what is drawn: species of a cryptic group share one.

`build_world(number)` is a pure function of the number, takes a few milliseconds, and is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from linnaeus.randomness import SYNTHETIC, Draw
from linnaeus.workloads.taxonomy.biota import names
from linnaeus.workloads.taxonomy.biota.palettes import ACCENTS, MARKS, PALETTES
from linnaeus.workloads.taxonomy.biota.plans import PLANS
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

GENERATOR_VERSION = 1  # raise it with every change that alters a label, a number or a pixel
RANKS = ("order", "family", "genus", "species")
GENERA_PER_FAMILY = (3, 3, 2)
SPECIES_PER_GENUS = (2,) * 12 + (3,) * 16 + (4,) * 12  # dealt over the 40 genera: 120 species
FREQUENCY_EXPONENT = 0.85  # of the rank-frequency power law; the rarest of 120 species then has 0.23 % of the individuals
# (kind, members, frequency rank of the commonest member): members have neighbouring ranks, so that looks alone decide little.
CRYPTIC_GROUPS = (
    ("range", 2, 8),
    ("season", 2, 14),
    ("elevation", 2, 20),
    ("range", 3, 28),
    ("season", 2, 38),
    ("elevation", 3, 46),
    ("range", 2, 58),
    ("season", 3, 70),
    ("elevation", 2, 88),
)
PATTERNS = ("bands", "stripes", "chevrons", "spots", "rim", "halves", "saddle")


@dataclass(frozen=True)
class Forms:
    """What is drawn, one row per form. Colours are RGB in [0, 1]; lengths are in body units (half the body is about 1)."""

    plan: np.ndarray  # int64 [F] index into PLANS
    shape: np.ndarray  # float32 [F, 8] proportions, read by the plan
    pattern: np.ndarray  # float32 [F, 12], coefficients read by `patterns.marks`
    ground: np.ndarray  # float32 [F, 3]
    mark: np.ndarray  # float32 [F, 3]
    accent: np.ndarray  # float32 [F, 3]


@dataclass(frozen=True)
class World:
    """`S` species, numbered as the tree's finest classes; `lineage[s, r]` is a species' class at rank r."""

    number: int
    tree: TaxonomyTree
    lineage: np.ndarray  # int64 [S, R]
    prior: np.ndarray  # float64 [S], sums to 1: how common a species is
    form: np.ndarray  # int64 [S]: species of a cryptic group share one
    cryptic_kind: tuple[str, ...]  # [S]: "range", "season", "elevation", or "" where the species is told by its looks
    cryptic_place: np.ndarray  # int64 [S]: its place in its cryptic group
    cryptic_size: np.ndarray  # int64 [S]: members of its cryptic group, 1 outside
    forms: Forms


@dataclass
class _Species:
    """A species while the world is being made."""

    lineage: tuple[str, str, str, str]
    genus_number: int
    plan: int
    shape: np.ndarray
    pattern: np.ndarray
    ground: tuple[float, ...]
    mark: tuple[float, ...]
    accent: tuple[float, ...]
    rank: int = -1  # of frequency, 0 the commonest
    kind: str = ""
    place: int = 0
    size: int = 1
    leader: tuple[str, ...] = ()  # lineage of the species whose form it shares, empty: its own


def _shuffled(draw: Draw, items: list) -> list:
    return [item for _, _, item in sorted((draw.bits(), i, item) for i, item in enumerate(items))]


def _pattern(draw: Draw, kind: str, variant: int) -> np.ndarray:
    """Coefficients of `patterns.marks`: [a, k_s, k_t, phase, k_t2, rim, slope, eye, s0, t0, threshold, steepness].

    `variant` (0 to 3, distinct among the species of a genus) sets the number and the extent of the marks."""
    count, wide = (1.0, 1.7, 1.0, 1.7)[variant], (0.1, 0.1, -0.45, -0.45)[variant]
    c = np.zeros(12, np.float32)
    if kind == "bands":
        c[[0, 1, 3, 10, 11]] = 1, 5.0 * count, draw.uniform(-0.8, 0.8), wide, 5.0 * count
    elif kind == "stripes":
        c[[0, 2, 3, 10, 11]] = 1, 6.0 * count, draw.uniform(-0.5, 0.5), wide, 6.0 * count
    elif kind == "chevrons":
        c[[0, 1, 2, 10, 11]] = 1, 4.5 * count, 4.0, wide, 6.0 * count
    elif kind == "spots":
        c[[0, 1, 4, 3, 10, 11]] = 1, 4.5 * count, 3.6 * count, draw.uniform(-0.5, 0.5), 0.25 + 0.4 * wide, 5.0 * count
    elif kind == "rim":
        c[[5, 10, 11]] = 1, (0.62, 0.45, 0.30, 0.18)[variant], 2.0
    elif kind == "halves":
        c[[6, 10, 11]] = 1, (0.35, 0.0, -0.35, 0.6)[variant], 1.0
    else:
        c[[7, 8, 9, 10, 11]] = 1, draw.uniform(-0.3, 0.3), draw.uniform(0.0, 0.4), -(0.10, 0.22, 0.38, 0.6)[variant], 1.5
    return c


def _genus_species(draw: Draw, plan: int, count: int, kind: str, palette: list, marks: list) -> list[tuple]:
    """(pattern, ground, mark, accent) of the `count` species of one genus: no two share a ground colour or a variant."""
    mark = marks[draw.integer(len(marks))]
    palette = sorted(palette, key=lambda c: -sum(abs(x - y) for x, y in zip(c, mark, strict=True)))
    grounds = _shuffled(draw, palette[:5])  # those the marks stand out from most
    variants = _shuffled(draw, [0, 1, 2, 3])
    accents = _shuffled(draw, list(ACCENTS))
    phase = draw.bits()  # the genus's own: its species differ in number and extent only
    return [(_pattern(Draw(phase), kind, variants[i]), grounds[i], mark, accents[i]) for i in range(count)]


def _grow(number: int) -> list[_Species]:
    """Every species of the world, before frequencies and cryptic groups."""
    draw = Draw(number, SYNTHETIC, 1)
    counts = _shuffled(draw, list(SPECIES_PER_GENUS))
    taken: set[str] = set()
    species: list[_Species] = []
    genus_number = 0
    for plan_number, plan in enumerate(PLANS):
        order = names.order_name(draw, plan.order_ending, taken)
        for family_number, genera in enumerate(GENERA_PER_FAMILY):
            family = names.family_name(draw, plan.kingdom, taken)
            proportions = np.array(plan.families[family_number], np.float32)
            palette = _shuffled(draw, list(PALETTES[plan.name]))[:7]
            kinds = _shuffled(draw, list(PATTERNS))
            for g in range(genera):
                genus = names.genus_name(draw, plan.kingdom, taken)
                spread = np.array([draw.uniform(-1, 1) for _ in range(8)], np.float32)
                shape = proportions * (1 + 0.12 * spread * np.array(plan.varies, np.float32))
                traits = _genus_species(draw, plan_number, counts[genus_number], kinds[g], palette, list(MARKS[plan.name]))
                for pattern, ground, mark, accent in traits:
                    lineage = (order, family, genus, names.species_name(draw, genus, taken))
                    species.append(_Species(lineage, genus_number, plan_number, shape, pattern, ground, mark, accent))
                genus_number += 1
    return species


def _make_cryptic(draw: Draw, species: list[_Species]) -> None:
    """Give every species a frequency rank; make some of a genus share one form, ranks and kinds as CRYPTIC_GROUPS has them."""
    members: dict[int, list[int]] = {}
    for i, s in enumerate(species):
        members.setdefault(s.genus_number, []).append(i)
    genera = _shuffled(draw, list(members))
    free = set(range(len(species)))
    for kind, size, first in CRYPTIC_GROUPS:
        genus = next(g for g in genera if len(members[g]) >= size)
        genera.remove(genus)
        group = members[genus][:size]
        for place, i in enumerate(group):
            s = species[i]
            s.kind, s.place, s.size, s.leader, s.rank = kind, place, size, species[group[0]].lineage, first + place
            free.discard(s.rank)
    rest = iter(_shuffled(draw, sorted(free)))
    for s in species:
        if s.rank < 0:
            s.rank = next(rest)


def _forms(species: list[_Species]) -> tuple[np.ndarray, Forms]:
    """int64 [S] form of each species, and the table of forms."""
    leaders = [s.leader or s.lineage for s in species]
    number = {leader: f for f, leader in enumerate(sorted(set(leaders)))}
    rows = [s for s in species if s.lineage in number]
    columns = {name: np.array([getattr(s, name) for s in rows], np.float32) for name in ("shape", "pattern", "ground", "mark", "accent")}
    return np.array([number[leader] for leader in leaders], np.int64), Forms(plan=np.array([s.plan for s in rows], np.int64), **columns)


@lru_cache(maxsize=4)
def build_world(number: int) -> World:
    """The world of that number."""
    species = _grow(number)
    _make_cryptic(Draw(number, SYNTHETIC, 2), species)
    species.sort(key=lambda s: s.lineage)
    return _finish(number, species)


def _finish(number: int, species: list[_Species]) -> World:
    weight = np.array([(s.rank + 1.0) ** -FREQUENCY_EXPONENT for s in species])
    tree, lineage = TaxonomyTree.from_lineages(RANKS, np.array([s.lineage for s in species]))
    form, forms = _forms(species)
    return World(
        number=number,
        tree=tree,
        lineage=lineage,
        prior=weight / weight.sum(),
        form=form,
        cryptic_kind=tuple(s.kind for s in species),
        cryptic_place=np.array([s.place for s in species], np.int64),
        cryptic_size=np.array([s.size for s in species], np.int64),
        forms=forms,
    )
