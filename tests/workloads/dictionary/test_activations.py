"""Test the activations of a trained model: what is read, that stored and computed ones are the same, and mistakes."""

from __future__ import annotations

import dataclasses
import os
import shutil
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from linnaeus.data.order import block_order
from linnaeus.data.samples import SampleIndex
from linnaeus.distributed import DistributedContext
from linnaeus.errors import ConfigError
from linnaeus.workloads.dictionary import stored_activations
from linnaeus.workloads.dictionary.activation_sets import TrainingActivations
from linnaeus.workloads.dictionary.activation_source import ActivationSource, Block
from linnaeus.workloads.dictionary.computed_activations import ComputedActivations
from linnaeus.workloads.dictionary.stored_activations import StoredActivations, store_activations
from linnaeus.workloads.dictionary.tapping import Tap, find_module
from linnaeus.workloads.opened_run import OpenedRun, open_run
from tests import runs

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def read(trained, tmp_path_factory) -> dict[str, OpenedRun]:
    return {name: open_run(path, CPU, tmp_path_factory.mktemp("scratch")) for name, path in trained.items()}


@pytest.fixture
def text(read) -> ActivationSource:
    return ActivationSource(read["language"], "blocks.1", 4, 22)


def test_each_position_of_an_output_is_an_activation(read):
    maps, tokens = ActivationSource(read["biota"], "trunk.stem", 4, 10), ActivationSource(read["biota"], "trunk", 4, 10)
    channels, height, width = maps.shape
    assert maps.width == channels and maps.offsets.tolist() == [n * height * width for n in range(11)]
    assert tokens.shape[0] == 4 and tokens.offsets.tolist() == [4 * n for n in range(11)]
    assert tokens.block_offsets.tolist() == [0, 16, 32, 40]
    with Tap(find_module(read["biota"].model, "trunk.stem")) as tap, torch.inference_mode():
        read["biota"].model(read["biota"].workload.prepare(maps.host_batch(1)))
    assert torch.equal(maps.read(1).rows, tap.rows) and bool(maps.read(1).counts.all())


def test_channels_can_be_the_last_dimension(read):
    run, name = read["biota"], "trunk.convolution.0.mlp.1"  # a GELU, whose type does not show the place of its channels
    source = ActivationSource(run, name, 4, 10, "last")
    with Tap(find_module(run.model, name)) as tap, torch.inference_mode():
        run.model(run.workload.prepare(source.host_batch(1)))
    height, width, channels = tap.shape[1:]
    assert (source.width, source.shape, int(source.offsets[1])) == (channels, (channels, height, width), height * width)
    with Tap(find_module(run.model, name), channels="last") as last, torch.inference_mode():
        run.model(run.workload.prepare(source.host_batch(1)))
    assert torch.equal(source.read(1).rows, last.rows) and last.shape == (4, channels, height, width)
    assert source.fingerprint != ActivationSource(run, name, 4, 10).fingerprint
    with pytest.raises(ConfigError, match=r"LayerNorm.* with its channels last; set dictionary\.channels=last"):
        ActivationSource(run, "trunk.convolution.0.norm", 4, 10)
    with pytest.raises(ConfigError, match=r"Conv2d.* with its channels first"):
        ActivationSource(run, "trunk.stem.0", 4, 10, "last")
    with pytest.raises(ConfigError, match=r"channels=last has no effect: trunk returns \[4, 4, 128\]"):
        ActivationSource(run, "trunk", 4, 10, "last")


def test_padding_is_left_out(read):
    words = ActivationSource(read["language"], "blocks.1", 4)
    assert words.offsets[-1] == read["language"].workload.store.train.size - 1 < 16 * words.count, "the last window is not complete"
    builds = ActivationSource(read["loadout"], "layers.0", 4, 10)
    masks = [read["loadout"].workload.real_positions(builds.host_batch(block)) for block in range(builds.blocks)]
    lengths = torch.cat(masks).sum(1).tolist()
    assert np.diff(builds.offsets).tolist() == lengths and len(set(lengths)) > 1
    assert builds.read(1).rows.shape == (sum(lengths[4:8]), 16)
    pooled = ActivationSource(read["loadout"], "output", 4, 10)
    assert np.diff(pooled.offsets).tolist() == [1] * 10, "an output without positions has no padding"
    assert builds.samples_of([0, lengths[0] - 1, lengths[0]]).tolist() == [0, 0, 1]


