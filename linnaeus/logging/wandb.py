"""Weights & Biases, on rank 0 only, offline without an account; a logger that fails never fails the run.

One W&B run per run directory: its id is made at the first start and kept. `sent.json` beside the rows holds how many rows of each
stream were sent, written (and flushed to the disk) before each is: a resumed run replays rows since its checkpoint, and those W&B
has had already are not sent again. Offline, every start makes a folder of its own with the same id; `wandb sync` joins them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnaeus.logging.console import LOGGER

SENT = "sent.json"


class WandbLogger:
    """`log` sends a row with `global_step` as the x axis of everything. `mode` is online or offline."""

    def __init__(self, directory: Path, *, run_id: str, mode: str, project: str, name: str, config: Mapping[str, Any]) -> None:
        self._sent_path = Path(directory) / "wandb" / SENT
        self._sent: dict[str, int] = {}
        self._run: Any = None
        self._file: int | None = None
        try:
            self._start(directory, run_id, mode, project, name, config)
        except Exception as error:  # W&B is a process of its own, and what it raises when that fails is of many kinds
            self._give_up(error)

    def _start(self, directory: Path, run_id: str, mode: str, project: str, name: str, config: Mapping[str, Any]) -> None:
        import wandb

        self._sent_path.parent.mkdir(exist_ok=True)
        if self._sent_path.exists():
            self._sent = json.loads(self._sent_path.read_text() or "{}")
        self._file = os.open(self._sent_path, os.O_RDWR | os.O_CREAT, 0o644)
        settings = wandb.Settings(console="off", silent=True, save_code=False)
        self._run = wandb.init(
            dir=str(directory),
            id=run_id,
            resume="allow",
            mode=mode,  # type: ignore[arg-type]
            project=project,
            name=name,
            config=dict(config),
            settings=settings,
        )
        self._run.define_metric("global_step")
        self._run.define_metric("*", step_metric="global_step")

    def _give_up(self, error: Exception) -> None:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        LOGGER.warning(f"logger.wandb: no W&B from here on, training continues ({reason})")
        self._run = None

    @property
    def active(self) -> bool:
        return self._run is not None

    def begin(self, global_step: int) -> None:
        """Positions, not steps, say what was sent."""

    def log(self, global_step: int, row: Mapping[str, Any], *, stream: str, position: int) -> None:
        """Send the row that is number `position` of its stream, unless it was sent before."""
        if self._run is None or position <= self._sent.get(stream, 0):
            return
        self._sent[stream] = position
        try:  # W&B's own step counts rows over all starts: it must never go back
            self._note()
            self._run.log({**row, "global_step": global_step}, step=sum(self._sent.values()))
        except Exception as error:
            self._give_up(error)

    def _note(self) -> None:
        assert self._file is not None
        text = json.dumps(self._sent).encode()  # it only grows, so writing over it leaves no old tail
        os.pwrite(self._file, text, 0)
        os.fsync(self._file)

    def sync(self) -> None:
        """Nothing waits: what was sent is noted at once."""

    def close(self, exit_code: int = 0) -> None:
        """End the W&B process; rows still on their way are waited for."""
        if self._run is not None:
            try:
                self._run.finish(exit_code=exit_code)
            except Exception as error:
                self._give_up(error)
            self._run = None
        if self._file is not None:
            os.close(self._file)
            self._file = None
