"""Measure images per second of image classifiers on a GPU: our loop beside a bare compiled loop and timm's, heads, and the data path.

    python -m benchmarks.vision                            all networks: our loop beside the others; needs a CUDA device
    python -m benchmarks.vision --networks vit_small       one network
    python -m benchmarks.vision --part heads               metadata, hierarchical heads and GradNorm, compared with a plain classifier
    python -m benchmarks.vision --part data                from photographs of a prepared store, compared with device tensors
    python -m benchmarks.vision --part checkpointing       2.5 times the batch of ViT-L with trainer.activation_checkpointing=blocks
    python -m benchmarks.vision --part deterministic       the same bits: each value of trainer.deterministic, on one process
    python -m benchmarks.vision --part starts --compile whole blocks    from the start to the first update, and from SIGTERM to the exit
    python -m benchmarks.vision --rounds 1 --updates 2     fills the caches of the compiler

Part `loops`: 224 pixels, bf16, compiled, one softmax over 10,000 species; photographs are on the device already. The bare loop is the
network of timm with its classifier and loss compiled as one, and fused AdamW: no normalisation, clipping, metrics or rows. Part `heads`:
ViT-S/16 with seven ranks, metadata, half of them masked, and GradNorm at every update or every tenth, compared with the plain classifier of
the first part. Part `data`: photographs with a short side of 256 pixels in a store, cropped, mirrored and recoloured on the device. Part
`checkpointing`: our loop with all activations stored, and with 2.5 times the batch and the activations of blocks recomputed. Seconds are of
the wall clock until the device has finished, in interleaved rounds. Part `starts`: runs of `python main.py`, each launched, stopped
by SIGTERM 2 seconds after its first update, and launched again.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.interleaved import Bar, Seconds, arguments, conclude, measure, report
from benchmarks.vision import data_path
from benchmarks.vision.checkpointed import measure_checkpointing
from benchmarks.vision.deterministic import measure_deterministic
from benchmarks.vision.loops import BareLoop, OursOnDevice, TimmLoop
from benchmarks.vision.settings import METADATA, NETWORKS, PLAIN, configure, settings
from benchmarks.vision.starts import measure_starts
from benchmarks.vision.step_memory import StepMemory
from linnaeus.distributed import DistributedContext
from linnaeus.reporting.performance.throughput import peak_flops
from linnaeus.train.measuring.model_flops import count_flops

OURS, BARE, TIMM = "linnaeus", "bare loop", "timm's loop"
GRADNORM = ("weighting=gradnorm", "weighting.conflict=[]")
HEADS = {
    "linear head": ("head=linear",),
    "conditional head": ("head=conditional",),
    "marginal head": ("head=marginal",),
}
EVERY = {"": ("weighting.conflict=[]",), ", GradNorm every 10th": (*GRADNORM, "weighting.every=[10steps]"),
         ", GradNorm every": (*GRADNORM, "weighting.every=[1steps]")}  # fmt: skip
VARIANTS = {
    head + every: (*METADATA, *HEADS[head], *EVERY[every])
    for head, wanted in {
        "linear head": ("",),
        "conditional head": ("", ", GradNorm every 10th", ", GradNorm every"),
        "marginal head": (", GradNorm every 10th",),
    }.items()
    for every in wanted
}
PLAIN_CLASSIFIER = "plain classifier"
HEAD_BARS = {10_000: 1.05, 100_000: 1.15}
BARRED = tuple(f"{head}, GradNorm every 10th" for head in ("conditional head", "marginal head"))


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--part", choices=list(PARTS), default="loops")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--updates", type=int, default=40, help="updates of a driver in a round (%(default)s)")
    parser.add_argument("--batch", type=int, help="images of an update; by default as listed for each network")
    words = (
        "values of trainer.compile for our loop (whole); more than one in part `loops`: the first is compared; false: no loop is compiled"
    )
    parser.add_argument("--compile", nargs="+", default=["whole"], choices=("whole", "blocks", "false"), help=words)
    parser.add_argument("--species", type=int, nargs="+", default=[10_000, 100_000], help="leaves of the trees of part `heads`")
    parser.add_argument(
        "--variants", nargs="+", choices=list(VARIANTS), metavar="NAME", default=list(VARIANTS), help="rows of part `heads`"
    )
    parser.add_argument("--photographs", type=int, default=data_path.PHOTOGRAPHS, help="of the store of part `data` (%(default)s)")
    parser.add_argument("--without", nargs="+", default=[], choices=(BARE, TIMM), help="loops that are left out")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device here; --device cpu --networks test tries the benchmark on a CPU")
    context = DistributedContext().initialize(device=options.device)
    every = [name for name in NETWORKS if name != "test"]
    names = options.networks or {"loops": every, "checkpointing": ["vit_large"]}.get(options.part, ["vit_small"])
    part = PARTS[options.part]
    return conclude([table for name in names for table in part(name, options, context)], options.json)


def loops(name: str, options: Any, context: DistributedContext) -> list[dict[str, Any]]:
    """Time the loops on one network. Return the tables."""
    network, rounds = NETWORKS[name], options.rounds
    with tempfile.TemporaryDirectory() as root:
        ours = OursOnDevice(configured(name, options, Path(root), *PLAIN), context)
        drivers: dict[str, Any] = {OURS: ours}
        for choice in options.compile[1:]:
            more = *PLAIN, f"trainer.compile={choice}", f"run.name=compile-{choice}"
            drivers[f"{OURS}, {choice}"] = OursOnDevice(configured(name, options, Path(root), *more), context)
        drivers |= {peer: kind(plain_network(name, ours), ours) for peer, kind in PEERS.items() if peer not in options.without}
        title, notes, seconds = timed_updates(name, drivers, options, context)
        ours.close()
    if network.least is not None:
        notes[OURS] += f", bar on an H100 {network.least:,} images/s"
    bars = [Bar(OURS, BARE, network.over_bare)] if network.over_bare is not None and BARE in drivers else []
    bars += [Bar(OURS, TIMM, 0.97)] if TIMM in drivers and name != "test" else []
    return [report(f"{title}, {rounds} rounds", seconds, BARE if BARE in drivers else OURS, bars, (1000, "ms"), notes)]


PEERS: dict[str, type[BareLoop]] = {BARE: BareLoop, TIMM: TimmLoop}


def plain_network(name: str, ours: OursOnDevice) -> nn.Module:
    """Return the network that the bare loop and timm's loop train, as a function of images: timm's network with a classifier, or for
    mformer the network of linnaeus."""
    if NETWORKS[name].settings[0].startswith("model.backbone="):
        import timm

        species = ours.workload.data_source.tree.sizes[-1]  # type: ignore[attr-defined]  # of the taxonomy workload
        return timm.create_model(NETWORKS[name].settings[0].removeprefix("model.backbone="), num_classes=species)
    return ImagesOnly(ours.workload.build_model())


class ImagesOnly(nn.Module):
    """A classifier of linnaeus without metadata as a function from images [B, 3, S, S] to the scores of the finest rank, [B, C]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> Tensor:
        nothing = image.new_empty(len(image), 0)
        return self.model({"image": image, "meta": nothing, "present": nothing.bool()})["scores"].logits[-1]


