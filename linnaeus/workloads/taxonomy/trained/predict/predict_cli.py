"""Run the command `linnaeus predict`: predict the taxa on photographs with the model of a run or a bundle.

    linnaeus predict RUN photo.jpg --latitude 52.1 --longitude 4.3 --date 2026-05-01
    linnaeus predict BUNDLE photos/ --out answers.csv
    linnaeus predict BUNDLE --manifest photos.csv --out answers.json
    linnaeus predict BUNDLE photos/ --checklist species.txt --clade Aves --out answers.csv
    linnaeus predict BUNDLE --manifest photos.csv --sequence observation --out answers.csv
    linnaeus predict BUNDLE --manifest media.csv --out observations.csv --format camtrap_dp

Without --out the answers are printed. If a command with --out was killed, the same command continues where it stopped. For a photograph
that cannot be read, the file has the reason in `error`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from linnaeus.config.command_line import OneLineParser
from linnaeus.config.model_options import add_model, add_model_options, check_ranges, load_options, use_threads
from linnaeus.config.run_command import CONTINUES, run_command
from linnaeus.errors import ConfigError, counted, escaped
from linnaeus.workloads.taxonomy.trained.photographs.photograph_options import add_photographs, check_out, check_photographs, photographs_of
from linnaeus.workloads.taxonomy.trained.predict.observation_tables import check_events
from linnaeus.workloads.taxonomy.trained.predict.prediction_files import FORMATS, format_of
from linnaeus.workloads.taxonomy.trained.predict.sequences import answer_together, in_sequences
from linnaeus.workloads.taxonomy.trained.probabilities.answers import TOGETHER

if TYPE_CHECKING:
    from linnaeus.workloads.taxonomy.trained.batches.journal import Row
    from linnaeus.workloads.taxonomy.trained.batches.reading_ahead import ReadBatch
    from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
    from linnaeus.workloads.taxonomy.trained.photographs.photograph_list import Inputs
    from linnaeus.workloads.taxonomy.trained.predict.sequences import Sequences
    from linnaeus.workloads.taxonomy.trained.probabilities.answers import Asked

TOP = 5  # taxa of each rank
SHOWN = 20  # photographs that are printed without --out
LISTED = 3  # taxa of each rank that are printed without --out, unless --top or --coverage is given


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return 0, or 130 after Ctrl-C. Exit with status 2 and one line on stderr after a user's mistake."""
    return run_command(arguments, _parse, predict, lambda options: CONTINUES if options.out else "interrupted")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = OneLineParser(prog="linnaeus predict", description="Name the taxa on photographs.")
    add = parser.add_argument
    add_model(parser, "model")
    add_photographs(parser)
    add("--out", type=Path, metavar="FILE", help="file of the answers: .json, .csv or .parquet")
    add("--format", choices=FORMATS, help="of the file (that of its suffix); docs/using.md describes each")
    add(
        "--sequence", metavar="COLUMN", help="of the manifest: one answer for the photographs with the same value, a burst or an individual"
    )
    add("--together", choices=TOGETHER, help="evidence of a sequence: mean, for nearly equal photographs, or product (mean)")
    add("--top", type=int, metavar="N", help=f"taxa of each rank ({TOP} in .json, {LISTED} if printed)")
    add_model_options(parser, "precision")
    add("--coverage", type=float, metavar="C", help="prediction sets with this coverage, in place of the --top taxa")
    add_model_options(parser, "checkpoint", "device", "threads", "plugins", "tta", "checklist", "clade", "region")
    options = parser.parse_intermixed_args(arguments)
    _check(options)
    return options


def _check(options: argparse.Namespace) -> None:
    """Raise `ConfigError` for options that have no effect together, such as --format without --out, and for values out of range.

    Set `options.format` to the name of the file format, None without --out."""
    check_photographs(options)
    if options.out is None and options.format:
        raise ConfigError(f"--format {options.format} has no effect without --out FILE; give both or neither")
    options.format = options.out and format_of(options.format, options.out)
    check_out(options.out, [one.suffix for one in FORMATS.values()])
    for name in ("top", "coverage"):
        if (value := getattr(options, name)) is not None and options.out and not FORMATS[options.format].lists:
            raise ConfigError(f"--{name} {value} has no effect in the format {options.format}, which has one taxon of each rank; use json")
    if options.top is not None and options.coverage is not None:
        raise ConfigError(f"--top {options.top} has no effect with --coverage, whose sets have as many taxa as they need; leave it out")
    check_ranges(options, {"top": (1, 1000)})
    if options.together and not options.sequence:
        raise ConfigError(f"--together {options.together} has no effect without --sequence COLUMN; leave it out")
    if options.sequence == "":
        raise ConfigError("--sequence is empty; give the name of a column of the manifest")
    if options.sequence and not options.manifest:
        raise ConfigError(f"--sequence {options.sequence} has no effect without --manifest, whose column it is; leave it out")


