"""The command `linnaeus complete`: complete builds with a trained loadout model.

linnaeus complete RUN --weapon splattershot --have "swim_speed_up: main sub sub" --top 3
linnaeus complete RUN --requests FILE --json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from linnaeus.config.command_line import OneLineParser
from linnaeus.config.messages import user_errors
from linnaeus.errors import ConfigError
from linnaeus.workloads.loadout.completion.gear_requests import Request, make_request, parse_points, read_requests
from linnaeus.workloads.loadout.game.abilities import ITEMS, MAIN_ITEMS
from linnaeus.workloads.loadout.game.gear import EMPTY, arrange, to_text

if TYPE_CHECKING:
    from linnaeus.workloads.loadout.completion.build_decoding import Answer
    from linnaeus.workloads.loadout.game.weapons import Weapons

METHODS = ("beam", "closure", "direct")
MOST_BUILDS = 1000  # of a request: the memory and the time of all methods grow with them


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command: print completed builds to stdout, and a line about the model to stderr. Return 0.

    Exit with status 2 and one line on stderr for a user's mistake, and if no legal build meets the request of the command line."""
    with user_errors(2):
        _run(_parse(arguments))
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = OneLineParser(
        prog="linnaeus complete",
        description="Complete builds of gear with a trained loadout model. Given gear stays; legal slots are added.",
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="directory of a run, or one of its checkpoints")
    add("--checkpoint", metavar="WHICH", help="best, newest or a step (the best if one was validated, else the newest)")
    add("--weapon", metavar="NAME", help="weapon, by name, key or number")
    add("--have", default="", metavar="GEAR", help="gear that stays, as 'comeback, swim_speed_up: main sub sub'; default: none")
    add("--points", default="", metavar="POINTS", help="ability points to reach, as 'swim_speed_up: 29, special_saver: 6'")
    add("--requests", type=Path, metavar="FILE", help="JSON lines with weapon, have and points, answered in batches")
    add("--top", type=int, default=1, metavar="N", help="builds to print for a request, best first (%(default)s); closure gives one")
    text = "direct: most slots expected right (%(default)s); beam: most probable builds; closure: sure slots first"
    add("--method", choices=METHODS, default=METHODS[-1], help=text)
    add("--json", action="store_true", help="print a JSON object for each request")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: CUDA if available (%(default)s)")
    options = parser.parse_args(arguments)
    if not 1 <= options.top <= MOST_BUILDS:
        parser.error(f"--top is {options.top}; it must be from 1 to {MOST_BUILDS}")
    if options.top > 1 and options.method == "closure":
        parser.error("--method=closure gives one build; use --top 1, or --method direct")
    if (options.weapon is None) == (options.requests is None):
        parser.error("give either --weapon NAME or --requests FILE")
    if options.requests is not None and (options.have or options.points):
        parser.error("--have and --points have no effect with --requests; write them into the file")
    return options


def _run(options: argparse.Namespace) -> None:
    from linnaeus.workloads.loadout.trained.load_loadout_model import load_model
    from linnaeus.workloads.run_weights import available_device

    points = parse_points(options.points)
    model = load_model(options.run, checkpoint=options.checkpoint, device=available_device(options.device))
    if options.requests is not None:
        requests = read_requests(options.requests, model.weapons)
    else:
        requests = [make_request(model.weapons, options.weapon, options.have, points)]
        if requests[0].given is None:
            raise ConfigError(requests[0].reason)
    for request, answers in zip(requests, model.answers(requests, options.method, options.top), strict=True):
        if options.json:
            print(json.dumps(as_json(request, answers, model.weapons)))
        else:
            print("\n".join(as_text(request, answers, model.weapons)) + "\n")
    unmet = sum(request.given is None for request in requests)
    notes = model.notes_of(request.weapon for request in requests)
    for line in (*notes, f"{model.source}: {len(requests) - unmet} of {len(requests)} requests answered"):
        print(line, file=sys.stderr)


def as_text(request: Request, answers: Sequence[Answer], weapons: Weapons) -> list[str]:
    """Return the lines to print for a request: each build as three pieces with four slots, or the reason if the request cannot be met.

    A given slot is marked with `*`. An added slot is followed by its probability in percent. For the j-th added slot of an ability in this
    kind of slot (main or sub) it is the probability that the build has at least j more than given."""
    weapon = weapons.name(request.weapon) if request.weapon >= 0 else "?"
    if request.given is None:
        return [f"{weapon}: {request.reason}"]
    lines = [f"{weapon}: {to_text(request.given) or 'no gear'}"]
    for number, answer in enumerate(answers, 1):
        added = slot_probabilities(request.given, answer)
        values = [probability for each in added.values() for probability in each]
        score = "" if answer.log_probability is None else f", log p {answer.log_probability:.2f}"
        lines.append(f"{number}.  {answer.expected_right:.1f} of {len(values)} added slots expected right{score}")
        marks = _Marks(request.given, added)
        for piece, (main, subs) in arrange(answer.build).items():
            texts = [marks.text(main, True), *(marks.text(sub, False) for sub in subs)]
            lines.append(f"    {piece:8s} {texts[0]:28s}" + " ".join(f"{text:26s}" for text in texts[1:]).rstrip())
    return lines


class _Marks:
    """Text of each slot of a build: the ability, with `*` if the slot was given, or with its probability if it was added. Of slots with the
    same item, given ones come first."""

    def __init__(self, given: np.ndarray, added: dict[int, list[float]]) -> None:
        self.given, self.added = given.copy(), {item: list(values) for item, values in added.items()}

    def text(self, ability: str, main: bool) -> str:
        if ability == EMPTY:
            return EMPTY
        item = ITEMS.index(ability) if main else len(ITEMS) - ITEMS[::-1].index(ability) - 1
        if self.given[item] > 0:
            self.given[item] -= 1
            return f"{ability} *"
        return f"{ability} {100 * self.added[item].pop(0):.0f}%"


def slot_probabilities(given: np.ndarray, answer: Answer) -> dict[int, list[float]]:
    """Return {item: [probability of each added slot of the item]}. The j-th value is the probability that the build has at least j more
    slots of the item than `given`, int8 [40]."""
    added = answer.build - given
    return {int(item): [float(p) for p in answer.probability[item, : added[item]]] for item in np.flatnonzero(added)}


def as_json(request: Request, answers: Sequence[Answer], weapons: Weapons) -> dict[str, Any]:
    """Return a request and its builds as values for JSON. If the request cannot be met, `reason` says why and `builds` is empty."""
    found: dict[str, Any] = {"weapon": weapons.keys[request.weapon] if request.weapon >= 0 else None}
    if request.given is None:
        return found | {"reason": request.reason, "builds": []}
    builds = []
    for answer in answers:
        added = slot_probabilities(request.given, answer)
        gear = {piece: {"main": main, "subs": subs} for piece, (main, subs) in arrange(answer.build).items()}
        slots = [
            {"ability": ITEMS[item], "slot": "main" if item < MAIN_ITEMS else "sub", "probability": round(p, 6)}
            for item, values in added.items()
            for p in values
        ]
        scores = {"expected_right": round(answer.expected_right, 6)}
        if answer.log_probability is not None:
            scores["log_probability"] = round(answer.log_probability, 6)
        builds.append({"gear": gear, "added": slots, **scores})
    return found | {"have": to_text(request.given), "builds": builds}


if __name__ == "__main__":
    raise SystemExit(main())
