"""Measure the workload loadout: an update beside a plain loop, completions in batches and one by one, and the making of targets.

    python -m benchmarks.loadout              1 minute of one CPU core
    python -m benchmarks.loadout --quick      3 rounds of few updates; no verdict
    python -m benchmarks.loadout trainer.length=1epochs --trials FILE --worlds 0 1 2 --variants default "visible targets" published_cli

With `--trials` models are trained and compared instead (`loadout_trials.py`); the same command continues a study that was stopped.

All times are CPU time of the process, with one thread, because other processes on a busy machine do not affect it.

- Parameters of the networks of SplatNLP, with its 140 tokens and 130 weapons: 83,001,420 and 20,833,612. Another number ends the benchmark.
- An update of the default network and batch size. Ours is `linnaeus.train.train_one_epoch` with its finite check, a row and a report every
  20 updates. The plain loop is written by hand, on the same batches: learning rate by the same schedule, forward, mean loss, backward,
  clipping, fused AdamW, the loss read every 20 updates. Bar: at most 1.02 of its time.
- Completions of 256 requests together and one by one. Bar: at most a tenth of the time per request.
- Multi-hot targets of 1,024 builds, and the same with a loop over rows. Bar: at most a tenth.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.drivers import Ours, Peer
from benchmarks.interleaved import Bar, arguments, conclude, measure, report
from benchmarks.loadout_trials import DEFAULT, VARIANTS, run_trials
from linnaeus.config.load import compose
from linnaeus.config.schema import Config
from linnaeus.distributed import DistributedContext
from linnaeus.workloads.loadout.builds.archetypes import make_world
from linnaeus.workloads.loadout.completion.gear_requests import Request
from linnaeus.workloads.loadout.game.gear import count_items, slot_items
from linnaeus.workloads.loadout.game.token_code import PAD, PointsCode, SlotsCode
from linnaeus.workloads.loadout.game.weapons import builtin_weapons
from linnaeus.workloads.loadout.model.set_transformer import SetTransformer, build_set_transformer
from linnaeus.workloads.loadout.trained.loadout_model import LoadoutModel

PUBLISHED = {"published": 83_001_420, "published_cli": 20_833_612}
WEAPONS = 130
READ_EVERY = 20  # updates
TOGETHER, ALONE, TARGETS = 256, 32, 1024  # requests of a round in a batch and one by one; builds of a round
SETTINGS = ["schedule.validate=[]", "schedule.validate_at_end=false", "schedule.checkpoint=[]", "schedule.checkpoint_at_end=false"]
SETTINGS += [f"schedule.log=[{READ_EVERY}steps]", f"schedule.report=[{READ_EVERY}steps]", "lr_scheduler.warmup=0steps", "run.name=run"]
SETTINGS += ["logger.console=quiet", "logger.report=false", "trainer.threads=1", "trainer.device=cpu"]


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--updates", type=int, help="updates of a loop in a round (20)")
    parser.add_argument("--quick", action="store_true", help="3 rounds of few updates")
    parser.add_argument("--trials", type=Path, metavar="FILE", help="train the variants in the worlds; results are lines of FILE")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=[DEFAULT], help="variants of --trials (default)")
    parser.add_argument("--worlds", nargs="+", type=int, default=[0, 1, 2], help="worlds of --trials (0 1 2)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="seeds of --trials (0)")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="further settings of --trials")
    options = parser.parse_args(argv)
    if options.settings and options.trials is None:
        parser.error(f"{options.settings[0]} has no effect without --trials")
    if options.trials is not None:
        print("\n".join(run_trials(options.trials, options.variants, options.worlds, options.seeds, options.settings)))
        return 0
    rounds, few = (3, 5) if options.quick else (options.rounds, None)
    torch.set_num_threads(1)
    check_parameters()
    tables = [updates(rounds, options.updates or few or 20), completions(rounds), targets(rounds)]
    return conclude(tables, options.json)


def check_parameters() -> None:
    """Print the numbers of parameters of the published networks. End the program if one is another."""
    model = compose(["workload=loadout"]).model
    for size, expected in PUBLISHED.items():
        with torch.device("meta"):
            network = SetTransformer(type(model)(**vars(model) | {"size": size}), PointsCode(), WEAPONS)
        found = sum(parameter.numel() for parameter in network.parameters())
        print(f"model.size={size}: {found:,} parameters")
        if found != expected:
            raise SystemExit(f"model.size={size} has {found:,} parameters; {expected:,} are published")


# -- updates ---------------------------------------------------------------------------------------------------------------------


class PlainLoop(Peer):
    """Driver of a loop written by hand, on the batches of linnaeus's loader."""

    def __init__(self, config: Config, context: DistributedContext, workload: Any, plan: Any) -> None:
        self.schedule, self.updates = plan.lr, 0
        super().__init__(config, context, workload, plan)

    def prepare(self) -> None:
        self.parameters = list(self.model.parameters())
        adamw: Any = self.config.optimizer
        bare = [p for name, p in self.model.named_parameters() if name in self.model.no_decay]
        decayed = [p for name, p in self.model.named_parameters() if name not in self.model.no_decay]
        groups = [{"params": decayed, "weight_decay": adamw.weight_decay}, {"params": bare, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=self.lr, betas=(adamw.beta1, adamw.beta2), eps=adamw.eps, fused=True)

    def train(self, batches: Iterator[dict[str, Tensor]]) -> None:
        for batch in batches:
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr * self.schedule.scale(self.updates)
            scored = batch["scored"]
            losses = F.binary_cross_entropy_with_logits(self.model(batch), batch["target"].float(), reduction="none")
            loss = (losses * scored).sum() / scored.sum()
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.parameters, self.config.trainer.max_grad_norm)
            self.optimizer.step()
            self.updates += 1
            if self.updates % READ_EVERY == 0:
                self.last_loss = loss.item()