def test_stored_and_computed_activations_are_the_same(text, tmp_path):
    with mock.patch.object(stored_activations, "SHARD_BYTES", 1000):
        stored = store_activations(text, tmp_path / "store")
    assert len(list((tmp_path / "store").glob("*.npy"))) == 6 + 1, "six shards and the offsets"
    reads: dict[str, Any] = {"stored": stored, "computed": ComputedActivations(text, 2)}
    sets = {name: TrainingActivations(reader, 2, None) for name, reader in reads.items()}
    size = len(sets["stored"])
    order = block_order(3, 1, size, sets["stored"].record_blocks())
    assert sorted(order.tolist()) == list(range(size))
    for first in range(0, size, 40):
        index = [SampleIndex(1, n, int(order[n]), 5) for n in range(first, min(first + 40, size))]
        one, other = (each.__getitems__(index) for each in sets.values())
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    whole = torch.cat([text.read(block).rows for block in range(text.blocks)])
    assert torch.equal(whole[one["sample"]], one["activation"])
    assert torch.equal(*(each.scale_sample() for each in sets.values()))


class Positions:
    """A `Reader` of 64 blocks of 16 texts of 64 tokens. Each activation is the number of its position in the text."""

    width, block_offsets = 1, np.arange(65) * 1024

    def block(self, number: int) -> Block:
        return Block(torch.arange(1024).remainder(64).float().unsqueeze(1), torch.ones(1024, dtype=torch.bool))


def test_the_scale_is_estimated_from_all_positions_alike():
    found = TrainingActivations(Positions(), 2, None).scale_sample()  # type: ignore[arg-type]
    shares = torch.bincount(found[:, 0].long(), minlength=64) / len(found)
    assert len(found) == 8192 and float(shares.min()) > 0.5 / 64 and float(shares.max()) < 2 / 64


def test_processes_agree_that_a_store_is_complete(text, tmp_path):
    """One of them finds store.json, which another run has just written; the first did not: both must meet at the barriers."""
    store_activations(text, tmp_path)
    context = DistributedContext()
    with mock.patch.object(context, "broadcast_object", return_value=True), mock.patch.object(context, "barrier") as barrier:
        store_activations(text, tmp_path)
    assert barrier.call_count == 2


def test_each_block_is_computed_once_per_epoch(text):
    reader = ComputedActivations(text, 2)
    data = TrainingActivations(reader, 2, None)
    order = block_order(0, 0, len(data), data.record_blocks())
    with mock.patch.object(text, "read", wraps=text.read) as read:
        for part in np.split(order, range(10, len(order), 10)):
            reader.rows(part)
    assert sorted(call.args[0] for call in read.call_args_list) == list(range(text.blocks))
    everything = reader.rows(np.arange(len(data)))[0]  # more than the ring has
    assert torch.equal(everything, torch.cat([text.read(block).rows for block in range(text.blocks)]))


def test_what_cannot_be_decoded_does_not_count(text, tmp_path):
    original = text.host_batch

    def damaged(block: int) -> dict[str, torch.Tensor]:
        batch = original(block)
        batch["weight"][0] = 0
        return batch

    with mock.patch.object(text, "host_batch", damaged):
        stored, computed = store_activations(text, tmp_path), ComputedActivations(text, 2)
        rows = np.arange(30)
        counts = [reader.rows(rows)[1].tolist() for reader in (stored, computed)]
    assert counts[0] == counts[1] == [False] * 16 + [True] * 14


