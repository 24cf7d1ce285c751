"""The run directory `<root>/<experiment>/<name>/`: which run this is, who holds it, what has been started in it.

    config.yaml   the resolved configuration          run.json      what it ran on, ids, fingerprint of the data
    lock          who holds it (`lock.py`)            launches/<n>/ one per start: command, overrides, commit, configuration,
                                                                    changes, and what they move (`moved.txt`)
    train.log  metrics.jsonl  reports.jsonl  timings.jsonl  schedule.txt  checkpoints/  validation/  report.html  summary.json

`RunDirectory(...)` only looks: it finds the directory and refuses what cannot be continued. `start()` takes the lock and writes;
call it once training really begins, so that a mistake or a plan leaves nothing behind. Only rank 0 looks and writes; the others
are told where, or get the same error.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from linnaeus.errors import ConfigError
from linnaeus.files import is_there, read_or_refuse, remove_stale, write_atomic
from linnaeus.rundir.identity import config_difference, covers, flatten, run_path
from linnaeus.rundir.lock import RunLock
from linnaeus.rundir.missing import ENDED, SUMMARY, missing_files, read_summary
from linnaeus.rundir.repeat import saved_file, split_from
from linnaeus.rundir.resolved import dump_yaml, load_saved
from linnaeus.rundir.run_record import LAUNCH, RECORD, environment_record, read_record, record_differences
from linnaeus.rundir.saved import filled

CONFIG = "config.yaml"
Broadcast = Callable[[Any], Any]
_TOLD = ("path", "is_new", "changes", "altered", "missing", "run_id", "launch", "_ended")  # what rank 0 finds out for all


class RunDirectory:
    """The directory of one run, on every process rank.

    `path`; `is_new`: nothing has been started in it; `changes`: differences to the last start, harmless and allowed ones;
    `altered`: there are allowed ones; `missing`: what an ended run has lost; `run_id`: made at the first start, for loggers; `launch`:
    number of this start, from 1. On rank 0 alone: `previous`, the configuration of the last start, and `record`, its run.json (both
    empty in a new directory); `notes`: what else a person should know of this start.

    `config_dir` is the folder of groups that joined `conf/`: it has the defaults of keys that an earlier version did not save.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        overrides: Sequence[str] = (),
        *,
        is_master: bool = True,
        broadcast_object: Broadcast | None = None,
        config_dir: Path | str | None = None,
    ) -> None:
        self.config, self.overrides, self.is_master, self.config_dir = config, list(overrides), is_master, config_dir
        self._broadcast = broadcast_object or (lambda value: value)
        self.path = Path()
        self.is_new = True
        self.changes: list[str] = []
        self.notes: list[str] = []
        self.missing: list[str] = []
        self.previous: dict[str, Any] = {}
        self.record: dict[str, Any] = {}
        self.altered = False
        self._ended = False
        self.run_id = ""
        self.launch = 0
        self._lock: RunLock | None = None
        self._together(self._look)

    @classmethod
    def open(cls, config: Mapping[str, Any], overrides: Sequence[str] = (), **where: Any) -> RunDirectory:
        """Look and start at once."""
        run = cls(config, overrides, **where)
        run.start()
        return run

    def start(self, **record: Any) -> None:
        """Take the lock and write the configuration and the record. `record` joins run.json (devices, world_size,
        data_fingerprint, ...). ConfigError: another live process has the run, or its data or the weights it begins with
        (`initial_weights`, their digest) are not those it began with."""
        self._together(lambda: self._start(record))

    def check(self, **record: Any) -> None:
        """Raise what `start` would find wrong with the record; nothing is written."""
        self._together(lambda: self._check_fingerprint(self.record, record))

    def release(self) -> None:
        """Let the next process have the run."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def validation(self) -> Path:
        return self.path / "validation"

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do: the summary says so, nothing of it was lost, and no allowed change of the configuration asks
        for more."""
        return self._ended and not self.missing and not self.altered

    def finished_note(self) -> str:
        """One line for a person who starts a finished run again."""
        return f"{self.path} is finished; for another run choose another run.name, for a longer one trainer.length with a new name"

    def news(self) -> list[str]:
        """Lines for the log of this start: what is done again, what changed, what else to know. Call it on rank 0, after `start`."""
        lost = [f"{self.path} was finished, but lacks {', '.join(self.missing)}: only that is made"] if self._ended and self.missing else []
        return [*lost, *(f"changed since the last start: {line}" for line in self.changes), *self.notes]

    def keep(self, name: str, text: str) -> None:
        """Write a text of this start, `moved.txt` or `init_from.txt`, into its launches/<n>/; from rank 0."""
        if self.is_master:
            write_atomic(self.path / "launches" / str(self.launch) / name, text.rstrip() + "\n")

    def _together(self, act: Callable[[], None]) -> None:
        """Run `act` on rank 0; every rank learns its outcome, or raises its error."""
        outcome: dict[str, Any] = {}
        if self.is_master:
            try:
                act()
            except ConfigError as error:
                self.release()
                outcome["error"] = str(error)
            except OSError as error:
                self.release()
                where = error.filename or self.path
                outcome["error"] = f"run.root: {where} cannot be used ({error.strerror}); see to that disk or choose another run.root"
            outcome["told"] = {name: getattr(self, name) for name in _TOLD}
        outcome = self._broadcast(outcome)
        if "error" in outcome:
            raise ConfigError(outcome["error"])
        for name, value in outcome["told"].items():
            setattr(self, name, value)

    def _look(self) -> None:
        self.path = run_path(self.config)
        run = self.config["run"]
        _check_resume(run["resume"], self.checkpoints)
        self.is_new = not is_there(self.path / CONFIG)
        self._ended = not self.is_new and read_summary(self.path).get("status") in ENDED
        if self.is_new:
            return
        if run["resume"] == "never":
            raise ConfigError(f"run.resume=never, but {self.path} holds a run; choose another run.name or delete that directory")
        self.record, mended = read_record(self.path)
        self.notes = [mended] if mended else []
        self.previous, new_keys = filled(load_saved(self.path / CONFIG), self.config_dir)
        known = [*flatten(self.config), *flatten(self.previous), "data"]  # the fingerprint of the data is allowed by that name
        unknown = [name for name in run["allow"] if not any(covers([name], key) for key in known)]
        if unknown:
            raise ConfigError(f"run.allow names {', '.join(unknown)}, which is no key; `python main.py --help` lists them")
        difference = config_difference(self.previous, self.config)
        refused, names = difference.refused(run["allow"])
        if refused:
            raise ConfigError(
                f"{self.path} was begun with another configuration ({'; '.join(refused)}); choose another run.name, "
                f"or add run.allow=[{','.join([*run['allow'], *names])}]"
            )
        self.changes, self.altered = difference.lines, bool(difference.altering)
        if new_keys:
            self.changes.append(f"keys of a later version, taken to have had their defaults: {', '.join(new_keys)}")
        self.missing = missing_files(self.path, self.config) if self._ended else []

    def _start(self, record: Mapping[str, Any]) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"run.root: {self.path} cannot be made ({error.strerror}); choose a directory you may write to") from None
        self._lock = RunLock(self.path / "lock")
        self._lock.acquire()
        self._look()  # again, now that nobody else can change what is there
        remove_stale(self.path)
        self._check_fingerprint(self.record, record)
        if (self.path / SUMMARY).exists():  # before config.yaml takes an allowed change in: from here on the run is not finished
            write_atomic(self.path / SUMMARY, _json({**read_summary(self.path), "status": "running"}))
        launches = self.path / "launches"
        launches.mkdir(exist_ok=True)
        self.launch = 1 + max((int(p.name) for p in launches.iterdir() if p.name.isdigit()), default=0)
        self.run_id = self.record.get("run_id") or uuid.uuid4().hex[:10]
        self._write(self.record, record)

    def _unlike_the_repeated(self, launch: Mapping[str, Any]) -> list[str]:
        """What keeps a run of `run.from` from having the bits of the other."""
        differences = record_differences(_repeated_record(self.overrides), launch)
        return [f"the same bits as the run it repeats cannot be promised: {line}" for line in differences]

    def _check_fingerprint(self, before: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        was, now = before.get("data_fingerprint"), record.get("data_fingerprint")
        if was and now and was != now and not covers(self.config["run"]["allow"], "data"):
            raise ConfigError(
                f"data: {self.path} was trained on other data (fingerprint {was} -> {now}); "
                "restore them, choose another run.name, or add run.allow=[data]"
            )
        was, now = before.get("initial_weights"), record.get("initial_weights")
        if was and now and was != now:
            raise ConfigError(
                f"run.init_from: {self.config['run']['init_from']} holds other weights than {self.path} began with ({was[:12]} -> "
                f"{now[:12]}), and that run has no checkpoint yet; restore them, or choose another run.name"
            )

    def _write(self, before: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        """config.yaml last: without it the directory holds no run yet."""
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        launch = {"launch": self.launch, "started": now, "command": [sys.executable, *sys.argv], "overrides": self.overrides}
        launch |= {**environment_record(), **record}
        self.notes += [f"since the last start, {line}" for line in record_differences(before, launch)] + self._unlike_the_repeated(launch)
        if "initial_weights" in before:  # a later start reads them no more
            launch.setdefault("initial_weights", before["initial_weights"])
        text = dump_yaml(self.config)
        directory = self.path / "launches" / str(self.launch)
        directory.mkdir()
        record = {"run_id": self.run_id, "created": before.get("created", now), **launch}
        write_atomic(directory / LAUNCH, _json({**record, "pid": os.getpid(), "changes": self.changes}))
        write_atomic(directory / CONFIG, text)
        write_atomic(self.path / RECORD, _json(record))
        write_atomic(self.path / CONFIG, text)


def _repeated_record(overrides: Sequence[str]) -> dict[str, Any]:
    """run.json of the run that `run.from` repeats; empty when there is none that can be read."""
    given, _ = split_from(overrides)
    try:
        return read_record(saved_file(given).parent)[0] if given is not None else {}
    except ConfigError:
        return {}


def _check_resume(choice: str, own: Path) -> None:
    """A path that cannot be resumed from is refused before anything is written."""
    if choice in ("auto", "never"):
        return
    from linnaeus.checkpoint.resume import holds_checkpoint

    if not read_or_refuse(lambda: holds_checkpoint(Path(choice), own)):
        found = "holds no checkpoint" if Path(choice).is_dir() else "is not there"
        raise ConfigError(f"run.resume: {choice!r} {found}; give auto, never, or the path of a step-... directory")


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n"
