"""Null labels (`head.nulls`): left out of the loss, learnt as a class of their own by schedule, or always.

    ignore     a null label teaches nothing; there is no null class, and no probability is left for "unknown"
    phase_in   every rank has one more class, the last, for "not known at this rank"; in training a null label becomes that class with
               probability 1 - `schedule.null_mask_prob`, keyed by (seed, global_step, position), and is left out (-1) otherwise
    predict    the same, every null label at every step; `schedule.null_mask_prob` has no say and must be left alone

For the heads that are one distribution on the tree, "not known any further" is a child of every taxon that has children. A null label
below a taxon without any, or one with a finer taxon known below it (a hole of the lineage), then says nothing and stays left out.

Under the first a null label is a taxon that nobody named, under the others it is something to be learnt. Validation keeps its
nulls in any case: accuracies are over the known labels and the real classes, and `metrics/nulls.py` says how well null was learnt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from linnaeus import randomness
from linnaeus.config.schema import Config
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.augment.draws import sample_keys, uniform_draws
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

PHASE_IN = 2  # the operation of these draws within the masking stream


@dataclass(frozen=True)
class NullPolicy:
    """`null_class` int64 [R]: the number of the null class at each rank. `always`: no null label is left out. For heads on the tree
    `offsets` int64 [R] is the node of class 0 of each rank and `inner` bool [T + 1] says which nodes have children, last the top."""

    seed: int
    null_class: np.ndarray
    always: bool
    offsets: np.ndarray | None = None
    inner: np.ndarray | None = None

    @classmethod
    def of(cls, config: Config, tree: TaxonomyTree) -> NullPolicy | None:
        """None where nulls are ignored. Raises ConfigError where the schedule and the head contradict each other."""
        ramp, nulls = config.schedule.null_mask_prob, config.head.nulls
        always_left_out = ramp.start == ramp.end == 1
        if nulls == "phase_in" and always_left_out:
            raise ConfigError(
                "head.nulls=phase_in needs schedule.null_mask_prob below 1 at some time, or the null class is never learnt; "
                "for null labels that are always learnt set head.nulls=predict"
            )
        if nulls != "phase_in" and not always_left_out:
            says = "lets null labels into the loss" if nulls == "ignore" else "leaves null labels out of the loss"
            raise ConfigError(f"schedule.null_mask_prob {says}, but head.nulls={nulls} does not ask it; set head.nulls=phase_in")
        if nulls == "ignore":
            return None
        policy = cls(config.seed, np.array(tree.sizes, dtype=np.int64), nulls == "predict")
        if config.head.name == "linear":
            return policy
        inner = np.zeros(tree.offsets[-1] + 1, dtype=bool)
        inner[tree.node_parent] = True  # -1, the top, is the last
        return replace(policy, offsets=np.array(tree.offsets[:-1]), inner=inner)

    def notes(self, ranks: Sequence[str], counts: Sequence[int]) -> tuple[str, ...]:
        """What to say of so many null labels a rank among the training samples that can be learnt. Raises ConfigError where there is
        nothing to learn."""
        name = f"head.nulls={'predict' if self.always else 'phase_in'}"
        if not any(counts):
            where = "" if self.inner is None else " of a rank below a taxon that has children"
            raise ConfigError(f"{name}: no training sample lacks a label{where}, so there is nothing to learn; set head.nulls=ignore")
        without = [rank for rank, count in zip(ranks, counts, strict=True) if not count]
        return (f"{name}: no training sample lacks a label of {', '.join(without)} that could be learnt",) if without else ()

    def apply(self, steps: np.ndarray, positions: np.ndarray, label: np.ndarray, masked: np.ndarray, usable: np.ndarray) -> np.ndarray:
        """`label` int64 [B, R] with the nulls of `usable` [B] samples turned into the null class, some or all; `masked` float [B] is
        the probability that one is left out where that is scheduled."""
        taken = self.learnt(label) & usable[:, None]
        if not self.always:
            taken &= uniform_draws(sample_keys(self.seed, randomness.MASK, steps, positions), PHASE_IN, label.shape[1]) >= masked[:, None]
        return np.where(taken, self.null_class, label)

    def learnt(self, label: np.ndarray) -> np.ndarray:
        """bool [B, R]: the null labels of rows, int64 [B, R], that can be learnt. On a tree those finer than the finest taxon known of
        the row, and that taxon has children."""
        if self.inner is None or self.offsets is None:
            return label < 0
        nodes = np.where(label >= 0, label + self.offsets, -1)
        finest = nodes.max(axis=1)  # finer taxa have larger numbers
        rank = np.where(finest >= 0, nodes.argmax(axis=1), -1)
        return (np.arange(label.shape[1]) > rank[:, None]) & self.inner[finest][:, None]
