"""Define `ActivationSource`: the activations of one module of a trained model, computed on the training samples of that model's run.

Activations are numbered consecutively, in the order of the samples. For a module output [B, d] a sample has one activation; for a feature
map [B, C, H, W] or [B, H, W, C] it has H W; for [B, T, d] it has one for each of the T positions that is not padding. A block is
`source_batch` consecutive samples. A block is always computed in one forward pass, so its activations are bitwise equal each time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from linnaeus.data.samples import Batch, PositionedDataset, SampleIndex
from linnaeus.errors import ConfigError, counted
from linnaeus.files import content_digest
from linnaeus.rundir.identity import alters_updates
from linnaeus.workloads.dictionary.tapping import Tap, find_module
from linnaeus.workloads.opened_run import OpenedRun

COVERED = ("data.", "model.", "trainer.")  # groups whose values are in the fingerprint, as far as they determine the activations


class Block(NamedTuple):
    """Activations of one block of samples.

    rows: float32 [n, d], on the device of the model. counts: bool [n] on the host, True for an activation with weight in the loss; False if
    the sample cannot be decoded."""

    rows: Tensor
    counts: Tensor


class ActivationSource:
    """Reader of the output of module `name` in the model of an opened run.

    width: number of channels d. picked: int64 [S], the training samples that are read. offsets: int64 [S + 1], number of the first
    activation of each of them; the last entry is the number of all activations."""

    def __init__(self, run: OpenedRun, name: str, source_batch: int, samples: int | None = None, channels: str = "first") -> None:
        """Find the module `name`, and run the model on the first `source_batch` samples. If the outputs have padding, also read all
        samples, without running the model on them.

        samples: number of training samples to read, evenly spaced; None or 0: all. channels: dimension of the channels of a feature
        map, "first" ([B, C, H, W]) or "last" ([B, H, W, C]). Raise `ConfigError` if the run has no training samples, if the module does not
        exist, if its output cannot be read, or if `channels` is "last" and the output is not a feature map."""
        self.run, self.name, self.source_batch, self.channels = run, name, source_batch, channels
        self.device = next(run.model.parameters()).device
        self.module = find_module(run.model, name)
        self.samples: PositionedDataset = run.workload.reading_set()
        self.picked = spread(len(self.samples), samples or len(self.samples))
        self.count = len(self.picked)
        if self.count < 1:
            raise ConfigError(f"dictionary.run: {run.path} has no training samples")
        first = self.host_batch(0)
        tap = self.tapped(first)
        self.width, self.shape = tap.rows.shape[1], tap.shape[1:]
        if channels == "last" and len(tap.shape) != 4:
            raise ConfigError(f"dictionary.channels=last has no effect: {name} returns {list(tap.shape)}; leave it out")
        self.offsets = self._offsets(first, tap)
        blocks = np.minimum(np.arange(self.blocks + 1) * source_batch, self.count)
        self.block_offsets: np.ndarray = self.offsets[blocks]  # int64 [blocks + 1], number of the first activation of each block

    @property
    def blocks(self) -> int:
        """Return the number of blocks."""
        return -(-self.count // self.source_batch)

    @property
    def fingerprint(self) -> str:
        """Return a hash of the weights, the data, the module name and all settings that determine the activations.

        The model settings are included because some of them, such as the number of heads, do not change the shapes of the weights. The
        numbers among the data settings are included, such as the size of images, and those with a list of choices, such as the kind of
        removal; paths and names are not. The seed of the run determines the partial builds of a loadout run. Of the other groups, such as
        `schedule`, with the weights of dimensions, the settings that replace those of the run are included."""
        config, data = self.run.config, self.run.workload.fingerprint
        settings = {field.name: getattr(config.data, field.name) for field in dataclasses.fields(config.data)}
        choices = {field.name for field in dataclasses.fields(config.data) if field.metadata.get("choices")}
        facts: dict[str, Any] = {
            "weights": self.run.weights.digest,
            "data": data,
            "module": self.name,
            "precision": config.trainer.precision,
        }
        facts |= {
            "model": dataclasses.asdict(config.model),
            "data_settings": {name: value for name, value in settings.items() if name in choices or isinstance(value, int | float)},
            "seed": config.seed,
            "shape": list(self.shape),
            "channels": self.channels,
            "rows": int(self.offsets[-1]),
        }
        replaced = sorted(text for text in self.run.settings if alters_updates(text.partition("=")[0]) and not text.startswith(COVERED))
        facts |= {"settings": replaced} if replaced else {}
        return content_digest({**facts, "samples": self.count, "source_batch": self.source_batch, "version": 4})

    def host_batch(self, block: int) -> Batch:
        """Return the samples of block number `block` as one batch on the host, before `Workload.prepare`."""
        first = block * self.source_batch
        picked = self.picked[first : first + self.source_batch].tolist()
        return self.samples.__getitems__([SampleIndex(0, number, number, 0) for number in picked])

    def tapped(self, host: Batch) -> Tap:
        """Run the model on a batch. Return the `Tap` that recorded the output of the module: its `rows` and `shape`.

        host: batch on the host, before `Workload.prepare`. Raise `ConfigError` if the first dimension of the output is not the number of
        samples, as for a table of positions [T, d]: its rows cannot be assigned to samples."""
        self.run.workload.check_batch(host)
        batch = {name: value.to(self.device) for name, value in host.items()}
        with Tap(self.module, channels=self.channels) as tap, torch.inference_mode(), self.run.autocast():
            self.run.model(self.run.workload.prepare(batch))
        if len(tap.rows) and tap.shape[0] != len(host["sample"]):
            found = f"{self.name} returns {list(tap.shape)} for {counted(len(host['sample']), 'sample')}"
            raise ConfigError(f"dictionary.module: {found}; choose a module whose first dimension is that of the samples")
        return tap

    def read(self, block: int) -> Block:
        """Return the activations of a block, without padding.

        Raise `ConfigError` if the number or the width of the activations does not agree with `offsets` and `width`, or if an activation of
        a decoded sample is NaN or infinite."""
        host = self.host_batch(block)
        tap = self.tapped(host)
        weight = host["weight"] > 0
        counts, rows = weight.repeat_interleave(len(tap.rows) // len(weight)), tap.rows.float()
        mask = self.mask(host, tap)
        if mask is not None:
            counts, rows = counts[mask.flatten()], rows[mask.flatten().to(self.device)]
        expected = self.block_offsets[block + 1] - self.block_offsets[block]
        if rows.shape != (expected, self.width):
            first = host["sample"][0]
            found = f"{list(rows.shape)} from sample {first} on, not {[int(expected), self.width]} as for the others"
            raise ConfigError(f"dictionary.module: {self.name} returns {found}; choose another module")
        bad = ~rows.isfinite().all(1).cpu() & counts
        if bool(bad.any()):
            number = int(self.block_offsets[block]) + int(bad.nonzero()[0])
            name = self.run.workload.sample_names(self.picked[self.samples_of([number])].tolist())[0]
            found = f"{self.name} returns NaN or infinite numbers for {counted(int(bad.sum()), 'activation')} of a block, first for {name}"
            raise ConfigError(f"dictionary.module: {found}; choose another module, checkpoint or trainer.precision of that run")
        return Block(rows, counts)

    def mask(self, host: Batch, tap: Tap) -> Tensor | None:
        """Return a mask of the positions in a module output [B, T, d]: bool [B, T], False for padding.

        Return None for an output of another number of dimensions, and if the workload has no mask of shape [B, T]. host: the batch. tap:
        the `Tap` that recorded the output for this batch."""
        real = self.run.workload.real_positions(host) if len(tap.shape) == 3 else None
        return real if real is not None and real.shape == tap.shape[:2] else None

    def samples_of(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the place in `picked` of the sample, int64 [N], to which each activation belongs. rows: numbers of N activations."""
        return np.searchsorted(self.offsets, np.asarray(rows, dtype=np.int64), side="right") - 1

    def _offsets(self, first: Batch, tap: Tap) -> np.ndarray:
        """Return `offsets`, int64 [S + 1]. If outputs have padding, read all samples to count the positions that are not padding.

        first, tap: the first batch and the `Tap` that recorded its output. The model is not run again."""
        each = len(tap.rows) // len(first["sample"])
        if self.mask(first, tap) is None:
            return np.arange(self.count + 1, dtype=np.int64) * each
        masks = [self.run.workload.real_positions(self.host_batch(block)) for block in range(self.blocks)]
        lengths = torch.cat([mask.sum(1) for mask in masks if mask is not None])
        return np.concatenate([[0], np.cumsum(lengths.numpy())]).astype(np.int64)


def spread(size: int, most: int) -> np.ndarray:
    """Return min(size, most) evenly spaced, ascending indices from 0 to `size` - 1, int64."""
    return np.arange(size) if size <= most else np.linspace(0, size - 1, most).round().astype(np.int64)
