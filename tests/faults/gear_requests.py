"""Random requests for `linnaeus complete`: whole ones, ones that no legal build meets, and ones with mistakes.

The network has random weights, because the rules must hold for any probabilities. Each case is a file of requests that is read, answered
and written as JSON; the checks read that JSON and use nothing of the program's own rules for builds.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus.workloads.loadout.complete_cli import as_json, as_text
from linnaeus.workloads.loadout.completion.gear_requests import read_requests
from linnaeus.workloads.loadout.game.abilities import ABILITIES, MAIN_ONLY, PIECE_OF, PIECES, STANDARD
from linnaeus.workloads.loadout.game.token_code import CODES
from linnaeus.workloads.loadout.game.weapons import builtin_weapons
from linnaeus.workloads.loadout.model.set_transformer import build_set_transformer
from linnaeus.workloads.loadout.trained.loadout_model import LoadoutModel
from tests import runs

REQUESTS = 1000  # in a case
METHODS = (("direct", 3), ("direct", 1), ("closure", 1), ("direct", 12), ("beam", 2))  # with the number of answers, in turn
TEXTS = ("", "swim: main", "swim_speed_up", "swim_speed_up: top", "haunt: sub", ",;,", "comeback: main main", "\x1b[31m: main", "ü: sub")
VALUES = (-1, 0, 3, 57, 58, 2.5, True, None, "12", [3], 1 << 70)


def check(number: int, seed: int, folder: Path, size: int = REQUESTS) -> tuple[str, list[str]]:
    """Answer `size` random requests. Return the case and its failures."""
    rng = np.random.default_rng([seed, number])
    entries = [entry(rng) for _ in range(size)]
    (folder / "requests.jsonl").write_text("".join(json.dumps(each) + "\n" for each in entries))
    model, (method, top) = network(sorted(CODES)[number % 2]), METHODS[number // 2 % len(METHODS)]
    requests = read_requests(folder / "requests.jsonl", model.weapons)
    failures, unmet = [], 0
    for asked, request, answers in zip(entries, requests, model.answers(requests, method, top), strict=True):
        as_text(request, answers, model.weapons)
        found = json.loads(json.dumps(as_json(request, answers, model.weapons)))
        unmet += "reason" in found
        failures += [f"{failure}: {json.dumps(asked)}" for failure in wrong_answer(asked, found, top)]
    return f"{method}, {size} requests, {unmet} of them with a reason", failures


def warm() -> None:
    """Build the networks before the threads of the cases start: Hydra has one state for the process."""
    for code in CODES:
        network(code)


@functools.cache
def network(code: str) -> LoadoutModel:
    config = runs.composed(["workload=loadout", f"data.code={code}", "model.width=32"])
    weapons, tokens = builtin_weapons(), CODES[code]()
    return LoadoutModel(build_set_transformer(config.model, 0, tokens, len(weapons)), tokens, weapons, "random weights")


def entry(rng: np.random.Generator) -> dict[str, Any]:
    """Return a request as a line of a file has it."""
    weapons = builtin_weapons()
    keys = (*weapons.keys, "45", "N-ZAP '85", "hero shot replica")
    found: dict[str, Any] = {"weapon": str(rng.choice(keys)) if rng.random() < 0.98 else "bow\n"}
    if rng.random() < 0.8:
        found["have"] = gear(rng)
    if rng.random() < 0.4:
        names = [str(name) for name in rng.choice(ABILITIES, rng.integers(1, 5), replace=False)]
        found["points"] = {name: 10 if name in PIECE_OF else int(rng.integers(0, 25)) for name in names}
        if rng.random() < 0.05:
            found["points"][names[0] if rng.random() < 0.7 else "swim"] = VALUES[rng.integers(len(VALUES))]
    return found


def gear(rng: np.random.Generator) -> str:
    """Return gear as text, of which about a tenth is not legal."""
    if rng.random() < 0.02:
        return TEXTS[rng.integers(len(TEXTS))]
    careless = rng.random() < 0.1
    mains, subs = rng.integers(0, 5 if careless else 4), rng.integers(0, 12 if careless else 10)
    parts: dict[str, list[str]] = {}
    for piece in rng.permutation(PIECES)[:mains]:
        names = [*MAIN_ONLY[str(piece)], *STANDARD] if not careless else ABILITIES
        parts.setdefault(str(rng.choice(names)), []).append("main")
    favourites = rng.choice(STANDARD, 3)
    for _ in range(subs):
        parts.setdefault(str(rng.choice(favourites)), []).append("sub")
    return ", ".join(f"{name}: {' '.join(words)}" for name, words in parts.items())


def wrong_answer(asked: dict[str, Any], found: dict[str, Any], top: int) -> list[str]:
    """Return the rules that the answer `found` to the request `asked` breaks, both as JSON values."""
    if "reason" in found:
        text = found["reason"]
        good = text and "\n" not in text and text.isprintable() and len(text) < 300
        return [] if good and not found["builds"] else [f"a reason of {len(text)} characters: {text!r}"]
    failures, builds = [], [each["gear"] for each in found["builds"]]
    if not 1 <= len(builds) <= top:
        failures.append(f"{len(builds)} builds of at most {top}")
    if len({json.dumps(build) for build in builds}) < len(builds):
        failures.append("the same build twice")
    given = slots_of(asked.get("have", ""))
    for build in builds:
        failures += _wrong_build(build)
        slots = Counter((part["main"], "main") for part in build.values())
        slots += Counter((sub, "sub") for part in build.values() for sub in part["subs"])
        if given - slots:
            failures.append(f"given gear is changed: {dict(given - slots)}")
        points = {name: 10 * slots[name, "main"] + 3 * slots[name, "sub"] for name in ABILITIES}
        failures += [f"{name} has {points[name]} points" for name, least in asked.get("points", {}).items() if points[name] < least]
    return failures


def _wrong_build(build: dict[str, dict[str, Any]]) -> list[str]:
    if tuple(build) != PIECES or any(len(part["subs"]) != 3 for part in build.values()):
        return [f"the pieces {build}"]
    wrong = [part["main"] for piece, part in build.items() if part["main"] not in (*MAIN_ONLY[piece], *STANDARD)]
    wrong += [sub for part in build.values() for sub in part["subs"] if sub not in STANDARD]
    return [f"{name} in a slot that it does not fit" for name in wrong]


def slots_of(text: str) -> Counter[tuple[str, str]]:
    """Return (ability, main or sub) of each slot in the text of a request."""
    parts = (part.partition(":") for part in text.split(",") if part.strip())
    return Counter((name.strip(), word) for name, _, words in parts for word in words.split())
