"""Draw the random parameters of mixup and cutmix on the host, for pairs of samples of the same group, such as a species.

A pair is positions 2k and 2k + 1 of the training order, adjacent in a batch; k is its slot. Each sample keeps `share` of itself and takes
the rest from its partner: blended everywhere (mixup, Zhang et al. 2017) or inside a box (cutmix, Yun et al. 2019), where `share` is the
exact kept area, as a fraction of all pixels. Metadata are never interpolated. Each component is taken whole, from the sample itself with
probability `share`, otherwise from its partner; if only one of the two samples has the component, from that sample. Draws are functions of
(seed, epoch, slot)."""

from dataclasses import dataclass

import numpy as np

from linnaeus.randomness import MIX, Draw
from linnaeus.workloads.taxonomy.augment_config import AugmentConfig


@dataclass(frozen=True)
class MixDraws:
    """Random parameters of mixup and cutmix for a batch of B samples with M metadata components."""

    share: np.ndarray  # float32 [B], the share that a sample keeps of itself; 1 if it is not mixed
    box: np.ndarray  # int64 [B, 4] (top, left, bottom, right), the region taken from the partner; all 0 for mixup
    pick: np.ndarray  # bool [B, M], True for a component taken from the partner
    mixed: np.ndarray  # bool [B], True if the sample is mixed


class PairMixing:
    """Random draws for mixing pairs of samples. `augment.mixup_alpha` 0 switches mixup off, `augment.cutmix_alpha` 0 switches cutmix off;
    at least one of the two settings must be above 0."""

    def __init__(self, config: AugmentConfig, seed: int, image_size: int) -> None:
        self.seed, self.image_size = seed, image_size
        self.mixup_alpha, self.cutmix_alpha = config.mixup_alpha, config.cutmix_alpha
        share = config.cutmix_share if config.mixup_alpha > 0 else 1.0
        self.cutmix_share = share if config.cutmix_alpha > 0 else 0.0

    def draw(
        self, epochs: np.ndarray, positions: np.ndarray, probability: np.ndarray, allowed: np.ndarray, present: np.ndarray
    ) -> MixDraws:
        """Return the draws of a batch of B samples with M metadata components.

        A pair is two samples of one epoch at positions 2k and 2k + 1, in rows i and i + 1 with i even. `epochs`, `positions`: int64 [B],
        epoch of each sample and its position in the training order. `probability`: float [B], probability that a pair is mixed. `allowed`:
        bool [B], True for both samples of a pair that may be mixed, False for samples without a partner. `present`: bool [B, M], True
        for the components that a sample has."""
        count = len(positions)
        out = MixDraws(np.ones(count, np.float32), np.zeros((count, 4), np.int64), np.zeros_like(present), np.zeros(count, bool))
        for i in range(0, count - 1, 2):
            if allowed[i]:
                self._draw_pair(out, i, Draw(self.seed, MIX, int(epochs[i]), int(positions[i]) // 2), float(probability[i]), present)
        return out

    def _draw_pair(self, out: MixDraws, i: int, draw: Draw, probability: float, present: np.ndarray) -> None:
        if draw.uniform() >= probability:
            return
        pair = slice(i, i + 2)
        if draw.uniform() < self.cutmix_share:
            box = self._box(draw)
            out.box[pair] = box
            out.share[pair] = 1.0 - (box[2] - box[0]) * (box[3] - box[1]) / self.image_size**2
        else:
            out.share[pair] = draw.beta(self.mixup_alpha, self.mixup_alpha)
        out.mixed[pair] = True
        for half in range(2):
            own, other = present[i + half], present[i + 1 - half]
            taken = np.array([draw.uniform() >= out.share[i + half] for _ in own], dtype=bool)
            out.pick[i + half] = other & (~own | taken)

    def _box(self, draw: Draw) -> tuple[int, int, int, int]:
        """Return (top, left, bottom, right) of a square with random area and random centre, clipped at the border, at least 1 pixel wide
        and high."""
        size = self.image_size
        half = size * (1.0 - draw.beta(self.cutmix_alpha, self.cutmix_alpha)) ** 0.5 / 2
        cy, cx = draw.uniform() * size, draw.uniform() * size
        top, left = max(0, round(cy - half)), max(0, round(cx - half))
        top, left = min(top, size - 1), min(left, size - 1)
        return top, left, max(top + 1, min(size, round(cy + half))), max(left + 1, min(size, round(cx + half)))
