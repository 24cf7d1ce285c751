"""`make torture N=200`: kill runs at every named place, start them again, compare their results, and print a table by place.

    python -m tests.faults.torture --kills 200 --jobs 2 --out /tmp/torture

The same command given again repeats only the runs that have failed or are missing. The folder of a run that failed stays, with the log of
each launch; its kills are in `results.jsonl` beside it. The exit status is 1 after any failure.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.faults.launch import Chain, launch, run_through
from tests.faults.places import GROUPS
from tests.faults.plan import Reference, Run, make_plan
from tests.faults.settings import FEW, WORKLOADS, Setting
from tests.faults.spec import append, read_rows

KINDS = ("tree", "agent", "rank")


def main() -> int:
    options = parse()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    pairs = [(workload, processes) for processes in (1, 2, 3) for workload in WORKLOADS if workload not in FEW or processes < 3]
    references = {pair: reference_of(Setting(*pair, 0), out) for pair in pairs if options.only in ("", pair[0])}
    plan = make_plan(options.kills, references, options.seed)
    done = {row["name"]: row for row in read_rows(out / "results.jsonl") if not row["failures"]}
    todo = [run for run in plan if name_of(run) not in done]
    print(f"{sum(len(run.kills) for run in plan)} kills in {len(plan)} runs, {len(plan) - len(todo)} of them done before", flush=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        for future in as_completed([pool.submit(carry_out, run, out) for run in todo]):
            row = future.result()
            done[row["name"]] = row
            append(out / "results.jsonl", row)
            verdict = "; ".join(row["failures"]) or "the same to the bit"
            print(f"[{len(done)}/{len(plan)}] {row['setting']}, {len(row['kills'])} kills, {row['seconds']:.0f} s: {verdict}", flush=True)
    rows = [done[name_of(run)] for run in plan]
    print(table(rows))
    print(f"{time.monotonic() - start:.0f} s with {options.jobs} at a time; {out / 'results.jsonl'}")
    failed = [row for row in rows if row["failures"]]
    for row in failed:
        print(f"FAILED {row['folder']}: {'; '.join(row['failures'])}")
    return 1 if failed else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kills = "at least so many, and 8 each of runs from a store, of dictionaries and of sets of gear; from 200 on 8 at every place"
    parser.add_argument("--kills", type=int, default=200, help=kills)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", default="/tmp/linnaeus-torture", help="where the runs go")
    parser.add_argument("--only", default="", help="one of vectors, biota, store, dictionary and loadout: no other runs")
    parser.add_argument("--seed", type=int, default=0, help="of the plan")
    return parser.parse_args()


def reference_of(setting: Setting, out: Path) -> Reference:
    """Return the places that the uninterrupted run passed. Execute it unless its directory is complete."""
    root = reference_root(setting, out)
    run = setting.directory(root)
    if not (root / "complete").exists():
        shutil.rmtree(root, ignore_errors=True)
        began = time.time()
        made = launch(setting, root, trace=root / "trace")
        assert made.status == 0, f"the uninterrupted run failed: {made.log}"
        started = (run / "launches" / "1").stat().st_mtime
        append(root / "complete", {"before": started - began, "after": (run / "summary.json").stat().st_mtime - started})
    hits = [hit for path in sorted((root / "trace").glob("rank*.jsonl")) for hit in read_rows(path)]
    return Reference(hits, **read_rows(root / "complete")[0])


def reference_root(setting: Setting, out: Path) -> Path:
    """Return the folder of the uninterrupted run of a workload and a number of processes. Loader workers change nothing."""
    return out / f"uninterrupted-{setting.workload}-{setting.processes}"


def name_of(run: Run) -> str:
    """Return a name that depends on the setting and the kills."""
    return f"{run.setting}-{hashlib.sha256(repr(run.kills).encode()).hexdigest()[:10]}"


def carry_out(run: Run, out: Path) -> dict[str, Any]:
    """Execute a run with its kills and return its row of results. Delete its folder if there is no failure."""
    root, start = out / name_of(run), time.monotonic()
    shutil.rmtree(root, ignore_errors=True)
    try:
        chain = run_through(run.setting, run.kills, root, reference_root(run.setting, out))
    except Exception as error:  # one run must not end the others; the error is in the results
        chain = Chain(failures=[f"{type(error).__name__}: {error}"])
    kills = [{"group": run.group(kill), "kind": kill.aim.kind, **asdict(kill)} for kill in run.kills]
    row = {"name": name_of(run), "setting": str(run.setting), "processes": run.setting.processes, "kills": kills}
    row |= {"landed": chain.landed, "launches": [asdict(found) for found in chain.launches], "failures": chain.failures}
    if not chain.failures:
        shutil.rmtree(root)
    return {**row, "folder": str(root), "seconds": time.monotonic() - start}


def table(rows: list[dict[str, Any]]) -> str:
    """Return a table of the kills by place: planned, landed, and in runs with equal bits; then their kinds."""
    planned, landed, same = Counter[tuple[str, int]](), Counter[str](), Counter[str]()
    kinds = Counter[str]()
    for row in rows:
        for number, kill in enumerate(row["kills"]):
            planned[kill["group"], row["processes"]] += 1
            kinds[kill["kind"]] += 1
            landed[kill["group"]] += number < len(row["landed"])
            same[kill["group"]] += not row["failures"]
    lines = [f"{'place':28}{'planned on 1':>14}{'on 2':>6}{'on 3':>6}{'all':>6}{'landed':>8}{'the same':>10}"]
    for group in GROUPS:
        counts = [planned[group, processes] for processes in (1, 2, 3)]
        lines.append(f"{group:28}{counts[0]:>14}{counts[1]:>6}{counts[2]:>6}{sum(counts):>6}{landed[group]:>8}{same[group]:>10}")
    sums = [sum(number for (_, on), number in planned.items() if on == processes) for processes in (1, 2, 3)]
    total = f"{sums[0]:>14}{sums[1]:>6}{sums[2]:>6}{sum(sums):>6}{landed.total():>8}{same.total():>10}"
    lingered = max(launch["lingered"] for row in rows for launch in row["launches"])
    with_workers = sum(len(row["kills"]) for row in rows if not row["setting"].endswith("-0-workers"))
    spread = ", ".join(f"{kinds[kind]} by {kind}" for kind in KINDS)
    left = f"no process was left {lingered:.1f} s after the end of any launch"
    return "\n".join([*lines, f"{'all':28}{total}", f"{spread}; {with_workers} with loader workers", left])


if __name__ == "__main__":
    sys.exit(main())
