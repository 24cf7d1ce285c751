"""Results of validation passes, `validation/step-N/<pass>.json`: a pass whose result is there is not run again.

Each is bound to the hash of the weights it belongs to. A result that the disk refuses stays in memory and is tried again, by the
training thread with the next result, by the checkpoint writer's before it commits what builds on it. A result that is damaged or
cannot be read counts as none, since its pass can be run again; what has another name than ours is left alone.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Mapping
from pathlib import Path

from linnaeus.checkpoint.format import step_name
from linnaeus.files import remove_stale, try_to_remove, write_atomic

log = logging.getLogger("linnaeus")

_STEP = re.compile(r"step-(\d{8,})")


class ValidationResults:
    """Those of one run directory; rank 0 alone has any."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._unwritten: dict[Path, str] = {}
        self._lock = threading.Lock()

    def path(self, step: int, key: str) -> Path:
        return self.directory / step_name(step) / f"{key}.json"

    def read(self, step: int, key: str, weights: str) -> dict[str, float] | None:
        """The metrics of a pass with these weights; None when there is no such result, or none that can be read."""
        path = self.path(step, key)
        try:
            result = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            log.warning("the result %s cannot be read (%s); its pass is run again", path, error)
            return None
        known = isinstance(result, dict) and result.get("weights") == weights and isinstance(result.get("metrics"), dict)
        return result["metrics"] if known else None

    def write(self, step: int, key: str, metrics: Mapping[str, float], weights: str) -> None:
        """OSError while it cannot be written; it is kept then."""
        content = {"global_step": step, "pass": key, "weights": weights, "metrics": metrics}
        self._unwritten[self.path(step, key)] = json.dumps(content, indent=1) + "\n"
        self.flush()

    def flush(self) -> None:
        """Write what is kept. The directory of the run is never made anew."""
        with self._lock:
            for path, text in list(self._unwritten.items()):
                for parent in (path.parents[1], path.parent):
                    parent.mkdir(exist_ok=True)
                write_atomic(path, text)
                del self._unwritten[path]

    def discard_after(self, step: int) -> None:
        """Results beyond the checkpoint a run continues from belong to updates that will be made again. One that cannot be deleted is
        named in the log and stays: it is taken only if the same weights come again."""
        remove_stale(self.directory)  # what a kill in here left
        for folder in sorted(self.directory.iterdir()) if self.directory.is_dir() else ():
            match = _STEP.fullmatch(folder.name)
            if match and int(match[1]) > step:
                try_to_remove(folder)
