"""`python -m linnaeus.reporting.demo`: reports of a simulated run, made by the code of real runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from linnaeus.reporting.demo import main

ROOT = Path(__file__).resolve().parents[2]


def shown(capsys: pytest.CaptureFixture, *arguments: str) -> list[tuple[str, str]]:
    """Return (percentage, step) of each report."""
    assert main(arguments) == 0
    return re.findall(r"^ *([\d.]+)%  step +([\d,]+)/", capsys.readouterr().out, re.M)


@pytest.mark.parametrize("total, reports", [(100, 101), (2000, 101), (137, 101), (7, 8), (1, 2)])
def test_a_report_every_percent_from_0_to_100(capsys: pytest.CaptureFixture, total: int, reports: int) -> None:
    found = shown(capsys, "--max-iters", str(total))
    assert len(found) == reports and len(set(found)) == reports
    assert found[0] == ("0.0", "0") and found[-1] == ("100.0", f"{total:,}")


def test_interval_and_sections_can_be_chosen(capsys: pytest.CaptureFixture) -> None:
    assert [step for _, step in shown(capsys, "--max_iters", "10", "--every", "4steps")] == ["0", "4", "8", "10"]
    main(["--max-iters", "3", "--sections", "samples"])
    assert capsys.readouterr().out.splitlines()[-1] == "144 samples  9,216 tokens  batch 12 x 4 x 1 = 48"


def test_active_parameters_are_the_connected_and_the_unmasked_ones(capsys: pytest.CaptureFixture) -> None:
    """Four layers of width 128, 65 tokens, 64 positions: only the matrices of attention and MLPs can be masked."""
    masked, other = 4 * 12 * 128**2, (65 + 64 + 9) * 128
    main(["--max-iters", "4", "--sections", "model,growth"])
    lines = capsys.readouterr().out.splitlines()
    for line, density in zip(lines[:2], (0.1, 0.55)):
        active = other + round(density * masked)
        assert line == f"{active:,} of {masked + other:,} parameters active  {100 * density:.2f}% connected"
    assert lines[2:] == [f"{masked + other:,} parameters  100.00% connected"] * 3


@pytest.mark.parametrize("wrong", [["--sections", "loss,x"], ["--max-iters", "0"], ["--every", "5min"], ["--every", "5"]])
def test_an_error_is_one_line(capsys: pytest.CaptureFixture, wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2 and len(capsys.readouterr().err.strip().splitlines()) == 1


def test_torch_is_not_imported() -> None:
    code = "import sys, linnaeus.reporting.demo as demo; demo.main(['--max-iters', '2']); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("%  step") == 3
