"""`make fuzz`: mutate settings, manifests, photographs, archives, bundles and requests, and check how each ends.

    python -m tests.faults.fuzz overrides --count 1000
    python -m tests.faults.fuzz manifests --count 2000
    python -m tests.faults.fuzz photographs --count 1000
    python -m tests.faults.fuzz archives --count 7000
    python -m tests.faults.fuzz bundles --count 4000
    python -m tests.faults.fuzz requests --count 5000
    python -m tests.faults.fuzz completions --count 100

A start must end within `TIMEOUT` seconds and `MEMORY` bytes, with status 0, or with status 2 and one line. It prints no traceback, and with
status 2 it writes nothing. Every row of a manifest that is accepted is used or counted as left out. Every photograph that Pillow refuses
to decode completely is in quarantine.jsonl. An archive of any format is read within `READ_TIMEOUT` seconds and `READ_MEMORY` bytes: its
records and those left out sum to those written, and each of its photographs is decoded or counted as damaged. A bundle gives answers
under the names of its tree in every format, or one line; nothing of it is executed, and no file outside of it is opened. Every request
has an answer of one line or the prediction, and the service ends with an empty stderr. Each case of `completions` is 1,000 requests; every
one has full legal builds that contain the given gear and reach the points, or a reason.

Cases are functions of `--seed` and their number; failures are printed with the case that repeats them (`--only NUMBER`).
"""

import argparse
import contextlib
import functools
import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy import manifest
from linnaeus.workloads.taxonomy.observations import UndecodableImage
from linnaeus.workloads.taxonomy.store import store_source
from tests import fork_server, runs
from tests.faults import archives as mutated_archives
from tests.faults import bundles as mutated_bundles
from tests.faults import gear_requests, http_requests, mutations
from tests.faults.isolated import isolated
from tests.workloads.taxonomy.sources.conftest import left_out

TIMEOUT = 120.0  # seconds of a start; an idle core takes about 1
MEMORY = 6 << 30  # bytes of data of a process
MAX_LINE = 1000  # characters of an error message
SMALL = ("data.train_samples=96", "data.validation_samples=32", "trainer.length=2steps", "lr_scheduler.warmup=0steps")
COUNTS = re.compile(r"([\d,]+) training and ([\d,]+) validation rows?")
WARM = {"archives": mutated_archives.warm, "bundles": mutated_bundles.warm, "completions": gear_requests.warm}  # once, before all cases
LEFT_OUT = re.compile(r"(\d+) rows? left out: ")


@dataclass(frozen=True)
class Ending:
    """End of a start: exit status (None: it did not end in time), output, and the files under its run.root."""

    status: int | None
    out: str
    err: str
    files: tuple[str, ...]

    def failures(self, trained: bool = False) -> list[str]:
        """Return the rules that this start has broken. A run that has `trained` may end with status 1 and one line: it diverged."""
        found = []
        if self.status is None:
            return [f"no end within {TIMEOUT:.0f} s"]
        if "Traceback" in self.out + self.err:
            found.append("a traceback")
        if self.status not in ((0, 1, 2) if trained else (0, 2)):
            found.append(f"exit status {self.status}")
        lines = self.err.strip().splitlines()
        if self.status in (1, 2) and not trained and (len(lines) != 1 or len(lines[0]) > MAX_LINE):
            found.append(f"{len(lines)} lines on stderr, the longest of {max(map(len, lines), default=0)} characters")
        if self.status == 2 and self.files and not trained:
            found.append(f"status 2, and {len(self.files)} files were written: {self.files[0]}")
        if any(ord(c) < 32 and c not in "\n\t" for c in self.out + self.err):
            found.append("control characters on the terminal")
        return found


def start(folder: Path, *settings: str) -> Ending:
    """Start `main.py` with `settings` and a run.root below `folder`, and wait for its end."""
    root = folder / "runs"
    command = [sys.executable, "main.py", f"run.root={root}", "trainer.threads=1", "trainer.device=cpu", *settings]
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = fork_server.Popen(command, cwd=fork_server.ROOT, stdout=out, stderr=err, start_new_session=True)
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (MEMORY, MEMORY))
        try:
            status: int | None = process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = None
    texts = [(folder / name).read_text(errors="replace") for name in ("out", "err")]
    files = tuple(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()) if root.exists() else ()
    return Ending(status, texts[0], texts[1], files)


def overrides(number: int, seed: int, folder: Path) -> tuple[str, list[str]]:
    """Check the plan of a run with up to three mutated settings; if it is accepted, train two updates. Return the case and its failures."""
    settings = mutations.settings(seed, number)
    small = [text for text in SMALL if not any(f"{text.partition('=')[0]}=" in setting for setting in settings)]
    failures = start(folder, "plan=true", *small, *settings).failures()
    if not failures and (folder / "runs").exists():
        failures = [f"trained: {failure}" for failure in start(folder, *small, *settings).failures(trained=True)]
    return " ".join(map(repr, settings)), failures


