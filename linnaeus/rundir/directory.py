"""`RunDirectory`: find, check and start the directory `<root>/<experiment>/<name>/` of a run.

    config.yaml   the resolved configuration          run.json      host, versions, ids, fingerprint of the data
    lock          the owner (`lock.py`)               launches/<n>/ one per start: command, overrides, commit, configuration,
                                                                    changes, and their effects (`moved.txt`)
    compile_cache/ what torch.compile made, for the next launch
    train.log  metrics.jsonl  reports.jsonl  timings.jsonl  schedule.txt  checkpoints/  validation/  report.html  summary.json

The constructor only reads: it finds the directory and refuses a run that cannot be continued. `start()` acquires the lock and writes. Call
`start()` when training starts, so that a mistake or `plan=true` creates no files. Only rank 0 reads and writes; the other ranks receive the
result or the error."""

import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from linnaeus.checkpoint.resume import contains_checkpoint, list_checkpoints
from linnaeus.config.choices import AUTO, FOUND_AT_START, with_values
from linnaeus.config.environment import hide
from linnaeus.config.messages import similar_key
from linnaeus.config.wandb_agent import agent_run
from linnaeus.errors import ConfigError
from linnaeus.files import exists, read_or_refuse, refuse_links, remove_stale, to_json, write_atomic
from linnaeus.rundir.finished_run import ENDED, SUMMARY, missing_files, read_summary
from linnaeus.rundir.identity import WARM_START_KEYS, Difference, config_difference, covers, flatten, run_path
from linnaeus.rundir.lock import RunLock
from linnaeus.rundir.repeat import find_saved, split_from
from linnaeus.rundir.run_record import LAUNCH, RECORD, environment_record, record_differences
from linnaeus.rundir.saved_config import CONFIG, dump_yaml, fill_defaults
from linnaeus.rundir.saved_run import contains_results, read_configuration, read_record

APPENDED = ("lock", "train*.log", "*.jsonl")  # patterns of the files that a run appends to; it replaces all others
Broadcast = Callable[[Any], Any]
_SHARED = ("path", "is_new", "kept", "changes", "altered", "missing", "run_id", "launch", "_ended", "_stop_reason")  # broadcast by rank 0


