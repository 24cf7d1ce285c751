"""Watch a process by an audit hook of Python: the files that it opens outside of its folders, and all that would run foreign code.

python -m tests.faults.watched FOLDER MODULE [ARGUMENTS...]    runs MODULE, which may read FOLDER; what it must not do is on stderr
"""

import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = tuple(os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, ROOT, "/proc", "/sys", "/dev/null", "/dev/urandom"))
RUNNING = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.spawn", "pickle.find_class", "ctypes.dlopen")
CONNECTING = ("socket.connect", "urllib.Request")


def watch(folders: Sequence[Path], report: Callable[[str], Any]) -> None:
    """Report, until the end of the process, each file that is opened outside of `folders` and of the program, each program that is
    started, each class of a pickle, and each connection."""
    allowed = (*PROGRAM, *(os.path.realpath(folder) for folder in folders))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if not any(path == own or path.startswith(f"{own}/") for own in allowed):
                report(f"opened {path}")
        elif event in RUNNING or event in CONNECTING:
            report(f"{event} {arguments!r:.200}")

    sys.addaudithook(hook)


if __name__ == "__main__":
    folder, module, *rest = sys.argv[1:]
    sys.argv = [module, *rest]
    watch([Path(folder)], lambda line: print(line, file=sys.stderr, flush=True))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
