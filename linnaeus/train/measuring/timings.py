"""Read the clocks, the counters and the memory of a run. This does not wait for the device."""

from __future__ import annotations

import torch

from linnaeus.reporting.performance.memory_use import memory_of, shared_memory_of, together
from linnaeus.reporting.performance.throughput import Reading
from linnaeus.train.measuring.data_wait import speed_without_waiting
from linnaeus.train.state import Training


def timings(t: Training) -> dict[str, float]:
    """Return the row of timings.jsonl (key -> value) over this launch. Only `time/wall_seconds` includes earlier launches.

    The values are times and throughput in the units that the keys name, the share of the training time spent waiting for data, and the peak
    memory in MiB. A launch without an update has no throughput."""
    seconds = max(t.clock.training(), 1e-9)
    steps = t.progress.global_step - t.first_step
    samples = t.progress.samples_seen - t.first_sample
    row = {
        **({"time/samples_per_second": samples / seconds, "time/ms_per_step": 1000 * seconds / steps} if steps else {}),
        "time/waiting_for_data": t.clock.waiting / seconds,
        "time/speed_without_waiting": speed_without_waiting(t.clock.waiting / seconds),
        "time/startup_seconds": t.clock.starting,
        "time/compiling_seconds": t.clock.compiling,
        "time/training_seconds": seconds,
        "time/validation_seconds": t.clock.validating,
        "time/saving_seconds": t.clock.saving,
        "time/reporting_seconds": t.output.reports.seconds,
        "time/wall_seconds": t.output.seconds_before + t.clock.wall(),
        "time/processes": t.context.world_size,
        "memory/host_MiB": _peak_host_mib(),
    }
    if t.workload.units is not None and steps:
        row[f"time/{t.workload.units[0]}_per_second"] = (t.progress.units_seen - t.first_unit) / seconds
    if t.device.type == "cuda":
        row["memory/device_MiB"] = torch.cuda.max_memory_allocated(t.device) / 2**20
    return row


def reading(t: Training) -> Reading:
    """Return the counters and times from which throughput is computed."""
    return Reading(t.clock.training(), t.clock.waiting, t.progress.global_step, t.progress.samples_seen, t.progress.units_seen)


def memory_now(device: torch.device) -> dict[str, float]:
    """Return memory sizes in MiB, metric key -> value: resident memory of this process (on Linux only); on a GPU also the memory allocated
    by tensors and the total memory of the GPU."""
    own = memory_of()
    found = {} if own is None else {"memory/host_now_MiB": own.resident}
    if device.type == "cuda":
        found["memory/device_now_MiB"] = torch.cuda.memory_allocated(device) / 2**20
        found["memory/device_total_MiB"] = torch.cuda.get_device_properties(device).total_memory / 2**20
    return found


def shared_memory(t: Training) -> dict[str, float]:
    """Return memory sizes in MiB, metric key -> value, on Linux: shared memory of this process, and resident and shared memory of its
    loader workers together."""
    own = shared_memory_of()
    if own is None:
        return {}
    resident, shared = together(t.workers.processes()) if t.workers is not None else (0.0, 0.0)
    return {"memory/host_shm_MiB": own, "memory/workers_now_MiB": resident, "memory/workers_shm_MiB": shared}


def _peak_host_mib() -> float:
    """Return the largest resident memory of this process so far, in MiB."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
