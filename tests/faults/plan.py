"""Which kills: spread evenly over the places, their steps, the ways to die and the loader workers, and packed into runs.

A run takes several kills one after the other. Each is aimed at a step later than the one before it, so that the launch it is aimed at
passes that step from its beginning, as the uninterrupted run did whose traces say what there is to aim at.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.faults.launch import Instant, Kill
from tests.faults.places import (
    BESIDE,
    BETWEEN,
    EPOCH_END,
    FILES,
    GROUPS,
    HOLDS,
    MASKED,
    NORMAL,
    PARTIAL,
    PLACES,
    RANDOM,
    RENAME,
    RESUME,
    STEP,
    WINDOW,
    Place,
    label,
)
from tests.faults.settings import FEW, STEPS, Setting
from tests.faults.spec import ANY, Fault

LEAST = {1: 8, 2: 8, 3: 1}  # kills at every place on so many processes, in a full plan
FEW_GROUPS = (STEP, FILES, NORMAL, RESUME, WINDOW, EPOCH_END, RANDOM, RENAME)  # a kill each, in a plan of any size
LONGEST = 5  # kills of one run
INSTANTS = 3  # kills of one run at any instant: each takes at most its share of the run's length


@dataclass(frozen=True)
class Reference:
    """An uninterrupted run: `hits` of every place it passed, seconds from its launch to its run directory and from there to its end."""

    hits: Sequence[dict[str, Any]]
    before: float
    after: float


References = dict[tuple[str, int], Reference]  # by workload and processes


@dataclass
class Run:
    """One run and the kills it goes through."""

    setting: Setting
    kills: list[Kill] = field(default_factory=list)

    def group(self, kill: Kill) -> str:
        """Return the row of the table that a kill belongs to."""
        return RANDOM if isinstance(kill.aim, Instant) else kill.aim.place.split(" / ")[0]


def make_plan(wanted: int, references: References, seed: int = 0) -> list[Run]:
    """Runs with `wanted` kills or a few more, and those of `FEW`. From 200 on every place has at least `LEAST`; below, as even a share
    as there is. Runs that have no reference are left out."""
    draw = random.Random(seed)
    wishes: list[tuple[str, int, Setting]] = []
    kills: dict[Setting, list[tuple[str, Kill]]] = defaultdict(list)
    for processes, number in _shares(wanted).items():
        for i in range(number * len(GROUPS)):
            group, turn = GROUPS[i % len(GROUPS)], i // len(GROUPS)
            wishes.append((group, turn, _setting(group, turn, processes)))
    wishes += [(group, i, Setting(name, 1 + i % 2, (0, 3)[i // 2 % 2])) for name in FEW for i, group in enumerate(FEW_GROUPS)]
    for group, turn, setting in wishes:
        if (setting.workload, setting.processes) in references:
            kills[setting].append((group, _kill(group, turn, setting, references, draw)))
    return [run for setting in kills for run in _pack(setting, kills[setting], draw)]


def _shares(wanted: int) -> dict[int, int]:
    """Kills at each place by number of processes."""
    if wanted < 200:
        return dict.fromkeys((1, 2), max(1, wanted // (2 * len(GROUPS))))
    shares = dict(LEAST)
    while sum(shares.values()) * len(GROUPS) < wanted:
        shares = {processes: number + 1 for processes, number in shares.items()}
    return shares


def _setting(group: str, turn: int, processes: int) -> Setting:
    number = turn + GROUPS.index(group)
    workload = "biota" if group in (MASKED, PARTIAL) else ("vectors", "biota")[number % 2]
    return Setting(workload, processes, (0, 2)[number // 2 % 2])


def _kill(group: str, turn: int, setting: Setting, references: References, draw: random.Random) -> Kill:
    number, processes = turn + GROUPS.index(group), setting.processes
    kinds = ("tree", "agent", "rank") if processes > 1 else ("tree", "rank")
    kind = kinds[(number + number // 6) % len(kinds)]
    reference = references[setting.workload, processes]
    if group == RANDOM:
        early = turn % 4 == 3
        seconds = draw.uniform(0, reference.before if early else 0.9 * reference.after / INSTANTS)
        return Kill(Instant(round(seconds, 3), kind, early, draw.randrange(1 << 30)))
    places, which = [place for place in PLACES if place.group == group], turn + 5 * (processes - 1)  # 8 on 1 and 8 on 2 reach all 13
    if group == RESUME:
        place = places[which % len(places)]
        # A run that begins passes most of them as one that continues does; where it passes none, rank 0 does so once.
        hit = draw.choice(_hits(place, reference) or [{"rank": 0, "index": 1}])
        damaged = place.name.endswith("renamed") or draw.random() < 0.25
        return Kill(Fault(label(place), ANY, hit["index"], hit["rank"], kind), damaged)
    places = [place for place in places if _hits(place, reference)]
    place = places[which % len(places)]
    hits = _hits(place, reference)
    if group == BESIDE:
        return Kill(_beside(hits, reference, kind, draw))
    hit = draw.choice(hits)
    return Kill(Fault(label(place), hit["step"], hit["index"], hit["rank"], kind))


def _hits(place: Place, reference: Reference) -> list[dict[str, Any]]:
    return [hit for hit in reference.hits if hit["place"] == label(place)]


def _beside(hits: list[dict[str, Any]], reference: Reference, kind: str, draw: random.Random) -> Fault:
    """Return a kill in the update after a checkpoint that is still being written: its writer is held up in the middle. Not at a step with
    pending passes: there the next checkpoint is of the same step and would wait for this one."""
    pending = {hit["step"] for hit in reference.hits if hit["place"].startswith(BETWEEN)}
    held = [hit for place in HOLDS for hit in _hits(place, reference) if hit["step"] not in pending]
    while True:
        hold, hit = draw.choice(held), draw.choice(hits)
        if hit["rank"] == 0 and hit["step"] == hold["step"] + hit["place"].endswith("counted, nothing due done"):
            return Fault(hit["place"], hit["step"], hit["index"], 0, kind, (hold["place"], hold["step"]))


# -- packing -------------------------------------------------------------------------------------------------------------------


def _pack(setting: Setting, kills: Sequence[tuple[str, Kill]], draw: random.Random) -> list[Run]:
    """Runs of at most `LONGEST` kills, by rising step, with kills of the resume between; those at any instant
    have runs of their own."""
    instants = [kill for group, kill in kills if group == RANDOM]
    runs = [Run(setting, instants[i : i + INSTANTS]) for i in range(0, len(instants), INSTANTS)]
    aimed: list[Run] = []
    others = [kill for group, kill in kills if group not in (RANDOM, RESUME)]
    for kill in sorted(others, key=lambda kill: (_step(kill), draw.random())):
        found = next((run for run in aimed if len(run.kills) < LONGEST - 1 and _step(run.kills[-1]) < _since(kill)), None)
        if found is None:
            aimed.append(found := Run(setting))
        found.kills.append(kill)
    for kill in (kill for group, kill in kills if group == RESUME):
        _insert_resume(aimed, kill, setting)
    return runs + aimed


def _insert_resume(aimed: list[Run], kill: Kill, setting: Setting) -> None:
    """After a kill by whose time there are checkpoints (two, where one is to be damaged), in the shortest run that has one, and
    before a kill that is still to come."""
    enough = 6 if kill.damaged else 4
    for run in sorted(aimed, key=lambda run: len(run.kills)):
        for i, before in enumerate(run.kills):
            free = i + 1 == len(run.kills) or _step(run.kills[i + 1]) != ANY
            if enough < _step(before) < STEPS and free:
                run.kills.insert(i + 1, kill)
                return
    aimed.append(Run(setting, [Kill(Fault(STEADY, 7, 1, 0, "tree")), kill]))


STEADY = "inside a step / window fetched"  # a kill that a resume needs before it, where no other is left


def _step(kill: Kill) -> int:
    """Where the run is when it is killed."""
    assert isinstance(kill.aim, Fault)
    return kill.aim.step


def _since(kill: Kill) -> int:
    """The first step that the launch must pass from its beginning."""
    assert isinstance(kill.aim, Fault)
    return kill.aim.hold[1] if kill.aim.hold is not None else kill.aim.step
