"""RandAugment and TrivialAugment of torchvision, keyed by sample.

torchvision draws from torch's global generator, so the globals are seeded before each picture. It is imported only when a policy is
asked for (1.4 s), in the parent process, so that forked workers have it.
"""

from __future__ import annotations

from collections.abc import Callable

from PIL import Image

from linnaeus import randomness
from linnaeus.workloads.taxonomy.augment.erasing import FILL
from linnaeus.workloads.taxonomy.config import AugmentConfig

Policy = Callable[[Image.Image], Image.Image]


def build_policy(config: AugmentConfig) -> Policy | None:
    """The policy of the configuration; None where it is `none`."""
    if config.policy == "none":
        return None
    from torchvision.transforms import InterpolationMode, RandAugment, TrivialAugmentWide

    fill = [float(c) for c in FILL]
    if config.policy == "trivialaugment":
        return TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR, fill=fill)
    return RandAugment(config.policy_operations, config.policy_magnitude, interpolation=InterpolationMode.BILINEAR, fill=fill)


def apply_policy(policy: Policy, picture: Image.Image, key: int) -> Image.Image:
    """`picture` under the operations drawn from `key`."""
    randomness.seed_globals(key)
    return policy(picture)