def test_a_store_is_continued_by_all_processes_and_gets_the_same_bytes(text, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    with mock.patch.object(stored_activations, "SHARD_BYTES", 1000):
        store_activations(text, whole)
        for shards in (1, 3):
            with stop_after(shards), pytest.raises(KeyboardInterrupt):
                store_activations(text, cut)
            with pytest.raises(ConfigError, match="lacks files"):
                StoredActivations(cut)
        context = DistributedContext()
        with mock.patch.object(context, "world_size", 2), mock.patch.object(context, "rank", 1):
            with mock.patch.object(context, "is_master", False), pytest.raises(ConfigError, match="lacks files"):
                store_activations(text, cut)  # the other process of two
            with mock.patch.object(context, "rank", 0):
                store_activations(text, cut)
    names = sorted(path.name for path in whole.iterdir())
    assert names == sorted(path.name for path in cut.iterdir())
    assert all((whole / name).read_bytes() == (cut / name).read_bytes() for name in names)


def test_mistakes_are_one_line(read, text, tmp_path):
    store_activations(text, tmp_path / "store")
    other = ActivationSource(read["language"], "blocks.0", 4, 22)
    with pytest.raises(ConfigError, match="activations of another model, module or data"):
        store_activations(other, tmp_path / "store")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"contains notes\.txt"):
        store_activations(text, tmp_path / "full")
    full = mock.patch.object(shutil, "disk_usage", return_value=shutil._ntuple_diskusage(1, 1, 0))
    with full, pytest.raises(ConfigError, match=r"0\.0 GB free; set data\.samples"):
        store_activations(text, tmp_path / "new")
    (tmp_path / "store" / "shard-00000.npy").unlink()
    with pytest.raises(ConfigError, match="lacks files of its activations"):
        store_activations(text, tmp_path / "store")
    with pytest.raises(ConfigError, match=r"no module 'blocks.7'; the nearest ones are blocks\.[012]"):
        ActivationSource(read["language"], "blocks.7", 4)
    facts = [ActivationSource(read["language"], "blocks.1", *sizes).fingerprint for sizes in ((4, 22), (4, 21), (5, 22))]
    assert len({text.fingerprint, other.fingerprint, *facts}) == 4 and text.fingerprint == facts[0]


def test_a_table_of_positions_is_refused(read):
    """Its rows are places, not samples: 16 rows would be counted as the activations of 4 samples."""
    run = read["language"]
    table = torch.nn.Embedding(16, 8)

    class WithTable(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.table = run.model, table

        def forward(self, batch: dict[str, torch.Tensor]) -> Any:
            self.table(torch.arange(16))
            return self.inner(batch)

    with pytest.raises(ConfigError, match=r"table returns \[16, 8\] for 4 samples"):
        ActivationSource(run._replace(model=WithTable()), "table", 4, 22)


def test_activations_that_are_not_finite_are_named(text, tmp_path):
    tapped, sample = text.tapped, int(text.picked[5])

    def damaged(host: dict[str, torch.Tensor]) -> Tap:
        tap = tapped(host)
        with torch.inference_mode():
            tap.rows[(host["sample"] == sample).nonzero().flatten() * 16 + 3, 2] = float("inf")
        return tap

    with (
        mock.patch.object(text, "tapped", damaged),
        pytest.raises(ConfigError, match="infinite numbers for 1 activation of a block") as error,
    ):
        store_activations(text, tmp_path / "store")
    assert str(error.value).count("\n") == 0 and text.run.workload.sample_names([sample])[0] in str(error.value)
    assert not (tmp_path / "store" / "store.json").exists()


def test_the_size_of_images_is_part_of_the_fingerprint_but_not_their_path(read):
    """Class tokens have the same shape for each size."""
    run, found = read["biota"], []
    for change in ({}, {"image_size": run.config.data.image_size * 2}, {"name": "/new/place"}):
        config = dataclasses.replace(run.config, data=dataclasses.replace(run.config.data, **change))
        found.append(ActivationSource(run._replace(config=config), "trunk", 4, 10).fingerprint)
    assert found[0] == found[2] != found[1]


def test_settings_that_change_the_activations_change_the_fingerprint(tmp_path):
    """Weights of dimensions are in `schedule`, which was not in the fingerprint: stored activations of other weights were used."""
    phases = "schedule.phases={one: {start: 0%, end: 100%, dimensions: {calm: 2}}}"
    run = runs.run("language", tmp_path / "run", "model.dimensions=[calm,quick]", phases, "trainer.length=2steps")

    def source(*settings):
        return ActivationSource(open_run(run, CPU, tmp_path / "scratch", settings=settings), "blocks.1", 4, 22)

    own, moved, other = source(), source("trainer.threads=2", "logger.report=false"), source("schedule.phases.one.dimensions.quick=30")
    assert torch.equal(own.read(0).rows, moved.read(0).rows) and own.fingerprint == moved.fingerprint
    assert not torch.equal(own.read(0).rows, other.read(0).rows) and own.fingerprint != other.fingerprint


def test_the_settings_of_the_model_are_part_of_the_fingerprint(read, text):
    config = read["language"].config
    other = dataclasses.replace(config, model=dataclasses.replace(config.model, heads=1))  # the weights have the same shapes
    assert ActivationSource(read["language"]._replace(config=other), "blocks.1", 4, 22).fingerprint != text.fingerprint


@pytest.mark.parametrize("change", [{"removal": "tokens"}, {"seed": 5}])
def test_what_determines_partial_builds_is_part_of_the_fingerprint(read, change):
    run = read["loadout"]
    config = dataclasses.replace(run.config, **{name: value for name, value in change.items() if name == "seed"})
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, **{n: value for n, value in change.items() if n != "seed"}))
    assert ActivationSource(run._replace(config=config), "norm", 4, 20).fingerprint != ActivationSource(run, "norm", 4, 20).fingerprint


