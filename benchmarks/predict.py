"""Measure the use of a trained classifier: a folder of photographs, rolled-up answers on a large tree, and the service.

    python -m benchmarks.predict                    everything, with a ResNet-18 of random weights; 15 minutes on two cores
    python -m benchmarks.predict --part rollup      one part: folder, rollup or service
    python -m benchmarks.predict --part folder service --backbone resnet10t --image-size 64 --photographs 3000     another network

Run it on an idle machine. Rounds of the compared programs alternate, and medians are printed. Bars:

    folder      `linnaeus predict` on a folder of JPEGs has at least 0.9 of the rate that the forward of the network and the decoder allow
                together, each measured alone on all cores: 1 / (1 / forward + 1 / decoder). It has at least 1.5 times the rate of a plain
                timm script (ImageFolder, the transform of timm, a DataLoader with a worker for each core), or 0.9 of what together allows
                where that is less: no program that runs the same forward can be faster.
    rollup      the answers of 256 photographs on a tree of a million taxa in less than 60 ms on one core, and memory that grows with the
                number of photographs and not with the number of taxa
    service     with 64 clients at least 3 times the requests per second of one client, or 0.9 of the photographs per second of the forward
                in batches of 32 where that is less, and no request is lost
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

import linnaeus
from benchmarks.machine import describe_machine, write_numbers
from linnaeus.checkpoint.initial_weights import InitialWeights
from linnaeus.workloads.taxonomy.config import HeadConfig, TimmConfig
from linnaeus.workloads.taxonomy.models import build_network
from linnaeus.workloads.taxonomy.trained.classifier.bundle import write_bundle
from linnaeus.workloads.taxonomy.trained.classifier.description import Description
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
from linnaeus.workloads.taxonomy.trained.predict import predict_cli
from linnaeus.workloads.taxonomy.trained.probabilities.rollup import answer_ranks, confident_paths
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

FOLDER_SHARE, SCRIPT_TIMES, ROLLUP_MS, SERVICE_TIMES = 0.9, 1.5, 60.0, 3.0  # bars
ANSWERS, BATCH, SPECIES = 256, 32, 1000


class Size(NamedTuple):
    """Amounts of work."""

    photographs: int = 2000
    width: int = 500  # pixels of a photograph; the height is three quarters of it
    image_size: int = 224
    backbone: str = "resnet18"
    rounds: int = 3
    taxa: int = 1_000_000
    requests: int = 1000
    clients: int = 64


QUICK = Size(8, 64, 32, "resnet10t", 1, 5000, 8, 2)


class Part(NamedTuple):
    """Results of a part: lines to print, numbers for the file, and True if its bars are met."""

    lines: list[str]
    numbers: dict[str, float]
    met: bool


def make_photographs(folder: Path, size: Size) -> list[Path]:
    """Write JPEGs of smooth noise in folders by class, as ImageFolder reads them. Return their paths."""
    rng, paths = np.random.default_rng(0), []
    for number in range(size.photographs):
        path = folder / f"class-{number % 4}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        coarse.resize((size.width, size.width * 3 // 4), Image.Resampling.BICUBIC).save(path, quality=90)
        paths.append(path)
    return paths


def make_bundle(folder: Path, size: Size) -> None:
    """Write a bundle with random weights, for 1,000 species of 100 genera."""
    names = np.array([[f"genus {i // 10}", f"species {i}"] for i in range(SPECIES)])
    tree = TaxonomyTree.from_lineages(("genus", "species"), names)[0]
    model = TimmConfig(
        name="timm", dropout=0.0, drop_path=0.0, meta_width=16, backbone=size.backbone, pretrained=False, pretrained_file=None
    )
    description = Description(model, HeadConfig(name="marginal", nulls="ignore"), (size.image_size,), (), "none", 10**8)
    network = build_network(model, description.head, description.image_sizes, tree, (), pretrained=False)
    weights = InitialWeights("random", "0" * 64, dict(network.state_dict()))
    write_bundle(folder, description, tree, weights, {})


def seconds(work: Callable[[], object]) -> float:
    """Return the wall time of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def forward_of(model: TrainedClassifier, photographs: Sequence[Path]) -> Callable[[], None]:
    """Return a function that runs the network on one batch of the photographs."""
    pixels = [model.read(path) for path in photographs]
    batch = model.batch(pixels, np.zeros((len(pixels), 0), np.float32), np.zeros((len(pixels), 0), bool))

    def forward() -> None:
        with torch.inference_mode():
            model.results(batch)

    return forward


