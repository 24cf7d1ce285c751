"""Compute the speed over the last reports of this launch, the time that is left, and the model FLOPs utilisation (MFU): FLOP/s used over
peak FLOP/s.

The first update of a launch starts loader workers and compiles; validation and saving are timed separately. None of these are part of the
speed, so the time left is accurate soon after each start.

Peak figures are those of the makers for dense matrices: tensor cores with float32 accumulation for bf16 and fp16, plain float32 for
float32. Data sheets often include structured sparsity, which doubles them. Without a figure (an unlisted device, a MIG part, another
precision) no MFU is reported unless `logger.peak_tflops` is set. A power limit below the maker's gives a lower MFU. HFU (hardware FLOPs
utilisation) also counts operations that activation checkpointing repeats.
"""

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

REPORTS = 10  # intervals between reports over which the speed is averaged


class Reading(NamedTuple):
    """Counters at one moment. `seconds` and `waiting` are those of this launch: seconds of training, and the part of them spent waiting for
    data. `step`, `samples` and `units` (such as tokens) are totals of the run."""

    seconds: float
    waiting: float
    step: int
    samples: int
    units: int = 0


class Throughput:
    """Speed over the last `reports` reports. Call `restart` at the start of a launch and after its first update, `update` at each
    report."""

    def __init__(self, reports: int = REPORTS) -> None:
        self._readings: deque[Reading] = deque(maxlen=reports + 1)

    def restart(self, reading: Reading) -> None:
        """Forget earlier readings and measure from this reading on."""
        self._readings.clear()
        self._readings.append(reading)

    def update(self, reading: Reading) -> None:
        """Add the reading of a report. It is ignored if its step is that of the last reading."""
        if not self._readings or reading.step > self._readings[-1].step:
            self._readings.append(reading)

    @property
    def intervals(self) -> int:
        """Return the number of intervals between reports of which `rates` is the speed."""
        return max(0, len(self._readings) - 1)

    def rates(self, units: str | None = None, latest: Reading | None = None) -> dict[str, float]:
        """Return `recent/steps_per_second`, `recent/ms_per_step`, `recent/samples_per_second`, `recent/waiting_for_data` (fraction of the
        time, 0 to 1), with a name in `units` `recent/<units>_per_second`, and the updates and seconds that these values are of
        (`recent/steps`, `recent/seconds`); {} before two readings. `latest`: a reading newer than that
        of the last report, at which the measured time then ends."""
        if not self._readings or (latest or self._readings[-1]).step <= self._readings[0].step:
            return {}
        first, last = self._readings[0], latest or self._readings[-1]
        seconds, steps = max(last.seconds - first.seconds, 1e-9), last.step - first.step
        rates = {
            "recent/steps_per_second": steps / seconds,
            "recent/ms_per_step": 1000 * seconds / steps,
            "recent/samples_per_second": (last.samples - first.samples) / seconds,
            "recent/waiting_for_data": (last.waiting - first.waiting) / seconds,
            "recent/steps": steps,
            "recent/seconds": seconds,
        }
        if units is not None:
            rates[f"recent/{units}_per_second"] = (last.units - first.units) / seconds
        return rates


class Costs(NamedTuple):
    """Mean seconds of an update, of a validation pass and of a checkpoint in an earlier launch, on `processes` processes; None: unknown."""

    update: float | None = None
    validation: float | None = None
    checkpoint: float | None = None
    processes: int = 1

    def on(self, processes: int) -> "Costs":
        """Return the costs on another number of processes: updates and validations are divided among them, checkpoints are not."""
        update, validation = (None if cost is None else cost * self.processes / processes for cost in (self.update, self.validation))
        return Costs(update, validation, self.checkpoint, processes)


def expected_seconds(steps: Sequence[int], step: int, spent: float, done: int, earlier: float | None = None) -> float | None:
    """Return the estimated seconds that the remaining events take: those of the sorted `steps` from `step` on, including `step`.

    Each is expected to take the mean of the `done` events, which took `spent` seconds, and of one of `earlier` seconds, the mean of an
    earlier launch. Return 0 if no event remains, otherwise None if there is neither."""
    left = len(steps) - bisect_left(steps, step)
    if not left:
        return 0.0
    if earlier is not None:
        spent, done = spent + earlier, done + 1
    return left * spent / done if done else None


