"""Measure tokens per second: the loop of linnaeus and a plain loop with the same model, data, optimizer and number of threads.

    python -m benchmarks.language              4 minutes on one CPU core; 3 more if there is a GPU
    python -m benchmarks.language --quick      a short trial of each; no verdict
    python -m benchmarks.language --only gpu --micro-batch 16

On the CPU it is the model of `experiment=shakespeare_char_cpu` on letters of a Markov chain, with one thread. The loop of linnaeus is
`linnaeus.train.train_one_epoch` with metrics, finite check, and a row and a report every 20 updates, as in a run of 2,000. The plain loop
is written by hand: batches at random offsets, learning rate by the same schedule, forward, backward, clipping, fused AdamW, the loss read
every 20 updates. Bar: at most 1.02 of its time, in wall time and in CPU time of the process; other processes on a busy machine do not
affect the latter.

Each letter can be followed by three letters, and all are equally frequent: a loop that learns nothing stays at ln 65 = 4.17 nats. If a loop
is not half-way to ln 3 after 300 updates, the benchmark ends with an error, because that loop does not do the same work.

On a GPU it is `experiment=gpt2`, 124M parameters, bf16 and compiled: tokens per second, and MFU (the share of the device's peak FLOP/s),
from `flops_per_token` of the model and the maker's peak.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.drivers import Ours, Peer
from benchmarks.interleaved import Bar, Seconds, arguments, conclude, measure, report
from linnaeus.config.load import compose
from linnaeus.config.schema import Config
from linnaeus.data.samples import SampleIndex
from linnaeus.distributed import DistributedContext
from linnaeus.reporting.performance.throughput import peak_flops, utilisation
from linnaeus.train.building.planning import Plan
from linnaeus.workloads.base import Workload
from linnaeus.workloads.language.model.token_loss import IGNORED

AT_MOST = 1.02
READ_EVERY = 20  # updates
LETTERS = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # 65, those of Shakespeare's plays
SUCCESSORS = 3  # letters that may follow one
LEARNT = (math.log(SUCCESSORS) + math.log(len(LETTERS))) / 2  # nats, half-way from knowing nothing of what follows to knowing it all
LEARNT_AFTER = 300  # updates
BETWEEN_RUNS = ["schedule.validate=[]", "schedule.validate_at_end=false", "schedule.checkpoint=[]", "schedule.checkpoint_at_end=false"]
BETWEEN_RUNS += [f"schedule.log=[{READ_EVERY}steps]", f"schedule.report=[{READ_EVERY}steps]", "lr_scheduler.warmup=0steps"]
BETWEEN_RUNS += ["logger.console=quiet", "logger.report=false", "run.name=run"]


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--updates", type=int, help="updates of a loop in a round (40 on the CPU, 20 on a GPU)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of every loop")
    parser.add_argument("--only", choices=("cpu", "gpu"), help="one of the two parts; both by default")
    parser.add_argument("--micro-batch", type=int, default=32, help="windows of 1,024 tokens in a batch on the GPU")
    parser.add_argument("--quick", action="store_true", help="3 rounds of few updates")
    options = parser.parse_args(argv)
    rounds, few = (3, 5) if options.quick else (options.rounds, None)
    tables = []
    if options.only != "gpu":
        torch.set_num_threads(options.threads)
        tables += on_cpu(rounds, options.updates or few or 40, options.threads)
    if options.only != "cpu" and torch.cuda.is_available():
        tables += on_gpu(rounds, options.updates or few or 20, options.micro_batch)
    elif options.only != "cpu":
        print("\nno CUDA device here: gpt2 was not measured")
    return conclude(tables, options.json)


# -- the two parts -------------------------------------------------------------------------------------------------------------


def on_cpu(rounds: int, updates: int, threads: int) -> list[dict[str, Any]]:
    context = DistributedContext().initialize(device="cpu")
    with tempfile.TemporaryDirectory() as root:
        config = cpu_config(Path(root), updates, rounds + 1, threads)
        found = compare(config, context, {"plain loop": DrawnByHand, "plain loop, our batches": PlainLoop}, rounds, updates)
    bars = [Bar("linnaeus", "plain loop", AT_MOST), Bar("linnaeus", "plain loop, our batches", AT_MOST)]
    what = f"shakespeare_char_cpu, {rounds} rounds of {updates} updates, {threads} thread{'s' * (threads > 1)}"
    return [
        found.table(f"{what}, time of an update on the wall", found.wall, bars),
        found.table(f"{what}, CPU time of an update", found.process, bars),
    ]


def on_gpu(rounds: int, updates: int, micro_batch_size: int) -> list[dict[str, Any]]:
    context = DistributedContext().initialize(device="cuda")
    with tempfile.TemporaryDirectory() as root:
        config = gpu_config(Path(root), updates, rounds + 1, micro_batch_size, "cuda")
        found = compare(config, context, {"plain loop": DrawnByHand}, rounds, updates)
    name = torch.cuda.get_device_name(context.device)
    memory = torch.cuda.max_memory_allocated(context.device) / 2**30
    what = f"gpt2, bf16, compiled, batch {micro_batch_size} x 1,024, {rounds} rounds of {updates} updates, {name}, at most {memory:.1f} GiB"
    return [found.table(f"{what}, time of an update on the wall", found.wall, [], peak_flops(name, config.trainer.precision))]


def cpu_config(root: Path, updates: int, epochs: int, threads: int) -> Config:
    """Return the configuration of a run of `epochs` epochs with `updates` updates each. An epoch is what a loop runs in one round."""
    batch, block = 12, 64
    wanted = batch * block * updates + 1
    text = "".join(LETTERS[number] for number in markov_chain(wanted * 10 // 9 + 2))
    (root / "text.txt").write_text(text, encoding="utf-8")
    sizes = [f"data.path={root}/text.txt", f"trainer.length={epochs}epochs", f"trainer.threads={threads}", "trainer.device=cpu"]
    return compose(["experiment=shakespeare_char_cpu", *BETWEEN_RUNS, *sizes, f"run.root={root}"])


def gpu_config(root: Path, updates: int, epochs: int, micro_batch_size: int, device: str, *more: str, block: int = 1024) -> Config:
    """Write data into `root`, and return the configuration of `experiment=gpt2` with these data. An epoch has `updates` updates, and an
    update has one micro-batch.

    The data use only the first 65 tokens of the vocabulary. `more`: further settings."""
    training = micro_batch_size * updates * block + 1
    tokens = np.array(markov_chain(training + 2 * block + 1), "<u2")
    tokens[:training].tofile(root / "train.bin")
    tokens[training:].tofile(root / "val.bin")
    sizes = [f"data.path={root}", f"data.block={block}", f"trainer.length={epochs}epochs", f"trainer.device={device}"]
    sizes += [f"trainer.global_batch_size={micro_batch_size}", f"trainer.micro_batch_size={micro_batch_size}"]
    return compose(["experiment=gpt2", *BETWEEN_RUNS, *sizes, f"run.root={root}", *more])


def markov_chain(length: int) -> list[int]:
    """Return `length` numbers of letters, each drawn from the possible successors of the one before."""
    draws = np.random.default_rng(0)
    successors = np.stack([draws.permutation(len(LETTERS)) for _ in range(SUCCESSORS)], 1).tolist()  # permutations: all as frequent
    found = [0]
    for choice in draws.integers(0, SUCCESSORS, length - 1).tolist():
        found.append(successors[found[-1]][choice])
    return found


# -- the loops -----------------------------------------------------------------------------------------------------------------


class PlainLoop(Peer):
    """Driver of an optimized plain loop on the batches of linnaeus's loader."""

    def __init__(self, config: Config, context: DistributedContext, workload: Workload, plan: Plan) -> None:
        self.device, self.schedule, self.updates = context.device, plan.lr, 0
        super().__init__(config, context, workload, plan)

    def prepare(self) -> None:
        self.model.to(self.device)
        self.parameters = list(self.model.parameters())
        adamw: Any = self.config.optimizer
        groups = [
            {"params": [p for p in self.parameters if p.dim() >= 2], "weight_decay": adamw.weight_decay},
            {"params": [p for p in self.parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=self.lr, betas=(adamw.beta1, adamw.beta2), eps=adamw.eps, fused=True)
        trainer = self.config.trainer
        self.loss = torch.compile(mean_loss) if trainer.compile else mean_loss
        self.autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=trainer.precision == "bf16")

    def train(self, batches: Iterator[dict[str, Tensor]]) -> None:
        for batch in batches:
            self.step(batch["input"].to(self.device, non_blocking=True), batch["target"].to(self.device, non_blocking=True))

    def step(self, tokens: Tensor, targets: Tensor) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * self.schedule.scale(self.updates)
        with self.autocast:
            loss = self.loss(self.model, tokens, targets)
        self.optimizer.zero_grad()
        loss.backward()
        if self.config.trainer.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.config.trainer.max_grad_norm)
        self.optimizer.step()
        self.updates += 1
        if self.updates % READ_EVERY == 0:
            self.last_loss = loss.item()


