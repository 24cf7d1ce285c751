"""Run the loader of another library, used as its own guide describes. `python -m benchmarks.data --peers ROOT` starts this script.

    PYTHON -P benchmarks/data_peers.py NAME PHOTOGRAPHS PREPARED --workers N --crop fixed|random

PHOTOGRAPHS is a folder of JPEGs in folders by class. A library with its own format packs their bytes into the folder PREPARED, unless that
exists. The batches are like those of `benchmarks.data`. For each line on standard input, until a line `end`, the script makes a pass over
all photographs and writes a line of JSON to standard output: the `seconds` per photograph (CPU time without workers, wall time with
workers) and the `number` of photographs.

This file imports neither linnaeus nor other benchmarks: PYTHON is the interpreter of an environment with NAME, torch and torchvision.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

SIZE, BATCH, SHORT_SIDE = 224, 64, 256
SCALE, RATIO = (0.08, 1.0), (0.75, 4 / 3)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SHARD = 32  # photographs in a tar file, so that every worker has some
Passes = Callable[[], Iterable[torch.Tensor]]  # each call: the batches of a pass, float32 [B, 3, 224, 224]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=PEERS)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--crop", choices=("fixed", "random"), default="fixed")
    options = parser.parse_args()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # for what the libraries print
    torch.set_num_threads(1)
    passes = PEERS[options.name](options.photographs, options.prepared, options.workers, options.crop)
    answer(sys.stdin, answers, passes, time.perf_counter if options.workers else time.process_time)


def answer(lines: Iterable[str], answers: TextIO, passes: Passes, clock: Callable[[], float]) -> None:
    """Make a pass for each of `lines` until a line `end`, and write its numbers to `answers` as a line of JSON."""
    for line in lines:
        if line == "end\n":
            break
        print(json.dumps(one_pass(passes, clock)), file=answers, flush=True)


def one_pass(passes: Passes, clock: Callable[[], float]) -> dict[str, float]:
    """Make one pass. Return the seconds per photograph and the number of photographs.

    Raise `ValueError` if a batch has a wrong shape or dtype."""
    start, number = clock(), 0
    for images in passes():
        if images.shape[1:] != (3, SIZE, SIZE) or images.dtype != torch.float32:
            raise ValueError(f"a batch is {images.dtype} {list(images.shape)}")
        number += len(images)
    return {"seconds": (clock() - start) / number, "number": number}


def webdataset(photographs: Path, prepared: Path, workers: int, crop: str) -> Passes:
    """Load from tar files with webdataset: shuffled by shard and in a buffer, decoded by Pillow, batched in the worker."""
    import webdataset as wds

    if not prepared.exists():
        prepared.mkdir(parents=True)
        samples = ImageFolder(str(photographs)).samples
        with wds.ShardWriter(str(prepared / "%06d.tar"), maxcount=SHARD, verbose=0) as writer:
            for number, (path, label) in enumerate(random.Random(0).sample(samples, len(samples))):
                writer.write({"__key__": f"{number:06d}", "jpg": Path(path).read_bytes(), "cls": label})
    shards = sorted(map(str, prepared.glob("*.tar")))
    dataset = wds.WebDataset(shards, shardshuffle=100).shuffle(1000).decode("pil").to_tuple("jpg", "cls")
    dataset = dataset.map_tuple(of_pillow(crop), int).batched(BATCH)
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    return lambda: (images for images, _ in loader)


def hugging_face(photographs: Path, prepared: Path, workers: int, crop: str) -> Passes:
    """Load from a Hugging Face dataset on disk with the Image feature, which Pillow decodes, and a transform applied when rows are read."""
    import datasets

    if not prepared.exists():
        cache = str(prepared.with_name(prepared.name + "-cache"))
        datasets.load_dataset("imagefolder", data_dir=str(photographs), split="train", cache_dir=cache).save_to_disk(str(prepared))
    transform = of_pillow(crop)

    def apply(rows: dict[str, Any]) -> dict[str, Any]:
        return {"image": [transform(image.convert("RGB")) for image in rows["image"]], "label": rows["label"]}

    dataset: Any = datasets.load_from_disk(str(prepared)).with_transform(apply)
    loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    return lambda: (batch["image"] for batch in loader)


def litdata(photographs: Path, prepared: Path, workers: int, crop: str) -> Passes:
    """Load with litdata from chunks of JPEGs, which its `optimize` writes, decoded by torchvision."""
    import litdata as ld

    if not prepared.exists():
        samples = ImageFolder(str(photographs)).samples
        ld.optimize(litdata_sample, samples, str(prepared), chunk_bytes="64MB", num_workers=1, verbose=False)
    transform = of_tensors(crop)
    dataset = ld.StreamingDataset(str(prepared), shuffle=True, transform=lambda sample, *_: sample | {"image": transform(sample["image"])})
    loader = ld.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0)
    return lambda: (batch["image"] for batch in loader)


def litdata_sample(sample: tuple[str, int]) -> dict[str, Any]:
    import litdata as ld

    return {"image": ld.Image(path=sample[0]), "label": sample[1]}


def torchcodec(photographs: Path, prepared: Path, workers: int, crop: str) -> Passes:
    """Load the JPEG files, decoded to tensors by torchcodec in torch's DataLoader."""
    from torchcodec.decoders import decode_image

    dataset = ImageFolder(str(photographs), of_tensors(crop), loader=decode_image)
    loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    return lambda: (images for images, _ in loader)


