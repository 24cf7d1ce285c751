"""Run the command `linnaeus serve`: serve the model of a run or a bundle over HTTP, with a page for the browser.

    linnaeus serve BUNDLE
    curl -F photograph=@photo.jpg -F latitude=52.1 -F longitude=4.3 http://127.0.0.1:8000/predict

Ctrl-C or SIGTERM ends the service after the requests in progress. docs/using.md describes the interface."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import re
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnaeus.config.command_line import OneLineParser
from linnaeus.config.messages import user_errors
from linnaeus.config.model_options import add_model, add_model_options, check_ranges, load_options, use_threads
from linnaeus.errors import ConfigError, counted, list_some, quoted

if TYPE_CHECKING:
    from linnaeus.workloads.taxonomy.serving.http_service import HttpService
    from linnaeus.workloads.taxonomy.serving.served_model import ServedModel
    from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
    from linnaeus.workloads.taxonomy.trained.restrictions.restriction import Restriction

NEEDED = ("starlette", "uvicorn", "python_multipart", "prometheus_client")
HELD = 32  # requests of the largest size that fit into memory together
CONNECTIONS = 2048  # connections that may wait to be accepted


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal. Return 0, or 130 after Ctrl-C during the start. Exit with status 2 and one line after a user's mistake."""
    with user_errors(2):
        try:
            serve(_parse(arguments))
        except KeyboardInterrupt:  # before the service listens to signals
            print("interrupted")
            return 128 + signal.SIGINT
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = OneLineParser(prog="linnaeus serve", description="Answer photographs over HTTP, with a page in the browser.")
    add = parser.add_argument
    add_model(parser, "model")
    add("--host", default="127.0.0.1", metavar="HOST", help="address to listen on; 0.0.0.0 for every network (%(default)s)")
    add("--port", type=int, default=8000, metavar="N", help="port to listen on; 0 for a free one (%(default)s)")
    add("--batch-size", type=int, default=32, metavar="N", help="maximum number of photographs in a batch (%(default)s)")
    add("--batch-wait", type=float, default=5, metavar="MS", help="longest wait of a photograph for others, milliseconds (%(default)s)")
    add("--queue", type=int, default=256, metavar="N", help="maximum number of photographs in progress; more are refused (%(default)s)")
    add("--max-body", type=float, default=20, metavar="MB", help="largest request in megabytes (%(default)s)")
    add("--max-pixels", type=float, default=50, metavar="MP", help="largest photograph in megapixels (%(default)s)")
    add("--timeout", type=float, default=30, metavar="S", help="seconds to receive a request, and to answer it (%(default)s)")
    of_all = "FILE: names of the taxa that are possible; NAME=FILE: those of requests with checklist=NAME"
    add("--checklist", action="append", default=[], metavar="[NAME=]FILE", help=of_all)
    add("--region", metavar="[NAME=]FILE", help="FILE: table of taxa and regions, for requests with region=NAME; NAME=FILE: region of all")
    add("--nearest", type=Path, metavar="FEATURES", help="file of linnaeus embed: the nearest photographs are shown beside an answer")
    add("--photographs", type=Path, metavar="FOLDER", help="folder that relative names in FEATURES begin at (this folder)")
    add_model_options(parser, "checkpoint", "device", "threads", "plugins", "clade", "precision")
    options = parser.parse_args(arguments)
    _check(options)
    return options


def _check(options: argparse.Namespace) -> None:
    """Raise `ConfigError` if the value of an option is outside its range, and if --photographs is not a folder or is given without
    --nearest."""
    limits = {
        "port": (0, 65535),
        "batch_wait": (0, 10_000),
        "queue": (1, 100_000),
        "max_body": (0.001, 10_000),
        "max_pixels": (0.001, 10_000),
        "timeout": (0.1, 3600),
    }
    check_ranges(options, limits)
    if options.photographs is not None and options.nearest is None:
        raise ConfigError("--photographs has no effect without --nearest FEATURES; give both or neither")
    if options.photographs is not None and not options.photographs.is_dir():
        raise ConfigError(f"--photographs: {options.photographs} is not a folder; give that of the photographs of --nearest")


def split_checklists(texts: Sequence[str]) -> tuple[Path | None, dict[str, Path]]:
    """Return the checklist file that applies to all requests (None: no such file), and name -> checklist file that a request can choose by
    name.

    `texts`: values of --checklist, each FILE (for all requests) or NAME=FILE. A name has letters, digits, spaces, - and _. Raise
    `ConfigError` for several files for all requests, and for a name that is given twice."""
    of_all: list[Path] = []
    named: dict[str, Path] = {}
    for text in texts:
        found = re.fullmatch(r"([\w -]+)=(.+)", text)
        if found is None:
            of_all.append(Path(text))
        elif found[1] in named:
            raise ConfigError(f"--checklist: the name {quoted(found[1])} is given twice; choose another")
        else:
            named[found[1]] = Path(found[2])
    if len(of_all) > 1:
        raise ConfigError(f"--checklist: {list_some([*map(str, of_all)])} are for all requests; give one, and others as NAME=FILE")
    return (of_all[0] if of_all else None), named


def is_table(region: str) -> bool:
    """Return True if the value of --region is FILE, False for NAME=FILE. A value with = is FILE if this file exists."""
    return "=" not in region or Path(region).is_file()