def manifests(number: int, seed: int, folder: Path) -> tuple[str, list[str]]:
    """Check the plan of a run on a mutated manifest, and that no row is missing in its counts."""
    path, case, rows = mutations.manifest(seed, number, folder)
    ending = start(folder, "plan=true", "data=manifest", f"data.path={path}", "data.max_bad_fraction=0.9", "data.image_size=32")
    failures = ending.failures()
    if ending.status == 0 and rows is not None:
        used = [int(count.replace(",", "")) for match in COUNTS.finditer(ending.out) for count in match.groups()]
        left_out = [int(match[1]) for match in LEFT_OUT.finditer(ending.out)]
        if sum(used) + sum(left_out) != rows:
            failures.append(f"{rows} rows, but {used} used and {left_out} left out")
    return case, failures


def photographs(count: int, seed: int, folder: Path) -> tuple[str, list[str]]:
    """Train one epoch on `count` mutated photographs of every format. Check that those Pillow refuses are the ones in quarantine.jsonl."""
    path, refused = mutations.photographs(seed, count, folder)
    settings = ["data=manifest", f"data.path={path}", "data.max_bad_fraction=0.99", "data.image_size=32", "data.split_column=split"]
    ending = start(folder, *settings, "trainer.length=1epochs", "trainer.global_batch_size=32", "schedule.validate=[]", "model=mformer")
    failures = ending.failures()
    quarantined = set()
    for file in (folder / "runs").rglob("quarantine.jsonl"):
        quarantined |= {json.loads(line)["id"] for line in file.read_text().splitlines()}
    missed = sorted(refused - quarantined)
    if missed:
        failures.append(f"{len(missed)} of {len(refused)} damaged files are not in quarantine.jsonl: {missed[:3]}")
    return f"{count} photographs, {len(refused)} refused by Pillow, {len(quarantined)} in quarantine.jsonl", failures


def archives(number: int, seed: int, folder: Path) -> tuple[str, list[str]]:
    """Read a mutated archive in a separate process. Return the case and its failures."""
    return isolated(mutated_archives.case, wrong_records, number, seed, folder)


def bundles(number: int, seed: int, folder: Path) -> tuple[str, list[str]]:
    """Predict with a mutated bundle in a separate process. Return the case and its failures."""
    return isolated(mutated_bundles.case, mutated_bundles.failures, number, seed, folder)


def wrong_records(case: mutated_archives.Case) -> list[str]:
    """Return the rules that reading the archive breaks."""
    try:
        config = runs.composed(case.settings).data
        source = (store_source if config.name == "store" else manifest).build_source(config)
    except ConfigError as error:
        text = str(error)
        return [f"an error of {len(text)} characters: {text!r}"] if "\n" in text or len(text) > MAX_LINE else []
    total = len(source.ids) + sum(source.excluded.values())
    failures = [] if case.rows in (None, total) else [f"{case.rows} records, but {len(source.ids)} used and {source.excluded}"]
    named = sum(int(number) for _, _, number in left_out(source.excluded))
    if named != sum(source.excluded.values()):
        failures.append(f"{source.excluded}, but left_out.csv has {named} records")
    for sample in range(len(source.ids)):
        with contextlib.suppress(UndecodableImage):
            (image,) = source.images.read(np.array([sample]))
            if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
                failures.append(f"photograph {sample} is {image.dtype} {image.shape}")
    return failures


def many(check: Callable[[int, int, Path], tuple[str, list[str]]], numbers: range, seed: int, jobs: int) -> int:
    """Run the cases and print the failures. Return the number of cases that failed."""
    kinds: Counter[str] = Counter()

    def one(number: int) -> int:
        folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        try:
            case, failures = check(number, seed, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if failures:
            print(f"{number}: {'; '.join(failures)}\n    {case[:2000]}", flush=True)
        kinds.update(failures)
        return bool(failures)

    mutations.known_keys()  # composed before the threads start: Hydra has one state for the process
    with ThreadPoolExecutor(jobs) as pool:
        failed = sum(pool.map(one, numbers))
    print(f"{len(numbers)} cases, {failed} failed")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("overrides", "manifests", "photographs", "archives", "bundles", "requests", "completions"))
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one case")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if options.kind == "photographs":
        return int(many(lambda number, seed, folder: photographs(options.count, seed, folder), range(1), options.seed, 1) > 0)
    numbers = range(options.count) if options.only is None else range(options.only, options.only + 1)
    if options.kind == "requests":
        with http_requests.service() as service:
            failed = many(functools.partial(http_requests.check, service), numbers, options.seed, options.jobs)
            return int(failed > 0 or service.get("/health").status != 200)
    checks = {"overrides": overrides, "manifests": manifests, "archives": archives, "bundles": bundles}
    check = (checks | {"completions": gear_requests.check})[options.kind]
    if options.kind in WARM:
        WARM[options.kind]()
    return int(many(check, numbers, options.seed, options.jobs) > 0)


if __name__ == "__main__":
    sys.exit(main())