def spdl(photographs: Path, prepared: Path, workers: int, crop: str) -> Passes:
    """Load the JPEG files with SPDL: FFmpeg decodes, resizes, crops and mirrors them in as many threads as there are workers, at least
    one."""
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    samples, threads = ImageFolder(str(photographs)).samples, max(workers, 1)
    mean, std = 255 * torch.tensor(MEAN).view(3, 1, 1), 255 * torch.tensor(STD).view(3, 1, 1)

    def decode(sample: tuple[str, int]) -> tuple[Any, int]:
        return spdl.io.decode_packets(spdl.io.demux_image(sample[0]), filter_desc=ffmpeg_filter(crop)), sample[1]

    def batch(items: list[tuple[Any, int]]) -> torch.Tensor:
        frames, _ = zip(*items)
        pixels = spdl.io.to_torch(spdl.io.convert_frames(frames)).permute(0, 3, 1, 2)
        return pixels.float().sub_(mean).div_(std)

    def batches() -> Iterable[torch.Tensor]:
        builder = PipelineBuilder().add_source(random.sample(samples, len(samples))).pipe(decode, concurrency=threads)
        pipeline = builder.aggregate(BATCH).pipe(batch).add_sink(3).build(num_threads=threads, max_failures=0)
        with pipeline.auto_stop():
            yield from pipeline

    return batches


def ffmpeg_filter(crop: str) -> str:
    """Return a description of FFmpeg filters that crop at random, resize, and mirror with probability 0.5."""
    place = f"(iw-ow)*{random.random()}:(ih-oh)*{random.random()}"
    to_rgb = "flags=bilinear,format=rgb24"  # in one pass with the resize
    if crop == "fixed":
        found = f"scale={SHORT_SIDE}:{SHORT_SIDE}:force_original_aspect_ratio=increase:{to_rgb},crop={SIZE}:{SIZE}:{place}"
    else:
        area, ratio = random.uniform(*SCALE), random.uniform(*RATIO)
        width, height = (rf"min({side}\,sqrt(iw*ih*{share}))" for side, share in (("iw", area * ratio), ("ih", area / ratio)))
        found = f"crop={width}:{height}:{place},scale={SIZE}:{SIZE}:{to_rgb}"
    return found + random.choice(["", ",hflip"])


def of_pillow(crop: str) -> Callable[[Any], torch.Tensor]:
    """Return the transform of a Pillow image to a normalised crop, float32 [3, 224, 224]."""
    return transforms.Compose([*crops(transforms, crop), transforms.ToTensor(), transforms.Normalize(MEAN, STD)])


def of_tensors(crop: str) -> Callable[[Any], torch.Tensor]:
    """Return the transform of a uint8 tensor [3, H, W] to a normalised crop, float32 [3, 224, 224]."""
    return v2.Compose([*crops(v2, crop), v2.ToDtype(torch.float32, scale=True), v2.Normalize(list(MEAN), list(STD))])


def crops(module: Any, crop: str) -> list[Any]:
    """Return the transforms that crop to 224 pixels and mirror at random, from torchvision's `module` (`transforms` or `v2`)."""
    fixed = [module.Resize(SHORT_SIDE), module.RandomCrop(SIZE)]
    return [*(fixed if crop == "fixed" else [module.RandomResizedCrop(SIZE, SCALE, RATIO)]), module.RandomHorizontalFlip()]


PEERS: dict[str, Callable[[Path, Path, int, str], Passes]] = {
    "webdataset": webdataset,
    "HF datasets": hugging_face,
    "litdata": litdata,
    "SPDL": spdl,
    "torchcodec": torchcodec,
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
