"""Read the builds of `config.data` and split them."""

from linnaeus.config.schema import Config
from linnaeus.workloads.loadout.archetypes import make_world
from linnaeus.workloads.loadout.build_table import Builds, SplitBuilds, split_builds
from linnaeus.workloads.loadout.config import LoadoutsConfig
from linnaeus.workloads.loadout.posterior import Posterior
from linnaeus.workloads.loadout.weapons import builtin_weapons


def read_builds(config: Config) -> SplitBuilds:
    """Return the builds of the configuration. Raise `ConfigError` for data that cannot be used."""
    data = config.data
    fractions = (data.validation_fraction, data.test_fraction)
    assert isinstance(data, LoadoutsConfig)
    weapons = builtin_weapons()
    world = make_world(data.world, len(weapons))
    builds = Builds(*world.draw(data.world, 0, data.builds))
    notes = (f"generated builds of world {data.world}: the best possible completion is known",)
    return split_builds(builds, weapons, fractions, data.split_seed, notes, Posterior(world).tails)
