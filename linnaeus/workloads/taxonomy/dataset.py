"""Observations by position: what a loader worker does to make a batch. See `workloads/base.py` for the protocol.

A batch is a function of its indices, the configuration and the schedule's probabilities at those indices: photographs are augmented by
(seed, epoch, position), pairs mixed by (seed, epoch, slot), metadata masked by (seed, global_step, position). Draws are made here;
`preparation.py` applies mixing and masking on the device. A photograph that cannot be decoded becomes a sample without labels and
weight, and is named.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import torch

from linnaeus import randomness
from linnaeus.config.schema import Config
from linnaeus.data.resampling import POWERS, Resampling
from linnaeus.data.samples import Batch, PositionedDataset, SampleIndex
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.augment import AugmentationPipelineFactory
from linnaeus.workloads.taxonomy.augment.draws import sample_keys
from linnaeus.workloads.taxonomy.augment.mixing import PairMixing
from linnaeus.workloads.taxonomy.components import encode
from linnaeus.workloads.taxonomy.masking import MetadataMasking, masking_notes, ramp_used
from linnaeus.workloads.taxonomy.nulls import NullPolicy
from linnaeus.workloads.taxonomy.observations import Metadata, Source, UndecodableImage


class TrainingSchedule(Protocol):
    """What the dataset asks of the schedule; picklable, it travels to the workers."""

    def get_meta_mask_prob(self, current_step: int) -> float: ...
    def get_partial_meta_mask_prob(self, current_step: int) -> float: ...
    def get_null_mask_prob(self, current_step: int) -> float: ...
    def get_mixup_prob(self, current_step: int) -> float: ...
    def get_mixup_group_level(self, epoch: int) -> str | None: ...


@dataclasses.dataclass(frozen=True)
class _Indices:
    """The indices of a batch as arrays [B]."""

    epoch: np.ndarray
    position: np.ndarray
    sample: np.ndarray
    step: np.ndarray
    real: np.ndarray

    @classmethod
    def of(cls, indices: Sequence[SampleIndex]) -> _Indices:
        epoch, position, sample, step, real = np.array(indices, dtype=np.int64).reshape(-1, 5).T
        return cls(epoch, position, sample, step, real.astype(bool))


class TaxonomyDataset(PositionedDataset):
    """One split of a source. `training` switches augmentation, mixing and masking on."""

    def __init__(
        self, source: Source, rows: np.ndarray, config: Config, schedule: TrainingSchedule, training: bool, quarantined: Iterable[int] = ()
    ) -> None:
        """`rows` int64 [N]: observation numbers of the split. `quarantined`: observation numbers that are not read again.

        Raises ConfigError where augmentation, mixing or masking ask for what the data do not have."""
        self.rows = np.asarray(rows, dtype=np.int64)
        self.labels = source.labels[self.rows]
        self.ranks, self.images = source.tree.ranks, source.images
        self.seed, self.schedule, self.training = config.seed, schedule, training
        self.quarantined = frozenset(quarantined)
        self.components = tuple(config.data.components)
        self.meta, self.present, self.slices = encode(_select(source.metadata, self.rows), self.components)
        self.image_size = config.data.image_size
        self.pipeline = AugmentationPipelineFactory(config.augment, self.image_size).build(training)
        self.mix_nulls = config.augment.mix_nulls
        self.mixing = _mixing(config, self.ranks) if training else None
        self.masking = MetadataMasking.of(config.schedule, self.components, config.seed) if training else None
        self._resampling = build_resampling(config, self.labels, self.ranks) if training else None
        self.weight = source.weight[self.rows] if training and source.weight is not None else None
        self.notes = (*masking_notes(config.schedule, self.components), *self._sampling_notes(config)) if training else ()
        self.nulls = NullPolicy.of(config, source.tree) if training else None
        self.fingerprint = _fingerprint(source.fingerprint, self.rows, self.components)
        self._groups: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def groups(self, level: str | None) -> np.ndarray | None:
        """int64 [N]: the taxon of each sample at the rank `level`, -1 where it must not be mixed: a null label at any rank, unless
        `augment.mix_nulls`. Then a sample that is null at `level` is grouped with its like under its nearest known ancestor."""
        if level is None:
            return None
        _check_level(level, self.ranks)
        if level not in self._groups:
            self._groups[level] = group_numbers(self.labels, self.ranks.index(level), self.mix_nulls)
        return self._groups[level]

    def resampling(self) -> Resampling | None:
        """Balanced drawing by `data.sampling`; None for natural sampling and in validation, which is never resampled."""
        return self._resampling

    def _sampling_notes(self, config: Config) -> tuple[str, ...]:
        if self._resampling is None:
            return ()
        return (f"{config.data.sampling} sampling of {config.data.sampling_rank or self.ranks[-1]}: {self._resampling.summary()}",)

    def __getitems__(self, indices: Sequence[SampleIndex]) -> Batch:
        """The batch of `indices`: `image` uint8 [B, 3, S, S], `label` int64 [B, R], `meta` float32 [B, F], `present` bool [B, M] (the
        sample's own), `weight` float32 [B], `sample` int64 [B], `bad` int64 [B] (observation number of an undecodable photograph, else
        -1); in training with metadata `mask` bool [B, M]; with mixing `share`, `box`, `pick` (see `MixDraws`) and `label2`, and for
        samples with weights of their own `blend` float32 [B], the share of the pictures where `share` is that of the labels."""
        index = _Indices.of(indices)
        observations = self.rows[index.sample]
        image, bad = self._images(index, observations)
        usable = index.real & (bad < 0)
        label = np.where(usable[:, None], self.labels[index.sample], -1)
        present = self.present[index.sample]
        batch = {
            "label": label,
            "meta": self.meta[index.sample],
            "present": present,
            "weight": usable.astype(np.float32) if self.weight is None else np.where(usable, self.weight[index.sample], np.float32(0)),
            "sample": index.sample,
            "bad": np.where(index.real, bad, -1),
        }
        if self.nulls is not None:
            left_out = _at(self.schedule.get_null_mask_prob, index.step)
            label = batch["label"] = self.nulls.apply(index.step, index.position, label, left_out, usable)
        if self.masking is not None and self.components:
            full = _at(self.schedule.get_meta_mask_prob, index.step)
            partial = _at(self.schedule.get_partial_meta_mask_prob, index.step)
            batch["mask"] = self.masking.draw(index.step, index.position, full, partial)
        if self.mixing is not None:
            batch |= self._mix(self.mixing, index, usable, label, present)
            if self.weight is not None:
                batch |= _weighted_pairs(batch["weight"], batch["share"])
        return {"image": image} | {name: torch.from_numpy(value) for name, value in batch.items()}

    def _mix(
        self, mixing: PairMixing, index: _Indices, usable: np.ndarray, label: np.ndarray, present: np.ndarray
    ) -> dict[str, np.ndarray]:
        probability = _at(self.schedule.get_mixup_prob, index.step)
        drawn = mixing.draw(index.epoch, index.position, probability, self._pairs(index, usable), present)
        other = np.minimum(np.arange(len(label)) ^ 1, len(label) - 1)
        label2 = np.where(drawn.mixed[:, None], label[other], label)
        return {"share": drawn.share, "box": drawn.box, "pick": drawn.pick, "label2": label2}

    def _pairs(self, index: _Indices, usable: np.ndarray) -> np.ndarray:
        """bool [B]: rows i and i ^ 1 are the halves of one slot, both usable, and of one group."""
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
        two = index.sample[first] != index.sample[second]  # resampling may draw one twice
        allowed[first] = allowed[second] = one_slot & two & (group[first] >= 0) & (group[first] == group[second])
        return allowed

    def _images(self, index: _Indices, observations: np.ndarray) -> tuple[torch.Tensor, np.ndarray]:
        """The augmented photographs, and int64 [B] the observation number of each that cannot be decoded, else -1."""
        images, bad = self._read(observations)
        good = np.flatnonzero(bad < 0)
        keys = sample_keys(self.seed, randomness.AUGMENT, index.epoch[good], index.position[good])
        augmented = self.pipeline(images, keys)
        if len(good) == len(bad):
            return augmented, bad
        out = torch.zeros((len(bad), 3, self.image_size, self.image_size), dtype=torch.uint8)
        out[torch.from_numpy(good)] = augmented
        return out, bad

    def _read(self, observations: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        bad = np.full(len(observations), -1, dtype=np.int64)
        if not self.quarantined.intersection(observations.tolist()):
            try:
                return self.images.read(observations), bad
            except UndecodableImage:
                pass  # one of them; find which below
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


def group_numbers(labels: np.ndarray, rank: int, with_nulls: bool) -> np.ndarray:
    """int64 [N] group of each row of `labels` [N, R] at column `rank`; see `TaxonomyDataset.groups`."""
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


def _weighted_pairs(weight: np.ndarray, share: np.ndarray) -> dict[str, np.ndarray]:
    """Of rows' own weights and shares [B], what makes each label of a pair count by the weight of its own sample: the weights add up
    as the pictures do, and the share of the labels is that of the weights."""
    other = np.minimum(np.arange(len(weight)) ^ 1, len(weight) - 1)
    own = share * weight
    together = own + (1 - share) * np.where(share < 1, weight[other], np.float32(0))
    of_labels = np.divide(own, together, out=share.copy(), where=together > 0)
    return {"weight": together, "share": of_labels, "blend": share}


def label_mass(config: Config, source: Source, rows: np.ndarray) -> np.ndarray | None:
    """float64 [N]: what each of the training `rows` counts for in an epoch, its draws times its weight; None: one each."""
    resampling = build_resampling(config, source.labels[rows], source.tree.ranks)
    draws = None if resampling is None else resampling.draws
    if source.weight is None:
        return draws
    return source.weight[rows].astype(np.float64) * (1.0 if draws is None else draws)


def build_resampling(config: Config, labels: np.ndarray, ranks: Sequence[str]) -> Resampling | None:
    """How epochs draw training rows of `labels` int64 [N, R]; None where sampling is natural. Raises ConfigError for no such rank."""
    name, rank = config.data.sampling, config.data.sampling_rank
    if name == "natural":
        if rank is not None:
            raise ConfigError(f"data.sampling_rank={rank} has no effect with data.sampling=natural; leave it out, or balance the classes")
        return None
    if rank is not None and rank not in ranks:
        raise ConfigError(f"data.sampling_rank: {rank!r} is not one of the taxonomic ranks {list(ranks)}")
    return Resampling(labels[:, ranks.index(rank) if rank is not None else -1], POWERS[name], config.seed)


def _mixing(config: Config, ranks: Sequence[str]) -> PairMixing | None:
    if not ramp_used(config.schedule.mixup_prob):
        return None
    if config.augment.mixup_alpha == 0 and config.augment.cutmix_alpha == 0:
        raise ConfigError(
            "schedule.mixup_prob asks for mixed pairs but augment.mixup_alpha and augment.cutmix_alpha are 0; set one above 0"
        )
    if not config.schedule.mixup_group_level:
        raise ConfigError(
            "schedule.mixup_prob asks for mixed pairs but schedule.mixup_group_level is empty; set it to [{from: 0%, level: RANK}]"
        )
    for entry in config.schedule.mixup_group_level:
        _check_level(entry["level"], ranks)
    return PairMixing.from_config(config.augment, config.seed, config.data.image_size)


def _check_level(level: str, ranks: Sequence[str]) -> None:
    if level not in ranks:
        raise ConfigError(f"schedule.mixup_group_level: {level!r} is not one of the taxonomic ranks {list(ranks)}")


def _at(probability: Callable[[int], float], steps: np.ndarray) -> np.ndarray:
    """float64 [B]: a probability of the schedule at each of `steps`."""
    values, where = np.unique(steps, return_inverse=True)
    return np.array([probability(int(step)) for step in values], dtype=np.float64)[where]


def _select(metadata: Metadata, rows: np.ndarray) -> Metadata:
    return Metadata(**{field.name: getattr(metadata, field.name)[rows] for field in dataclasses.fields(Metadata)})


def _fingerprint(source: str, rows: np.ndarray, components: tuple[str, ...]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in (source.encode(), rows.tobytes(), repr(components).encode()):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