def predict(options: argparse.Namespace) -> list[str]:
    """Predict the taxa on photographs, and write the file `options.out`, if any. Return the lines to print.

    Raise `ConfigError` for a user's mistake."""
    from linnaeus.workloads.taxonomy.trained.batches.batch_size import batch_size
    from linnaeus.workloads.taxonomy.trained.batches.journal import Journal
    from linnaeus.workloads.taxonomy.trained.classifier.load_parts import load_model
    from linnaeus.workloads.taxonomy.trained.classifier.possible_taxa import restrict
    from linnaeus.workloads.taxonomy.trained.predict.answered import Answered
    from linnaeus.workloads.taxonomy.trained.predict.forward_time import ForwardTime
    from linnaeus.workloads.taxonomy.trained.predict.prediction_files import write_file
    from linnaeus.workloads.taxonomy.trained.probabilities.calibration import calibration_notes

    threads = use_threads(options)
    model, restricted = restrict(load_model(options.model, **load_options(options)), options.checklist, options.clade, options.region)
    copied = FORMATS[options.format].columns if options.out else ()
    sequences = None
    columns = [*copied, *([options.sequence] if options.sequence else [])]
    inputs = photographs_of(options, model.components, columns, model.description.untrained)
    if options.sequence:
        inputs, sequences = in_sequences(inputs, options.sequence)
    top = options.top or (TOP if options.out is None or FORMATS[options.format].lists else 0)
    asked = model.asked(top, options.precision, options.coverage, options.together)
    for note in (*model.weights.notes, *inputs.notes, *restricted, *calibration_notes(model.calibration, asked, sequences is not None)):
        print(note)
    kind = "photograph" if sequences is None else "sequence"
    size = batch_size(model, options.batch_size, options.out)
    if options.out is None:
        rows = [row for batch in predictions(model, inputs, 0, size, asked, threads, sequences) for row in batch]
        listed = None if options.top or options.coverage else LISTED
        return [line for row in rows[:SHOWN] for line in _shown(row, model.tree.ranks, listed)] + _left_out(kind, len(rows))
    FORMATS[options.format].check(inputs.columns)
    if sequences is not None and options.format == "camtrap_dp":
        check_events(inputs.columns, sequences)
    head: dict[str, Any] = {"model": model.weights.source, "sha256": model.weights.digest, "taxa": model.tree.fingerprint()}
    head |= {"tta": model.description.tta}
    head |= {} if model.restriction is None else {"possible_taxa": model.restriction.counts(), "restriction": model.restriction.digest()}
    head |= {} if sequences is None else {"sequence": options.sequence, "together": asked.together}
    ends = None if sequences is None else frozenset(sequences.ends(size))
    calibration = None if model.calibration is None else model.calibration.plain()
    with Journal(options.out, head | {"asked": list(asked), "calibration": calibration} | inputs.identity(), size, ends) as journal:
        _write_unmatched(options.out, model)
        continued, start = journal.done, time.monotonic()
        with ForwardTime(model.model) as forward:
            for batch in predictions(model, inputs, journal.done, size, asked, threads, sequences):
                journal.append(batch)
        seconds = time.monotonic() - start
        total = _count(journal.rows())
        classifier = f"linnaeus {options.model.resolve().name} {model.weights.digest[:12]}{_conditions(model)}"
        answered = Answered(
            journal.rows(), model.tree, head, classifier, journal.started, inputs.columns, sequences, model.calibration is not None
        )
        write_file(options.out, options.format, journal, answered)
        count = len(inputs) if sequences is None else len(sequences)
        named = None if model.calibration is None else total.named
        return _account(options.out, kind, count, continued, total.failed, named, seconds, forward.seconds) + _unreadable(total.unreadable)


def _conditions(model: TrainedClassifier) -> str:
    """Return the test-time augmentation and the restriction of a model, to be added to its name; "" if it has neither."""
    views = "" if model.description.tta == "none" else f" tta={model.description.tta}"
    if model.restriction is None:
        return views
    rank, number = list(model.restriction.counts().items())[-1]
    return f"{views} among {number:,} of {counted(model.tree.sizes[-1], 'taxon')} of rank {rank}"


def _write_unmatched(out: Path, model: TrainedClassifier) -> None:
    """Write the names in --checklist and --region that the model does not have to `OUT.unmatched.txt`, and print the path of this file.

    If there are no such names, delete the file, which an earlier command may have written."""
    from linnaeus.files import write_atomic

    file = out.with_name(f"{out.name}.unmatched.txt")
    if model.restriction is None or not model.restriction.unmatched:
        file.unlink(missing_ok=True)
    else:
        write_atomic(file, "".join(f"{name}\n" for name in model.restriction.unmatched))
        print(f"{file} has them all")


