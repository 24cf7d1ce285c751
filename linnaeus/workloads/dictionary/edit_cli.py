"""The command `linnaeus edit`: scale some features of a dictionary while the model that the dictionary explains is run, and show the
predictions before and after.

    linnaeus edit RUN photo.jpg --latitude 52.1 --longitude 4.3               the strongest features of the photograph
    linnaeus edit RUN photo.jpg --feature 12 --scale 0                        the prediction with and without feature 12
    linnaeus edit RUN "To be" --feature 12 --scale 3 --feature 40 --scale 0   a prompt, for a language model
    linnaeus edit RUN splattershot --have "swim_speed_up: main" --reconstruct a weapon, for a loadout model

RUN is a run of workload=dictionary. The activity of a feature is its coefficient in the reconstruction. Each edited feature adds (factor -
1) x activity x decoder vector to the output of the module, so the reconstruction error is kept. With `--reconstruct`, the output is
replaced by the reconstruction from the scaled activities.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from linnaeus.config.command_line import OneLineParser
from linnaeus.config.messages import user_errors
from linnaeus.config.model_options import check_ranges
from linnaeus.errors import ConfigError, shorten

if TYPE_CHECKING:
    from torch import nn

    from linnaeus.workloads.dictionary.trained.trained_dictionary import TrainedDictionary
    from linnaeus.workloads.questions import Answer, Question, Questions

LARGEST = 1e6  # factor of an activity; with 1e38, sums of squares in float32 are infinite
WIDTH = 46  # characters of the column of the answer before the edit


class Active(NamedTuple):
    """Activity of one feature on one input.

    activity: maximum over the positions (such as tokens). active: number of positions with an activity above 0. positions: number of
    positions without padding. place: position of the maximum as text; "" for an output without positions, and without activity."""

    feature: int
    activity: float
    active: int
    positions: int
    place: str


class Edited(NamedTuple):
    """Result for one input.

    question: name of the input. features: the strongest features, then edited features that are not among them. before, after: predictions
    without and with the edit; `after` is None if nothing is edited."""

    question: str
    features: list[Active]
    before: Answer
    after: Answer | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `linnaeus edit`: print the results to stdout, and notes and a line about the dictionary to stderr. Return 0.

    After a user's mistake, print one line to stderr and exit with status 2. arguments: words of the command line; None: `sys.argv[1:]`."""
    with user_errors(2):
        _run(_parse(arguments))
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = OneLineParser(
        prog="linnaeus edit",
        description="Predict with the model whose activations a dictionary reconstructs, and show, switch off or scale features.",
    )
    add = parser.add_argument
    add("run", metavar="RUN", type=Path, help="directory of a run of workload=dictionary, or one of its checkpoints")
    add("inputs", nargs="*", metavar="INPUT", help="photographs, prompts or weapons, as the model needs them")
    add("--feature", action="append", type=int, default=[], metavar="N", help="feature to edit; may be repeated")
    add("--scale", action="append", type=float, metavar="S", help="factor of its activity, one for all features or one for each (0: off)")
    add("--dictionary", metavar="NAME", help="name of one of several dictionaries, such as k16 (the first)")
    add("--reconstruct", action="store_true", help="replace the output of the module by the reconstruction")
    add("--top", type=int, default=8, metavar="N", help="features and outputs to show (%(default)s)")
    add("--json", action="store_true", help="print a JSON object for each input")
    add("--checkpoint", metavar="WHICH", help="checkpoint of RUN: best, newest or a step (best if validated, otherwise newest)")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: CUDA if available (%(default)s)")
    for name in ("latitude", "longitude", "uncertainty", "date", "time", "elevation"):
        add(f"--{name}", metavar="VALUE", help="of the photographs, as for linnaeus predict")
    add("--tokens", type=int, metavar="N", help="number of tokens of a continuation, at most (60)")
    add("--tokenizer", metavar="FOLDER", help="tokenizer.json, or its folder, of a model that was trained on tokens of another program")
    add("--have", metavar="GEAR", help="given gear, as for linnaeus complete")
    options = parser.parse_intermixed_args(arguments)
    check_ranges(argparse.Namespace(**vars(options), threads=None, batch_size=None), {"top": (1, 1000)})
    options.scales = _scales(options.feature, options.scale)
    return options


