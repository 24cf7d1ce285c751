"""The photographs that cannot be decoded, by name, in the run directory: `quarantine.jsonl`, one line each.

Loader workers only put observation numbers into a batch (`bad`, -1 for good ones); the process that trains reports them here. A sample
in quarantine has no labels and weight 0 wherever it occurs, before and after a restart: the names are read back at the start, and the
dataset does not try them again. Lines are appended, one write each; a line torn by a crash is ignored and the sample met again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.observations import Source, UndecodableImage

FILE_NAME = "quarantine.jsonl"


class Quarantine:
    """What is known to be unreadable in a run. `samples`: the observation numbers quarantined so far, sorted.

    Raises ConfigError when made or told of more than `max_bad_fraction` of all rows being unreadable."""

    def __init__(self, directory: Path | str, source: Source, max_bad_fraction: float) -> None:
        self.path = Path(directory) / FILE_NAME
        self.source, self.max_bad_fraction = source, max_bad_fraction
        self.samples: list[int] = self._numbers(self._lines())
        self._check()

    def record_unreadable(self) -> None:
        """Write down the rows that were left out when the source was built (missing and empty files). For one process."""
        known = {line["id"] for line in self._lines()}
        self._append({"id": name, "reason": reason} for name, reason in self.source.unreadable if name not in known)

    def report(self, bad: Any) -> list[str]:
        """Take in `bad` of a batch on the host (int64 [B], observation numbers, -1 for good samples); a line for each new one."""
        bad = np.asarray(bad)
        new = sorted(set(bad[bad >= 0].tolist()).difference(self.samples))
        if not new:
            return []
        entries = [{"id": str(self.source.ids[sample]), "reason": self._reason(sample)} for sample in new]
        self._append(entries)
        self.samples = sorted({*self.samples, *new, *self._numbers(self._lines())})
        self._check()
        return [f"quarantined {entry['id']}: {entry['reason']}" for entry in entries]

    def _check(self) -> None:
        bad = len(self.samples) + len(self.source.unreadable)
        rows = len(self.source.ids) + len(self.source.unreadable)
        if bad > self.max_bad_fraction * rows:
            raise ConfigError(
                f"data.max_bad_fraction: {bad} of {rows} photographs are unreadable, more than {self.max_bad_fraction:g}; "
                f"{self.path} names them; mend them and delete that file, or raise the limit"
            )

    def _reason(self, sample: int) -> str:
        try:
            self.source.images.read(np.array([sample]))
        except UndecodableImage as error:
            return str(error)
        return "undecodable when a worker read it, readable since"

    def _append(self, entries: Iterable[dict[str, str]]) -> None:
        lines = [json.dumps(entry, ensure_ascii=False) for entry in entries]
        if lines:
            torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
            with open(self.path, "ab", buffering=0) as file:
                file.write(("\n" * torn + "\n".join(lines) + "\n").encode())

    def _lines(self) -> list[dict[str, str]]:
        if not self.path.exists():
            return []
        entries = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                entries.append(json.loads(line))
            except json.JSONDecodeError:
                continue  # torn by a crash
        return [e for e in entries if isinstance(e, dict) and "id" in e]

    def _numbers(self, lines: list[dict[str, str]]) -> list[int]:
        names = np.array([line["id"] for line in lines], dtype=str)
        return np.flatnonzero(np.isin(self.source.ids, names)).tolist() if len(names) else []