class DrawnByHand(PlainLoop):
    """Driver of the same loop with batches cut from the tokens at random offsets."""

    def __init__(self, config: Config, context: DistributedContext, workload: Workload, plan: Plan) -> None:
        self.tokens: np.ndarray = workload.train_set.array.tokens  # type: ignore[attr-defined]  # of the language workload
        super().__init__(config, context, workload, plan)

    def train(self, batches: Iterator[dict[str, Tensor]]) -> None:
        for _ in self.sampler.steps():
            self.step(*self.draw(self.config.trainer.micro_batch_size, self.config.data.block))

    def draw(self, batch: int, block: int) -> tuple[Tensor, Tensor]:
        """Return the tokens and the targets of a random batch, both int64 [batch, block]."""
        offsets = torch.randint(len(self.tokens) - block, (batch,)).tolist()
        tokens = torch.stack([torch.from_numpy(self.tokens[i : i + block].astype(np.int64)) for i in offsets])
        targets = torch.stack([torch.from_numpy(self.tokens[i + 1 : i + 1 + block].astype(np.int64)) for i in offsets])
        if self.device.type == "cuda":
            tokens, targets = tokens.pin_memory(), targets.pin_memory()
        return tokens.to(self.device, non_blocking=True), targets.to(self.device, non_blocking=True)