def _scales(features: Sequence[int], scales: Sequence[float] | None) -> dict[int, float]:
    """Return {feature: factor} from the command line. scales: one factor for all features, or one for each; None: factor 0 for all.

    Raise `ConfigError` for factors without features, a number of factors that is neither 1 nor the number of features, a repeated feature,
    and a factor that is not from -`LARGEST` to `LARGEST`."""
    if twice := [number for number in features if features.count(number) > 1]:
        raise ConfigError(f"--feature {twice[0]} is given twice; give it once, with its --scale")
    if scales and not features:
        raise ConfigError("--scale has no effect without --feature N; give both")
    given = list(scales or [0.0])
    if len(given) not in (1, len(features) or 1):
        raise ConfigError(f"there are {len(features)} x --feature and {len(given)} x --scale; give one scale for all, or one for each")
    if bad := [scale for scale in given if not abs(scale) <= LARGEST]:
        raise ConfigError(f"--scale is {bad[0]:g}; it must be from {-LARGEST:g} to {LARGEST:g}")
    return dict(zip(features, given if len(given) > 1 else given * len(features), strict=True))


def _run(options: argparse.Namespace) -> None:
    from linnaeus.workloads.dictionary.trained.load_dictionary import load_model
    from linnaeus.workloads.run_weights import available_device, chosen_weights
    from linnaeus.workloads.trained_models import trained_module

    options.device = available_device(options.device)
    trained = load_model(options.run, checkpoint=options.checkpoint, device=options.device, dictionary=options.dictionary)
    trained.check(options.scales)
    place = trained.place
    if place is None:
        raise ConfigError(f"RUN: {options.run} was trained on planted activations, without a model; give a run with dictionary.run")
    if not place.run.exists():
        raise ConfigError(f"RUN: {place.run}, the run that the dictionary reads, does not exist; move it there, or start where you trained")
    module = trained_module(place.run)
    if not hasattr(module, "questions"):
        raise ConfigError(f"RUN: models of this workload cannot be edited: {module.__name__} has no function `questions`")
    options.checkpoint = place.checkpoint  # from here on that of the model, which `questions` reads
    if place.digest is not None and chosen_weights(place.run, place.checkpoint).digest != place.digest:
        raise ConfigError(f"RUN: the dictionary was trained on other weights than those of {place.run} now; train it again")
    asked: Questions = module.questions(place.run, options)
    for edited in answers(trained, place.find(asked.network), asked, options.scales, options.reconstruct, options.top):
        if options.json:
            print(json.dumps(as_json(edited, asked.names, options.top)))
        else:
            print("\n".join(as_text(edited, asked.names, options.top)) + "\n")
    about = f"{trained.source}: {trained.features} features of {place.module} of {place.run}"
    notes = [*(f"dictionary: {note}" for note in trained.notes), *(f"model: {note}" for note in asked.notes)]
    for line in (*notes, about):
        print(line, file=sys.stderr)


def answers(
    trained: TrainedDictionary, module: nn.Module, asked: Questions, scales: dict[int, float], reconstruct: bool, top: int
) -> Iterator[Edited]:
    """Yield the result for each question: the `top` strongest features, the features in `scales`, and the predictions.

    module: module of the network whose output is edited. scales: feature -> factor. reconstruct: True: replace the output of the module by
    the reconstruction. With empty `scales` and without `reconstruct` nothing is edited."""
    from linnaeus.workloads.dictionary.tapping import Tap

    edit = trained.editing(scales, reconstruct) if scales or reconstruct else None
    channels = "first" if trained.place is None else trained.place.channels
    for question in asked.questions:
        with Tap(module, channels=channels) as tap:
            before = question.ask()
        features = _strongest(trained, tap, question, top, list(scales))
        after = None
        if edit is not None:
            with Tap(module, edit, channels):
                after = question.ask()
        yield Edited(question.name, features, before, after)


def _strongest(trained: TrainedDictionary, tap: Any, question: Question, top: int, also: Sequence[int]) -> list[Active]:
    """Return the features with the largest activities above 0 on the rows of `tap`, at most `top`, in descending order; then the features
    of `also` that are not among them.

    Positions with the name None in `question.places` are padding and have activity 0."""
    import torch

    activities, named = trained.encode(tap.rows), question.places if len(question.places) == len(tap.rows) else ()
    if None in named:
        activities = activities * torch.tensor([[place is not None] for place in named], device=activities.device)
    largest, row = activities.max(0)
    order = [i for i in largest.argsort(descending=True, stable=True)[:top].tolist() if largest[i] > 0]
    active, real = (activities > 0).sum(0), len(activities) - named.count(None)
    return [
        Active(i, float(largest[i]), int(active[i]), real, _place(int(row[i]), tap.shape, named) if active[i] else "")
        for i in [*order, *(i for i in also if i not in order)]
    ]


