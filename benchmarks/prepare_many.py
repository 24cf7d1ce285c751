"""Measure memory, rate and restarts of `linnaeus prepare` with many small photographs.

    python -m benchmarks.prepare_many                       200,000 records and 50 kills: about 20 minutes on 2 cores, 2 GB of disk
    python -m benchmarks.prepare_many --records 1000000     9 GB of disk
    python -m benchmarks.prepare_many --source webdataset   tar files instead of a CSV and a file for each photograph
    python -m benchmarks.prepare_many --quick               a short trial; no verdict on memory and rate

The photographs are JPEGs of 128 x 96 pixels, all different, and are stored with a short side of 64. N / 10 records and N records are
prepared. The growth per record is the difference of the peak memories divided by the difference of the numbers of records; it is computed
for the first process and for the workers. The memory is the resident memory without mapped files, read 20 times a second. The temporary
files with the arrays of the records, in the folder of TMPDIR, are mapped files. Bars: 100 bytes in the first process, and 10 in a worker.

The rate is N divided by the wall seconds of the whole command. It is compared with the rate of the functions that decode and encode
alone, on bytes in memory, in as many processes. That rate is measured before and after the command. Bar: 0.8.

The preparation of N / 10 records is killed after a random time, with all its processes, and started again, until it is complete; this is
repeated from an empty folder until the number of kills is reached. Bar: every store has the same bytes as the one that was not killed.
"""

from __future__ import annotations

import hashlib
import io
import json
import multiprocessing
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from threading import Barrier
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from benchmarks.interleaved import arguments, conclude
from linnaeus.workloads.taxonomy.store.encoding import Encoding

