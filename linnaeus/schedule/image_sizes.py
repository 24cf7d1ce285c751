"""Progressive resizing: the side length of the training images as a function of the step (`schedule.image_size`).

Small images take a fraction of the time, and details matter only late in training (Howard 2018; Tan and Le 2021, "EfficientNetV2").
"""

from __future__ import annotations

from dataclasses import dataclass

from linnaeus.config.schema import Config
from linnaeus.durations import first_step_at
from linnaeus.errors import ConfigError
from linnaeus.schedule.events import begin_and_until

KEY = "schedule.image_size"


def image_sizes(config: Config) -> tuple[int, ...]:
    """Return the side lengths in pixels of the training images of a run, in increasing order; the last one is `data.image_size`.

    Return () for a workload without images. Raise `ConfigError` if `schedule.image_size.start` is not below `data.image_size`, or is not a
    multiple of `schedule.image_size.multiple`."""
    ramp, end = config.schedule.image_size, getattr(config.data, "image_size", None)
    if ramp.start is None:
        return () if end is None else (end,)
    if end is None:
        raise ConfigError(f"{KEY}.start={ramp.start} has no effect, since this workload has no images; set it to null")
    if ramp.start >= end:
        raise ConfigError(f"{KEY}.start={ramp.start} is not below data.image_size={end}; use a smaller start, or null for a constant size")
    if ramp.start % ramp.multiple:
        fitting = max(1, ramp.start // ramp.multiple) * ramp.multiple
        raise ConfigError(f"{KEY}.start={ramp.start} is not a multiple of {KEY}.multiple={ramp.multiple}; use {fitting}")
    return (*range(ramp.start, end, ramp.multiple), end)


@dataclass(frozen=True)
class ImageSizes:
    """Side length of the training images by step. `stages`: pairs (first step, side length in pixels). Both numbers increase from pair to
    pair.

    The first step of a stage is the value of `global_step` before the first update with this side length."""

    stages: tuple[tuple[int, int], ...]

    @classmethod
    def resolve(cls, config: Config, total_steps: int, steps_per_epoch: int) -> ImageSizes | None:
        """Return the image sizes of a run: stages of equal length between `begin` and `until`, then the full size. Return None if the size
        is constant.

        Raise `ConfigError` if `until` comes before `begin` or is step 0, and in the same cases as `image_sizes`."""
        sizes, ramp = image_sizes(config), config.schedule.image_size
        if len(sizes) < 2:
            return None
        begin, until = begin_and_until(ramp.begin, ramp.until, KEY, total_steps, steps_per_epoch)
        if until == 0:
            raise ConfigError(f"{KEY}.until={ramp.until} is step 0, before the first update; set a later one")
        changes = len(sizes) - 1
        starts = [0, *(first_step_at(begin + (until - begin) * i / changes) for i in range(1, changes + 1))]
        stages = dict(zip(starts, sizes, strict=True))  # if several stages start at one step, the last one remains
        return cls(tuple(stages.items()))

    def at(self, step: int) -> int:
        """Return the side length, in pixels, of the images that the update from `step` to `step + 1` uses."""
        side = self.stages[0][1]
        for first, following in self.stages:
            if first <= step:
                side = following
        return side
