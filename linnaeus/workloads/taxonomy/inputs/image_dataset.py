"""`TaxonomyDataset`: make batches of photographs, labels and metadata from positions in the training order, in loader workers.

A batch is a function of its indices, the configuration and the schedule's probabilities at those indices. Random draws are functions of a
key: (seed, epoch, position) for the augmentation of photographs, (seed, epoch, slot) for the mixing of pairs (the slot is the number of the
pair), (seed, global_step, position) for the masking of metadata. The draws are made here; `preparation.py` applies mixing and masking on
the device. A photograph that cannot be decoded becomes a sample without labels and with weight 0; its observation number (its row in the
source) is returned in the batch."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from linnaeus import randomness
from linnaeus.config.schema import Config
from linnaeus.data.order import Blocks
from linnaeus.data.resampling import POWERS, Resampling
from linnaeus.data.samples import Batch, PositionedDataset, SampleIndex
from linnaeus.errors import ConfigError, counted
from linnaeus.schedule import OpsSchedule
from linnaeus.schedule.image_sizes import image_sizes
from linnaeus.workloads.taxonomy.augment import Pipeline
from linnaeus.workloads.taxonomy.augment.draws import sample_keys
from linnaeus.workloads.taxonomy.augment.mixing import PairMixing
from linnaeus.workloads.taxonomy.augment.on_device import HostDraws
from linnaeus.workloads.taxonomy.config import RecordsConfig
from linnaeus.workloads.taxonomy.inputs.masking import MetadataMasking, NullPolicy, masking_notes, ramp_used
from linnaeus.workloads.taxonomy.inputs.transforms import Transforms, build_transforms, mixing_rank
from linnaeus.workloads.taxonomy.observations import Source, UndecodableImage
from linnaeus.workloads.taxonomy.observations.components import encode


class _BatchIndices(NamedTuple):
    """Epoch, position and other fields of B `SampleIndex` objects, each field as an array int64 [B]."""

    epoch: np.ndarray
    position: np.ndarray
    sample: np.ndarray
    step: np.ndarray
    real: np.ndarray


class TaxonomyDataset(PositionedDataset):
    """Dataset of the training or validation rows of a source. Training samples are augmented, mixed and masked."""

    def __init__(
        self, source: Source, rows: np.ndarray, config: Config, schedule: OpsSchedule, training: bool, quarantined: Iterable[int] = ()
    ) -> None:
        """Make the dataset of `rows`, int64 [N], the observation numbers of a split.

        `training`: True to augment, mix and mask. `quarantined`: observation numbers of undecodable photographs, which are not read.

        Raise `ConfigError` if the settings of augmentation, mixing or masking are invalid for these data."""
        self.rows = np.asarray(rows, dtype=np.int64)
        self.labels = source.labels  # of all observations: a copy of the rows of a large source would double its memory
        self.ranks, self.images = source.tree.ranks, source.images
        self.seed, self.schedule, self.training = config.seed, schedule, training
        self.quarantined = frozenset(quarantined)
        self.components = tuple(config.data.components)
        self.meta, self.present = encode(source.metadata.take(self.rows), self.components)
        sides = image_sizes(config) if training else (config.data.image_size,)
        self.mix_nulls = config.augment.mix_nulls
        self.transforms = {side: build_transforms(config, self.ranks, side, training) for side in sides}
        self.grows = len(sides) > 1
        self._final = self.transforms[sides[-1]]
        self.masking = MetadataMasking(config.schedule, self.components, config.seed) if training else None
        self._resampling = build_resampling(config, self.labels, self.rows, self.ranks) if training else None
        self._blocks = build_blocks(config) if training else None
        self.weight = source.weight[self.rows] if training and source.weight is not None else None
        self.notes = masking_notes(config.schedule, self.components) if training else ()
        if training and self.mix_nulls and self._final.mixing is None:
            self.notes += ("augment.mix_nulls has no effect: schedule.mixup_prob is 0",)
        if self._resampling is not None:
            rank = config.data.sampling_rank or self.ranks[-1]
            self.notes += (f"{config.data.sampling} sampling of {rank}: {self._resampling.summary()}",)
        if self._blocks is not None:
            self.notes += (blocks_note(self._blocks, len(self.rows)),)
        if isinstance(self._final.pipeline, HostDraws):
            self.notes += ("crops, mirroring, colour and erasing of training images run on the device (augment.place)",)
        self.nulls = NullPolicy.from_config(config, source.tree) if training else None
        self._groups: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def groups(self, level: str | None) -> np.ndarray | None:
        """Return the mixing group of each sample, int64 [N]: its class at the rank `level`, -1 if the sample must not be mixed. Return None
        if `level` is None.

        `level`: name of a rank, or "finest". A sample with a missing label at any rank is not mixed, unless `augment.mix_nulls` is set.
        With `augment.mix_nulls`, the samples with a missing label at `level` and the same nearest known ancestor are a group."""
        if level is None:
            return None
        rank = mixing_rank(level, self.ranks)
        if rank not in self._groups:
            self._groups[rank] = mixing_groups(self.labels[self.rows], rank, self.mix_nulls)
        return self._groups[rank]

    def resampling(self) -> Resampling | None:
        """Return the resampling that data.sampling defines; None for natural sampling, and for validation, which is never resampled."""
        return self._resampling

    def record_blocks(self) -> Blocks | None:
        """Return the order of data.order=blocks (blocks of neighbouring records are shuffled); None for data.order=shuffle."""
        return self._blocks

    def __getitems__(self, indices: Sequence[SampleIndex]) -> Batch:
        """Return the batch of B `indices`, which belong to the same update, as a dict of tensors.

        Always: `image` uint8 [B, 3, S, S] (with augmentation on the device the entries of `augment/on_device.py`), `label` int64 [B, R],
        `meta` float32 [B, F], `present` bool [B, M] (before masking), `weight` float32 [B], `sample` int64 [B], `bad` int64 [B]
        (observation number of an undecodable photograph, otherwise -1). In training with metadata: `mask` bool [B, M]. With mixing:
        `share`, `box`, `pick` (see `MixDraws`) and `label2`. With mixing and sample weights: `blend` float32 [B], the share of the images;
        `share` is then the share of the labels."""
        index = _BatchIndices(*np.array(indices, dtype=np.int64).reshape(-1, 5).T)
        observations = self.rows[index.sample]
        transforms = self._transforms(index)
        images, bad = self._images(index, observations, transforms)
        usable = (index.real > 0) & (bad < 0)
        label = np.where(usable[:, None], self.labels[observations], -1)
        present = self.present[index.sample]
        batch = {
            "label": label,
            "meta": self.meta[index.sample],
            "present": present,
            "weight": usable.astype(np.float32) if self.weight is None else np.where(usable, self.weight[index.sample], np.float32(0)),
            "sample": index.sample,
            "bad": np.where(index.real > 0, bad, -1),
        }
        if self.nulls is not None:
            masked = _schedule_values(self.schedule.get_null_mask_prob, index.step)
            label = batch["label"] = self.nulls.apply(index.step, index.position, label, masked, usable)
        if self.masking is not None and self.components:
            full = _schedule_values(self.schedule.get_meta_mask_prob, index.step)
            partial = _schedule_values(self.schedule.get_partial_meta_mask_prob, index.step)
            batch["mask"] = self.masking.draw(index.step, index.position, full, partial)
        if transforms.mixing is not None:
            batch |= self._mix(transforms.mixing, index, usable, label, present)
            if self.weight is not None:
                batch |= _pair_weights(batch["weight"], batch["share"])
        return images | {name: torch.from_numpy(value) for name, value in batch.items()}

    def _mix(
        self, mixing: PairMixing, index: _BatchIndices, usable: np.ndarray, label: np.ndarray, present: np.ndarray
    ) -> dict[str, np.ndarray]:
        probability = _schedule_values(self.schedule.get_mixup_prob, index.step)
        drawn = mixing.draw(index.epoch, index.position, probability, self._pairs(index, usable), present)
        label2 = np.where(drawn.mixed[:, None], label[_partner_rows(len(label))], label)
        return {"share": drawn.share, "box": drawn.box, "pick": drawn.pick, "label2": label2}

    def _pairs(self, index: _BatchIndices, usable: np.ndarray) -> np.ndarray:
        """Return bool [B], True for rows i that can be mixed with row i ^ 1: both rows are usable, a pair of the training order, in the
        same mixing group, and different samples."""
        group = np.full(len(usable), -1)
        for epoch in np.unique(index.epoch):
            numbers = self.groups(self.schedule.get_mixup_group_level(int(epoch)))
            if numbers is not None:
                chosen = usable & (index.epoch == epoch)
                group[chosen] = numbers[index.sample[chosen]]
        allowed = np.zeros(len(usable), dtype=bool)
        first = np.arange(0, len(usable) - 1, 2)
        second = first + 1
        one_slot = (index.position[first] ^ 1 == index.position[second]) & (index.epoch[first] == index.epoch[second])
        different = index.sample[first] != index.sample[second]  # resampling may draw a sample twice
        allowed[first] = allowed[second] = one_slot & different & (group[first] >= 0) & (group[first] == group[second])
        return allowed

    def _transforms(self, index: _BatchIndices) -> Transforms:
        """Return the transforms for the image size of a batch. The image size depends on the update, which is the same for all samples of
        the batch."""
        return self.transforms[self.schedule.get_image_size(int(index.step[0]))] if self.grows else self._final

    def _images(self, index: _BatchIndices, observations: np.ndarray, transforms: Transforms) -> tuple[Batch, np.ndarray]:
        """Return the batch entries of augmented photographs, and int64 [B]: the observation number of each undecodable photograph, -1 for
        the others."""
        images, bad = self._read(observations)
        good = np.flatnonzero(bad < 0)
        keys = sample_keys(self.seed, randomness.AUGMENT, index.epoch[good], index.position[good])
        made = self._pipeline(index, transforms)(images, keys)
        augmented = made if isinstance(made, dict) else {"image": made}
        if len(good) == len(bad):
            return augmented, bad
        rows = torch.from_numpy(good)
        out = {name: value.new_zeros((len(bad), *value.shape[1:])) for name, value in augmented.items() if name != "frame"}
        for name, value in out.items():
            value[rows] = augmented[name]
        return augmented | out, bad

    def _pipeline(self, index: _BatchIndices, transforms: Transforms) -> Pipeline:
        if transforms.at_end is None or self.schedule.get_augmentation(int(index.step[0])):
            return transforms.pipeline
        return transforms.at_end

    def _read(self, observations: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        bad = np.full(len(observations), -1, dtype=np.int64)
        if not self.quarantined.intersection(observations.tolist()):
            try:
                return self.images.read(observations), bad
            except UndecodableImage:
                pass  # read one by one below to find which
        images = []
        for i, observation in enumerate(observations.tolist()):
            if observation in self.quarantined:
                bad[i] = observation
                continue
            try:
                images += self.images.read(observations[i : i + 1])
            except UndecodableImage:
                bad[i] = observation
        return images, bad


def mixing_groups(labels: np.ndarray, rank: int, with_nulls: bool) -> np.ndarray:
    """Return the mixing group of each row of `labels`, int64 [N]: its class in column `rank`, -1 if the row must not be mixed. `labels`:
    int64 [N, R].

    `with_nulls` is augment.mix_nulls. See `TaxonomyDataset.groups` for rows with a missing label."""
    group = labels[:, rank].copy()
    if not with_nulls:
        group[(labels < 0).any(axis=1)] = -1
        return group
    offset = group.max(initial=-1) + 1
    for coarser in range(rank - 1, -1, -1):
        found = (group < 0) & (labels[:, coarser] >= 0)
        group[found] = labels[found, coarser] + offset
        offset = group.max(initial=-1) + 1
    return group


def _partner_rows(count: int) -> np.ndarray:
    """Return the row of each row's partner in its pair, int64 [count]. Rows 2i and 2i + 1 are a pair; an unpaired last row is its own
    partner."""
    return np.minimum(np.arange(count) ^ 1, count - 1)


def _pair_weights(weight: np.ndarray, share: np.ndarray) -> dict[str, np.ndarray]:
    """Return the entries `weight`, `share` and `blend` of a mixed batch, all [B]. Arguments [B]: the samples' own `weight`, and `share`,
    the share of the own image in the mixed image.

    Each label of a pair counts by the weight of its own sample. The entry `weight` is share x own weight + (1 - share) x partner's weight.
    The entry `share` is the share of the own label: share x own weight, divided by the entry `weight`. The entry `blend` is the argument
    `share`."""
    own = share * weight
    total = own + (1 - share) * np.where(share < 1, weight[_partner_rows(len(weight))], np.float32(0))
    label_share = np.divide(own, total, out=share.copy(), where=total > 0)
    return {"weight": total, "share": label_share, "blend": share}


def epoch_weights(config: Config, source: Source, rows: np.ndarray) -> np.ndarray | None:
    """Return (mean draws per epoch) x (weight) of each training row, float64 [N]; None if this product is 1 for all rows. `rows`: int64
    [N]."""
    resampling = build_resampling(config, source.labels, rows, source.tree.ranks)
    draws = None if resampling is None else resampling.draws
    if source.weight is None:
        return draws
    return source.weight[rows].astype(np.float64) * (1.0 if draws is None else draws)


def build_resampling(config: Config, labels: np.ndarray, rows: np.ndarray, ranks: Sequence[str]) -> Resampling | None:
    """Return the resampling of the training set; None for data.sampling=natural. `labels`: int64 [N, R], labels of all observations.
    `rows`: the numbers of the training observations.

    Raise `ConfigError` for an unknown rank, and for data.sampling_rank with natural sampling."""
    name, rank = config.data.sampling, config.data.sampling_rank
    if name == "natural":
        if rank is not None:
            raise ConfigError(f"data.sampling_rank={rank} has no effect with data.sampling=natural; remove it, or choose another sampling")
        return None
    if rank is not None and rank not in ranks:
        raise ConfigError(f"data.sampling_rank: {rank!r} is not a taxonomic rank; choose one of {', '.join(ranks)}")
    return Resampling(labels[rows, ranks.index(rank) if rank is not None else -1], POWERS[name], config.seed)


def build_blocks(config: Config) -> Blocks | None:
    """Return the order of data.order=blocks (blocks of neighbouring records are shuffled); None for data.order=shuffle. Raise `ConfigError`
    for data.order=blocks with resampling or mixing."""
    data = config.data
    if not isinstance(data, RecordsConfig) or data.order == "shuffle":
        return None
    if data.sampling != "natural":
        raise ConfigError(f"data.order=blocks reads every record once; data.sampling={data.sampling} needs data.order=shuffle")
    if ramp_used(config.schedule.mixup_prob):
        raise ConfigError("data.order=blocks has no pairs for schedule.mixup_prob; set its start and end to 0, or data.order=shuffle")
    return Blocks(data.block_records, data.window_blocks)


def blocks_note(blocks: Blocks, size: int) -> str:
    """Return a line for the user that describes the order of data.order=blocks for a training set of `size` samples."""
    count = -(-size // blocks.records)
    number, windows = counted(count, "block"), -(-count // blocks.window)
    return (
        f"order of blocks: {number} of {counted(blocks.records, 'record')} in {counted(windows, 'window')}; a window is shuffled as a whole"
    )


def _schedule_values(probability: Callable[[int], float], steps: np.ndarray) -> np.ndarray:
    """Return the value of a scheduled probability at each of `steps`, float64 [B]. `steps`: [B]."""
    distinct, inverse = np.unique(steps, return_inverse=True)
    return np.array([probability(int(step)) for step in distinct], dtype=np.float64)[inverse]
