"""`make torture`, second part: kill `linnaeus prepare` at random instants until each store is complete, and compare its bytes.

    python -m tests.faults.kill_prepare --kills 50 --out /tmp/torture-prepare

A store that is complete is compared with one whose preparation was not killed, and another is begun, until there were so many kills.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from tests import fork_server

PHOTOGRAPHS = 4 * 1024 + 100  # five parts, the last of 100


def write_photographs(folder: Path, count: int) -> None:
    """Write `count` photographs of four species, links to eight files of noise, which takes long to decode, and a manifest with sites."""
    noise = np.random.default_rng(0)
    rows = ["path,species,site"]
    for i in range(count):
        path, first = folder / f"G{i % 4 // 2} s{i % 4}" / f"{i}.jpg", folder / f"G{i % 4 // 2} s{i % 4}" / f"{i % 8}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if path == first:
            Image.fromarray(noise.integers(0, 255, (400, 400, 3), dtype=np.uint8)).save(path)
        else:
            os.link(first, path)
        rows.append(f"{path.relative_to(folder)},{path.parent.name},site {i % 90}")
    (folder / "manifest.csv").write_text("\n".join(rows) + "\n")


def command(photographs: Path, store: Path) -> list[str]:
    """Return the command as a user types it."""
    given = ["manifest", str(store), f"data.path={photographs / 'manifest.csv'}", "--processes=2", "--short-side=32"]
    return [sys.executable, "-m", "linnaeus.commands.prepare", *given]


def launch(words: list[str], seconds: float | None = None) -> bool:
    """Start the command, and kill all its processes after `seconds`. Return True if it was killed before its end."""
    process = fork_server.Popen(words, cwd=fork_server.ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    try:
        _, error = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.killpg(process.pid, signal.SIGKILL)
        _, error = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), error.decode()
    return process.returncode != 0


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def kill(wanted: int, out: Path, photographs: int, seed: int = 0) -> int:
    """Kill preparations of `photographs` photographs `wanted` times. Return the number of stores, all with the same bytes.

    Raise AssertionError if one differs, or a preparation cannot go on."""
    draw = random.Random(seed)
    write_photographs(out / "photographs", photographs)
    begin = time.monotonic()
    launch(command(out / "photographs", out / "whole"))
    whole, duration = files(out / "whole"), time.monotonic() - begin
    kills = stores = 0
    while kills < wanted:
        words = command(out / "photographs", out / f"store{stores}")
        while launch(words, draw.uniform(0, duration)):
            kills += 1
            print(f"{kills} kills, {stores} stores", flush=True)
        assert files(out / f"store{stores}") == whole, f"store{stores} differs after {kills} kills"
        shutil.rmtree(out / f"store{stores}")
        stores += 1
    return stores


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--photographs", type=int, default=PHOTOGRAPHS)
    parser.add_argument("--out", type=Path, default=None, help="an empty folder; default: a temporary one")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.out) as folder:
        stores = kill(options.kills, Path(folder), options.photographs, options.seed)
    print(f"{options.kills} kills or more of `linnaeus prepare`: {stores} stores with the same bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
