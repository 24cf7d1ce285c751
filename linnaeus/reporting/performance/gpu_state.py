"""Read utilisation, clock, power and throttling of an NVIDIA GPU by NVML, if the package `nvidia-ml-py` is installed.

Throttling is a lower clock because of the power limit or the temperature; it is one cause of a low MFU (model FLOPs utilisation). Values
are read for reports only.
"""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger("linnaeus")

# Bits of NVML's clock event reasons for a clock that is lower than a GPU under load could have.
THROTTLING = {
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}


class GpuState:
    """Reader of the state of one GPU. Construct it with `open_gpu`."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    def read(self) -> dict[str, float]:
        """Return `gpu/utilisation` (0 to 1), `gpu/sm_clock_MHz`, its maximum `gpu/sm_clock_max_MHz`, `gpu/power_W`, `gpu/temperature_C` and
        `gpu/throttling`, the sum of the bits in `THROTTLING` that are set. A value that the GPU does not support is left out."""
        n, h = self._nvml, self._handle
        reasons = getattr(n, "nvmlDeviceGetCurrentClocksEventReasons", None) or n.nvmlDeviceGetCurrentClocksThrottleReasons
        readers = {
            "gpu/utilisation": lambda: n.nvmlDeviceGetUtilizationRates(h).gpu / 100,
            "gpu/sm_clock_MHz": lambda: float(n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM)),
            "gpu/sm_clock_max_MHz": lambda: float(n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM)),
            "gpu/power_W": lambda: n.nvmlDeviceGetPowerUsage(h) / 1000,
            "gpu/temperature_C": lambda: float(n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU)),
            "gpu/throttling": lambda: float(reasons(h) & sum(THROTTLING)),
        }
        found = {}
        for name, read in readers.items():
            try:
                found[name] = read()
            except n.NVMLError:
                continue
        return found


def open_gpu(uuid: str) -> GpuState | None:
    """Return the reader of the GPU with this UUID, with or without the prefix `GPU-`; None without `nvidia-ml-py`, or if NVML fails."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return GpuState(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"))
    except pynvml.NVMLError as error:
        log.debug("NVML returned an error (%s): utilisation and clocks of the GPU are not reported", error)
        return None


def throttling_reasons(bits: float) -> list[str]:
    """Return the reasons why the clock is lower, such as `power limit`; [] if it is not.

    bits: a value of `gpu/throttling`: the sum of the bits in `THROTTLING` that are set."""
    return [reason for bit, reason in THROTTLING.items() if int(bits) & bit]
