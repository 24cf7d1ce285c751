"""Read or generate the builds that `config.data` describes, and split them."""

from pathlib import Path

from linnaeus.config.schema import Config
from linnaeus.errors import ConfigError, counted
from linnaeus.workloads.loadout.builds.archetypes import make_world
from linnaeus.workloads.loadout.builds.battle_files import read_battles, share_winners
from linnaeus.workloads.loadout.builds.build_table import Builds, SplitBuilds, first_copies, split_builds
from linnaeus.workloads.loadout.builds.posterior import Posterior
from linnaeus.workloads.loadout.builds.published_builds import read_table
from linnaeus.workloads.loadout.builds.skipped_builds import SkippedBuilds
from linnaeus.workloads.loadout.config import BattlesConfig, LoadoutsConfig, RecordedDataConfig
from linnaeus.workloads.loadout.game.weapons import builtin_weapons, read_weapons


def read_builds(config: Config) -> SplitBuilds:
    """Generate or read the builds that `config.data` describes, and split them. Raise `ConfigError` for data that cannot be used."""
    data = config.data
    return _generated(data) if isinstance(data, LoadoutsConfig) else _recorded(data)


def _generated(data: LoadoutsConfig) -> SplitBuilds:
    if data.max_bad_fraction:
        raise ConfigError("data.max_bad_fraction has no effect with data=loadouts: all generated builds are legal; set it to 0")
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
    else:
        builds, won = read_table(path, weapons, getattr(data, "tiers", None), skipped), None
    skipped.check(data.max_bad_fraction)
    kept, notes = first_copies(builds, data.copies), skipped.notes()
    if not kept.all():
        notes += (f"{counted(int((~kept).sum()), 'build')} left out: more than data.copies={data.copies} copies",)
    builds = builds.rows(kept)
    if isinstance(data, BattlesConfig) and won is not None:  # after the copies, which are more of the winners than of the losers
        shared = share_winners(builds, won[kept], data.win_share, data.split_seed)
        if len(shared) < len(builds):
            notes += (f"{counted(len(builds) - len(shared), 'build')} left out for data.win_share={data.win_share}",)
        builds = shared
    return split_builds(builds, weapons, (data.validation_fraction, data.test_fraction), data.split_seed, notes)
