"""Run peers of a benchmark in separate processes and environments, so that their packages need not be installed with linnaeus.

An environment is created in a folder when it is first used, with exact versions. It can import the packages of the present interpreter
(torch, torchvision), which are not downloaded again; its own packages have precedence.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sysconfig
import tempfile
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path

from linnaeus.distributed.processes import KEPT

CHILD = Path(__file__).with_name("data_peers.py")
REQUIREMENTS = {
    "webdataset": ["webdataset==1.0.2"],
    "HF datasets": ["datasets==5.2.0"],
    "litdata": ["litdata==0.2.76"],
    "SPDL": ["spdl==0.8.0", "av==18.1.0"],  # av: for the libraries of FFmpeg in it
    "torchcodec": ["torchcodec==0.17.0"],
}
INSTALLED = "installed.txt"  # in an environment: its requirements, written last


class PeerFailed(Exception):
    """A peer could not be installed or did not run. The message is one line."""


class Peer:
    """A process that runs the loader of one peer. `seconds` raises `PeerFailed` if the process ends without an answer."""

    def __init__(self, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by `close`)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, bufsize=1, env=environment
        )

    def seconds(self) -> float:
        """Let the peer read all photographs once. Return the seconds per photograph that it reports."""
        answer = self._ask("\n")
        if not answer:
            status = self.process.wait()
            self.errors.seek(0)
            raise PeerFailed(_reason(self.errors.read()) or f"no answer, exit status {status}")
        return float(json.loads(answer)["seconds"])

    def close(self) -> None:
        """End the process. Its input is not closed for this, because worker processes that were forked meanwhile have it open too."""
        self._ask("end\n")
        self.process.wait()
        self.errors.close()

    def _ask(self, line: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended
            self.process.stdin.write(line)
        return self.process.stdout.readline()


@contextlib.contextmanager
def running_peers(root: Path | None, folders: Mapping[str, Path], prepared: Path, workers: int, crop: str) -> Iterator[dict[str, Peer]]:
    """Yield {name: peer} for each peer that completes a first pass, once for each of the named folders of photographs.

    Print the names of the other peers with the reason. `root`: folder of their environments; None: no peers. `prepared`: folder in which
    peers store photographs in their own formats."""
    if root is None:
        yield {}
        return
    peers = {}
    for name, (requirement, *_) in REQUIREMENTS.items():
        version = requirement.split("==")[1]
        try:
            python = make_environment(root, name)
            for number, (kind, folder) in enumerate(folders.items()):
                words = [name, str(folder), str(prepared / f"{name} {number}"), "--workers", str(workers), "--crop", crop]
                peer = Peer([str(python), "-P", str(CHILD), *words], variables(python))
                peer.seconds()
                peers[f"{name} {version}, {kind}"] = peer
        except (PeerFailed, OSError, subprocess.CalledProcessError) as reason:
            print(f"not measured: {name} ({reason})")
    try:
        yield peers
    finally:
        for peer in peers.values():
            peer.close()


def make_environment(root: Path, name: str) -> Path:
    """Return the Python interpreter of a peer's environment, which is created on first use.

    Raise `PeerFailed` or `CalledProcessError` if it cannot be created."""
    folder = root.absolute() / name.replace(" ", "_")
    python, installed, wanted = folder / "bin" / "python", folder / INSTALLED, "\n".join(REQUIREMENTS[name])
    if installed.exists() and installed.read_text() == wanted:
        return python
    print(f"installing {', '.join(REQUIREMENTS[name])} in {folder}", flush=True)
    venv.create(folder, clear=True, symlinks=True, with_pip=True)
    (_packages(folder) / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS[name]]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PeerFailed(_reason(done.stderr) or "pip failed")
    _name_libraries(_packages(folder) / "av.libs")
    installed.write_text(wanted)
    return python


def variables(python: Path) -> dict[str, str]:
    """Return the environment variables for a peer: no modules of this repository, no network, freed memory kept as in linnaeus, FFmpeg
    found."""
    libraries = _packages(python.parents[1]) / "av.libs"
    path = os.pathsep.join([str(libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    own = {"HF_HUB_OFFLINE": "1", "MALLOC_MMAP_THRESHOLD_": str(KEPT), "MALLOC_TRIM_THRESHOLD_": str(KEPT), "LD_LIBRARY_PATH": path}
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | own


def _packages(folder: Path) -> Path:
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))


def _name_libraries(folder: Path) -> None:
    """Create links such as `libavutil.so.60` to `libavutil-5809ad29.so.60.26.102` for all libraries, since SPDL looks for the first
    name."""
    for library in folder.glob("*-*.so.*"):
        stem, version = library.name.split(".so.")
        link = folder / f"{stem.rsplit('-', 1)[0]}.so.{version.split('.')[0]}"
        link.symlink_to(library.name)


def _reason(text: str) -> str:
    """Return the first error line in the output of a process, from which later ones follow; without an error line, the last line."""
    lines = [line.strip(" |") for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|ERROR): ", line)]
    return (errors[:1] or lines[-1:] or [""])[0][:300]
