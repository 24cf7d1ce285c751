"""Record photographs that cannot be decoded in `quarantine.jsonl` in the run directory, one line per photograph.

Loader workers return the row numbers of such photographs in the batch (`bad`, -1 for good samples), and the training process writes them to
the file. A quarantined photograph has no labels and weight 0 in all batches, also after a restart: the file is read at the start, and its
photographs are not read again. All lines of a report are appended in one write. An incomplete line, left by a crash, is ignored; the
photograph is then found and reported again. The order of the lines depends on the timing of processes, so they are sorted at the start and
the end of a launch. Lines that cannot be written, because the disk is full, wait in memory; training continues.
"""

import contextlib
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus.errors import ConfigError, escaped
from linnaeus.files import no_follow, to_json, to_utf8, write_atomic
from linnaeus.workloads.taxonomy.arrays.text_arrays import positions
from linnaeus.workloads.taxonomy.observations import Source, UndecodableImage

log = logging.getLogger("linnaeus")

FILE_NAME = "quarantine.jsonl"


class Quarantine:
    """Photographs of a run that cannot be decoded ("quarantined"), recorded in quarantine.jsonl. `samples`: row numbers of the photographs,
    sorted.

    The constructor and `report` raise `ConfigError` if more than `max_bad_fraction` of all rows cannot be read."""

    def __init__(self, directory: Path | str, source: Source, max_bad_fraction: float) -> None:
        self.path = Path(directory) / FILE_NAME
        self.source, self.max_bad_fraction = source, max_bad_fraction
        self._waiting: list[dict[str, str]] = []  # lines that could not be written yet
        self.samples = self._numbers()
        self._check()

    def record_unreadable(self) -> None:
        """Record the missing and empty image files in quarantine.jsonl, and sort its lines. These files were left out when the source was
        built."""
        known = {line["id"] for line in self._lines()}
        self._append({"id": name, "reason": reason} for name, reason in self.source.unreadable if name not in known)
        self.sort()

    def sort(self) -> None:
        """Sort the lines of quarantine.jsonl by photograph, and remove repeated lines. Only one process may call this, before or after
        training."""
        self._append(self._waiting)
        self._waiting = []
        lines = {line["id"]: line for line in reversed(self._lines())}  # the first line of a photograph
        text = "".join(to_json(lines[name], None) for name in sorted(lines))
        if lines and to_utf8(text) != self.path.read_bytes():
            write_atomic(self.path, text)

    def report(self, bad: Any) -> list[str]:
        """Record the entry `bad` of a batch: int64 [B] on the CPU, row numbers of photographs that cannot be decoded, -1 for good samples.

        Return a message for each photograph that was not recorded before."""
        bad = np.asarray(bad)
        new = sorted(set(bad[bad >= 0].tolist()).difference(self.samples))
        if not new and not self._waiting:
            return []
        entries = [{"id": str(self.source.ids[sample]), "reason": self._reason(sample)} for sample in new]
        self._waiting += entries
        try:
            self._append(self._waiting)
            self._waiting = []
            self.samples = self._numbers()
        except OSError as error:
            log.error("%s could not be written (%s); the next undecodable photograph tries again", self.path, error.strerror or error)
            self.samples = sorted({*self.samples, *new})
        self._check()
        return [escaped(f"quarantined {entry['id']}: {entry['reason']}") for entry in entries]

    def _check(self) -> None:
        bad = len(self.samples) + len(self.source.unreadable)
        rows = len(self.source.ids) + len(self.source.unreadable)
        if bad > self.max_bad_fraction * rows:
            raise ConfigError(
                f"data.max_bad_fraction: {bad} of {rows} photographs cannot be read, more than {self.max_bad_fraction:g}; "
                f"{self.path} lists them; repair them and delete that file, or set a larger limit"
            )

    def _reason(self, sample: int) -> str:
        """Read a photograph again, and return the reason why it cannot be decoded."""
        try:
            self.source.images.read(np.array([sample]))
        except UndecodableImage as error:
            return str(error)
        except OSError as error:  # of the disk: the next read of training finds it, saves and stops
            return f"undecodable in a worker, unreadable now ({error.strerror or error})"
        return "undecodable in a worker, readable now"

    def _append(self, entries: Iterable[dict[str, str]]) -> None:
        lines = [to_json(entry, None) for entry in entries]
        if lines:
            incomplete = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
            with open(self.path, "ab", buffering=0, opener=no_follow) as file:
                file.write(to_utf8("\n" * incomplete + "".join(lines)))

    def _lines(self) -> list[dict[str, str]]:
        """Return the complete lines of quarantine.jsonl."""
        if not self.path.exists():
            return []
        entries = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").split("\n"):
            with contextlib.suppress(json.JSONDecodeError):  # incomplete: left by a crash
                entries.append(json.loads(line))
        return [e for e in entries if isinstance(e, dict) and isinstance(e.get("id"), str)]

    def _numbers(self) -> list[int]:
        """Return the row numbers of the photographs in quarantine.jsonl, sorted."""
        return positions(self.source.ids, {line["id"] for line in self._lines()})
