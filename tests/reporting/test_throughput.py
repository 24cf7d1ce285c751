"""Speed and time left on a simulated clock, and model FLOPs utilisation."""

import pytest

from linnaeus.reporting.performance.throughput import Reading, Throughput, expected_seconds, peak_flops, utilisation


def test_the_speed_is_that_of_the_last_reports() -> None:
    speed = Throughput(reports=2)
    for seconds, waiting, step in ((0, 0, 0), (100, 50, 10), (110, 51, 20), (130, 52, 30)):
        speed.update(Reading(seconds, waiting, step, 8 * step))
    rates = {"steps_per_second": 20 / 30, "ms_per_step": 1500.0, "samples_per_second": 160 / 30, "waiting_for_data": 2 / 30}
    rates |= {"steps": 20, "seconds": 30}
    found = {f"recent/{name}": rate for name, rate in rates.items()}
    assert speed.rates() == found and speed.rates("tokens") == {**found, "recent/tokens_per_second": 0.0}
    for step, tokens in ((40, 700), (50, 1000)):  # the number of tokens per sample varies
        speed.update(Reading(3 * step + 40, 52, step, 8 * step, tokens))
    assert speed.rates("tokens")["recent/tokens_per_second"] == 1000 / 60


def test_no_speed_without_an_update() -> None:
    speed = Throughput()
    assert speed.rates() == {}
    speed.restart(Reading(1.0, 0.0, 5, 40))
    speed.update(Reading(3.0, 0.0, 5, 40))
    assert speed.rates() == {}
    speed.update(Reading(4.0, 0.0, 6, 48))
    assert speed.rates()["recent/ms_per_step"] == 3000.0, "measured from the restart"
    speed.restart(Reading(9.0, 0.0, 7, 56))
    assert speed.rates() == {}


def test_expected_seconds_of_events() -> None:
    steps = [25, 50, 75, 100]
    assert expected_seconds(steps, 50, 3.0, 1) == 9.0, "the event at this step comes after its report"
    assert expected_seconds(steps, 51, 6.0, 2) == 6.0
    assert expected_seconds(steps, 10, 0.0, 0) is None
    assert expected_seconds(steps, 101, 12.0, 4) == 0.0 == expected_seconds([], 1, 0.0, 0)


@pytest.mark.parametrize("first", [0, 400])
def test_the_time_left_is_within_a_tenth_after_a_start_and_a_resume(first: int) -> None:
    """0.1 s per update, 20 s more for the first one of a launch, 5 s per validation every 100 of 1000 steps; from step `first` on."""
    total, steps, speed, training, done = 1000, range(100, 1001, 100), Throughput(), 0.0, 0
    estimates: list[tuple[float, float]] = []  # (wall time, time left)
    for step in range(first + 1, total + 1):
        training += 20.1 if step == first + 1 else 0.1
        if step == first + 1:
            speed.restart(Reading(training, 0.0, step, 0))
        if step % 10 == 0:
            speed.update(Reading(training, 0.0, step, 0))
            validating = expected_seconds(steps, step, 5.0 * done, done)
            if validating is not None:
                estimates.append((training + 5.0 * done, (total - step) * speed.rates()["recent/ms_per_step"] / 1000 + validating))
        done += step in steps
    assert len(estimates) > 40
    assert all(eta == pytest.approx(training + 5.0 * done - at, rel=0.1) for at, eta in estimates)
    assert training / (total - first) > 1.15 * 0.1, "negative control: the mean over all updates"


def test_utilisation_equals_a_published_value() -> None:
    """nanoGPT's GPT-2 124M on one A100: 100 sequences of 875,062,886,400 operations in 0.755 s are 37.15 % of 312 TFLOP/s."""
    peak = peak_flops("NVIDIA A100-SXM4-40GB", "bf16")
    assert peak == 312e12
    assert utilisation(875_062_886_400, 100 / 0.755, peak, 1) == pytest.approx(0.3715, abs=5e-5)
    assert utilisation(875_062_886_400, 800 / 0.755, peak, 8) == pytest.approx(0.3715, abs=5e-5)


@pytest.mark.parametrize(
    "device, precision",
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16"), ("NVIDIA A10G", "bf16"), ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "bf16"),
        ("Tesla T4", "bf16"),
        ("NVIDIA A100X", "bf16"), ("NVIDIA A100-SXM-64GB", "bf16"), ("NVIDIA GeForce RTX 4090 D", "bf16"), ("NVIDIA B200", "float32"),
        ("NVIDIA H200", "float64"), ("cpu", "float32"), ("", "bf16"),
    ],
)  # fmt: skip
def test_devices_without_a_figure(device: str, precision: str) -> None:
    assert peak_flops(device, precision) is None


@pytest.mark.parametrize("device", ["NVIDIA B300 SXM6 AC", "NVIDIA GH200 480GB", "NVIDIA H200 NVL", "NVIDIA GeForce RTX 5090",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "NVIDIA RTX A6000",
    "NVIDIA RTX 6000 Ada Generation", "AMD Instinct MI300X"])  # fmt: skip
def test_devices_with_a_figure(device: str) -> None:
    """The matrix units are at least twice as fast as plain float32."""
    bf16, fp16 = peak_flops(device, "bf16"), peak_flops(device, "fp16")
    assert bf16 == fp16 is not None and bf16 >= 2 * (peak_flops(device, "float32") or 0) - 0.1e12