def _place(row: int, shape: tuple[int, ...], places: Sequence[str | None]) -> str:
    """Return the position of a row in a module output as text, counted from 1 without padding; "" for an output [B, d].

    row: index of the row (see `to_rows`). shape: shape of the output, [B, d], [B, T, d] or [B, C, H, W]. places: names of the T positions,
    None for padding; () if the positions have no names."""
    if len(shape) == 4:
        return f"row {row // shape[3] % shape[2] + 1}, column {row % shape[3] + 1} of {shape[2]} x {shape[3]}"
    if len(shape) == 3:
        position = row % shape[1]
        return f"position {position + 1 - places[:position].count(None)}" + (f" {places[position]!r}" if places else "")
    return ""


def as_text(edited: Edited, names: Mapping[str, Sequence[str]], top: int) -> list[str]:
    """Return the result for one input as lines of text: the features, then the predictions before and after the edit, side by side.

    names: group of outputs -> names of the outputs. top: number of outputs to show of each group."""
    lines = [edited.question or "(beginning of a document)", "  feature  activity  active positions"]
    for one in edited.features:
        lines.append(f"  {one.feature:7d}  {one.activity:8.3f}  {one.active} of {one.positions}  {one.place}".rstrip())
    lines += [] if edited.features else ["  no feature is active"]
    lines.append("  before" if edited.after is None else f"  {'before':{WIDTH}}after")
    for group, labels in names.items():
        lines.append(f"  {group}")
        before = edited.before.probabilities[group]
        after = None if edited.after is None else edited.after.probabilities[group]
        columns = [_column(before, labels, top), *([] if after is None else [_column(after, labels, top, before)])]
        lines += [f"    {row[0]:{WIDTH}}{''.join(row[1:])}".rstrip() for row in zip(*columns)]
    texts = [edited.before.lines, *([] if edited.after is None else [edited.after.lines])]
    if edited.before.lines:
        for title, text in zip(("before", "after"), texts):
            lines += [f"  {title}:", *(f"    {line}" for part in text for line in part.splitlines())]
    return lines


def _column(p: np.ndarray, labels: Sequence[str], top: int, before: np.ndarray | None = None) -> list[str]:
    """Return the `top` most probable outputs as text, one line each.

    p: probabilities [C]. labels: names of the C outputs. before: probabilities [C] before the edit, to append the changes; None: no
    changes."""
    order = np.argsort(-p, kind="stable")[:top]
    changes = ["" if before is None else f" ({p[i] - before[i]:+.3f})" for i in order]
    return [f"{p[i]:.3f} {shorten(labels[i], 28)}{change}" for i, change in zip(order, changes)]


def as_json(edited: Edited, names: Mapping[str, Sequence[str]], top: int) -> dict[str, Any]:
    """Return the result for one input as a JSON object: name, features, probabilities before and after the edit, and the answer as text, if
    any.

    An output is included if it is among the `top` most probable outputs of its group before or after the edit. names: group of outputs ->
    names of the outputs."""
    outputs: dict[str, list[dict[str, Any]]] = {}
    for group, labels in names.items():
        before, after = edited.before.probabilities[group], None if edited.after is None else edited.after.probabilities[group]
        chosen = np.argsort(-before, kind="stable")[:top].tolist()
        chosen += [] if after is None else [i for i in np.argsort(-after, kind="stable")[:top].tolist() if i not in chosen]
        changed = [{} if after is None else {"after": round(float(after[i]), 6)} for i in chosen]
        outputs[group] = [{"name": labels[i], "before": round(float(before[i]), 6)} | more for i, more in zip(chosen, changed)]
    found = {"input": edited.question, "features": [one._asdict() for one in edited.features], "outputs": outputs}
    if edited.before.lines:
        found["answer"] = {"before": list(edited.before.lines)} | ({} if edited.after is None else {"after": list(edited.after.lines)})
    return found


if __name__ == "__main__":
    raise SystemExit(main())