def stop_after(shards: int) -> Any:
    """Return a patch that stops the storage of activations after so many shards."""
    write, calls = stored_activations._write_shard, []

    def stopping(*arguments: Any) -> None:
        if len(calls) == shards:
            raise KeyboardInterrupt
        calls.append(write(*arguments))

    return mock.patch.object(stored_activations, "_write_shard", stopping)


def test_shards_of_a_stopped_run_on_another_module_are_not_used(read, text, tmp_path):
    other = ActivationSource(read["language"], "blocks.0", 4, 22)
    with mock.patch.object(stored_activations, "SHARD_BYTES", 1000):
        with stop_after(2), pytest.raises(KeyboardInterrupt):
            store_activations(other, tmp_path / "store")
        with pytest.raises(ConfigError, match="activations of another model, module or data"):
            store_activations(text, tmp_path / "store")
        store_activations(other, tmp_path / "store")


def test_a_continued_store_needs_space_for_the_missing_shards_only(text, tmp_path):
    size = 4 * text.width * int(text.offsets[-1])

    def usage(folder: Any) -> Any:
        return shutil._ntuple_diskusage(size, 0, size - sum(len(np.load(file)) * 4 * text.width for file in tmp_path.glob("*.npy")))

    with mock.patch.object(stored_activations, "SHARD_BYTES", 1000), mock.patch.object(shutil, "disk_usage", usage):
        with stop_after(3), pytest.raises(KeyboardInterrupt):
            store_activations(text, tmp_path)
        store_activations(text, tmp_path)


def test_old_temporary_files_of_a_killed_store_are_deleted(text, tmp_path):
    old, young = tmp_path / ".tmp-shard-00000.npy-1-1", tmp_path / ".tmp-shard-00000.npy-2-2"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    store_activations(text, tmp_path)
    assert not old.exists() and young.exists()


def test_a_shard_that_is_cut_off_is_one_line(text, tmp_path):
    with mock.patch.object(stored_activations, "SHARD_BYTES", 1000):
        store_activations(text, tmp_path)
        shard = tmp_path / "shard-00003.npy"
        whole = shard.read_bytes()
        for part in (whole[:-100], whole[:20], b""):
            shard.write_bytes(part)
            with pytest.raises(ConfigError, match="cut off"):
                store_activations(text, tmp_path)
