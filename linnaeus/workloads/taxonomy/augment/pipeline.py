"""Turn decoded photographs of any size into one uint8 tensor: crop and resize, flips, policy, colour, erasing. A policy is an automatic
augmentation, RandAugment or TrivialAugment.

`AugmentationPipelineFactory(config.augment, image_size).build(training)` returns a callable with the arguments (images, keys). The result
for a sample is a function of its image and its key, independent of the rest of the batch. `augment=none` is the same pipeline with neutral
values: it takes the largest central square, as validation does with `augment.center_crop=1`. Images are normalised and pairs are blended on
the device. With `augment.place=device` the device also does everything else but decoding and the policy (`on_device.py`).

The policies are those of torchvision, which draw from torch's global generator. So the global generators are seeded before each picture.
torchvision is imported only if a policy is configured (1.4 s), in the parent process, which forked workers share."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from linnaeus import randomness
from linnaeus.config.choices import AUTO
from linnaeus.config.registry import registered
from linnaeus.durations import Duration
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.augment import colour, draws, geometry
from linnaeus.workloads.taxonomy.augment.on_device import HostDraws
from linnaeus.workloads.taxonomy.augment.training_draws import TrainingDraws
from linnaeus.workloads.taxonomy.augment_config import AugmentConfig, choose_place

Policy = Callable[[Image.Image], Image.Image]


# Function from uint8 [H, W, 3] photographs and the uint64 [B] keys of their positions to uint8 [B, 3, S, S], contiguous; or, for
# augmentation on the device, to several entries of a batch.
Pipeline = Callable[[Sequence[np.ndarray], np.ndarray], Tensor | dict[str, Tensor]]


class AugmentationPipelineFactory:
    """Builder of the pipelines of training and validation. The constructor raises `ConfigError` for an impossible range of crops."""

    def __init__(self, config: AugmentConfig, image_size: int) -> None:
        _check_range("crop_scale", config.crop_scale, high=1.0)
        _check_range("crop_ratio", config.crop_ratio, high=float("inf"))
        self.config, self.image_size = config, image_size

    def build(self, training: bool, device: torch.device | None = None) -> Pipeline:
        """Return the pipeline of training or validation. `device`: the device of the training; None: no GPU. With `augment.place=auto`,
        training images are augmented on `device` if it is a GPU and `augment.policy` is none."""
        if not training:
            return ValidationPipeline(self.image_size, self.config.center_crop)
        part = registered("augment", self.config.name)
        if part is not None:
            return part.build(self.config, self.image_size)
        kind = HostDraws if self._on_device(device) else TrainingPipeline
        return kind(self.config, self.image_size)

    def _on_device(self, device: torch.device | None) -> bool:
        """Return True if training images are augmented on the device. Raise `ConfigError` for `augment.place=device` with an automatic
        augmentation (`augment.policy`), which runs on the host only."""
        if self.config.place == "device" and self.config.policy != "none":
            raise ConfigError(
                f"augment.place=device cannot apply augment.policy={self.config.policy}; set augment.place=host, or the policy to none"
            )
        place = self.config.place if self.config.place != AUTO else choose_place(self.config, "cpu" if device is None else device.type)[0]
        return place == "device"

    def build_at_end(self, mixing: bool) -> Pipeline | None:
        """Return the pipeline for the last part of the run (`augment.off_last`): the validation pipeline, without augmentation.

        Return None if `augment.off_last` is 0. `mixing`: True if pairs are mixed before the last part. Raise `ConfigError` if images are
        neither augmented nor mixed before the last part, since `augment.off_last` then has no effect."""
        text = self.config.off_last
        if Duration.parse(text, "augment.off_last").amount == 0:
            return None
        if not mixing and registered("augment", self.config.name) is None and _changes_nothing(self.config):
            raise ConfigError(f"augment.off_last={text} has no effect, since nothing is augmented or mixed; set it to 0%")
        return self.build(training=False)


class ValidationPipeline:
    """Pipeline for validation images: it resizes a central square of each photograph, whose side is `center_crop` times the short side. The
    argument `keys` is not used."""

    def __init__(self, image_size: int, center_crop: float = 1.0) -> None:
        self.image_size, self.center_crop = image_size, center_crop

    def __call__(self, images: Sequence[np.ndarray], keys: np.ndarray) -> Tensor:
        boxes = geometry.central_squares(geometry.sizes_of(images), self.center_crop)
        return torch.from_numpy(_channels_first(geometry.resample(images, boxes, self.image_size)))


class TrainingPipeline:
    """Training pipeline that runs on the host: crop and resize, flips, policy (RandAugment or TrivialAugment), colour, erasing, in this
    order. Disabled operations are skipped."""

    def __init__(self, config: AugmentConfig, image_size: int) -> None:
        self.image_size, self.draws = image_size, TrainingDraws(config, image_size)
        self.policy = _build_policy(config)

    def __call__(self, images: Sequence[np.ndarray], keys: np.ndarray) -> Tensor:
        out = _channels_first(self._pictures(images, keys))
        if (colours := self.draws.colours(keys)) is not None:
            colour.apply_colour(out, *colours)
        if (erased := self.draws.erased(keys)) is not None:
            geometry.erase(out, erased)
        return torch.from_numpy(out)

    def _pictures(self, images: Sequence[np.ndarray], keys: np.ndarray) -> np.ndarray:
        """Return the photographs after crops, flips and the policy (RandAugment or TrivialAugment), uint8 [B, S, S, 3]."""
        boxes = self.draws.crops(geometry.sizes_of(images), keys)
        pictures = geometry.resample(images, boxes, self.image_size)
        geometry.flip(pictures, *self.draws.flips(keys).T)
        if self.policy is not None:
            for picture, seed in zip(pictures, randomness.hashes(randomness.key(draws.POLICY), keys).tolist(), strict=True):
                randomness.seed_globals(seed)
                picture[...] = np.asarray(self.policy(Image.fromarray(picture)))
        return pictures


def _build_policy(config: AugmentConfig) -> Policy | None:
    """Return the configured automatic augmentation (`augment.policy`) as a function of a picture; None for `augment.policy=none`."""
    if config.policy == "none":
        return None
    from torchvision.transforms import InterpolationMode, RandAugment, TrivialAugmentWide

    fill = [float(c) for c in geometry.FILL]
    if config.policy == "trivialaugment":
        return TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR, fill=fill)
    return RandAugment(config.policy_operations, config.policy_magnitude, interpolation=InterpolationMode.BILINEAR, fill=fill)


def _changes_nothing(config: AugmentConfig) -> bool:
    """Return True if the training pipeline gives the same images as the validation pipeline, since `config` switches every change off."""
    strengths = (config.brightness, config.contrast, config.saturation, config.hue)
    probabilities = (config.horizontal_flip, config.vertical_flip, config.erasing)
    whole = list(config.crop_scale) == list(config.crop_ratio) == [1.0, 1.0] and config.crop_side is None and config.center_crop == 1
    return whole and config.policy == "none" and not any((*strengths, *probabilities))


def _check_range(name: str, values: Sequence[float], high: float) -> None:
    if len(values) != 2 or not 0 < values[0] <= values[1] <= high:
        limit = "" if high == float("inf") else f" <= {high:g}"
        raise ConfigError(f"augment.{name} is {list(values)}; it must be two numbers, 0 < smallest <= largest{limit}")


def _channels_first(pictures: np.ndarray) -> np.ndarray:
    """Return pictures uint8 [B, S, S, 3] as a contiguous array [B, 3, S, S]."""
    return np.ascontiguousarray(pictures.transpose(0, 3, 1, 2))
