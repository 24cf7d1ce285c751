"""Record photographs that cannot be decoded: `quarantine.jsonl` in the run directory, one line per photograph.

Loader workers put the observation numbers of such photographs into the batch (`bad`, -1 for good samples); the training process writes
them here. A quarantined sample has no labels and weight 0 wherever it occurs, before and after a restart: the file is read at the start,
and the dataset does not read these photographs again. Each report appends its lines in one write. An incomplete line, left by a crash,
is ignored; the photograph is found and reported again. The order of these lines depends on which process was first, so the start and the
end of a launch sort them.
"""

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus.errors import ConfigError, escaped
from linnaeus.files import no_follow, to_json, to_utf8, write_atomic
from linnaeus.workloads.taxonomy.observations import Source, UndecodableImage
from linnaeus.workloads.taxonomy.text_arrays import positions

FILE_NAME = "quarantine.jsonl"


class Quarantine:
    """Quarantine of a run. `samples` are the observation numbers quarantined so far, sorted.

    The constructor and `report` raise ConfigError when more than `max_bad_fraction` of all rows are unreadable."""

    def __init__(self, directory: Path | str, source: Source, max_bad_fraction: float) -> None:
        self.path = Path(directory) / FILE_NAME
        self.source, self.max_bad_fraction = source, max_bad_fraction
        self.samples = self._numbers()
        self._check()

    def record_unreadable(self) -> None:
        """Write the rows that were left out when the source was built (missing and empty files), and sort the lines."""
        known = {line["id"] for line in self._lines()}
        self._append({"id": name, "reason": reason} for name, reason in self.source.unreadable if name not in known)
        self.sort()

    def sort(self) -> None:
        """Sort the lines by photograph, and keep one of each. Only one process may call this, while no process reads photographs."""
        lines = {line["id"]: line for line in reversed(self._lines())}  # the first line of a photograph
        text = "".join(to_json(lines[name], None) for name in sorted(lines))
        if lines and to_utf8(text) != self.path.read_bytes():
            write_atomic(self.path, text)

    def report(self, bad: Any) -> list[str]:
        """Record the entry `bad` of a batch (int64 [B] on the host, observation numbers, -1 for good samples).

        Return a message for each photograph that is new."""
        bad = np.asarray(bad)
        new = sorted(set(bad[bad >= 0].tolist()).difference(self.samples))
        if not new:
            return []
        entries = [{"id": str(self.source.ids[sample]), "reason": self._reason(sample)} for sample in new]
        self._append(entries)
        self.samples = self._numbers()
        self._check()
        return [escaped(f"quarantined {entry['id']}: {entry['reason']}") for entry in entries]

    def _check(self) -> None:
        bad = len(self.samples) + len(self.source.unreadable)
        rows = len(self.source.ids) + len(self.source.unreadable)
        if bad > self.max_bad_fraction * rows:
            raise ConfigError(
                f"data.max_bad_fraction: {bad} of {rows} photographs are unreadable, more than {self.max_bad_fraction:g}; "
                f"{self.path} lists them; repair them and delete that file, or set a larger limit"
            )

    def _reason(self, sample: int) -> str:
        """Return why a photograph cannot be decoded, by reading it again."""
        try:
            self.source.images.read(np.array([sample]))
        except UndecodableImage as error:
            return str(error)
        return "undecodable in a worker, readable now"

    def _append(self, entries: Iterable[dict[str, str]]) -> None:
        lines = [to_json(entry, None) for entry in entries]
        if lines:
            incomplete = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
            with open(self.path, "ab", buffering=0, opener=no_follow) as file:
                file.write(to_utf8("\n" * incomplete + "".join(lines)))

    def _lines(self) -> list[dict[str, str]]:
        """Return the complete lines of the file."""
        if not self.path.exists():
            return []
        entries = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").split("\n"):
            with contextlib.suppress(json.JSONDecodeError):  # incomplete: left by a crash
                entries.append(json.loads(line))
        return [e for e in entries if isinstance(e, dict) and isinstance(e.get("id"), str)]

    def _numbers(self) -> list[int]:
        """Return the observation numbers of the lines, sorted."""
        return positions(self.source.ids, {line["id"] for line in self._lines()})
