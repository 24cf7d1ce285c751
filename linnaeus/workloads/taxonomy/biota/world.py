"""Generate a world of synthetic organisms: the tree of taxa, the frequency of each species, and the traits that determine its pictures.

Traits are inherited down the tree, so that closer relatives look more alike. The order sets the body plan; the family the proportions and
the palette; the genus the kind of pattern and the colour of the marks; the species the ground colour, the number and extent of the marks,
and one small accent. A *form* is a complete set of these traits, from which an organism is drawn. Each species has its own form, except
that the species of a *cryptic group* share one form: only their metadata differ.

Names are invented and Latin-like, with the endings that the codes of zoological and botanical nomenclature prescribe. `build_world(number)`
is a pure function of the number, takes a few milliseconds, and is cached.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from linnaeus.randomness import SYNTHETIC, Draw
from linnaeus.workloads.taxonomy.biota.body_plans import BODY_PLANS, FAMILIES, VARIABILITY
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

GENERATOR_VERSION = 1  # increase it with every change of a label, a number or a pixel
RANKS = ("order", "family", "genus", "species")
GENERA_PER_FAMILY = (3, 3, 2)
SPECIES_PER_GENUS = (2,) * 12 + (3,) * 16 + (4,) * 12  # shuffled over the 40 genera: 120 species
FREQUENCY_EXPONENT = 0.85  # of the rank-frequency power law; the rarest of 120 species has 0.23 % of the individuals
# (metadata in which the group's species differ, number of species, frequency rank of the commonest one). The species of a group have
# neighbouring frequency ranks, so that the prior hardly separates them.
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

Colour = tuple[float, float, float]  # RGB in [0, 1]

BLACK, CHARCOAL, CHESTNUT, RUST = (0.09, 0.08, 0.09), (0.24, 0.24, 0.28), (0.42, 0.20, 0.09), (0.72, 0.30, 0.08)
CRIMSON, ORANGE, OCHRE, YELLOW = (0.70, 0.08, 0.12), (0.93, 0.50, 0.08), (0.76, 0.58, 0.24), (0.95, 0.82, 0.18)
CREAM, WHITE = (0.93, 0.87, 0.70), (0.95, 0.95, 0.93)
OLIVE, GREEN, EMERALD, TURQUOISE, STEEL = (0.40, 0.42, 0.12), (0.22, 0.50, 0.14), (0.05, 0.42, 0.25), (0.18, 0.66, 0.68), (0.22, 0.36, 0.58)
BLUE, VIOLET, MAUVE, PINK, SILVER = (0.16, 0.25, 0.72), (0.42, 0.16, 0.55), (0.68, 0.50, 0.78), (0.93, 0.55, 0.66), (0.70, 0.73, 0.76)
LIME, BRONZE, WINE, SEA_GREEN = (0.62, 0.74, 0.20), (0.48, 0.34, 0.20), (0.45, 0.10, 0.22), (0.42, 0.62, 0.50)

# Ground, mark and accent colours of each body plan. Colours of one palette are far enough apart that neither the light of a photograph
# nor mild colour jitter turns one into another.
GROUND_COLOURS: dict[str, tuple[Colour, ...]] = {
    "beetle": (CHARCOAL, CHESTNUT, CRIMSON, ORANGE, OCHRE, EMERALD, STEEL, VIOLET, CREAM, OLIVE),
    "moth": (CHARCOAL, CHESTNUT, RUST, OCHRE, CREAM, YELLOW, SILVER, TURQUOISE, MAUVE, CRIMSON),
    "fish": (SILVER, STEEL, BLUE, TURQUOISE, YELLOW, ORANGE, OLIVE, CRIMSON, CHARCOAL, CREAM),
    "flower": (WHITE, YELLOW, ORANGE, PINK, CRIMSON, VIOLET, BLUE, MAUVE),
    "leaf": (GREEN, LIME, EMERALD, WINE, RUST, SEA_GREEN, YELLOW, BRONZE),
}
MARK_COLOURS: dict[str, tuple[Colour, ...]] = {
    "beetle": (BLACK, YELLOW, CREAM, CRIMSON, ORANGE),
    "moth": (BLACK, WHITE, ORANGE, CHESTNUT, BLUE),
    "fish": (BLACK, WHITE, YELLOW, BLUE, ORANGE),
    "flower": (WINE, WHITE, YELLOW, VIOLET, CRIMSON),
    "leaf": (CREAM, WINE, LIME, YELLOW, BLACK),
}
ACCENT_COLOURS: tuple[Colour, ...] = (WHITE, BLACK, ORANGE, TURQUOISE)

_START_SYLLABLES = """
Al Bra Cor Da Dry El Fe Gal Har Il Ke Lu Mar Ne Or Pel Qui Ras Sa Tha Ul Vel Xan Ze Cli Phy Tro Sti Mel Lo
"""
_MIDDLE_SYLLABLES = """
ba ce di fo ga li mo na pe ra ri so ta ve vi xo lu ne cto mi sta pho
"""
_EPITHET_WORDS = """
alba aurata borealis cana decora dives elegans fallax ferox flava gracilis hirta insignis iris lata laeta livida lucida major
maritima minor mirabilis modesta montana nitida nobilis notata obscura ornata pallida picta pratensis pumila pura rara regia
rivalis rubens rupestris serena silvatica simplex sobria solida tarda tenuis tristis umbrosa vaga velox venusta vernalis viridis
vulgaris
"""
_STARTS, _MIDDLES, _EPITHETS = _START_SYLLABLES.split(), _MIDDLE_SYLLABLES.split(), _EPITHET_WORDS.split()
_ENDS = {
    ("family", "animal"): ("ridae", "lidae", "nidae"),
    ("family", "plant"): ("raceae", "laceae", "naceae"),
    ("genus", "animal"): ("ra", "rus", "nus", "lla", "don", "pus", "ris", "xa", "lis"),
    ("genus", "plant"): ("ria", "nia", "lium", "dra", "ntha", "rum", "sia", "phis", "lla"),
}


@dataclass(frozen=True)
class Forms:
    """Table of forms (visible traits of a species), one row per form. Colours are RGB in [0, 1]. Lengths are in body units: half a body is
    about 1."""

    plan: np.ndarray  # int64 [F] index into BODY_PLANS
    shape: np.ndarray  # float32 [F, 8] proportions, in the order of the body plan
    pattern: np.ndarray  # float32 [F, 12] coefficients of `shapes.pattern_coverage`
    ground: np.ndarray  # float32 [F, 3]
    mark: np.ndarray  # float32 [F, 3]
    accent: np.ndarray  # float32 [F, 3]


@dataclass(frozen=True)
class World:
    """World of S species: the tree of taxa, the frequency and form of each species, and the cryptic groups (species that look the same).

    The number of a species is its class index at the finest rank of `tree`."""

    number: int
    tree: TaxonomyTree
    lineage: np.ndarray  # int64 [S, R]: class of each species at each taxonomic rank
    prior: np.ndarray  # float64 [S]: frequency of each species; sums to 1
    form: np.ndarray  # int64 [S]: form of each species; equal within a cryptic group
    cryptic_kind: tuple[str, ...]  # [S]: "range", "season" or "elevation", which separates its group; "" outside cryptic groups
    cryptic_index: np.ndarray  # int64 [S]: index of the species in its cryptic group, 0 outside
    cryptic_size: np.ndarray  # int64 [S]: number of species in its cryptic group, 1 outside
    forms: Forms


@dataclass
class _Species:
    """Lineage, traits and frequency of one species, collected while a world is generated."""

    lineage: tuple[str, str, str, str]
    genus_number: int
    plan: int
    shape: np.ndarray
    pattern: np.ndarray
    ground: tuple[float, ...]
    mark: tuple[float, ...]
    accent: tuple[float, ...]
    frequency_rank: int = -1  # 0: the commonest
    cryptic_kind: str = ""
    cryptic_index: int = 0
    cryptic_size: int = 1
    form_owner: tuple[str, ...] = ()  # lineage of the species whose form it shares; empty: it has its own form


def _shuffled(draw: Draw, items: list) -> list:
    return [item for _, _, item in sorted((draw.bits(), i, item) for i, item in enumerate(items))]


def _pick(draw: Draw, items: Sequence[str]) -> str:
    return items[draw.integer(len(items))]


def _stem(draw: Draw) -> str:
    return _pick(draw, _STARTS) + _pick(draw, _MIDDLES)


def _unused(draw_name: Callable[[], str], used: set[str]) -> str:
    while (name := draw_name()) in used:
        pass
    used.add(name)
    return name


def order_name(draw: Draw, ending: str, used: set[str]) -> str:
    """Return an unused name for an order: a random stem and `ending`, such as "optera". Add the name to `used`."""
    return _unused(lambda: _stem(draw).rstrip("aeiou") + ending, used)


def taxon_name(draw: Draw, rank: str, kingdom: str, used: set[str]) -> str:
    """Return an unused name for a taxon. Add the name to `used`. `rank`: "family" or "genus". `kingdom`: "animal" or "plant"."""
    return _unused(lambda: _stem(draw) + _pick(draw, _ENDS[rank, kingdom]), used)


def species_name(draw: Draw, genus: str, used: set[str]) -> str:
    """Return an unused binomial: the genus and an epithet. Add the binomial to `used`."""
    return _unused(lambda: f"{genus} {_pick(draw, _EPITHETS)}", used)


def _pattern(draw: Draw, kind: str, variant: int) -> np.ndarray:
    """Return the coefficients of `shapes.pattern_coverage` for a kind of pattern, float32 [12].

    `variant`, 0 to 3, sets the number and the extent of the marks. Each species of a genus has another `variant`."""
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


def _draw_species_traits(draw: Draw, count: int, kind: str, palette: list, marks: list) -> list[tuple]:
    """Return (pattern, ground colour, mark colour, accent colour) for each of the `count` species of a genus. The species have the same
    mark colour and kind of pattern; ground colour, accent colour and pattern variant differ."""
    mark = marks[draw.integer(len(marks))]
    palette = sorted(palette, key=lambda c: -sum(abs(x - y) for x, y in zip(c, mark, strict=True)))
    grounds = _shuffled(draw, palette[:5])  # the five of most contrast with the marks
    variants = _shuffled(draw, [0, 1, 2, 3])
    accents = _shuffled(draw, list(ACCENT_COLOURS))
    phase = draw.bits()  # one per genus: its species differ only in the number and extent of marks
    return [(_pattern(Draw(phase), kind, variants[i]), grounds[i], mark, accents[i]) for i in range(count)]


def _generate_species(number: int) -> list[_Species]:
    """Return all species of world number `number`, still without frequencies and cryptic groups."""
    draw = Draw(number, SYNTHETIC, 1)
    counts = _shuffled(draw, list(SPECIES_PER_GENUS))
    used_names: set[str] = set()
    species: list[_Species] = []
    genus_number = 0
    for plan_number, plan in enumerate(BODY_PLANS):
        order = order_name(draw, plan.order_ending, used_names)
        for family_number, genera in enumerate(GENERA_PER_FAMILY):
            family = taxon_name(draw, "family", plan.kingdom, used_names)
            proportions = np.array(FAMILIES[plan.name][family_number], np.float32)
            palette = _shuffled(draw, list(GROUND_COLOURS[plan.name]))[:7]
            kinds = _shuffled(draw, list(PATTERNS))
            for g in range(genera):
                genus = taxon_name(draw, "genus", plan.kingdom, used_names)
                spread = np.array([draw.uniform(-1, 1) for _ in range(8)], np.float32)
                shape = proportions * (1 + 0.12 * spread * np.array(VARIABILITY[plan.name], np.float32))
                traits = _draw_species_traits(draw, counts[genus_number], kinds[g], palette, list(MARK_COLOURS[plan.name]))
                for pattern, ground, mark, accent in traits:
                    lineage = (order, family, genus, species_name(draw, genus, used_names))
                    species.append(_Species(lineage, genus_number, plan_number, shape, pattern, ground, mark, accent))
                genus_number += 1
    return species


def _assign_frequencies(draw: Draw, species: list[_Species]) -> None:
    """Set the frequency rank (0: the commonest) of every species. Form the groups that CRYPTIC_GROUPS lists, each from species of one
    genus."""
    species_of_genus: dict[int, list[int]] = {}
    for i, s in enumerate(species):
        species_of_genus.setdefault(s.genus_number, []).append(i)
    genera = _shuffled(draw, list(species_of_genus))
    free = set(range(len(species)))
    for kind, size, first in CRYPTIC_GROUPS:
        genus = next(g for g in genera if len(species_of_genus[g]) >= size)
        genera.remove(genus)
        group = species_of_genus[genus][:size]
        for index, i in enumerate(group):
            s = species[i]
            s.cryptic_kind, s.cryptic_index, s.cryptic_size = kind, index, size
            s.form_owner, s.frequency_rank = species[group[0]].lineage, first + index
            free.discard(s.frequency_rank)
    rest = iter(_shuffled(draw, sorted(free)))
    for s in species:
        if s.frequency_rank < 0:
            s.frequency_rank = next(rest)


def _build_forms(species: list[_Species]) -> tuple[np.ndarray, Forms]:
    """Return the form number of each species (a row of the table of forms), int64 [S], and the table of forms."""
    owners = [s.form_owner or s.lineage for s in species]
    number = {owner: f for f, owner in enumerate(sorted(set(owners)))}
    rows = [s for s in species if s.lineage in number]
    columns = {name: np.array([getattr(s, name) for s in rows], np.float32) for name in ("shape", "pattern", "ground", "mark", "accent")}
    return np.array([number[owner] for owner in owners], np.int64), Forms(plan=np.array([s.plan for s in rows], np.int64), **columns)


@lru_cache(maxsize=4)
def build_world(number: int) -> World:
    """Return the world with this number. The last four worlds are cached."""
    species = _generate_species(number)
    _assign_frequencies(Draw(number, SYNTHETIC, 2), species)
    species.sort(key=lambda s: s.lineage)
    weight = np.array([(s.frequency_rank + 1.0) ** -FREQUENCY_EXPONENT for s in species])
    tree, lineage = TaxonomyTree.from_lineages(RANKS, np.array([s.lineage for s in species]))
    form, forms = _build_forms(species)
    return World(
        number=number,
        tree=tree,
        lineage=lineage,
        prior=weight / weight.sum(),
        form=form,
        cryptic_kind=tuple(s.cryptic_kind for s in species),
        cryptic_index=np.array([s.cryptic_index for s in species], np.int64),
        cryptic_size=np.array([s.cryptic_size for s in species], np.int64),
        forms=forms,
    )
