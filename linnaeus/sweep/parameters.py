"""Parse the swept parameters of a command line: a key and its values, in Hydra's grammar.

optimizer.lr=1e-3,3e-4   head=linear,conditional   seed=range(5)   model=glob(*)   choice(...)      a list of values
interval(1e-4,1e-1)   tag(log,interval(1e-4,1e-1))   int(interval(1,8))                            every number between two ends
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from linnaeus.config.load import CONF, search_path
from linnaeus.errors import ConfigError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override


@dataclass(frozen=True)
class Interval:
    """All numbers from `low` to `high`, both included. If both ends are integers, only integers. `log`: sample uniformly in the
    logarithm."""

    low: float | int
    high: float | int
    log: bool


@dataclass(frozen=True)
class Parameter:
    """A swept parameter.

    `key`: name of the parameter in tables. `setting`: the text before the `=` on the command line (`+key`, `group@package`). `text`: the
    text after the `=`. `choices`: the values listed in `text`; None for an interval. `ordered`: True if the values are the numbers of a
    range."""

    key: str
    setting: str
    text: str
    choices: tuple[str, ...] | None
    interval: Interval | None
    ordered: bool = False

    def values_to_check(self) -> tuple[str, ...]:
        """Return all choices, or both ends of the interval. If the configuration is valid with these values, it is valid with all
        values."""
        if self.choices is not None:
            return self.choices
        assert self.interval is not None
        return repr(self.interval.low), repr(self.interval.high)

    def override(self, value: str) -> str:
        return f"{self.setting}={value}"


def read_parameter(override: Override, config_dir: str | None) -> Parameter:
    """Return the parameter of a setting that has several values.

    Raise `ConfigError` if the setting has no value or a value twice, or if the values or their order would differ after a restart."""
    from hydra.core.override_parser.types import Glob, IntervalSweep, Sweep

    key, setting, value = override.key_or_group, override.get_key_element(), override.value()
    text = override.get_value_string()
    tags = value.tags if isinstance(value, Sweep) else set()
    if tags and (tags != {"log"} or not isinstance(value, IntervalSweep)):
        raise ConfigError(f"{key}={text}: the only tag is log, for an interval: {key}=tag(log,interval(1e-4,1e-1))")
    if isinstance(value, IntervalSweep):
        low, high = value.start, value.end
        assert low is not None and high is not None
        if not low < high:
            raise ConfigError(f"{key}={text}: the lower end must be first and less than the upper end")
        if tags and low <= 0:
            raise ConfigError(f"{key}={text}: with tag(log, ...) both ends must be above 0; raise the lower end, or leave the tag out")
        return Parameter(key, setting, text, None, Interval(low, high, log=bool(tags)))
    if getattr(value, "shuffle", False):
        raise ConfigError(f"{key}={text}: shuffled values have another order after a restart; leave shuffle out")
    choices = _matching_options(key, value, config_dir) if isinstance(value, Glob) else list(override.sweep_string_iterator())
    if not choices:
        raise ConfigError(f"{key}={text} has no value; set at least one, as in {key}=1,2")
    repeated = next((choice for choice in choices if choices.count(choice) > 1), None)
    if repeated is not None:
        raise ConfigError(f"{key}={text} has the value {repeated} twice; keep one")
    return Parameter(key, setting, text, tuple(choices), None, ordered=override.is_range_sweep())


def _matching_options(group: str, glob: Any, config_dir: str | None) -> list[str]:
    """Return the options of `group` that match the pattern `glob`, including options in `config_dir`."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        return list(glob.filter(loader.get_group_options(group, config_name="config", overrides=search_path(config_dir))))