def updates(rounds: int, number: int) -> dict[str, Any]:
    context = DistributedContext().initialize(device="cpu")
    with tempfile.TemporaryDirectory() as root:
        ours = Ours(configuration(Path(root), number, rounds + 1), context)
        drivers: dict[str, Callable[[int], float]] = {
            "linnaeus": ours,
            "plain loop": PlainLoop(ours.config, context, ours.workload, ours.plan),
        }
        seconds = measure(drivers, rounds)
        ours.close()
    each = {name: [s / number for s in times] for name, times in seconds.items()}
    title = f"an update of {ours.config.trainer.global_batch_size} partial builds, {rounds} rounds of {number}, CPU time"
    return report(title, each, "plain loop", [Bar("linnaeus", "plain loop", 1.02)], (1000, "ms"), {})


def configuration(root: Path, number: int, epochs: int) -> Config:
    """Return the configuration of a run of `epochs` epochs with `number` updates each. An epoch is what a loop runs in one round."""
    config = compose(["workload=loadout"])
    samples = number * config.trainer.global_batch_size
    sizes = [f"trainer.limit_train_samples={samples}", f"trainer.length={epochs}epochs", f"run.root={root}"]
    return compose(["workload=loadout", *SETTINGS, *sizes, f"data.builds={max(200, samples // 4)}"])


# -- completions and targets -----------------------------------------------------------------------------------------------------


def completions(rounds: int) -> dict[str, Any]:
    weapons, code = builtin_weapons(), SlotsCode()
    model = LoadoutModel(build_set_transformer(compose(["workload=loadout"]).model, 0, code, len(weapons)), code, weapons, "random weights")
    requests = random_requests(TOGETHER)
    work = {
        "together": lambda: model.answers(requests, "direct", 1),
        "one by one": lambda: [model.answers([request], "direct", 1) for request in requests[:ALONE]],
    }
    seconds = measure({name: timed(one) for name, one in work.items()}, rounds)
    counts = {"together": TOGETHER, "one by one": ALONE}
    each = {name: [s / counts[name] for s in times] for name, times in seconds.items()}
    notes = {name: f"{1 / np.median(times):,.0f} per second" for name, times in each.items()}
    title = f"completions of requests with 0 to 11 slots, {rounds} rounds, CPU time of one"
    return report(title, each, "one by one", [Bar("together", "one by one", 0.1)], (1000, "ms"), notes)


def random_requests(number: int) -> list[Request]:
    weapon, builds = make_world(0, len(builtin_weapons())).draw(1, 0, number)
    kept = np.random.default_rng(0).random((number, 12)).argsort(1) < (np.arange(number) % 12)[:, None]
    given = count_items(slot_items(builds), kept)
    return [Request(int(w), build) for w, build in zip(weapon, given, strict=True)]


def targets(rounds: int) -> dict[str, Any]:
    code = SlotsCode()
    _, builds = make_world(0, WEAPONS).draw(1, 0, TARGETS)
    tokens = torch.from_numpy(code.token_sets(builds))
    assert (by_rows(tokens, len(code)).bool().numpy() == code.multi_hot(builds)).all()
    work = {"all at once": lambda: code.multi_hot(builds), "loop over rows": lambda: by_rows(tokens, len(code))}
    seconds = measure({name: timed(one) for name, one in work.items()}, rounds)
    title = f"multi-hot targets of {TARGETS:,} builds, {rounds} rounds, CPU time"
    return report(title, seconds, "loop over rows", [Bar("all at once", "loop over rows", 0.1)], (1000, "ms"), {})


def by_rows(tokens: Tensor, number: int) -> Tensor:
    """Return the multi-hot rows of padded sets [N, L], made one after the other."""
    found = torch.zeros(len(tokens), number)
    for row, each in zip(found, tokens, strict=True):
        row[each[each != PAD]] = 1.0
    return found


def timed(work: Callable[[], Any]) -> Callable[[int], float]:
    """Return a variant for `measure`: the CPU seconds of `work`, the mean of as many calls as take 50 ms."""

    def variant(number: int) -> float:
        start, calls = time.process_time(), 0
        while not calls or time.process_time() - start < 0.05:
            work()
            calls += 1
        return (time.process_time() - start) / calls

    return variant


if __name__ == "__main__":
    sys.exit(main())