def measure_folder(folder: Path, size: Size) -> Part:
    """Compare `linnaeus predict` on a folder with the network alone, the decoder alone, and a plain timm script."""
    paths, cores = make_photographs(folder / "photographs", size), len(os.sched_getaffinity(0))
    make_bundle(folder / "bundle", size)
    torch.set_num_threads(cores)
    model = linnaeus.load_model(folder / "bundle")
    one_batch = forward_of(model, paths[:BATCH])

    def forward() -> None:
        for _ in range(-(-len(paths) // BATCH)):
            one_batch()

    def decode() -> None:
        with ThreadPoolExecutor(cores) as pool:
            for _ in pool.map(model.read, paths):
                pass

    def predict() -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            predict_cli.main([str(folder / "bundle"), str(folder / "photographs"), "--out", str(folder / "out.csv")])
        (folder / "out.csv").unlink()

    works = {"forward": forward, "decoder": decode, "predict": predict, "timm script": lambda: timm_script(folder, size, cores)}
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(size.rounds):
        for name, work in works.items():
            times[name].append(seconds(work))
    rate = {name: len(paths) / median(values) for name, values in times.items()}
    together = 1 / (1 / rate["forward"] + 1 / rate["decoder"])
    share, ratio = rate["predict"] / together, rate["predict"] / rate["timm script"]
    bar = min(SCRIPT_TIMES, FOLDER_SHARE * together / rate["timm script"])
    lines = [f"{name:12s} {value:9.1f} photographs/s" for name, value in (rate | {"together": together}).items()]
    lines.append(f"predict: {share:.2f} of together (bar {FOLDER_SHARE}), {ratio:.2f} x the timm script (bar {bar:.2f})")
    return Part(lines, rate | {"share": share, "ratio": ratio}, share >= FOLDER_SHARE and ratio >= bar)


def timm_script(folder: Path, size: Size, workers: int) -> None:
    """Predict as the documentation of timm shows: its model and its transform, ImageFolder and a DataLoader."""
    import timm
    from timm.data import create_transform
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder

    model = timm.create_model(size.backbone, num_classes=SPECIES).eval()
    transform = create_transform((3, size.image_size, size.image_size), is_training=False, crop_pct=1.0)
    loader = DataLoader(ImageFolder(str(folder / "photographs"), transform), BATCH, num_workers=workers)
    with torch.inference_mode(), (folder / "script.csv").open("w") as file:
        for images, _ in loader:
            for best, classes in zip(*(part.tolist() for part in model(images).softmax(1).topk(5)), strict=True):
                file.write(",".join(map(str, (*classes, *best))) + "\n")


def measure_rollup(size: Size) -> Part:
    """Measure the answers of 256 photographs from the probabilities of all taxa of a tree, on one core."""
    torch.set_num_threads(1)
    numbers: dict[str, float] = {}
    for taxa in (size.taxa // 10, size.taxa):
        sizes = [max(taxa * share // 1000, 2) for share in (1, 10, 139, 850)]  # order, family, genus, species
        rng = np.random.default_rng(0)
        probabilities = tuple(rng.random((ANSWERS, count), dtype=np.float32) for count in sizes)
        path = np.stack([rng.integers(0, count, ANSWERS) for count in sizes], axis=1)
        roll_up = lambda given=probabilities, chosen=path: answer_ranks(confident_paths(given, chosen), 0.9)
        tracemalloc.start()
        roll_up()
        numbers[f"bytes at {taxa}"] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        numbers[f"ms at {taxa}"] = 1000 * median(seconds(roll_up) for _ in range(max(20 * size.rounds, 5)))
    small, large, duration = numbers[f"bytes at {size.taxa // 10}"], numbers[f"bytes at {size.taxa}"], numbers[f"ms at {size.taxa}"]
    lines = [f"{ANSWERS} answers over {size.taxa:,} taxa: {duration:.2f} ms (bar {ROLLUP_MS:g})"]
    lines.append(f"additional memory: {large / 1024:.0f} KiB; with a tenth of the taxa {small / 1024:.0f} KiB")
    return Part(lines, numbers, duration < ROLLUP_MS and large < 2 * small)


@contextlib.contextmanager
def service(folder: Path) -> Iterator[int]:
    """Run `linnaeus serve` in a process of its own. Yield its port."""
    command = [sys.executable, "-m", "linnaeus", "serve", str(folder / "bundle"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            said: list[str] = []
            for line in process.stdout:
                said.append(line)
                if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                    threading.Thread(target=process.stdout.read, daemon=True).start()  # a full pipe would stop the service
                    yield int(found[1])
                    return
            raise RuntimeError(f"the service did not start: {''.join(said)}")
        finally:
            process.terminate()


def clients(port: int, count: int, requests: int, photograph: bytes) -> tuple[list[float], float, int]:
    """Send requests from `count` clients at once. Return the seconds of each, the wall time, and the number that was not answered."""
    spent: list[float] = []
    lost: list[int] = []

    def client(number: int) -> None:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
            for _ in range(number, requests, count):
                start = time.perf_counter()
                connection.request("POST", "/predict", photograph)
                reply = connection.getresponse()
                reply.read()
                if reply.status != 200:
                    lost.append(reply.status)
                spent.append(time.perf_counter() - start)

    with ThreadPoolExecutor(count) as pool:
        wall = seconds(lambda: list(pool.map(client, range(count))))
    return spent, wall, len(lost) + requests - len(spent)


def measure_service(folder: Path, size: Size) -> Part:
    """Compare the requests per second of one client with those of many."""
    if not (folder / "bundle").exists():
        make_bundle(folder / "bundle", size)
    (photograph,) = make_photographs(folder / "one", size._replace(photographs=1))
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    one_batch = forward_of(linnaeus.load_model(folder / "bundle"), [photograph] * BATCH)
    one_batch()
    forward = BATCH / median(seconds(one_batch) for _ in range(10 * size.rounds))
    lines, lost = [f"forward in batches of {BATCH}: {forward:.1f} photographs/s"], 0
    numbers = {"forward": forward}
    with service(folder) as port:
        clients(port, 1, min(20, size.requests), photograph.read_bytes())  # warm up
        for count in (1, size.clients):
            spent, wall, missing = clients(port, count, size.requests, photograph.read_bytes())
            own = {"requests/s": len(spent) / wall, "p50 ms": 1000 * float(np.quantile(spent, 0.5))}
            own |= {"p99 ms": 1000 * float(np.quantile(spent, 0.99))}
            numbers |= {f"{count} clients, {name}": value for name, value in own.items()}
            lines.append(f"{count:3d} clients: " + ", ".join(f"{value:.1f} {name}" for name, value in own.items()))
            lost += missing
    one, many = (numbers[f"{count} clients, requests/s"] for count in (1, size.clients))
    lines.append(f"{many / one:.2f} times the requests per second of one client, {many / forward:.2f} of the forward, {lost} lost")
    lines[-1] += f" (bars: {SERVICE_TIMES:g} times, or {FOLDER_SHARE} of the forward; 0 lost)"
    met = many >= min(SERVICE_TIMES * one, FOLDER_SHARE * forward) and not lost
    return Part(lines, numbers | {"ratio": many / one, "lost": float(lost)}, met)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=("folder", "rollup", "service"), default=["folder", "rollup", "service"])
    parser.add_argument("--quick", action="store_true", help="small amounts: the figures mean nothing")
    parser.add_argument("--backbone", default=Size().backbone, help="network of timm (default: %(default)s)")
    parser.add_argument("--image-size", type=int, default=Size().image_size, help="pixels (default: %(default)s)")
    parser.add_argument("--width", type=int, default=Size().width, help="pixels of a photograph (default: %(default)s)")
    parser.add_argument("--photographs", type=int, default=Size().photographs, help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    options = parser.parse_args(arguments)
    size, parts = QUICK if options.quick else Size(options.photographs, options.width, options.image_size, options.backbone), {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measures = {
            "folder": lambda: measure_folder(folder, size),
            "rollup": lambda: measure_rollup(size),
            "service": lambda: measure_service(folder, size),
        }
        for part in options.part:
            parts[part] = measures[part]()
            print("\n".join([part, *(f"  {line}" for line in parts[part].lines)]), flush=True)
    met = all(part.met for part in parts.values())
    print(f"bars {'met' if met else 'MISSED'}")
    if options.json:
        write_numbers(
            options.json, {"machine": describe_machine(), "parts": {name: part.numbers for name, part in parts.items()}, "met": met}
        )
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
