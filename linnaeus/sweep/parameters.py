"""What is swept: a key and the values it takes, in Hydra's grammar.

optimizer.lr=1e-3,3e-4   head=linear,conditional   seed=range(5)   model=glob(*)   choice(...)      values one by one
interval(1e-4,1e-1)   tag(log,interval(1e-4,1e-1))   int(interval(1,8))                            anything between two ends
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnaeus.config.load import CONF
from linnaeus.errors import ConfigError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override


@dataclass(frozen=True)
class Interval:
    """Every number from `low` to `high`, both included; whole ones where both ends are; `log`: evenly by their logarithm."""

    low: float | int
    high: float | int
    log: bool

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)


@dataclass(frozen=True)
class Parameter:
    """`key` as it is shown; `setting` as it is typed before the `=` (`+key`, `group@package`); `text` what was typed behind it;
    `choices` as they are typed behind it one by one, None for an interval; `ordered`: they are the numbers of a range."""

    key: str
    setting: str
    text: str
    choices: tuple[str, ...] | None
    interval: Interval | None
    ordered: bool = False

    def ends(self) -> tuple[str, ...]:
        """Values that have to be right for all to be: every choice, or both ends."""
        if self.choices is not None:
            return self.choices
        assert self.interval is not None
        return repr(self.interval.low), repr(self.interval.high)

    def override(self, value: str) -> str:
        return f"{self.setting}={value}"


def parse(text: str) -> Override:
    """One setting in Hydra's grammar."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_override(text)


def parameter(override: Override, config_dir: str | None) -> Parameter:
    """What a setting with several values stands for. Raises `ConfigError` for one that would not be the same after a restart, and for
    none."""
    from hydra.core.override_parser.types import Glob, IntervalSweep, Sweep

    key, setting, value = override.key_or_group, override.get_key_element(), override.value()
    text = override.get_value_string()
    tags = value.tags if isinstance(value, Sweep) else set()
    if tags and (tags != {"log"} or not isinstance(value, IntervalSweep)):
        raise ConfigError(f"{key}={text}: the only tag is log, of an interval: {key}=tag(log,interval(1e-4,1e-1))")
    if isinstance(value, IntervalSweep):
        return Parameter(key, setting, text, None, _interval(key, text, value, "log" in tags))
    if getattr(value, "shuffle", False):
        raise ConfigError(f"{key}={text}: shuffled values come in another order after a restart; leave shuffle out")
    choices = _globbed(key, value, config_dir) if isinstance(value, Glob) else list(override.sweep_string_iterator())
    if not choices:
        raise ConfigError(f"{key}={text} has no value; give some, as in {key}=1,2")
    repeated = next((choice for choice in choices if choices.count(choice) > 1), None)
    if repeated is not None:
        raise ConfigError(f"{key}={text} has the value {repeated} twice; keep one")
    return Parameter(key, setting, text, tuple(choices), None, ordered=override.is_range_sweep())


def _interval(key: str, text: str, value: Any, log: bool) -> Interval:
    low, high = value.start, value.end
    if not low < high:
        raise ConfigError(f"{key}={text}: the lower end comes first, and is less than the upper one")
    if log and low <= 0:
        raise ConfigError(f"{key}={text}: a logarithm needs ends above 0; raise the lower one, or leave tag(log, ...) out")
    return Interval(low, high, log)


def _globbed(group: str, glob: Any, config_dir: str | None) -> list[str]:
    """The files of a group that a pattern fits, those of `config_dir` too."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    extra = [f"hydra.searchpath=[file://{Path(config_dir).resolve()}]"] if config_dir else []
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        return list(glob.filter(loader.get_group_options(group, config_name="config", overrides=extra)))
