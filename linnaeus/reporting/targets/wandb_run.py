"""W&B as a target: pass every row of the run to the sender that is also used in training (`wandb_logger`).

Online, rows that a launch or an earlier replay has sent are not sent again (wandb/sent.json). Offline, one folder with every row replaces
the folders written before; `wandb sync` uploads it.
"""

from linnaeus.errors import RunFailed
from linnaeus.reporting.sinks.saved_rows import SavedRows
from linnaeus.reporting.sinks.wandb_logger import SentRows, WandbLogger


class WandbRun:
    """W&B run for `run`, with the id that it had in training. mode: online or offline. Raise `ImportError` without the package wandb."""

    def __init__(self, run: SavedRows, project: str, mode: str) -> None:
        import wandb  # noqa: F401  its absence is an error of the user here, not a warning

        self.place, self.mode = f"W&B project {project}, {mode}", mode
        self._before = SentRows(run.path, saved=mode == "online")
        self._logger = WandbLogger(run.path, run_id=run.run_id, mode=mode, project=project, name=run.title, config=run.config)

    def send(self, run: SavedRows) -> int:
        self._logger.start(run.rows[-1][2]["global_step"] if run.rows else 0, run.rows)
        return sum(not self._before.contains(stream, position) for stream, position, _ in run.rows)

    def close(self, status: str) -> None:
        """Wait until the queued rows are sent, and end the W&B run; with `status` "failed" as failed. Raise `RunFailed` if W&B did not take
        every row."""
        self._logger.drain()
        self._logger.close(status)
        if not self._logger.complete:
            raise RunFailed(f"{self.place}: W&B did not take every row; the same command sends the rest")
