"""Keep the results of torch.compile in `<run>/compile_cache/`, so that the next launch of the run compiles in less time.

A file contains torch's own cache of the graphs of a launch: generated source code and the kernels of a GPU. Its name has the
versions and the device, so launches on several kinds of machines each have a file. torch also checks each entry against its own version and
the graph. On a CPU the entries do not contain machine code, which the C++ compiler makes again if torch's folder for temporary files does
not have it. A later launch executes the content of a file, so trust a file only as much as the rest of the run directory."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import re
from pathlib import Path

import torch

from linnaeus.errors import ConfigError, one_line
from linnaeus.files import remove_stale, write_atomic

log = logging.getLogger("linnaeus")


class CompileCache:
    """File of compiled graphs for this kind of machine in the folder `folder`. loaded: True if an earlier launch's file was loaded."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.machine = machine_name(device)
        self.path = folder / f"{re.sub(r'[^A-Za-z0-9.+]+', '-', self.machine)}.bin"
        self.loaded = False
        self._misses = cache_misses()  # before the last save

    def load(self) -> None:
        """Give the content of the file to torch. Call this before anything is compiled. Do nothing if the file does not exist. Log a
        warning, and load nothing, if it cannot be read, is damaged, or was made for other versions or another device."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("%s is not used: it cannot be read (%s)", self.path, error.strerror)
            return
        try:
            self.loaded = torch.compiler.load_cache_artifacts(self._checked(content)) is not None
            reason = "" if self.loaded else "torch cannot read it"
        except (ConfigError, OSError) as error:  # OSError: of torch's folder for temporary files
            reason = one_line(error)
        if reason:
            log.warning("%s is not used: %s", self.path, reason)

    def _checked(self, content: bytes) -> bytes:
        """Return torch's part of the content of a file. Raise `ConfigError` if it is damaged or of another kind of machine."""
        head, _, artifacts = content.partition(b"\n")
        try:
            found = json.loads(head)
        except ValueError:
            raise ConfigError("it is damaged") from None
        if not isinstance(found, dict) or found.get("digest") != hashlib.blake2b(artifacts).hexdigest():
            raise ConfigError("it is damaged")
        if found.get("machine") != self.machine:
            raise ConfigError(f"it was made for {found.get('machine')}, this is {self.machine}")
        return artifacts

    def save(self) -> bool:
        """Write what torch has cached in this launch, unless everything was found in caches and the file exists. Return True if the file
        was written. Raise `OSError` if it cannot be written."""
        misses = cache_misses()
        if misses == self._misses and self.path.exists():
            return False
        found = torch.compiler.save_cache_artifacts()
        if found is None:
            return False
        head = json.dumps({"machine": self.machine, "digest": hashlib.blake2b(found[0]).hexdigest()})
        self.path.parent.mkdir(exist_ok=True)
        remove_stale(self.path.parent)
        write_atomic(self.path, head.encode() + b"\n" + found[0])
        self._misses = misses
        return True


def machine_name(device: torch.device) -> str:
    """Return the versions and the device that compiled code depends on: "torch 2.11.0 python 3.11 NVIDIA H100 80GB HBM3 9.0"."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        kind = f"{torch.cuda.get_device_name(device)} {major}.{minor}"
    else:
        kind = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return f"torch {torch.__version__} python {'.'.join(platform.python_version_tuple()[:2])} {kind}"


def cache_misses() -> int:
    """Return the number of graphs that were compiled in this process because torch's caches did not have them."""
    from torch._dynamo.utils import counters

    return counters["inductor"]["fxgraph_cache_miss"] + counters["aot_autograd"]["autograd_cache_miss"]
