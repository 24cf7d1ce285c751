"""Invented Latin-like names of taxa. The endings follow the codes of zoological and botanical nomenclature.

Orders of insects end in -optera, of fishes in -iformes, of plants in -ales. Families end in -idae (animals) or -aceae (plants). The name
of a species is its binomial. `used` holds the names that exist already; each function adds the name it returns.
"""

from __future__ import annotations

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
_GENUS_ENDS = {
    "animal": ("ra", "rus", "nus", "lla", "don", "pus", "ris", "xa", "lis"),
    "plant": ("ria", "nia", "lium", "dra", "ntha", "rum", "sia", "phis", "lla"),
}


def _stem(draw: Draw, middles: int) -> str:
    return _STARTS[draw.integer(len(_STARTS))] + "".join(_MIDDLES[draw.integer(len(_MIDDLES))] for _ in range(middles))


def _unused_name(draw: Draw, ends: tuple[str, ...], middles: int, used: set[str]) -> str:
    while True:
        name = _stem(draw, middles) + ends[draw.integer(len(ends))]
        if name not in used:
            used.add(name)
            return name


def order_name(draw: Draw, ending: str, used: set[str]) -> str:
    """Return the name of an order: a stem and the ending of its body plan, such as -optera."""
    while True:
        name = _stem(draw, 1).rstrip("aeiou") + ending
        if name not in used:
            used.add(name)
            return name


def family_name(draw: Draw, kingdom: str, used: set[str]) -> str:
    """Return the name of a family of a kingdom, animal or plant."""
    return _unused_name(draw, ("ridae", "lidae", "nidae") if kingdom == "animal" else ("raceae", "laceae", "naceae"), 1, used)


def genus_name(draw: Draw, kingdom: str, used: set[str]) -> str:
    """Return the name of a genus of a kingdom, animal or plant."""
    return _unused_name(draw, _GENUS_ENDS[kingdom], 1, used)


def species_name(draw: Draw, genus: str, used: set[str]) -> str:
    """Return a binomial: the genus and an epithet."""
    while True:
        name = f"{genus} {_EPITHETS[draw.integer(len(_EPITHETS))]}"
        if name not in used:
            used.add(name)
            return name
