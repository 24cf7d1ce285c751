"""Start Python commands by forking a server that has imported torch, instead of starting an interpreter for each.

    process = fork_server.Popen([sys.executable, "main.py", ...], env=..., stdout=...)    # as subprocess.Popen
    done = fork_server.run([sys.executable, "main.py", ...], cwd=...)                     # as subprocess.run

A process that imports torch, torch.distributed and torch._dynamo takes 3 s of CPU time, and 11 s on a slow machine. A fork of the server
takes 0.1 s and 0.5 s. Each process of pytest starts one server at the first use. The server has one thread, no CUDA and no open file. Its
children get the command line, environment, folder, files, session and signal handlers that `subprocess` would give them. Python commands
that a child starts (the ranks of torchrun, the trials of a sweep) are forked from that child.

Differences from a real start: PYTHONHASHSEED is that of the server, `sitecustomize` has already run (faults are armed in this module), and
objects are not destroyed at the end. Therefore the tests of the kills, the watchdog, each local launcher, the commands, the page on
plugins, the benchmarks and the end-to-end tests have one launch each that starts a real interpreter (`real=True`, `real=1`,
`subprocess`); that of the watchdog is slow.
Process groups, sweeps of fake runs and all other launches are forked.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import functools
import gc
import inspect
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
MARK = "LINNAEUS_TEST_MARK"  # environment variable by which the processes of a launch are found
FAULTS = "TESTS_FAULTS"  # tests/faults/spec.py
MARK_LENGTH = 32  # characters; those of the server are overwritten in its children
FILES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")  # parameters of `Popen._execute_child`

_execute = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]


def is_python(call: dict[str, Any]) -> bool:
    """Return True for a command that starts this interpreter with a file, `-m` or `-c`."""
    command = call["args"]
    return not isinstance(command, (str, bytes)) and command[0] == sys.executable and call["executable"] is None and not call["shell"]


def _job(call: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Popen._execute_child` that a child needs."""
    return {
        "command": [os.fspath(word) for word in call["args"]],
        "environment": dict(os.environ if call["env"] is None else call["env"]),
        "folder": os.path.abspath(call["cwd"] or os.curdir),
        "session": bool(call["start_new_session"]),
    }


def _files(call: dict[str, Any]) -> list[int]:
    """Return the standard files of the child: the given ones, otherwise those of this process."""
    return [number if number != -1 else own for own, number in enumerate(call[name] for name in ("p2cread", "c2pwrite", "errwrite"))]


# -- a process of pytest, the client of the server -------------------------------------------------------------------------------


class Popen(subprocess.Popen):
    """`subprocess.Popen` of a Python command, as a child of the server. `start_new_session` is supported, `preexec_fn` is not."""

    _status: socket.socket  # the server writes the pid, and the exit status when it has it

    def _execute_child(self, *arguments: Any, **keywords: Any) -> None:
        call = _execute.bind(self, *arguments, **keywords).arguments
        assert is_python(call) and call["preexec_fn"] is None, call["args"]
        self._status, theirs = socket.socketpair()
        server().submit(_job(call), [*_files(call), theirs.fileno()])
        theirs.close()
        self.pid = self._receive()
        self._child_created = True
        self._close_pipe_fds(*(call[name] for name in FILES))  # type: ignore[attr-defined]

    def _receive(self) -> int:
        text = self._status.recv(16)
        assert len(text) == 16, "the fork server has ended"
        return int(text)

    def _ended(self, seconds: float = 0.0) -> bool:
        return bool(select.select([self._status], [], [], seconds)[0])

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._ended():
            self.returncode = self._receive()
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            if not self._ended(3600.0 if timeout is None else max(timeout, 0.0)):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = self._receive()
        return self.returncode

    def __del__(self) -> None:
        """Do nothing, because the process ends with the server at the latest."""


def run(command: Sequence[str], check: bool = False, **keywords: Any) -> subprocess.CompletedProcess[str]:
    """Run a Python command to its end and capture its output, as `subprocess.run(command, capture_output=True, text=True)`."""
    with Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **keywords) as process:
        try:
            out, err = process.communicate(timeout=600)
        finally:
            process.kill()
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


class Server:
    """Server process and the socket to it. When the socket is closed, the server kills its children and ends."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", MARK: "-" * MARK_LENGTH}
        command = [sys.executable, "-m", "tests.fork_server", str(theirs.fileno())]
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()

    def submit(self, job: dict[str, Any], files: list[int]) -> None:
        assert job["environment"].get("OMP_NUM_THREADS", "1") == "1", "torch has read it already"
        text = json.dumps(job).encode()
        with open(os.memfd_create("job"), "r+b") as whole:  # a message is too short for an environment
            whole.write(text)
            whole.flush()
            socket.send_fds(self.socket, [b"job"], [whole.fileno(), *files])

    def close(self) -> None:
        self.socket.close()
        self.process.wait(30)


@functools.cache
def server() -> Server:
    """Return the server of this process. Start it at the first call."""
    found = Server()
    atexit.register(found.close)
    return found


# -- the server ------------------------------------------------------------------------------------------------------------------


def serve(number: int) -> None:
    """Fork a child for each job until the socket is closed. Does not return in a child."""
    import_everything()
    requests = socket.socket(fileno=number)
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which then closes the socket
    signal.set_wakeup_fd(wake)
    children: dict[int, int] = {}  # pid -> the file its exit status is written to
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1 and len(os.listdir("/proc/self/task")) == 1, threading.enumerate()
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 512)
            for pid, status in ended_children():
                os.write(children[pid], b"%16d" % status)
                os.close(children.pop(pid))
        if requests in ready:
            message, files, _, _ = socket.recv_fds(requests, 16, 8)
            if not message:
                break
            with open(files[0], "rb") as whole:
                whole.seek(0)
                job = json.load(whole)
            pid = os.fork()
            if pid == 0:
                become(job, files[1:4])
            os.write(files[4], b"%16d" % pid)
            children[pid] = files[4]
            for own in files[1:4]:
                os.close(own)
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def import_everything() -> None:
    """Import what runs import, and fill the caches of Hydra's parser, of `tests.runs.configuration` and of the record of a run."""
    import tempfile

    import PIL.Image  # noqa: F401
    import torch._dynamo
    import torch.distributed.elastic.multiprocessing.subprocess_handler
    import torch.distributed.nn.functional  # noqa: F401

    import linnaeus.train
    import linnaeus.workloads.taxonomy  # noqa: F401
    from linnaeus.rundir.run_record import environment_record
    from tests import group_member, quick_hydra, runs, watching  # noqa: F401

    with contextlib.suppress(ImportError):
        import optuna  # noqa: F401
    quick_hydra.install()
    environment_record()
    with tempfile.TemporaryDirectory() as folder:
        for workload in ("vectors", "biota"):
            runs.configuration(workload, Path(folder))


