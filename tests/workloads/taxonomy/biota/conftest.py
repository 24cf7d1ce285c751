"""Make small configurations of biota, and individuals of world 0."""

from types import SimpleNamespace

import numpy as np
import pytest

from linnaeus.workloads.taxonomy.biota.__main__ import biota_config
from linnaeus.workloads.taxonomy.biota.individuals import draw_metadata, labels_of, species_of
from linnaeus.workloads.taxonomy.biota.world import build_world


@pytest.fixture(scope="session")
def biota():
    """Return a function that builds a config of the source."""
    return lambda train=300, validation=100, size=24, world=0: biota_config(train, validation, size, world)


@pytest.fixture(scope="session")
def drawn():
    """Return world 0, and the numbers, species, labels and metadata of 40000 individuals."""
    world, samples = build_world(0), np.arange(40000)
    species = species_of(world, samples)
    metadata = draw_metadata(world, species, samples)
    return SimpleNamespace(world=world, samples=samples, species=species, labels=labels_of(world, species, samples), metadata=metadata)
