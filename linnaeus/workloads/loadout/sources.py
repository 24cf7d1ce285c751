"""Read or generate the builds that `config.data` describes, and split them."""

from pathlib import Path

from linnaeus.config.schema import Config
from linnaeus.errors import ConfigError
from linnaeus.workloads.loadout.archetypes import make_world
from linnaeus.workloads.loadout.battle_files import read_battles, share_winners
from linnaeus.workloads.loadout.build_table import Builds, SplitBuilds, cap_copies, split_builds
from linnaeus.workloads.loadout.config import BattlesConfig, LoadoutsConfig, RecordedDataConfig
from linnaeus.workloads.loadout.posterior import Posterior
from linnaeus.workloads.loadout.published_builds import read_table
from linnaeus.workloads.loadout.skipped_builds import SkippedBuilds
from linnaeus.workloads.loadout.weapons import builtin_weapons, read_weapons


def read_builds(config: Config) -> SplitBuilds:
    """Generate or read the builds that `config.data` describes, and split them. Raise `ConfigError` for data that cannot be used."""
    data = config.data
    return _generated(data) if isinstance(data, LoadoutsConfig) else _recorded(data)


def _generated(data: LoadoutsConfig) -> SplitBuilds:
    weapons = builtin_weapons()
    world = make_world(data.world, len(weapons))
    builds = Builds(*world.draw(data.world, 0, data.builds))
    notes = (f"generated builds of world {data.world}: the best possible completion is known",)
    fractions = (data.validation_fraction, data.test_fraction)
    return split_builds(builds, weapons, fractions, data.split_seed, notes, Posterior(world).tails)


def _recorded(data: RecordedDataConfig) -> SplitBuilds:
    weapons = builtin_weapons() if data.weapons is None else read_weapons(data.weapons)
    path, skipped = Path(data.path), SkippedBuilds(data.path)
    if not path.exists():
        raise ConfigError(f"data.path: {data.path} does not exist; set your file")
    if isinstance(data, BattlesConfig):
        builds, won = read_battles(path, weapons, skipped)
        skipped.check(data.max_bad_fraction)
        builds = share_winners(builds, won, data.win_share, data.split_seed)
    else:
        builds = read_table(path, weapons, getattr(data, "tiers", None), skipped)
        skipped.check(data.max_bad_fraction)
    builds, left_out = cap_copies(builds, data.copies)
    notes = skipped.notes() + ((f"{left_out} builds left out: more than data.copies={data.copies} copies",) if left_out else ())
    return split_builds(builds, weapons, (data.validation_fraction, data.test_fraction), data.split_seed, notes)