def ended_children() -> list[tuple[int, int]]:
    """Return (pid, exit status) of each child process that has ended since the last call."""
    found = []
    with contextlib.suppress(ChildProcessError):
        while (pair := os.waitpid(-1, os.WNOHANG))[0]:
            found.append((pair[0], os.waitstatus_to_exitcode(pair[1])))
    return found


# -- a forked child: becomes the command -----------------------------------------------------------------------------------------

_kept: list[Any] = []  # modules of the program before the fork: their files must not be closed under numbers that are in use again


def become(job: dict[str, Any], files: Sequence[int], nested: bool = False, ready: Callable[[], Any] | None = None) -> NoReturn:
    """Run the command of `job` in this process, which was just forked, and end with its exit status.

    `nested`: the parent process runs another command, which has imported and changed modules of the program."""
    status = 1
    try:
        if job["session"]:
            os.setsid()
        _reset_signals()
        _use_files(files)
        os.chdir(job["folder"])
        os.environ.clear()
        os.environ.update(job["environment"])
        _write_mark()
        if ready is not None:
            ready()
        if nested:
            atexit._clear()
        if nested or FAULTS in os.environ:
            for name in [
                name for name in sys.modules if name.partition(".")[0] in ("linnaeus", "tests", "main", "benchmarks") and name != __name__
            ]:
                _kept.append(sys.modules.pop(name))
        status = _run(job["command"])
    except BaseException:
        traceback.print_exc()
    finally:
        _end(status)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _use_files(files: Sequence[int]) -> None:
    """Use `files` as stdin, stdout and stderr of this process, and close all other files."""
    high = [fcntl.fcntl(number, fcntl.F_DUPFD, 10) for number in files]
    for own, number in enumerate(high):
        os.dup2(number, own)
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", buffering=1, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="backslashreplace", closefd=False)  # type: ignore[misc]  # noqa: SIM115


_mark_address: int | None = None  # of the server's own mark, found before the environment is changed


def _find_mark() -> None:
    global _mark_address
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    _mark_address = libc.getenv(MARK.encode())


def _write_mark() -> None:
    """Write this process's mark over the server's, in the memory that /proc/<pid>/environ shows."""
    if _mark_address is not None:
        mark = os.environ.get(MARK, "").encode()
        assert len(mark) <= MARK_LENGTH, mark
        ctypes.memmove(_mark_address, mark.ljust(MARK_LENGTH, b"-"), MARK_LENGTH)


def _run(command: list[str]) -> int:
    """Run a Python command as the interpreter does. Return its exit status."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    subprocess.Popen = subprocess_handler.Popen = ForkingPopen  # type: ignore[misc]
    sys.orig_argv = list(command)
    words = [word for word in command[1:] if word != "-u"]
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    sys.path[0:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    if FAULTS in os.environ:
        from tests.faults import aim

        aim.arm()
    try:
        if words[0] == "-m":
            sys.argv, sys.path[0:0] = words[1:], [os.getcwd()]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv, sys.path[0:0] = ["-c", *words[2:]], [""]
            exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv, sys.path[0:0] = words, [os.path.dirname(os.path.abspath(words[0]))]
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as leave:
        if leave.code is None or isinstance(leave.code, int):
            return leave.code or 0
        print(leave.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
    return 0


def _end(status: int) -> NoReturn:
    """End as the interpreter does, without the destruction of its objects."""
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status & 0xFF)


class ForkingPopen(subprocess.Popen):
    """`subprocess.Popen` in a child of the server. A Python command is forked from this process; other commands are started as usual."""

    def _execute_child(self, *arguments: Any, **keywords: Any) -> None:
        call = _execute.bind(self, *arguments, **keywords).arguments
        if not is_python(call):
            super()._execute_child(*arguments, **keywords)  # type: ignore[misc]
            return
        job = _job(call)
        self.pid = os.fork()
        if self.pid == 0:
            gc.freeze()
            become(job, _files(call), nested=True, ready=call["preexec_fn"])
        self._child_created = True
        self._close_pipe_fds(*(call[name] for name in FILES))  # type: ignore[attr-defined]


if __name__ == "__main__":
    from tests import fork_server

    fork_server._find_mark()
    fork_server.serve(int(sys.argv[1]))
    os._exit(0)  # the compiler's library prints a page when it is destroyed
