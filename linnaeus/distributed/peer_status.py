"""Exchange statuses among the processes of a group over the launcher's store, and detect lost and stuck processes.

Every process writes its status once a second: identity, activity, `global_step` and a count of heartbeats. Rank 0 reads the statuses of all
ranks; every other rank reads the status of rank 0."""

import json
from collections.abc import Callable
from typing import Any

from linnaeus.distributed.processes import RunningClock, alive_here, is_local

Status = dict[str, Any]
ENDING = "ending"  # the activity of a process that leaves the group in order


class PeerMonitor:
    """Detector of lost and stuck processes. The silence of a process is the time in which no new status of it was received, measured by the
    `RunningClock` of this process.

    statuses: rank -> newest status received, updated by `read`. own_status: function that returns the status of this process."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: Any,
        clock: RunningClock,
        statuses: dict[int, Status],
        own_status: Callable[[], Status],
    ) -> None:
        self.rank, self.world_size, self.store = rank, world_size, store
        self.peers = [r for r in range(world_size) if r != rank] if rank == 0 else [0]
        self.statuses, self.own_status, self._now = statuses, own_status, clock.now
        self._last_progress, self._heartbeats = self._now(), -1
        self.restart_silence()

    def restart_silence(self) -> None:
        """Set the silence of every other process to 0."""
        self._last_received = dict.fromkeys(self.peers, self._now())

    def read(self) -> dict[int, Status]:
        """Read the newest statuses from the store. Return `statuses`. Raise `RuntimeError` if the store does not answer."""
        for rank in self.peers:
            if not self.store.check([f"status/{rank}"]):
                continue
            status = json.loads(self.store.get(f"status/{rank}"))
            if status != self.statuses.get(rank):
                self.statuses[rank], self._last_received[rank] = status, self._now()
        return self.statuses

    def find_lost(self, statuses: dict[int, Status], grace: float, silence: float) -> str | None:
        """Return a line about the first process in `statuses` that has died or is silent; None if there is none.

        grace: seconds of silence after which a dead process on this host is reported; before that its launcher can act. silence: seconds of
        silence after which any other process is reported. A process without a status is not reported, because it may still be starting."""
        own = self.own_status()
        for rank, status in statuses.items():
            if status["activity"] == ENDING:
                continue
            dead = is_local(status, own) and alive_here(status) is False
            quiet = self._now() - self._last_received[rank]
            if quiet > (grace if dead else silence):
                end = "died" if dead else f"has sent no status for {quiet:.0f} s; it was"
                step = max(status["step"], own["step"])  # all ranks are at the same step, and the status may be one interval old
                return f"{process_name(rank, status)} {end} at step {step} ({status['activity']})"
        return None

    def find_error(self) -> str | None:
        """Return a line about the exception that ended another process; None if no other process has published an exception."""
        for rank in range(self.world_size):
            if rank != self.rank and self.store.check([f"error/{rank}"]):
                error = " ".join(self.store.get(f"error/{rank}").decode().split())[:300]
                self.read()
                status = self.statuses.get(rank)
                if status is None:
                    return f"process rank {rank} failed: {error}"
                return f"{process_name(rank, status)} failed at step {status['step']}: {error}"
        return None

    def find_stuck(self, limit: float) -> str | None:
        """Return a line that names the slowest processes if no rank has made progress for `limit` seconds; otherwise None.

        Progress means that the count of heartbeats of some process has grown. On ranks other than 0, always return None."""
        if self.rank != 0:
            return None
        statuses = {0: self.own_status(), **self.statuses}
        heartbeats = sum(status["heartbeats"] for status in statuses.values())
        if heartbeats != self._heartbeats:
            self._heartbeats, self._last_progress = heartbeats, self._now()
        quiet = self._now() - self._last_progress
        if quiet <= limit:
            return None
        least = min(status["heartbeats"] for status in statuses.values())
        slowest = [
            f"{process_name(rank, status)} at step {status['step']} ({status['activity']})"
            for rank, status in statuses.items()
            if status["heartbeats"] == least
        ]
        more = f" and {len(slowest) - 4} more" if len(slowest) > 4 else ""
        return f"no process has made progress for {quiet:.0f} s (trainer.timeout); furthest behind: {', '.join(slowest[:4])}{more}"


def process_name(rank: int, status: Status) -> str:
    """Return "process rank R on HOST (pid P)"."""
    return f"process rank {rank} on {status['host']} (pid {status['pid']})"
