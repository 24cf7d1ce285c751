"""Tab completion: the candidates for the last word, and the functions that bash, zsh and fish call."""

import contextlib
import os
import pty
import select
import shutil
import subprocess
import sys
import time
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
        ("python main.py trainer.compile=", ["trainer.compile=blocks", "trainer.compile=false", "trainer.compile=whole"]),
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


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes_groups_keys_values_and_files(tmp_path: Path):
    lines = ["linnaeus optimizer=mu", "python main.py trainer.max_g", "python main.p"]
    asked = "; ".join(f"complete -C '{line}'" for line in lines)
    script = f"{sys.executable} main.py --shell-completion fish | source; {asked}"
    environment = {**os.environ, "HOME": str(tmp_path)}
    command = ["fish", "--no-config", "-c", script]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["optimizer=muon", "trainer.max_grad_norm=", "main.py"], done.stderr


def typed_in_zsh(text: str, wanted: str, home: Path) -> str:
    """Type a line in zsh on a terminal. Return what the terminal shows until it shows `wanted`, or for a minute."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execvpe("zsh", ["zsh", "-f", "-i"], {**os.environ, "HOME": str(home), "TERM": "dumb", "PYTHONPATH": str(ROOT)})
    shown, sent, end = b"", False, time.monotonic() + 60
    os.write(terminal, f'eval "$({sys.executable} main.py --shell-completion zsh)"; echo read""y\n'.encode())
    with contextlib.suppress(OSError):
        while not (sent and wanted.encode() in shown) and time.monotonic() < end:
            if select.select([terminal], [], [], 0.5)[0]:
                shown += os.read(terminal, 65536)
            if b"ready" in shown and not sent:
                sent, shown = True, b""
                os.write(terminal, text.encode())
    os.close(terminal)
    os.waitpid(pid, 0)
    return shown.decode(errors="replace")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
@pytest.mark.parametrize(("text", "wanted"), [("linnaeus optimizer=mu\t", "optimizer=muon"), ("python main.p\t", "main.py")])
def test_zsh_completes_a_value_and_a_file(text: str, wanted: str, tmp_path: Path):
    assert wanted in typed_in_zsh(text, wanted, tmp_path)