# -- model FLOPs utilisation ---------------------------------------------------------------------------------------------------

# Name in the driver -> dense TFLOP/s at (bf16, fp16, float32). None: the device has no such units, or several figures are published.
# Compared in Nov 2026 with quotations of the makers' tables: B200 at 1,000 W (sparse 4,500; float32 is 75 in one and 80 in another);
# H100 and H200 (sparse 1,979 SXM, 1,513 PCIe); A100, A10, L40S, L4, V100 and T4; GeForce with float32 accumulation. A30 also by its clock:
# 56 processors x 1,024 multiply-adds x 1.44 GHz. So are RTX 5090, A6000, 6000 Ada and PRO 6000, with 512 multiply-adds a processor for the
# professional ones and half for GeForce; MI300X from AMD's table, GH200 and B300 as H100 and B200.
# H200 NVL, B300, RTX 5090, PRO 6000 and 6000 Ada were not compared with a table of the maker: do not publish an MFU of these.
_PEAKS: dict[str, tuple[float | None, float | None, float | None]] = {
    r"NVIDIA B300( SXM6 AC)?": (2250.0, 2250.0, None),
    r"NVIDIA B200": (2250.0, 2250.0, None),
    r"NVIDIA GH200 (480GB|144G HBM3e)": (989.4, 989.4, 66.9),
    r"NVIDIA H200": (989.4, 989.4, 66.9),  # SXM
    r"NVIDIA H200 NVL": (835.5, 835.5, 60.0),
    r"NVIDIA H100 80GB HBM3": (989.4, 989.4, 66.9),
    r"NVIDIA H100 PCIe": (756.5, 756.5, 51.2),
    r"NVIDIA A100(-SXM4-40GB|-SXM4-80GB|-PCIE-40GB| 80GB PCIe)": (312.0, 312.0, 19.5),
    r"NVIDIA A30": (165.0, 165.0, 10.3),
    r"NVIDIA A10": (125.0, 125.0, 31.2),
    r"NVIDIA L40S": (362.05, 362.05, 91.6),
    r"NVIDIA L4": (121.0, 121.0, 30.3),
    r"Tesla V100-SXM2-(16|32)GB": (None, 125.0, 15.7),
    r"Tesla T4": (None, 65.0, 8.1),
    r"NVIDIA RTX PRO 6000 Blackwell Workstation Edition": (503.8, 503.8, 126.0),  # the server edition and Max-Q differ
    r"NVIDIA RTX 6000 Ada Generation": (364.2, 364.2, 91.1),
    r"NVIDIA RTX A6000": (154.8, 154.8, 38.7),
    r"NVIDIA GeForce RTX 5090": (209.5, 209.5, 104.8),
    r"NVIDIA GeForce RTX 4090": (165.2, 165.2, 82.6),
    r"NVIDIA GeForce RTX 3090": (71.0, 71.0, 35.6),
    r"AMD Instinct MI300X": (1307.4, 1307.4, 163.4),
}


def peak_flops(device: str, precision: str) -> float | None:
    """Return the peak FLOP/s at `trainer.precision` of the device with this name (that of the driver); None if it is not known."""
    if precision not in ("bf16", "fp16", "float32") or "MIG" in device:
        return None
    figures = next((figures for pattern, figures in _PEAKS.items() if re.fullmatch(pattern, device)), (None, None, None))
    figure = figures[("bf16", "fp16", "float32").index(precision)]
    return None if figure is None else figure * 1e12


def utilisation(flops_per_sample: float, samples_per_second: float, peak: float, devices: int) -> float:
    """Return the MFU, 0 to 1. `samples_per_second` is the speed of all `devices` together, `peak` the peak FLOP/s of one device."""
    return flops_per_sample * samples_per_second / (peak * devices)
