"""Measure the loss of a language model's vocabulary with its gradients: the code of linnaeus, torch's loss, and torch's fused operation.

    python -m benchmarks.vocabulary_loss                     one CPU core
    python -m benchmarks.vocabulary_loss --device cuda       GPT-2's micro-batch of 32 windows; a GPU
    python -m benchmarks.vocabulary_loss --quick             a short trial; no verdict

From features [N, D] and the embedding [V, D] each variant computes the cross-entropy of N tokens and the gradients of both. V and D are
those of GPT-2. `torch.nn.functional.linear_cross_entropy` reads the features in chunks, so the logits [N, V] never exist as a whole. It is
called with the sum as reduction and with a loss for each token, which the metrics of linnaeus need. Each variant
runs eager and compiled. On a GPU the greatest memory of each is printed.

There is no bar: the table shows whether the fused operation is worth an option.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.interleaved import arguments, conclude, measure, report
from linnaeus.workloads.language.model.token_loss import token_losses

VOCABULARY, WIDTH = 50_304, 768  # of `experiment=gpt2`
BASE = "linnaeus"
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def of_linnaeus(features: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return token_losses(F.linear(features, weight), target).sum()


def of_torch(features: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(features, weight).float(), target, reduction="sum")


def fused(reduction: str) -> Loss:
    """Return torch's fused loss with the reduction `sum` or `none`."""

    def loss(features: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        options = nn.LinearCrossEntropyOptions()
        return F.linear_cross_entropy(features, weight, target, reduction=reduction, options=options).float().sum()

    return loss


def variants(compiled: bool) -> dict[str, Loss]:
    """Return {name: loss}. Without the fused operation in this version of torch its rows are left out. `compiled`: also compile each."""
    eager: dict[str, Loss] = {BASE: of_linnaeus, "torch": of_torch}
    if hasattr(F, "linear_cross_entropy"):
        eager |= {"fused, sum": fused("sum"), "fused, loss per token": fused("none")}
    else:
        print(f"torch {torch.__version__} has no linear_cross_entropy: its rows are left out")
    return eager | ({f"{name}, compiled": torch.compile(loss) for name, loss in eager.items()} if compiled else {})


@dataclass
class Timed:
    """Run a loss and its backward and return the seconds. `memory`: greatest bytes on the GPU above those of the inputs; 0 on the CPU."""

    loss: Loss
    features: Tensor
    weight: Tensor
    target: Tensor
    calls: int
    memory: int = 0
    value: float = 0.0

    def __call__(self, number: int) -> float:
        on_gpu = self.features.is_cuda
        before = self._prepare(on_gpu)
        start = time.perf_counter()
        for _ in range(self.calls):
            self.features.grad = self.weight.grad = None
            loss = self.loss(self.features, self.weight, self.target)
            loss.backward()  # type: ignore[no-untyped-call]
        if on_gpu:
            torch.cuda.synchronize()
        seconds = (time.perf_counter() - start) / self.calls
        self.value = loss.item()
        if on_gpu and number:
            self.memory = max(self.memory, torch.cuda.max_memory_allocated() - before)
        self.features.grad = self.weight.grad = None
        return seconds

    @staticmethod
    def _prepare(on_gpu: bool) -> int:
        if not on_gpu:
            return 0
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()


def compare(o: argparse.Namespace, precision: torch.dtype) -> dict[str, Any]:
    """Measure every variant in one precision. Print the table and return it."""
    torch.manual_seed(0)
    features = torch.randn(o.tokens, WIDTH, device=o.device).to(precision).requires_grad_()
    weight = (torch.randn(o.vocabulary, WIDTH, device=o.device) * WIDTH**-0.5).to(precision).requires_grad_()
    target = torch.randint(o.vocabulary, (o.tokens,), device=o.device)
    timed = {name: Timed(loss, features, weight, target, o.calls) for name, loss in variants(not o.no_compile).items()}
    seconds = measure(timed, 3 if o.quick else o.rounds)
    notes = {
        name: f"loss {each.value / o.tokens:.4f}" + (f", {each.memory / 2**30:.2f} GiB" if each.memory else "")
        for name, each in timed.items()
    }
    title = f"{o.tokens:,} tokens, vocabulary {o.vocabulary:,}, {str(precision).removeprefix('torch.')}, {o.device}"
    return report(title, seconds, BASE, [], (1000, "ms"), notes)


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--tokens", type=int, help="tokens of a call (1,024 on the CPU, 32,768 on a GPU)")
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--calls", type=int, help="calls of a round (1 on the CPU, 10 on a GPU)")
    parser.add_argument("--precision", nargs="+", default=["bfloat16"], choices=("bfloat16", "float32"))
    parser.add_argument("--no-compile", action="store_true", help="eager variants alone")
    parser.add_argument("--quick", action="store_true", help="3 rounds")
    o = parser.parse_args(argv)
    on_gpu = o.device == "cuda"
    o.tokens, o.calls = o.tokens or (32_768 if on_gpu else 1024), o.calls or (10 if on_gpu else 1)
    if not on_gpu:
        torch.set_num_threads(1)
    return conclude([compare(o, getattr(torch, name)) for name in o.precision], o.json)


if __name__ == "__main__":
    sys.exit(main())
