"""biota: the embedded source of data. Organisms drawn procedurally, deterministic by number, nothing to download.

names, palettes, world   the taxa, how common they are, and their inherited traits
plans, patterns, backdrop, draw, reader   the photographs
individuals, places      who is met, where and when
source                   all of it as one `Source`
oracle                   the best accuracy anyone can reach on it
export, sheet, __main__  `python -m linnaeus.workloads.taxonomy.biota export DIR | sheet FILE.png | ceilings`
"""

from linnaeus.workloads.taxonomy.biota.source import build_source

__all__ = ["build_source", "ceilings"]


def __getattr__(name: str):
    if name == "ceilings":  # not needed before the end of a run
        from linnaeus.workloads.taxonomy.biota.oracle import ceilings

        return ceilings
    raise AttributeError(name)