def serve(options: argparse.Namespace) -> None:
    """Serve the model in `options` until SIGTERM or Ctrl-C.

    Raise `ConfigError` for a model that cannot be loaded, a port that is in use, and a missing package."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"linnaeus serve needs {missing[0]}, which is not installed; pip install 'linnaeus[serve]'")
    import uvicorn

    from linnaeus.workloads.taxonomy.serving.client_connections import connections

    with _listen(options.host, options.port) as listener:
        threads = use_threads(options)
        app = build_service(options, threads).application()
        logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # clients get the reason, and must not be able to fill the log
        quiet: dict[str, Any] = {"log_level": "error", "access_log": False, "server_header": False, "proxy_headers": False}
        last = round(options.timeout) + 1  # seconds for the requests in progress after a signal
        http = connections(options.timeout)
        config = uvicorn.Config(app, loop="asyncio", http=http, ws="none", timeout_graceful_shutdown=last, **quiet)
        signal.signal(signal.SIGTERM, lambda *_: None)  # at its end uvicorn raises the signal again; the exit status must be 0
        signal.signal(signal.SIGINT, lambda *_: None)
        print(f"{options.model}: http://{_shown(listener)}/  (Ctrl-C ends the service)", flush=True)
        uvicorn.Server(config).run(sockets=[listener])
    print("the service has ended")


def build_service(options: argparse.Namespace, threads: int) -> HttpService:
    """Load the model in `options` and return its service. `threads`: number of threads that decode photographs.

    The network is run once, so that the first request is not slow."""
    import numpy as np

    from linnaeus.workloads.taxonomy.serving.http_service import HttpService
    from linnaeus.workloads.taxonomy.serving.photograph_requests import Limits
    from linnaeus.workloads.taxonomy.trained.classifier.load_parts import load_model
    from linnaeus.workloads.taxonomy.trained.classifier.possible_taxa import restrict
    from linnaeus.workloads.taxonomy.trained.probabilities.calibration import calibration_notes

    of_all, named = split_checklists(options.checklist)
    region_of_all = None if options.region is None or is_table(options.region) else options.region
    model, notes = restrict(load_model(options.model, **load_options(options)), of_all, options.clade, region_of_all)
    served, more = _served(model, named, options)
    for note in (*model.weights.notes, *notes, *calibration_notes(model.calibration, served.asked), *more):
        print(note)
    model.predict(np.zeros((model.image_size, model.image_size, 3), dtype=np.uint8))
    body, pixels = round(options.max_body * 1e6), round(options.max_pixels * 1e6)
    limits = Limits(body, HELD * body, min(pixels, model.description.max_image_pixels), options.timeout, options.queue)
    card, name = _card(options.model, model), options.model.resolve().name
    return HttpService(served, name, card, limits, options.batch_size, options.batch_wait / 1000, threads)


def _served(model: TrainedClassifier, named: Mapping[str, Path], options: argparse.Namespace) -> tuple[ServedModel, list[str]]:
    """Return `model` as a `ServedModel` with the named checklists, the regions and the index of photographs, and lines of text about these
    three.

    `named`: name -> checklist file that requests can choose. Raise `ConfigError` for a checklist without a possible taxon, a table without
    regions, an index that cannot be read or belongs to another model, and a precision that was not fitted."""
    from linnaeus.workloads.taxonomy.serving.nearest_photographs import NearestPhotographs
    from linnaeus.workloads.taxonomy.serving.served_model import ServedModel
    from linnaeus.workloads.taxonomy.trained.classifier.possible_taxa import restrict
    from linnaeus.workloads.taxonomy.trained.embed.feature_index import read_index
    from linnaeus.workloads.taxonomy.trained.restrictions.regions import Regions
    from linnaeus.workloads.taxonomy.trained.restrictions.taxon_index import TaxonIndex

    checklists: dict[str, Restriction] = {}
    lines: list[str] = []
    for name, path in named.items():
        restricted, notes = restrict(model, path, ())
        assert restricted.restriction is not None
        checklists[name] = restricted.restriction
        lines += [f"checklist {name}: {note}" for note in notes]
    nearest = None
    if options.nearest is not None:
        nearest = NearestPhotographs(model, read_index(options.nearest, "--nearest"), options.photographs or Path())
        lines += nearest.notes()
    regions = None
    if options.region is not None and is_table(options.region):
        regions = Regions(Path(options.region), TaxonIndex(model.tree))
        lines += [*regions.notes, f"{counted(len(regions.names), 'region')}: {options.region}"]
    return ServedModel(model, checklists, regions, nearest, options.precision), lines


def _card(path: Path, model: TrainedClassifier) -> str:
    """Return the text of the model card: the file in a bundle, or the card that `linnaeus export` would write for a run."""
    from linnaeus.files import read_json
    from linnaeus.workloads.taxonomy.trained.classifier import bundle
    from linnaeus.workloads.taxonomy.trained.export.model_card import model_card
    from linnaeus.workloads.taxonomy.trained.export.weak_clades import validated_classes
    from linnaeus.workloads.trained_models import own_file, validated

    if not bundle.is_bundle(path):
        metrics = validated(path, model.weights.source)
        classes = validated_classes(path, model.weights.source)
        return model_card(model.description, model.tree, read_json(path / "dataset.json") or {}, metrics, classes, model.calibration)
    return own_file(path, bundle.CARD).read_text(encoding="utf-8", errors="replace") if (path / bundle.CARD).exists() else ""


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on `host` and `port`. Raise `ConfigError` if this machine does not have the address or the port is in
    use."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address[:2], family=family, backlog=CONNECTIONS)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a host name"
        raise ConfigError(f"--host {quoted(host)} --port {port}: cannot listen there ({reason}); choose another port or host") from None
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # its connections inherit it; without it an answer can wait 40 ms
    return listener


def _shown(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if listener.family == socket.AF_INET6 else f"{host}:{port}"


if __name__ == "__main__":
    raise SystemExit(main())
