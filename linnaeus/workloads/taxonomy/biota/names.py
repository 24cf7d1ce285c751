"""Invented Latin-like names of taxa. The endings follow the codes of zoological and botanical nomenclature.

Orders of insects end in -optera, of fishes in -iformes, of plants in -ales. Families end in -idae (animals) or -aceae (plants). The name
of a species is its binomial. `used` holds the names that exist already; each function adds the name it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from linnaeus.randomness import Draw

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
    """Return the name of an order: a stem and the ending of its body plan, such as -optera."""
    return _unused(lambda: _stem(draw).rstrip("aeiou") + ending, used)


def taxon_name(draw: Draw, rank: str, kingdom: str, used: set[str]) -> str:
    """Return the name of a family or genus (`rank`) of a kingdom, animal or plant."""
    return _unused(lambda: _stem(draw) + _pick(draw, _ENDS[rank, kingdom]), used)


def species_name(draw: Draw, genus: str, used: set[str]) -> str:
    """Return a binomial: the genus and an epithet."""
    return _unused(lambda: f"{genus} {_pick(draw, _EPITHETS)}", used)
