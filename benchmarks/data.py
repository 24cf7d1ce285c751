"""Measure how fast photographs become batches: linnaeus with original files and with prepared stores, torchvision's ImageFolder, timm's
loader.

    python -m benchmarks.data                     one core and all cores, 15 rounds; about 5 minutes on 2 cores, 300 MB of disk
    python -m benchmarks.data --quick             a short trial, 10 seconds; no verdict
    python -m benchmarks.data --crop random       random-resized crops instead of crops of one size
    python -m benchmarks.data --path FOLDER       photographs of your own, in folders by taxon
    python -m benchmarks.data --peers ROOT        more peers (`data_peers.py`), installed there: 450 MB; 5 minutes more

The photographs are JPEGs of 500 x 375 pixels made from a seed. Each loader makes batches of 64 random crops of 224 pixels, mirrored with
probability 0.5, as normalised float32. The crops are squares of photographs with a short side of 256 pixels, or with `--crop random` 8 to
100 % of the area, resized. The stores contain photographs with a short side of 256. The cache of photographs is off:
every round decodes every photograph. On one core the CPU time is measured, on all cores the wall time. The decoder alone is simplejpeg and
the resize of linnaeus, without a batch: read, decode, resize. Bars: original files 3 times as fast as either peer, the JPEG store 5.5 times
as fast as ImageFolder, the raw store 10 times, and original files at 90 % of the rate of the decoder alone (85 % on all cores).

The hand-over is the time that the training process spends on a float32 batch that a worker has finished, until it can read every page of
it. Bar: at most 1 ms.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks.interleaved import Bar, arguments, conclude, measure, report
from benchmarks.peer_processes import REQUIREMENTS, Peer, running_peers
from linnaeus import train, workloads
from linnaeus.config.load import compose
from linnaeus.data.samples import PositionedDataset
from linnaeus.data.workers import WorkerLoader, WorkerPool
from linnaeus.distributed import DistributedContext, keep_freed_memory
from linnaeus.train.building.build_data import build_sampler, build_train_loader, build_workers
from linnaeus.workloads.taxonomy.images import photographs
from linnaeus.workloads.taxonomy.images.resizing import resize
from linnaeus.workloads.taxonomy.inputs.preparation import MEAN, STD
from linnaeus.workloads.taxonomy.store import prepare_store
from linnaeus.workloads.taxonomy.store.store_files import StoreFiles
from linnaeus.workloads.taxonomy.store.store_layout import read_array, read_lines

SIZE, BATCH, SHORT_SIDE = 224, 64, 256
PHOTOGRAPHS, CLASSES = 512, 8
SCALE, RATIO = (0.08, 1.0), (0.75, 4 / 3)  # of torchvision's RandomResizedCrop
ORIGINALS, JPEG_STORE, RAW_STORE = "linnaeus, original files", "linnaeus, JPEG store", "linnaeus, raw store"
IMAGE_FOLDER, TIMM, DECODER = "torchvision ImageFolder", "timm loader", "decoder alone"
SLOTS, DATALOADER, ONE_MS = "linnaeus, reused slots", "torch DataLoader", "1 ms"
BARS = [
    Bar(ORIGINALS, IMAGE_FOLDER, 1 / 3),
    Bar(ORIGINALS, TIMM, 1 / 3),
    Bar(JPEG_STORE, IMAGE_FOLDER, 1 / 5.5),
    Bar(RAW_STORE, IMAGE_FOLDER, 1 / 10),
]
Timed = Callable[[int], float]  # from the number of a round to seconds per photograph


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="1 round with 72 photographs")
    parser.add_argument("--crop", choices=("fixed", "random"), default="fixed", help="size of the crops (%(default)s)")
    parser.add_argument("--path", type=Path, help="folder of photographs, in folders by taxon")
    parser.add_argument("--peers", type=Path, metavar="ROOT", help="folder of the environments of more peers")
    options = parser.parse_args()
    if options.path is not None and len(list(options.path.rglob("*.jpg"))) < 2 * BATCH:
        parser.error(f"--path {options.path} has fewer than {2 * BATCH} files *.jpg; give a larger folder, or leave it out")
    rounds, count = (1, 72) if options.quick else (options.rounds, PHOTOGRAPHS)
    torch.set_num_threads(1)
    photographs.CACHE_LIMIT = 0  # no photograph is kept from one round for the next
    if options.peers is None:
        print(f"not measured: {', '.join(REQUIREMENTS)} (--peers ROOT)")
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        folder = options.path or make_photographs(root / "photographs", count)
        stores = {name: prepare(folder, root / name, name) for name in ("jpeg", "raw")}
        files = {"originals": folder, f"short side {SHORT_SIDE}": as_files(stores["jpeg"], root / "files")} if options.peers else {}
        tables = []
        for workers in (0, len(os.sched_getaffinity(0))):
            with running_peers(options.peers, files, root / "peers", workers, options.crop) as peers:
                tables.append(compare(folder, stores, rounds, workers, options.crop, peers))
    tables.append(hand_over(rounds))
    return conclude(tables, options.json)


def compare(folder: Path, stores: dict[str, Path], rounds: int, workers: int, crop: str, peers: dict[str, Peer]) -> dict[str, Any]:
    """Time all loaders and the running `peers`. Return the table with its bars. `workers`: processes that load; 0: this process loads."""
    clock = time.perf_counter if workers else time.process_time
    epochs = {
        ORIGINALS: ours(["data=image_folder", f"data.path={folder}"], workers, crop),
        JPEG_STORE: ours(["data=store", f"data.path={stores['jpeg']}"], workers, crop),
        RAW_STORE: ours(["data=store", f"data.path={stores['raw']}"], workers, crop),
        IMAGE_FOLDER: image_folder(folder, workers, crop),
        TIMM: timm_loader(folder, workers, crop),
        DECODER: decoder(folder, workers, crop),
    }
    variants: dict[str, Timed] = {name: timed(epoch, clock) for name, epoch in epochs.items()}
    variants |= {name: lambda _, peer=peer: peer.seconds() for name, peer in peers.items()}  # type: ignore[misc]
    seconds = measure(variants, rounds)
    share = 0.85 if workers else 0.9
    notes = {name: f"{1 / np.median(times):,.0f} photographs/s" for name, times in seconds.items()}
    what = f"{workers} workers, wall seconds" if workers else "one core, CPU seconds"
    title = f"{what} of a photograph, {crop} size of the crops, {rounds} rounds"
    return report(title, seconds, IMAGE_FOLDER, [*BARS, Bar(ORIGINALS, DECODER, 1 / share)], (1000, "ms"), notes)


class OneBatch(PositionedDataset):
    """Dataset that returns the same float32 photographs in every batch, so that only the hand-over takes time."""

    def __init__(self) -> None:
        self.images, self.labels = torch.rand(BATCH, 3, SIZE, SIZE), torch.zeros(BATCH, dtype=torch.int64)

    def __len__(self) -> int:
        return BATCH

    def __getitems__(self, indices: Any) -> dict[str, torch.Tensor]:
        return {"image": self.images, "label": self.labels, "weight": torch.ones(BATCH), "sample": torch.tensor(indices)}


def hand_over(rounds: int) -> dict[str, Any]:
    """Time the hand-over of a finished batch from a worker. Return the table with its bar."""
    dataset, batches = OneBatch(), [[0] * BATCH] * 1000
    peer: Any = DataLoader(dataset, batch_sampler=batches, num_workers=2, collate_fn=lambda batch: batch)  # type: ignore[arg-type]
    pool = WorkerPool([dataset], 2)
    variants = {SLOTS: iter(WorkerLoader(pool, dataset, batches, 2)), DATALOADER: iter(peer)}

    def seconds(loader: Iterator[Any]) -> float:
        times = []
        for _ in range(5):
            time.sleep(0.1)  # until the batch is ready
            start = time.perf_counter()
            batch = next(loader)
            batch["image"].view(torch.uint8).flatten()[:: mmap.PAGESIZE].sum()
            times.append(time.perf_counter() - start)
        return min(times)

    timed_rounds = {name: lambda _, loader=loader: seconds(loader) for name, loader in variants.items()}
    found = measure(timed_rounds | {ONE_MS: lambda _: 0.001}, rounds)
    pool.close()
    title = f"hand-over of a batch of {BATCH} x 3 x {SIZE} x {SIZE} float32 by a worker, wall seconds, {rounds} rounds"
    return report(title, found, DATALOADER, [Bar(SLOTS, ONE_MS, 1.0)], (1000, "ms"), {})


def timed(epoch: Callable[[], Iterable[int]], clock: Callable[[], float]) -> Timed:
    """Return a function that makes one pass over `epoch()` and returns the seconds per photograph, measured by `clock`.

    `epoch()` yields the number of photographs of each batch."""

    def one_pass(_: int) -> float:
        start = clock()
        count = sum(epoch())
        return (clock() - start) / count

    return one_pass


def make_photographs(folder: Path, count: int, first: int = 0) -> Path:
    """Write `count` JPEGs of 500 x 375 pixels, about 40 kB each, half of them in portrait format, in folders by class. Return `folder`.

    The files are named `first`.jpg and so on; another `first` gives other photographs."""
    rng = np.random.default_rng(first)
    for number in range(first, first + count):
        width, height = (500, 375) if number % 2 else (375, 500)
        coarse = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
        fine = Image.fromarray(rng.integers(90, 166, (height // 3, width // 3, 3), dtype=np.uint8)).resize((width, height))
        pixels = np.asarray(coarse, np.int16) + np.asarray(fine, np.int16) - 128
        taxon = folder / f"Taxon {'abcdefgh'[number % CLASSES]}"
        taxon.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(taxon / f"{number}.jpg", quality=90)
    return folder


def prepare(folder: Path, store: Path, images: str, processes: int = 1) -> Path:
    """Prepare a store of the photographs in `folder`, with the encoding `images` ("jpeg" or "raw"). Return its path."""
    with contextlib.redirect_stdout(io.StringIO()):
        words = ["image_folder", str(store), f"data.path={folder}", f"--images={images}", f"--short-side={SHORT_SIDE}"]
        words.append(f"--processes={processes}")
        assert prepare_store.main(words) == 0
    return store


def as_files(store: Path, folder: Path) -> Path:
    """Write the photographs of a JPEG store as files to `folder`, in subfolders by taxon. Return `folder`."""
    stored = StoreFiles(store, read_lines(store / "names.txt"), read_array(store / "place.npy"), None)
    for row, name in enumerate(stored.names):
        taxon = folder / Path(name).parent.name
        taxon.mkdir(parents=True, exist_ok=True)
        (taxon / f"{row}.jpg").write_bytes(stored.read(row))
    return folder


def ours(data: list[str], workers: int, crop: str) -> Callable[[], Iterable[int]]:
    """Return a function that runs one epoch of the training loader of linnaeus and yields the size of each batch, prepared for the model.

    `data`: settings that select the data."""
    area = [f"augment.crop_scale=[{SCALE[0]},{SCALE[1]}]", f"augment.crop_ratio=[{RATIO[0]},{RATIO[1]}]"]
    augment = [*(area if crop == "random" else [f"augment.crop_side={SIZE / SHORT_SIDE}"]), "augment.horizontal_flip=0.5"]
    sizes = [
        f"data.image_size={SIZE}",
        f"trainer.global_batch_size={BATCH}",
        f"trainer.micro_batch_size={BATCH}",
        "trainer.length=1000epochs",
    ]
    config = compose(
        [*data, "augment=none", *augment, *sizes, f"trainer.num_workers={workers}", "data.validation_fraction=0.05", "data.components=[]"]
    )
    context = DistributedContext().initialize(device="cpu")
    keep_freed_memory()  # as in every run on a CPU; from here on for all loaders of this process
    workload = workloads.build_workload(config)
    plan = train.resolve_schedule(config, workload, context)
    with tempfile.TemporaryDirectory() as quarantine:
        workload.build_datasets(plan.ops, Path(quarantine))
    sampler = build_sampler(config, context, workload, plan)
    loader = build_train_loader(config, workload, sampler, build_workers(config, context, workload))

    def epoch() -> Iterable[int]:
        for batch in loader:
            yield len(workload.prepare(batch)["image"])

    return epoch


def image_folder(folder: Path, workers: int, crop: str) -> Callable[[], Iterable[int]]:
    """Return a function that runs one epoch of the usual torchvision loader: Pillow, transforms one after the other, float32 per
    photograph."""
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    end = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    dataset = ImageFolder(str(folder), transforms.Compose([*crops(crop), *end]))
    loader = DataLoader(dataset, BATCH, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0)
    return lambda: (len(image) for image, _ in loader)


def crops(crop: str) -> list[Any]:
    """Return the torchvision transforms that crop a photograph to 224 pixels and mirror it at random."""
    from torchvision import transforms

    fixed = [transforms.Resize(SHORT_SIDE), transforms.RandomCrop(SIZE)]
    return [*(fixed if crop == "fixed" else [transforms.RandomResizedCrop(SIZE, SCALE, RATIO)]), transforms.RandomHorizontalFlip()]


def timm_loader(folder: Path, workers: int, crop: str) -> Callable[[], Iterable[int]]:
    """Return a function that runs one epoch of timm's loader with its prefetcher, which normalises whole batches."""
    from timm.data import create_dataset, create_loader
    from timm.data.transforms import ToNumpy
    from torchvision import transforms

    loader = create_loader(
        create_dataset("", root=str(folder)),
        (3, SIZE, SIZE),
        BATCH,
        is_training=True,
        scale=SCALE,
        ratio=RATIO,
        hflip=0.5,
        color_jitter=0.0,
        interpolation="bilinear",
        mean=MEAN,
        std=STD,
        num_workers=workers,
        device=torch.device("cpu"),
        pin_memory=False,
        persistent_workers=workers > 0,
    )
    if crop == "fixed":
        loader.dataset.transform = transforms.Compose([*crops(crop), ToNumpy()])
    return lambda: (len(image) for image, _ in loader)


class Decoded(Dataset):
    """Dataset that reads, decodes and resizes photographs, and returns only their numbers."""

    def __init__(self, folder: Path, crop: str) -> None:
        self.crop = crop
        self.files = sorted(folder.rglob("*.jpg"))
        self.out = np.empty((SIZE, SIZE, 3), np.uint8)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> int:
        import simplejpeg

        pixels = simplejpeg.decode_jpeg(self.files[number].read_bytes(), strict=True)
        height, width, _ = pixels.shape
        side = round(min(height, width) * SIZE / SHORT_SIDE if self.crop == "fixed" else (height * width * 0.54) ** 0.5)  # 0.54: mean area
        resize(pixels[:side, :side], self.out)
        return number


def decoder(folder: Path, workers: int, crop: str) -> Callable[[], Iterable[int]]:
    """Return a function that reads, decodes and resizes all photographs once: the work that every loader must do."""
    loader = DataLoader(Decoded(folder, crop), BATCH, num_workers=workers, persistent_workers=workers > 0)
    return lambda: (len(numbers) for numbers in loader)


if __name__ == "__main__":
    sys.exit(main())
