"""List the named places of a run at which a kill can land: before or after a function of the program, by the name it is defined under.

`GROUPS` are the rows of the table that `make torture` prints; each has several places. Those of BESIDE are passed while the writer's
thread is held up at a place of HOLDS, in the middle of a checkpoint. A place is patched where its function is
defined, as that module is imported, so that every importer gets the patched one. Names that are not found end the launch: a
renamed function must not turn a proof into one of nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

START, STEP, WINDOW, EPOCH_END = "start-up", "inside a step", "inside a window", "end of an epoch"
FILES, RENAME, RETENTION = "checkpoint: its files", "checkpoint: its rename", "checkpoint: retention"
BESIDE = "a step beside the writer"
NORMAL, MASKED, PARTIAL = "validation: normal", "validation: all masked", "validation: partly masked"
BETWEEN, END, RESUME, RANDOM = "between passes", "report and summary", "resume", "any instant"
GROUPS = (START, STEP, WINDOW, EPOCH_END, FILES, RENAME, RETENTION, BESIDE, NORMAL, MASKED, PARTIAL, BETWEEN, END, RESUME, RANDOM)


@dataclass(frozen=True)
class Place:
    """`target`: "module:function" or "module:Class.method", or BEGIN. `within`: only inside this scope, "-": only outside all of them.
    `first`: the lowest index that counts, where earlier ones are another place."""

    group: str
    name: str
    target: str
    after: bool = False
    within: str | None = None
    first: int = 1


def _stage(arguments: tuple[Any, ...]) -> str:
    return str(arguments[1].stage.name)


# Calls of these open a scope: a name, or a function of the arguments that gives it.
SCOPES: dict[str, str | Callable[[tuple[Any, ...]], str]] = {
    "linnaeus.train.validation:validate_one_pass": _stage,
    "linnaeus.checkpoint.writer:CheckpointWriter._write": "writer",
    "linnaeus.checkpoint.format:save_checkpoint": "save",
    "linnaeus.checkpoint.retention:prune": "prune",
    "linnaeus.checkpoint.retention:rename_newer": "rename newer",
    "linnaeus.reporting.report.run_report:write_report": "report",
    "linnaeus.reporting.results:write_summary": "summary",
    "linnaeus.train.restore:restore": "restore",
}
# Calls of these are about a checkpoint whose step is their second argument: in the writer's thread, the run may be further.
STEP_OF = ("linnaeus.checkpoint.writer:CheckpointWriter._write",)

BEGIN = ""  # no function: before the program's first line
_BATCH = "linnaeus.data.loader:DevicePrefetcher._next"
_PASS = "linnaeus.train.validation:_run_batches"
_TRAINING_PROGRESS = "linnaeus.progress.training_progress:TrainingProgress"
_PASSES = {NORMAL: "VALIDATION_NORMAL", MASKED: "VALIDATION_MASK_META", PARTIAL: "VALIDATION_PARTIAL_MASK_META"}

PLACES = (
    Place(START, "the interpreter has started", BEGIN),
    Place(START, "before the group is joined", "linnaeus.distributed:DistributedContext.initialize"),
    Place(START, "before the model is built", "linnaeus.train.building.build:build_training"),
    Place(START, "before the run directory is started", "linnaeus.rundir.directory:RunDirectory.start"),
    Place(START, "locked, nothing written", "linnaeus.rundir.directory:RunDirectory._write"),
    Place(START, "run directory started", "linnaeus.rundir.directory:RunDirectory.start", after=True),
    Place(START, "outputs opened", "linnaeus.train.outputs:open_outputs", after=True),
    Place(START, "before the first update", "linnaeus.train.restore:finish_pending_validations"),
    Place(STEP, "waiting for data", _BATCH, within="-"),
    Place(STEP, "window fetched", "linnaeus.train.loop:train_one_step"),
    Place(STEP, "between forward and backward", "linnaeus.optim.update:Precision.backward"),
    Place(STEP, "while measuring gradients", "linnaeus.weighting.gradients:TaskGradients.add"),
    Place(STEP, "between backward and optimizer", "linnaeus.optim.update:Update.__call__"),
    Place(STEP, "optimizer done, average not", "linnaeus.optim.ema:EMA.update"),
    Place(STEP, "updated, not counted", "linnaeus.optim.update:Update.__call__", after=True),
    Place(STEP, "counted, nothing due done", "linnaeus.train.step_end:end_step"),
    Place(STEP, "row written", "linnaeus.train.outputs:Outputs.row", after=True),
    Place(STEP, "report written", "linnaeus.train.measuring.readings:report_progress", after=True),
    Place(WINDOW, "between two micro-batches", "linnaeus.train.loop:forward_backward", first=2),
    Place(WINDOW, "between forward and backward of a later one", "linnaeus.optim.update:Precision.backward", first=2),
    Place(EPOCH_END, "before it is counted", f"{_TRAINING_PROGRESS}.end_epoch"),
    Place(EPOCH_END, "counted", f"{_TRAINING_PROGRESS}.end_epoch", after=True),
    Place(EPOCH_END, "next one started", f"{_TRAINING_PROGRESS}.start_training_epoch", after=True),
    Place(FILES, "handed over, none written", "linnaeus.checkpoint.writer:CheckpointWriter._write"),
    Place(FILES, "rows flushed, none written", "linnaeus.checkpoint.format:save_checkpoint"),
    Place(FILES, "before weights", "linnaeus.checkpoint.format:write_weights", within="save"),
    Place(FILES, "after weights", "linnaeus.checkpoint.format:write_weights", after=True, within="save"),
    Place(FILES, "before training_state.pt", "torch.serialization:save", within="save"),
    Place(FILES, "after training_state.pt", "torch.serialization:save", after=True, within="save"),
    Place(FILES, "before state.json or manifest.json", "pathlib:Path.write_text", within="save"),
    Place(FILES, "after state.json or manifest.json", "pathlib:Path.write_text", after=True, within="save"),
    Place(RENAME, "before the files are flushed", "linnaeus.files:commit_directory", within="save"),
    Place(RENAME, "before", "os:rename", within="save"),
    Place(RENAME, "after", "os:rename", after=True, within="save"),
    Place(RENAME, "committed", "linnaeus.files:commit_directory", after=True, within="save"),
    Place(RETENTION, "before", "linnaeus.checkpoint.retention:prune"),
    Place(RETENTION, "one renamed away", "os:rename", after=True, within="prune"),
    Place(RETENTION, "one half deleted", "os:unlink", within="prune"),
    Place(RETENTION, "one deleted", "linnaeus.files:remove_directory", after=True, within="prune"),
    Place(RETENTION, "after", "linnaeus.checkpoint.retention:prune", after=True),
    Place(BESIDE, "between forward and backward", "linnaeus.optim.update:Precision.backward"),
    Place(BESIDE, "between backward and optimizer", "linnaeus.optim.update:Update.__call__"),
    Place(BESIDE, "updated, not counted", "linnaeus.optim.update:Update.__call__", after=True),
    Place(BESIDE, "counted, nothing due done", "linnaeus.train.step_end:end_step"),
    *(Place(group, "at a batch", _BATCH, within=stage) for group, stage in _PASSES.items()),
    *(Place(group, "before", _PASS, within=stage) for group, stage in _PASSES.items()),
    *(Place(group, "done, not reported", _PASS, after=True, within=stage) for group, stage in _PASSES.items()),
    Place(BETWEEN, "pending and saved, none run", "linnaeus.train.validation:run_pending_validations"),
    Place(BETWEEN, "result computed, not written", "linnaeus.train.outputs:Outputs.write_validation"),
    Place(BETWEEN, "result written", "linnaeus.train.outputs:Outputs.write_validation", after=True),
    Place(BETWEEN, "all results exist, not applied", "linnaeus.train.validation:apply_results"),
    Place(BETWEEN, "applied, not saved", "linnaeus.train.validation:apply_results", after=True),
    Place(END, "training done", "linnaeus.train.finish:final_validations"),
    Place(END, "before the end is written", "linnaeus.train.finish:finish"),
    Place(END, "before the summary", "linnaeus.reporting.results:write_summary"),
    Place(END, "summary written, not renamed", "os:replace", within="summary"),
    Place(END, "after the summary", "linnaeus.reporting.results:write_summary", after=True),
    Place(END, "before the report", "linnaeus.train.outputs:Outputs.write_report"),
    Place(END, "report drawn, not written", "linnaeus.reporting.report.page:page", after=True),
    Place(END, "report written, not renamed", "os:replace", within="report"),
    Place(END, "after the report", "linnaeus.train.outputs:Outputs.write_report", after=True),
    Place(END, "all written", "linnaeus.train.finish:finish", after=True),
    Place(RESUME, "before the search", "linnaeus.checkpoint.resume:find_resume_point"),
    Place(RESUME, "checkpoint loaded", "linnaeus.checkpoint.loading:load_checkpoint", after=True),
    Place(RESUME, "before anything is restored", "linnaeus.train.restore:restore"),
    Place(RESUME, "half restored", "linnaeus.optim.ema:EMA.load_averaged"),
    Place(RESUME, "restored, nothing cut back", "linnaeus.train.outputs:Outputs.resume"),
    Place(RESUME, "before checkpoints are renamed", "linnaeus.checkpoint.retention:rename_newer"),
    Place(RESUME, "checkpoints renamed", "linnaeus.checkpoint.retention:rename_newer", after=True),
    Place(RESUME, "before rows are cut", "linnaeus.reporting.jsonl.row_writer:RowWriter.truncate", within="restore"),
    Place(RESUME, "rows cut", "linnaeus.reporting.jsonl.row_writer:RowWriter.truncate", after=True, within="restore"),
    Place(RESUME, "results discarded", "linnaeus.rundir.validation_results:ValidationResults.discard_after", after=True),
    Place(RESUME, "all cut back", "linnaeus.train.restore:restore", after=True),
)

HOLDS = tuple(place for place in PLACES if place.group in (FILES, RENAME, RETENTION))


def label(place: Place) -> str:
    """Return the name of a place in faults, records and tables."""
    return f"{place.group} / {place.name}"
