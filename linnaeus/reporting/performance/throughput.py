"""Compute the throughput over the last reports of this launch, the time left, and the model FLOPs utilisation (MFU): FLOP/s used over peak
FLOP/s.

The throughput excludes validation, saving and the first update of a launch, which starts loader workers and compiles the model. The time
left is therefore accurate soon after each start.

Peak FLOP/s are the makers' figures for dense matrices: tensor cores with float32 accumulation for bf16 and fp16, no tensor cores for
float32. (Figures of data sheets that include structured sparsity are twice as high.) Without a figure, for an unlisted device, a MIG
instance or another precision, no MFU is reported unless `logger.peak_tflops` is set. A power limit below the maker's default lowers the
MFU. HFU (hardware FLOPs utilisation) also counts operations that activation checkpointing repeats.
"""

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

REPORTS = 10  # intervals between reports over which the speed is averaged


class Reading(NamedTuple):
    """Counters at one moment. seconds: seconds of training in this launch. waiting: seconds of these spent waiting for data. step, samples,
    units (such as tokens): totals of the run."""

    seconds: float
    waiting: float
    step: int
    samples: int
    units: int = 0


class Throughput:
    """Meter of the throughput over the last `reports` intervals between progress reports.

    Call `restart` at the start of a launch and again after its first update, and `update` at each report."""

    def __init__(self, reports: int = REPORTS) -> None:
        self._readings: deque[Reading] = deque(maxlen=reports + 1)

    def restart(self, reading: Reading) -> None:
        """Remove earlier readings and measure from this reading on."""
        self._readings.clear()
        self._readings.append(reading)

    def update(self, reading: Reading) -> None:
        """Add the reading of a report. Ignore it if its step is not greater than the step of the last reading."""
        if not self._readings or reading.step > self._readings[-1].step:
            self._readings.append(reading)

    @property
    def intervals(self) -> int:
        """Return the number of intervals between reports over which `rates` are averaged."""
        return max(0, len(self._readings) - 1)

    def rates(self, units: str | None = None, latest: Reading | None = None) -> dict[str, float]:
        """Return the throughput over the recent reports; {} without a reading, or if no update was made between the first and the last
        reading.

        The keys are `recent/steps_per_second`, `recent/ms_per_step`, `recent/samples_per_second`, `recent/waiting_for_data` (fraction of
        the time, 0 to 1), and `recent/steps` and `recent/seconds`, the updates and seconds over which these are averaged. units: name of
        the units, such as tokens, to add `recent/<units>_per_second`; None: not added. latest: reading at the end of the interval; None:
        the reading of the last report."""
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
    """Mean seconds of an update, a validation pass and a checkpoint in a launch; None if unknown. `processes`: world size of the launch."""

    update: float | None = None
    validation: float | None = None
    checkpoint: float | None = None
    processes: int = 1

    def on(self, processes: int) -> "Costs":
        """Return the estimated costs with `processes` processes: seconds of updates and validation passes are inversely proportional to the
        number of processes, and seconds of checkpoints do not change."""
        update, validation = (None if cost is None else cost * self.processes / processes for cost in (self.update, self.validation))
        return Costs(update, validation, self.checkpoint, processes)


def expected_seconds(steps: Sequence[int], step: int, spent: float, done: int, earlier: float | None = None) -> float | None:
    """Return the estimated seconds of the remaining events, such as validation passes: (mean seconds of an event) x (number of remaining
    events).

    It is 0 if no event remains, and None if no mean is known. steps: steps of all events of the run, sorted; events at `step` or later
    remain. done: number of events in this launch so far. spent: total seconds of these events. earlier: mean seconds of an event in an
    earlier launch, which counts like one more event in the mean; None if unknown."""
    left = len(steps) - bisect_left(steps, step)
    if not left:
        return 0.0
    if earlier is not None:
        spent, done = spent + earlier, done + 1
    return left * spent / done if done else None


# -- model FLOPs utilisation ---------------------------------------------------------------------------------------------------

# Name in the driver -> dense TFLOP/s at (bf16, fp16, float32). None: not supported by the device, or published figures differ. Sources:
# - Quotations of the makers' tables, compared in Nov 2026: B200 at 1,000 W (sparse 4,500; float32 is 75 in one and 80 in another), H100 and
#   H200 (sparse 1,979 SXM, 1,513 PCIe), A100, A10, L40S, L4, V100, T4, GeForce (with float32 accumulation), MI300X.
# - Computed, multiprocessors x multiply-adds per clock x 2 x clock: A30 (56 x 1,024 x 2 x 1.44 GHz; equal to the maker's), RTX A6000,
#   6000 Ada and PRO 6000 (512 multiply-adds), RTX 5090 (256).
# - GH200 as H100, B300 as B200.
# Not compared with a maker's table: H200 NVL, B300, RTX 5090, PRO 6000, 6000 Ada. Do not publish an MFU of these.
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
    """Return the peak FLOP/s of a device; None for an unknown device and for a MIG instance (part of a GPU).

    device: name of the device in the driver. precision: value of `trainer.precision`."""
    if precision not in ("bf16", "fp16", "float32") or "MIG" in device:
        return None
    figures = next((figures for pattern, figures in _PEAKS.items() if re.fullmatch(pattern, device)), (None, None, None))
    figure = figures[("bf16", "fp16", "float32").index(precision)]
    return None if figure is None else figure * 1e12


def unknown_peak(device: str, precision: str) -> str:
    """Return the reason why the MFU is unknown, for a device without a peak. The arguments are those of `peak_flops`."""
    return f"no peak for {device} at {precision}; set logger.peak_tflops"


def utilisation(flops_per_sample: float, samples_per_second: float, peak: float, devices: int) -> float:
    """Return the MFU, 0 to 1. flops_per_sample: floating-point operations of forward and backward for one sample. samples_per_second:
    throughput of all devices together. peak: peak FLOP/s of one device. devices: number of devices."""
    return flops_per_sample * samples_per_second / (peak * devices)