class RunDirectory:
    """Directory of one run. Each process rank has such an object, with the same values.

    `path`: the directory. `is_new`: True if it contains no run yet. `kept`: values of the run, by key, that replace `auto` in `config`;
    empty for a new run. `changes`: differences from the configuration of the last start.
    `altered`: True if some of the `changes` change the optimizer updates and are allowed by `run.allow`. `missing`: files that a finished
    run has lost. `run_id`: created at the first start, for loggers. `launch`: number of this start, from 1.

    On rank 0 only: `previous`, `record`: the configuration and the run.json of the last start; empty in a new directory. `saved_record`:
    the run.json that `start` has written. `notes`: further lines for the log.

    Arguments of the constructor: `config`: configuration of the run. `saved`: the configuration as it is saved and compared, without values
    of environment variables; by default `config` itself. `config_dir`: a directory of configuration groups in addition to `conf/`. Keys
    that an earlier version did not save get their defaults from these groups."""

    def __init__(
        self,
        config: Mapping[str, Any],
        overrides: Sequence[str] = (),
        *,
        is_master: bool = True,
        broadcast_object: Broadcast | None = None,
        config_dir: Path | str | None = None,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        self.saved = saved if saved is not None else config
        self.config, self.overrides, self.is_master, self.config_dir = config, list(overrides), is_master, config_dir
        self._broadcast = broadcast_object or (lambda value: value)
        self.path = run_path(config, self.saved)
        self.is_new = True
        self.kept: dict[str, Any] = {}
        self.changes: list[str] = []
        self.notes: list[str] = []
        self.missing: list[str] = []
        self.previous: dict[str, Any] = {}
        self.record: dict[str, Any] = {}
        self.saved_record: dict[str, Any] = {}
        self.altered = False
        self._ended, self._stop_reason = False, ""
        self.run_id = ""
        self.launch = 0
        self._lock: RunLock | None = None
        self._on_all_ranks(self._inspect)

    def choose(self, values: Mapping[str, Any]) -> None:
        """Replace values in `config` and `saved`. `values`: dotted key -> value. The path does not change."""
        self.config, self.saved = with_values(self.config, values), with_values(self.saved, values)

    def start(self, **record: Any) -> None:
        """Lock the directory and write the configuration and run.json. `record`: further entries of run.json (devices, world_size, ...).

        Raise `ConfigError` if another live process has locked the run, or if the entry `data_fingerprint` or `initial_weights` (the digest
        of the weights of `run.init_from`) differs from that entry at the first start."""
        self._on_all_ranks(lambda: self._start(record))

    def check(self, **record: Any) -> None:
        """Raise `ConfigError`, as `start` does, if the data or the initial weights in `record` differ from those at the first start.

        Write nothing."""
        self._on_all_ranks(lambda: self._check_fingerprint(self.record, record))

    def release(self) -> None:
        """Release the lock on the directory, if this process has it."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def checkpoints(self) -> Path:
        """Return the directory of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def validation(self) -> Path:
        """Return the directory of the validation results."""
        return self.path / "validation"

    @property
    def finished(self) -> bool:
        """Return True if nothing is left to do: the run has ended, no file is missing, and the configuration has no allowed change that
        affects the optimizer updates."""
        return self._ended and not self.missing and not self.altered

    def finished_message(self) -> str:
        """Return the line that is printed if a finished run is started again."""
        if self._stop_reason:
            longer = f"{self.path} stopped early ({self._stop_reason}); for a longer run change schedule.early_stop and add"
            return f"{longer} run.allow=[schedule.early_stop], for another one run.name=..."
        return f"{self.path} is finished; for a longer run add trainer.length=... run.allow=[trainer.length], for another one run.name=..."

    def start_messages(self) -> list[str]:
        """Return lines for the log: missing files of a finished run, changes of the configuration since the last start, and `notes`.

        Call this on rank 0, after `start`."""
        lost = []
        if self._ended and self.missing:
            lost = [f"{self.path} was finished, but lacks {', '.join(self.missing)}: only these files are made again"]
        return [*lost, *(f"changed since the last start: {line}" for line in self.changes), *self.notes]

    def write_launch_file(self, name: str, text: str) -> None:
        """Write `text` to the file `name` in the directory launches/<n>/ of this start, on rank 0.

        Values that the configuration reads from environment variables are replaced by their `${oc.env:...}` text."""
        if self.is_master:
            write_atomic(self.path / "launches" / str(self.launch) / name, hide(text).rstrip() + "\n")

    def _on_all_ranks(self, act: Callable[[], None]) -> None:
        """Call `act` on rank 0 and broadcast the attributes in `_SHARED`. An error of `act` is raised on every rank."""
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
                outcome["error"] = f"run.root: {where} cannot be used ({error.strerror}); check the disk or choose another run.root"
            outcome["shared"] = {name: getattr(self, name) for name in _SHARED}
        outcome = self._broadcast(outcome)
        if "error" in outcome:
            raise ConfigError(outcome["error"])
        for name, value in outcome["shared"].items():
            setattr(self, name, value)

    def _inspect(self) -> None:
        """Read the directory and set the attributes. Raise `ConfigError` if it contains a run that cannot be continued with this
        configuration."""
        run = self.config["run"]
        _check_resume(run["resume"], self.checkpoints)
        refuse_links(self.path, APPENDED)
        self.is_new = not exists(self.path / CONFIG) and not contains_results(self.path)
        summary = {} if self.is_new else read_summary(self.path)
        self._ended, self._stop_reason = summary.get("status") in ENDED, summary.get("stop_reason") or ""
        if self.is_new:
            self._check_allow()
            return
        if run["resume"] == "never":
            raise ConfigError(f"run.resume=never, but {self.path} contains a run; choose another run.name or delete that directory")
        saved, replaced = read_configuration(self.path)
        self.record, replaced_record = read_record(self.path)
        self._check_agent()
        replacements = {CONFIG: replaced, RECORD: replaced_record}
        self.notes = [note for note in replacements.values() if note]
        self.previous, new_keys = fill_defaults(saved, self.config_dir)
        before, now = flatten(self.previous), flatten(self.saved)
        self.kept |= {key: before[key] for key in FOUND_AT_START if now.get(key) == AUTO and before.get(key, AUTO) != AUTO}
        self.choose(self.kept)
        self._check_allow()
        difference = config_difference(self.previous, self.saved)
        self._check_warm_start(difference)
        refused, names = difference.refused(run["allow"])
        if refused:
            raise ConfigError(
                f"{self.path} was started with another configuration ({'; '.join(refused)}); choose another run.name, "
                f"or add run.allow=[{','.join([*run['allow'], *names])}]"
            )
        self.changes, self.altered = difference.lines, bool(difference.altering)
        if new_keys:
            self.changes.append(f"keys of a later version, set to their defaults: {', '.join(new_keys)}")
        self.missing = missing_files(self.path, self.config, [name for name, note in replacements.items() if note]) if self._ended else []

    def _start(self, record: Mapping[str, Any]) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"run.root: {self.path} cannot be created ({error.strerror}); choose a directory you may write to") from None
        self._lock = RunLock(self.path / "lock")
        self._lock.acquire()
        self._inspect()  # again: another process may have changed the directory before the lock was acquired
        for folder in (self.path, *(self.path / "launches").glob("*")):
            remove_stale(folder)
        self._check_fingerprint(self.record, record)
        if (self.path / SUMMARY).exists():  # before config.yaml is replaced: with an allowed change the run is not finished
            write_atomic(self.path / SUMMARY, to_json({**read_summary(self.path), "status": "running"}))
        launches = self.path / "launches"
        launches.mkdir(exist_ok=True)
        self.launch = 1 + max((int(p.name) for p in launches.iterdir() if p.name.isdigit()), default=0)
        self.run_id = self.record.get("run_id") or agent_run() or uuid.uuid4().hex[:10]
        self._write(self.record, record)

    def _check_allow(self) -> None:
        """Raise `ConfigError` if `run.allow` names a key that neither this configuration nor that of the last start has."""
        known = [*flatten(self.saved), *flatten(self.previous), "data"]  # run.allow=[data] allows another data fingerprint
        unknown = [name for name in self.config["run"]["allow"] if not any(covers([name], key) for key in known)]
        if unknown:
            close = similar_key(unknown[0], known)
            hint = f"did you mean {close}?" if close else "`linnaeus --help-keys` lists all keys"
            raise ConfigError(f"run.allow contains {', '.join(unknown)}, which is not a key; {hint}")

    def _check_warm_start(self, difference: Difference) -> None:
        """Raise `ConfigError` if `difference` contains a key of the warm start although the run has a checkpoint, which is read instead."""
        changed = [difference.altering[key] for key in WARM_START_KEYS if key in difference.altering]
        if changed and list_checkpoints(self.checkpoints):
            raise ConfigError(
                f"{self.path} continues with the weights of its checkpoint, so this change has no effect: {'; '.join(changed)}; undo it, "
                "or choose another run.name"
            )

    def _check_agent(self) -> None:
        """Raise `ConfigError` if the directory contains another run of W&B than the one that a W&B agent has started."""
        now, was = agent_run(), self.record.get("run_id")
        if now and was and was != now and self.config["logger"]["wandb"] != "disabled":
            raise ConfigError(f"run.name: {self.path} contains the W&B run {was}, and the agent has started {now}; leave run.name out")

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
                f"run.init_from: {self.config['run']['init_from']} contains other weights than at the first start of {self.path} "
                f"({was[:12]} -> {now[:12]}), and that run has no checkpoint yet; restore them, or choose another run.name"
            )

    def _write(self, before: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        """Write the files of this start, config.yaml last: a directory without config.yaml is treated as a directory without a run."""
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        launch = {"launch": self.launch, "started": now, "command": [sys.executable, *sys.argv], "overrides": self.overrides}
        launch |= {**environment_record(), **record}
        self.notes += [f"since the last start, {line}" for line in record_differences(before, launch)]
        repeated = record_differences(_repeated_record(self.overrides), launch)
        self.notes += [f"the results may differ from those of the repeated run: {line}" for line in repeated]
        if "initial_weights" in before:  # a later start does not read them again
            launch.setdefault("initial_weights", before["initial_weights"])
        text = dump_yaml(self.saved)
        directory = self.path / "launches" / str(self.launch)
        directory.mkdir()
        record = self.saved_record = {"run_id": self.run_id, "created": before.get("created", now), **launch}
        write_atomic(directory / LAUNCH, to_json({**record, "pid": os.getpid(), "changes": self.changes}))
        write_atomic(directory / CONFIG, text)
        write_atomic(self.path / RECORD, to_json(record))
        write_atomic(self.path / CONFIG, text)


def _repeated_record(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the run.json of the run that `run.from` names; if that file is damaged or missing, its newest copy.

    Return {} without `run.from`, or if there is no usable copy."""
    given, _ = split_from(overrides)
    try:
        return read_record(find_saved(given).parent)[0] if given is not None else {}
    except ConfigError:
        return {}


def _check_resume(choice: str, own: Path) -> None:
    """Raise `ConfigError` if `choice`, the value of `run.resume`, is a path that neither is a checkpoint nor contains one."""
    if choice in ("auto", "never"):
        return
    if not read_or_refuse(lambda: contains_checkpoint(Path(choice), own)):
        reason = "contains no checkpoint" if Path(choice).is_dir() else "does not exist"
        raise ConfigError(f"run.resume: {choice!r} {reason}; use auto, never, or the path of a step-... directory")