def predictions(
    model: TrainedClassifier,
    inputs: Inputs,
    done: int,
    size: int,
    asked: Asked,
    threads: int,
    sequences: Sequences | None = None,
) -> Iterator[list[Row]]:
    """Yield, for each part of the inputs, the rows (`journal.Row`) of its photographs, or, with `sequences`, of its sequences.

    A part is a batch of `size` photographs or a piece of one. With `sequences` it has at least `size` photographs in whole sequences. Skip
    the first `done` rows."""
    from linnaeus.workloads.taxonomy.trained.batches.parallel_batches import computed

    if sequences is not None:
        yield from answer_together(model, inputs, sequences, done, size, threads, asked)
        return
    yield from computed(model, inputs, size, threads, "predicting", lambda part: _answer(model, part, asked), done)


def _answer(model: TrainedClassifier, batch: ReadBatch, asked: Asked) -> list[Row]:
    """Return a row per photograph of a batch: its prediction, or its path and the reason why it cannot be read."""
    names = batch.names
    made = model.predict_pixels(batch.images, batch.metadata, [names[i] for i in batch.good], asked) if batch.good else []
    rows = {i: prediction.plain() for i, prediction in zip(batch.good, made, strict=True)}
    return [rows.get(i, {"photograph": name, "error": error}) for i, (name, error) in enumerate(zip(names, batch.errors, strict=True))]


def _shown(row: Row, ranks: Sequence[str], listed: int | None) -> list[str]:
    """Return the lines of text that show the prediction of a photograph in a terminal.

    `listed`: most taxa of each rank; None: all in the row."""
    if "error" in row:
        return [f"{_title(row)}  not read: {row['error']}"]
    used = f"  with {', '.join(row['metadata'])}" if row["metadata"] else ""
    width = max(map(len, ranks))
    lines = [f"{_title(row)}{used}"]
    if row["outside"]:
        lines.append(f"  none of the taxa of the model: familiarity {row['familiarity']:.3f}")
    elif row["calibrated"]:
        answer = row["answer"]
        named = "no taxon" if answer is None else f"{answer['rank']} {escaped(answer['name'])} {answer['probability']:.3f}"
        lines.append(f"  answer with a precision of {row['precision']:g}: {named}")
    for rank, taxa in row["ranks"].items():
        lines.append(f"  {rank:<{width}}  " + ", ".join(f"{escaped(taxon['name'])} {taxon['probability']:.3f}" for taxon in taxa[:listed]))
    return lines


def _title(row: Row) -> str:
    """Return the name of a photograph; for a sequence, its name, its number of photographs, and the name of its first photograph."""
    name = escaped(row["photograph"])
    return name if "sequence" not in row else f"{escaped(row['sequence'])} ({counted(len(row['photographs']), 'photograph')}): {name}"


def _left_out(kind: str, count: int) -> list[str]:
    return [f"and {counted(count - SHOWN, f'more {kind}')}; --out answers.csv writes all"] if count > SHOWN else []


class _Counts(NamedTuple):
    failed: int = 0  # rows with an error in place of a prediction
    named: int = 0  # rows with a rolled-up answer
    unreadable: int = 0  # photographs that could not be read, of rows with a prediction


def _count(rows: Iterable[Row]) -> _Counts:
    """Return the counts of the rows of a journal."""
    failed = named = unreadable = 0
    for row in rows:
        failed += "error" in row
        named += row.get("answer") is not None
        unreadable += 0 if "error" in row else len(row.get("unreadable", ()))
    return _Counts(failed, named, unreadable)


def _unreadable(count: int) -> list[str]:
    """Return a line about `count` photographs that could not be read, of sequences that have an answer; [] for 0."""
    return [f"{counted(count, 'photograph')} of these sequences could not be read"] if count else []


def _account(out: Path, kind: str, count: int, continued: int, failed: int, named: int | None, seconds: float, forward: float) -> list[str]:
    """Return the last lines that the command prints: number of answers, speed, and photographs that could not be read.

    `kind`: "photograph" or "sequence", the unit of the following numbers. `count`: all. `continued`: finished by an earlier start of the
    command. `failed`: could not be read. `named`: have an answer with the stated precision; None: the model is not calibrated. `seconds`:
    of all predictions; `forward`: those of the forward passes of the network among them."""
    done = count - continued
    rate = f", {done / seconds:,.1f} {kind}s/s ({100 * forward / seconds:.0f} % of the time in the network)" if done and seconds > 0 else ""
    lines = [f"{count - failed:,} of {counted(count, kind)} answered{rate}: {out}"]
    lines += [] if named is None else [f"{named:,} of them have a taxon with the stated precision"]
    lines += [f"{continued:,} of them were done before"] if continued else []
    return lines + ([f"{failed:,} could not be read; the file has the reason of each"] if failed else [])


if __name__ == "__main__":
    raise SystemExit(main())