SIZE, BASES, SHORT_SIDE, QUALITY = (128, 96), 256, 64, 90
TAXA, FOLDER = 2_000, 1_000  # photographs of a folder or tar file
RECORDS, KILLS = 200_000, 50
GROWTH, WORKER_GROWTH, RATE = 100, 10, 0.8  # bars
JUDGED = 100_000  # records; the rate of fewer is that of the start
MEMORY_JUDGED = 1_000_000  # columns of up to 65,536 distinct cells are Python objects, 200 bytes each
SECONDS = 10.0  # of decoding and encoding alone


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="500 records and 1 kill")
    parser.add_argument("--records", type=int, default=RECORDS, help="N (%(default)s)")
    parser.add_argument("--kills", type=int, default=KILLS, help="of the preparation of N / 10 records (%(default)s)")
    parser.add_argument("--source", choices=("manifest", "webdataset"), default="manifest", help="of the photographs (%(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="that decode and encode (%(default)s)")
    options = parser.parse_args()
    records, kills = (500, 1) if options.quick else (options.records, options.kills)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        few, many = (
            Preparation(make_source(root / str(count), count, options.source), root / f"store {count}", options.processes)
            for count in (records // 10, records)
        )
        table = compare(few, many, records, options.quick)
        table["bars"] += restarts(few, kills, table["few"]["wall_seconds"])
    print()
    for bar in table["bars"]:
        print(f"  {bar['variant']}: {bar['found']:.3g}, bar {bar['at_most']:g}: {bar['verdict']}")
    return conclude([table], options.json)


def pictures() -> Iterator[bytes]:
    """Yield different JPEGs of `SIZE` without end. Copies of a few base images differ in three entries of the quantisation table."""
    rng = np.random.default_rng(0)
    bases = []
    for _ in range(BASES):
        coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize(SIZE, Image.Resampling.BICUBIC)
        pixels = np.asarray(coarse, np.int16) + rng.integers(-8, 9, (SIZE[1], SIZE[0], 3))
        content = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(content, "JPEG", quality=QUALITY)
        bases.append(bytearray(content.getvalue()))
    number = 0
    while True:
        for base in bases:
            place = base.index(b"\xff\xdb") + 5  # the mark, the length and the number of the table come before the entries
            base[place : place + 3] = (2 + number % 16, 2 + number // 16 % 16, 2 + number // 256 % 254)
            yield bytes(base)
        number += 1


def make_source(folder: Path, count: int, source: str) -> list[str]:
    """Write `count` photographs with their taxa and places to `folder`. Return the arguments of `linnaeus prepare` that read them."""
    folder.mkdir()
    photographs, lines = pictures(), []
    for start in range(0, count, FOLDER):
        numbers = range(start, min(start + FOLDER, count))
        rows = [(f"{start // FOLDER:05d}/{number:08d}", _record(number), data) for number, data in zip(numbers, photographs, strict=False)]
        if source == "webdataset":
            with tarfile.open(folder / f"{start // FOLDER:05d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
                for name, record, data in rows:
                    _add(tar, f"{name}.jpg", data)
                    _add(tar, f"{name}.json", json.dumps(record).encode())
            continue
        (folder / f"{start // FOLDER:05d}").mkdir()
        for name, record, data in rows:
            (folder / f"{name}.jpg").write_bytes(data)
            lines.append(",".join([f"{name}.jpg", *map(str, record.values())]))
    if source == "manifest":
        (folder / "manifest.csv").write_text("\n".join([",".join(["path", *_record(0)]), *lines, ""]))
    return [source, f"data.path={folder / 'manifest.csv' if source == 'manifest' else folder}"]


def _record(number: int) -> dict[str, Any]:
    taxon = number * 7919 % TAXA
    place = {"latitude": round(number * 0.6180339887 % 140 - 70, 5), "longitude": round(number * 0.7548776662 % 360 - 180, 5)}
    found = {"date": f"20{number % 20:02d}-06-{number % 28 + 1:02d}", "observer": f"observer {number // 20}"}
    return {"genus": f"Genus{taxon // 5}", "species": f"Genus{taxon // 5} species{taxon}", **place, **found}


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


class Preparation(NamedTuple):
    """A `linnaeus prepare` command that writes the store `store`."""

    source: list[str]
    store: Path
    processes: int

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command in a new process group."""
        source, *settings = self.source
        options = [f"--short-side={SHORT_SIDE}", f"--quality={QUALITY}", f"--processes={self.processes}"]
        command = [sys.executable, "-m", "linnaeus", "prepare", source, str(self.store), *settings, *options]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)

    def run(self) -> dict[str, float]:
        """Run the command to its end.

        Return its seconds (wall and CPU), and the peak memory in bytes of its first process and of a worker."""
        start, peak = time.monotonic(), dict[int, int]()
        process = self.start()
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            for pid in [process.pid, *children(process.pid)]:
                peak[pid] = max(peak.get(pid, 0), resident(pid))
            time.sleep(0.05)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"linnaeus prepare ended with {process.returncode}")
        first = peak.pop(process.pid)
        seconds = {"wall_seconds": wall, "cpu_seconds": usage.ru_utime + usage.ru_stime}
        return {**seconds, "first_process": first, "worker": max(peak.values(), default=0)}

    def content(self) -> dict[str, str]:
        """Return {path in the store: hash of the file}."""
        files = (path for path in sorted(self.store.rglob("*")) if path.is_file())
        return {str(path.relative_to(self.store)): hashlib.blake2b(path.read_bytes()).hexdigest() for path in files}


def children(pid: int) -> list[int]:
    """Return the ids of the child processes that any thread of the process `pid` has started."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in path.read_text().split()]
        except OSError:  # the thread has ended
            continue
    return found


def resident(pid: int) -> int:
    """Return the resident memory of a process in bytes, without mapped files such as libraries; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)


def compare(few: Preparation, many: Preparation, records: int, quick: bool) -> dict[str, Any]:
    """Run both preparations. Print memory and rate, and return the table with its bars."""
    small = few.run()
    codec = [] if quick else [alone(few.processes, SECONDS)]
    large = many.run()
    codec.append(alone(few.processes, 0.1 if quick else SECONDS))
    growth = {name: (large[name] - small[name]) / (records - records // 10) for name in ("first_process", "worker")}
    rate, codec_rate = records / large["wall_seconds"], statistics.mean(rate for rate, _ in codec)
    cpu = large["cpu_seconds"] / records / statistics.mean(cpu for _, cpu in codec)
    for name, found in growth.items():
        print(f"{name.replace('_', ' ')}: {small[name] / 2**20:.0f} and {large[name] / 2**20:.0f} MiB, {found:.1f} bytes per record")
    print(f"{records:,} records in {large['wall_seconds']:.1f} s: {rate:,.0f}/s; decoding and encoding alone: {codec_rate:,.0f}/s")
    print(f"CPU of all processes: {1e6 * large['cpu_seconds'] / records:.0f} us per record, {cpu:.2f} of decoding and encoding alone")
    bars = [
        _bar("bytes per record, first process", growth["first_process"], GROWTH, records, MEMORY_JUDGED),
        _bar("bytes per record, worker", growth["worker"], WORKER_GROWTH, records, MEMORY_JUDGED),
        _bar("rate of decoding and encoding alone, over that of the command", codec_rate / rate, 1 / RATE, records, JUDGED),
    ]
    title = f"{records:,} records of {few.source[0]}, {few.processes} processes"
    return {"title": title, "few": small, "many": large, "rate": rate, "codec": codec, "cpu": cpu, "growth": growth, "bars": bars}


def _bar(name: str, found: float, most: float, records: int = 0, judged: int = 0) -> dict[str, Any]:
    verdict = ("held" if found <= most else "MISSED") if records >= judged else f"no verdict under {judged:,} records"
    return {"variant": name, "found": found, "at_most": most, "verdict": verdict}


def alone(processes: int, seconds: float) -> tuple[float, float]:
    """Decode and encode photographs in `processes` processes for `seconds`. Return (photographs per second, CPU seconds per photograph)."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _set_barrier, (context.Barrier(processes),)) as pool:
        found = [future.result() for future in [pool.submit(_encode, seconds) for _ in range(processes)]]
    return sum(rate for rate, _ in found), statistics.mean(cpu for _, cpu in found)


_barrier: Barrier


def _set_barrier(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier


def _encode(seconds: float) -> tuple[float, float]:
    """Decode and encode photographs for `seconds` in this process. Return (photographs per second, CPU seconds per photograph)."""
    encoding = Encoding("jpeg", SHORT_SIDE, QUALITY, 1 << 28)
    photographs = list(islice(pictures(), 8 * BASES))
    encoding.encode(photographs[0])
    _barrier.wait()
    start, cpu, done = time.monotonic(), time.process_time(), 0
    while time.monotonic() < start + seconds:
        for data in photographs:
            encoding.encode(data)
        done += len(photographs)
    return done / (time.monotonic() - start), (time.process_time() - cpu) / done


def restarts(prepared: Preparation, kills: int, seconds: float) -> list[dict[str, Any]]:
    """Kill the preparation `kills` times, each within `seconds` after a start, and let it finish.

    Return the bar on the bytes of the stores."""
    expected, rng = prepared.content(), random.Random(0)
    undisturbed, prepared = prepared, prepared._replace(store=prepared.store.with_name("disturbed"))
    assert undisturbed.source == prepared.source
    killed = complete = different = 0
    while killed < kills or prepared.store.exists():
        process = prepared.start()
        try:
            status = process.wait(rng.uniform(0, seconds) if killed < kills else None)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            killed += 1
            continue
        if status:
            raise SystemExit(f"linnaeus prepare ended with {status} after it was killed")
        complete, different = complete + 1, different + (prepared.content() != expected)
        shutil.rmtree(prepared.store)
    print(f"{killed} kills, {complete} stores complete, {different} of them with other bytes")
    return [_bar("stores with other bytes", different, 0)]


if __name__ == "__main__":
    sys.exit(main())