def heads(name: str, options: Any, context: DistributedContext) -> list[dict[str, Any]]:
    """Time our loop with the plain classifier and with each of `options.variants`, for each size of tree. Return the tables.

    All variants have several ranks and metadata; some have GradNorm."""
    tables = []
    for species in options.species:
        drivers: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as root:
            variants = {PLAIN_CLASSIFIER: PLAIN} | {variant: VARIANTS[variant] for variant in options.variants}
            for number, (variant, more) in enumerate(variants.items()):
                config = configured(name, options, Path(root), f"data.species={species}", *more, f"run.name=v{number}")
                drivers[variant] = OursOnDevice(config, context)
            title, notes, seconds = timed_updates(name, drivers, options, context)
            for driver in drivers.values():
                driver.close()
        bars = [Bar(variant, PLAIN_CLASSIFIER, HEAD_BARS[species]) for variant in BARRED if variant in drivers and species in HEAD_BARS]
        tables.append(
            report(f"{title}, {species:,} species, {options.rounds} rounds", seconds, PLAIN_CLASSIFIER, bars, (1000, "ms"), notes)
        )
    return tables


def configured(name: str, options: Any, root: Path, *more: str) -> Any:
    batch = options.batch or NETWORKS[name].batch
    return configure(settings(name, batch, options.updates, options.rounds + 1, root, options.device, options.compile[0], *more))


def timed_updates(name: str, drivers: dict[str, Any], options: Any, context: DistributedContext) -> tuple[str, dict[str, str], Seconds]:
    """Return the title of a table, a note per driver (images per second, MFU, memory of a step) and the seconds of an update."""
    batch, updates = options.batch or NETWORKS[name].batch, options.updates
    memory = {variant: StepMemory(variant, driver, context.device) for variant, driver in drivers.items()}
    seconds = measure(memory, options.rounds)
    ours = next(driver for driver in drivers.values() if isinstance(driver, OursOnDevice))
    held = ours.training.train_loader.batches[0]
    prepared = ours.workload.prepare({key: value.to(context.device) for key, value in held.items()})
    flops = count_flops(ours.model, prepared, batch).per_sample
    device = torch.cuda.get_device_name(context.device) if context.device.type == "cuda" else "cpu"
    peak = peak_flops(device, ours.config.trainer.precision)
    per_update = {variant: [s / updates for s in times] for variant, times in seconds.items()}
    notes = {
        variant: rate_note(batch / sorted(times)[len(times) // 2], flops, peak) + memory[variant].note()
        for variant, times in per_update.items()
    }
    return f"{name}, {device}, bf16, batch {batch}, {flops / 1e9:.1f} GFLOP an image, {updates} updates a round", notes, per_update


def rate_note(rate: float, flops: float, peak: float | None) -> str:
    return f"{rate:,.0f} images/s" + (f", MFU {100 * rate * flops / peak:.1f} %" if peak else "")


PARTS: dict[str, Callable[..., list[dict[str, Any]]]] = {
    "loops": loops,
    "heads": heads,
    "data": data_path.measure_store,
    "checkpointing": measure_checkpointing,
    "deterministic": measure_deterministic,
    "starts": lambda name, options, context: measure_starts(name, options),
}

if __name__ == "__main__":
    sys.exit(main())
