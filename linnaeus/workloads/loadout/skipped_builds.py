"""Count the builds that a data source leaves out, by reason, with the place of the first one. Too many bad builds are an error."""

from __future__ import annotations

from linnaeus.errors import ConfigError


class SkippedBuilds:
    """Record of the builds that are left out of the file or folder `name`. A legal build with free slots is unusable; any other one left
    out is bad.

    `read`: number of builds read so far. `bad`: number of bad ones. `shared`: number of builds whose tokens another build has, too."""

    def __init__(self, name: str) -> None:
        self.name, self.read, self.bad, self.shared = name, 0, 0, 0
        self._counts: dict[str, int] = {}
        self._first: dict[str, str] = {}

    def unusable(self, reason: str, where: str) -> None:
        """Count a build that is legal but not full. where: its place in the file, for messages."""
        self._counts[reason] = self._counts.get(reason, 0) + 1
        self._first.setdefault(reason, where)

    def wrong(self, reason: str, where: str) -> None:
        """Count a build that cannot be read, or that is not legal. where: its place in the file, for messages."""
        self.bad += 1
        self.unusable(reason, where)

    def notes(self) -> tuple[str, ...]:
        """Return a line for each reason, the most frequent first, and a line about `shared` builds if there are any; () if nothing was left
        out."""
        reasons = sorted(self._counts.items(), key=lambda item: -item[1])
        lines = [f"{count} of {self.read} builds left out: {reason} (first: {self._first[reason]})" for reason, count in reasons]
        return (*lines, *([f"{self.shared} of {self.read} builds share their tokens with others"] if self.shared else []))

    def check(self, max_bad_fraction: float) -> None:
        """Raise `ConfigError` if nothing was read, or if the share of bad builds is above the limit."""
        if not self.read:
            raise ConfigError(f"data.path: {self.name} has no builds; check the file")
        if self.bad > max_bad_fraction * self.read:
            reason = next(iter(self._first))
            raise ConfigError(
                f"data.path: {self.bad} of {self.read} builds of {self.name} are wrong, such as {self._first[reason][:80]}: "
                f"{reason[:100]}; mend them, or raise data.max_bad_fraction"
            )
