"""State of a GPU, read from a module in place of NVML."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from linnaeus.reporting.performance.gpu_state import open_gpu, throttling_reasons


class FakeError(Exception):
    pass


def fake(**more: Any) -> SimpleNamespace:
    def by_uuid(uuid: str) -> str:
        if uuid != "GPU-abc":
            raise FakeError
        return uuid

    values = {
        "NVMLError": FakeError, "NVML_CLOCK_SM": 1, "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": by_uuid,
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=87, memory=40),
        "nvmlDeviceGetClockInfo": lambda handle, clock: 1410,
        "nvmlDeviceGetMaxClockInfo": lambda handle, clock: 1980,
        "nvmlDeviceGetPowerUsage": lambda handle: 701_500,
        "nvmlDeviceGetTemperature": lambda handle, sensor: 71,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x04 | 0x01 | 0x20,
    }  # fmt: skip
    return SimpleNamespace(**(values | more))


def test_all_values_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake())
    for uuid in ("abc", "GPU-abc"):
        gpu = open_gpu(uuid)
        assert gpu is not None
        found = gpu.read()
    assert found.pop("gpu/throttling") == 0x24 and throttling_reasons(0x24) == ["power limit", "temperature (software)"]
    clocks = {"gpu/sm_clock_MHz": 1410.0, "gpu/sm_clock_max_MHz": 1980.0}
    assert found == {"gpu/utilisation": 0.87, **clocks, "gpu/power_W": 701.5, "gpu/temperature_C": 71.0}


def test_a_value_that_the_gpu_does_not_give_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: str) -> int:
        raise FakeError

    newer = {"nvmlDeviceGetPowerUsage": refuse, "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 0}
    monkeypatch.setitem(sys.modules, "pynvml", fake(**newer))
    gpu = open_gpu("abc")
    assert gpu is not None and "gpu/power_W" not in gpu.read() and gpu.read()["gpu/throttling"] == 0 and throttling_reasons(0) == []


def test_without_the_package_or_the_gpu_there_is_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_gpu("abc") is None
    monkeypatch.setitem(sys.modules, "pynvml", fake())
    assert open_gpu("another") is None
