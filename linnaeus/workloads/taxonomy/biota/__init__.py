"""biota, the embedded data source: synthetic organisms, drawn by the program as a function of numbers. Nothing is downloaded.

world                                    taxa, species frequencies and inherited traits
body_plans, shapes, background, render   photographs
individuals                              species, labels and metadata of individuals
biota_source                             the `Source` and its image reader
oracle                                   the best possible accuracies
__main__                                 `linnaeus biota export DIR | sheet FILE.png | ceilings`
"""

from linnaeus.workloads.taxonomy.biota.biota_source import build_source
from linnaeus.workloads.taxonomy.biota.oracle import ceilings

__all__ = ["build_source", "ceilings"]
