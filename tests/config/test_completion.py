"""Tab completion: the candidates for the last word, and the function that bash calls."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from linnaeus.config.completion import candidates

ROOT = Path(__file__).resolve().parents[2]
VECTORS = f"--config-dir {ROOT}/tests/vectors/conf"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("linnaeus optimizer=", ["optimizer=adamw", "optimizer=muon", "optimizer=sgd", "optimizer=timm"]),
        ("python main.py seed=1 optimizer=a", ["optimizer=adamw"]),
        ("python main.py trainer.max_g", ["trainer.max_grad_norm="]),
        ("python main.py trainer.compile=", ["trainer.compile=false", "trainer.compile=true"]),
        ("python main.py logger.wandb=o", ["logger.wandb=offline", "logger.wandb=online"]),
        ("python main.py see", ["seed="]),
        ("python main.py optimi", ["optimizer.", "optimizer="]),
        ("python main.py optimizer=sgd optimizer.mom", ["optimizer.momentum="]),
        ("python main.py optimizer.mom", []),
        ("python main.py --mul", ["--multirun"]),
        ("python main.py seed=", []),
        ("torchrun --nproc-per-node=2 main.py workload=language model.bl", []),
        ("torchrun --nproc-per-node=2 main.py workload=language data.blo", ["data.block="]),
        (f"python main.py {VECTORS} model=ml", ["model=mlp"]),
        ("python main.py experiment=nope --what optimizer=ad", ["optimizer=adamw"]),
    ],
)
def test_the_candidates_of_a_word(line, found):
    assert candidates(line) == found


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_a_value():
    """bash splits a word at =, so that only the part after it is replaced."""
    typed = "python main.py optimizer=mu"
    ask = f"COMP_LINE='{typed}'; COMP_POINT={len(typed)}; _linnaeus_complete; echo \"${{COMPREPLY[@]}}\"; complete -p linnaeus"
    script = f'eval "$({sys.executable} main.py --shell-completion bash)"; {ask}'
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[0] == "muon" and "_linnaeus_complete" in done.stdout.splitlines()[1], done.stderr
