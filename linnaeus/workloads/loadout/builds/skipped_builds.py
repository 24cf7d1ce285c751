"""Count the builds that a data source leaves out, by reason, and raise an error if too many are bad."""

from __future__ import annotations

from linnaeus.errors import ConfigError, counted

MOST_REASONS = 20  # that are named: each text that cannot be read is a reason of its own


class SkippedBuilds:
    """Record of the builds that are left out of the file or folder `name`. A legal build with free slots is unusable; a build that cannot
    be read or is not legal is bad.

    read: number of builds read so far. bad: number of bad builds. shared: number of builds whose tokens are also the tokens of another
    build."""

    def __init__(self, name: str) -> None:
        self.name, self.read, self.bad, self.shared = name, 0, 0, 0
        self._counts: dict[str, int] = {}
        self._first: dict[str, str] = {}
        self._first_bad = ""  # reason of the first bad build

    def unusable(self, reason: str, where: str) -> None:
        """Count a build that is legal but has free slots. where: file and line of the build, for messages."""
        self._counts[reason] = self._counts.get(reason, 0) + 1
        self._first.setdefault(reason, where)

    def wrong(self, reason: str, where: str) -> None:
        """Count a bad build: it cannot be read, or it is not legal. where: file and line of the build, for messages."""
        self.bad += 1
        self._first_bad = self._first_bad or reason
        self.unusable(reason, where)

    def notes(self) -> tuple[str, ...]:
        """Return a line for each of the `MOST_REASONS` most frequent reasons, with the place of its first build, and a line about the
        others; then a line about `shared` builds, if any.

        Return () if there is nothing to say."""
        reasons = sorted(self._counts.items(), key=lambda item: -item[1])
        named, others = reasons[:MOST_REASONS], reasons[MOST_REASONS:]
        lines = [f"{count} of {self.read} builds left out: {reason} (first: {self._first[reason]})" for reason, count in named]
        if others:
            lines.append(f"{sum(count for _, count in others)} of {self.read} builds left out for {counted(len(others), 'other reason')}")
        return (*lines, *([f"{self.shared} of {self.read} builds share their tokens with others"] if self.shared else []))

    def check(self, max_bad_fraction: float) -> None:
        """Raise `ConfigError` if no build was read, if the share of bad builds is above `max_bad_fraction`, or if all builds are left
        out."""
        if not self.read:
            raise ConfigError(f"data.path: {self.name} has no builds; check the file")
        if self.bad > max_bad_fraction * self.read:
            reason = self._first_bad
            raise ConfigError(
                f"data.path: {self.bad} of {self.read} builds of {self.name} are wrong, such as {self._first[reason][:80]}: "
                f"{reason[:100]}; mend them, or raise data.max_bad_fraction"
            )
        if sum(self._counts.values()) >= self.read:
            reason = max(self._counts, key=self._counts.__getitem__)
            raise ConfigError(f"data.path: all {self.read} builds of {self.name} are left out, most of them: {reason[:100]}; mend them")
