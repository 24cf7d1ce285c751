"""Write and read the results of validation passes: `validation/step-N/<pass>.json`. A pass that has a result is not run again.

Each result contains the hash of the validated weights and a hash of its own content. NaN is written as null. A result that cannot be
written stays in memory. The training thread tries to write it again with the next result, the thread of the checkpoint writer before it
commits. A result that is damaged or unreadable is ignored, because its pass can be run again. Files with other names are ignored."""

import logging
import re
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from linnaeus.checkpoint.format import step_name
from linnaeus.files import content_digest, finite, from_finite, json_object, remove_or_warn, remove_stale, to_json, write_atomic

log = logging.getLogger("linnaeus")

_STEP = re.compile(r"step-(\d{8,})")


class ValidationResults:
    """Validation results of one run, in files. Only rank 0 reads and writes them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._unwritten: dict[Path, str] = {}
        self._lock = threading.Lock()

    def path(self, step: int, key: str) -> Path:
        """Return the path of the result of the validation pass `key` at a step."""
        return self.directory / step_name(step) / f"{key}.json"

    def read(self, step: int, key: str, weights: str) -> dict[str, float] | None:
        """Return the metrics of the validation pass `key` at `step`, if they were computed with the weights whose hash is `weights`.

        Return None if there is no such result, or if the result is damaged or cannot be read."""
        path = self.path(step, key)
        try:
            result = json_object(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("the result %s cannot be read (%s); its pass is run again", path, error)
            return None
        if result is None or result.get("sha256") != content_digest(result) or not isinstance(result.get("metrics"), dict):
            log.warning("the result %s is damaged; its pass is run again", path)
            return None
        same = (result.get("global_step"), result.get("pass"), result.get("weights")) == (step, key, weights)
        return from_finite(result["metrics"]) if same else None

    def write(self, step: int, key: str, metrics: Mapping[str, float], weights: str) -> None:
        """Write the metrics of a validation pass. If writing raises `OSError`, the metrics stay in memory for the next `flush`."""
        content = finite({"global_step": step, "pass": key, "weights": weights, "metrics": metrics})
        self._unwritten[self.path(step, key)] = to_json({**content, "sha256": content_digest(content)})
        self.flush()

    def flush(self) -> None:
        """Write the results that are still in memory.

        Raise `OSError` if that fails. If the run directory was deleted, it is not created again."""
        with self._lock:
            for path, text in list(self._unwritten.items()):
                for parent in (path.parents[1], path.parent):
                    parent.mkdir(exist_ok=True)
                write_atomic(path, text)
                del self._unwritten[path]

    def discard_after(self, step: int) -> None:
        """Delete the results of steps after `step`. The run resumes at `step` and repeats the later updates.

        A result that cannot be deleted is logged and stays. Such a result is used only if the repeated updates give the same weights."""
        remove_stale(self.directory)  # temporary files of a killed process
        for folder in sorted(self.directory.iterdir()) if self.directory.is_dir() else ():
            match = _STEP.fullmatch(folder.name)
            if match and int(match[1]) > step:
                remove_or_warn(folder)

    def discard(self, step: int, keys: Iterable[str]) -> None:
        """Delete the results of the validation passes `keys` at `step`, if there are any. Raise `OSError` if that fails."""
        for key in keys:
            self.path(step, key).unlink(missing_ok=True)