def mean_loss(model: Any, tokens: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy, computed in float32. Targets beyond the end of the text are ignored."""
    return F.cross_entropy(model.logits(model.features(tokens)).flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED)


# -- timing --------------------------------------------------------------------------------------------------------------------


class Clocked:
    """A driver whose rounds are timed in wall seconds, until the device has finished. `process`: the CPU seconds of each round."""

    def __init__(self, driver: Ours | Peer, device: torch.device) -> None:
        self.driver, self.device = driver, device
        self.process: list[float] = []

    def __call__(self, number: int) -> float:
        self.wait()
        start, used = time.perf_counter(), time.process_time()
        self.driver(number)
        self.wait()
        if number:  # as `measure` keeps them
            self.process.append(time.process_time() - used)
        return time.perf_counter() - start

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@dataclass(frozen=True)
class Found:
    """Seconds per update by variant and round, and the numbers from which tokens per second and MFU are computed."""

    wall: Seconds
    process: Seconds
    losses: dict[str, float]
    tokens: int  # of an update
    flops_per_token: int

    def rate(self, variant: str, seconds: Seconds) -> float:
        """Return the tokens per second in the median round."""
        return self.tokens / statistics.median(seconds[variant])

    def table(self, title: str, seconds: Seconds, bars: Sequence[Bar], peak: float | None = None) -> dict[str, Any]:
        rates = {name: self.rate(name, seconds) for name in seconds}
        mfu = {name: utilisation(self.flops_per_token, rate, peak, 1) for name, rate in rates.items()} if peak is not None else {}
        notes = {
            name: f"{rate:,.0f} tokens/s{f', MFU {100 * mfu[name]:.1f} %' if mfu else ''}, loss {self.losses[name]:.2f}"
            for name, rate in rates.items()
        }
        made = report(title, seconds, "plain loop", bars, (1000, "ms"), notes)
        return made | {"tokens_per_second": rates, "mfu": mfu or None, "flops_per_token": self.flops_per_token}


def compare(config: Config, context: DistributedContext, peers: Mapping[str, Callable[..., Peer]], rounds: int, updates: int) -> Found:
    """Run the loop of linnaeus and those of `peers` in interleaved rounds. Return the times and losses."""
    ours = Ours(config, context)
    drivers: dict[str, Ours | Peer] = {"linnaeus": ours}
    drivers |= {name: peer(config, context, ours.workload, ours.plan) for name, peer in peers.items()}
    clocked = {name: Clocked(driver, context.device) for name, driver in drivers.items()}
    seconds = measure(clocked, rounds)
    losses = {name: held_out_loss(driver.model, ours.workload, context.device) for name, driver in drivers.items()}
    model: Any = ours.model
    ours.close()
    check_learnt(losses, (rounds + 1) * updates)
    return Found(
        {name: [s / updates for s in times] for name, times in seconds.items()},
        {name: [s / updates for s in loop.process] for name, loop in clocked.items()},
        losses,
        config.trainer.global_batch_size * config.data.block,
        model.flops_per_token(config.data.block),
    )


@torch.no_grad()
def held_out_loss(model: Any, workload: Workload, device: torch.device) -> float:
    """Return the mean loss of `model` on the first validation windows, for `check_learnt`."""
    windows = range(min(4, len(workload.validation_set)))
    batch = workload.validation_set.__getitems__([SampleIndex(0, i, i, 0) for i in windows])
    model.eval()
    return mean_loss(model, batch["input"].to(device), batch["target"].to(device)).item()


def check_learnt(losses: Mapping[str, float], updates: int) -> None:
    """Raise `SystemExit` if a loop has made at least `LEARNT_AFTER` updates and its loss shows that it has learnt too little."""
    idle = [f"{name} {loss:.2f}" for name, loss in losses.items() if not loss <= LEARNT]
    if updates >= LEARNT_AFTER and idle:
        raise SystemExit(f"after {updates} updates the loss is above {LEARNT:.2f}, so nothing was trained: {', '.join(idle)}")


if __name__ == "__main__":
    sys.exit(main())
