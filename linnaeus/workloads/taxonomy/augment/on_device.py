"""Crop, mirror, recolour and erase images on the device, a whole batch at once (`augment.place=device`).

The host draws the same parameters as for the pipeline that runs on the host. It passes the pixels of the crops, which have different sizes,
in one array. The device resizes them by two matrix products with the weights of the antialiased bilinear filter (the triangle of
`..images.resizing`).

Weights are multiples of 2^-16 and pixels are whole numbers. So every partial sum, in units of 2^-16, is a whole number below 2^24, which
float32 represents exactly. The result therefore does not depend on the device, the batch, or the order of the sums. It differs from the
result of the host by at most one of the 255 levels."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from linnaeus.data.samples import Batch
from linnaeus.workloads.taxonomy.augment import colour, geometry
from linnaeus.workloads.taxonomy.augment.training_draws import TrainingDraws
from linnaeus.workloads.taxonomy.augment_config import AugmentConfig

UNIT = 1 << 16  # inverse of the unit of the weights: 255 x 2^16 is below 2^24
SAMPLES_AT_ONCE = 64  # 0.2 GB on the device for crops of 341 x 256 pixels
PARAMETERS = ("frame", "crop_size", "mirror", "colour", "grey", "erase")  # entries of a batch that `augment_batch` reads


class HostDraws:
    """Training pipeline for augmentation on the device, host part: it cuts the crops out of the photographs and draws the parameters of the
    other operations."""

    def __init__(self, config: AugmentConfig, image_size: int) -> None:
        self.image_size, self.draws = image_size, TrainingDraws(config, image_size)

    def __call__(self, images: Sequence[np.ndarray], keys: np.ndarray) -> dict[str, Tensor]:
        """Return entries of a batch: `image` uint8 [B, H, W, 3] (each crop in the upper left corner, 0 elsewhere), `crop_size` int64 [B, 2]
        (height, width), `mirror` bool [B, 2] (top-bottom, left-right), and `frame` uint8 [0, S, S], an empty array whose shape gives the
        side S of the result. With colour: `colour` float32 [B, 3, 3] and `grey` float64 [B]. With erasing: `erase` int64 [B, 4]."""
        sizes = geometry.sizes_of(images)
        boxes = geometry.whole_boxes(self.draws.crops(sizes, keys), sizes)
        found = {
            "image": torch.from_numpy(cut(images, boxes)),
            "crop_size": torch.from_numpy(boxes[:, [3, 2]] - boxes[:, [1, 0]]),
            "mirror": torch.from_numpy(self.draws.flips(keys)[:, ::-1].copy()),
            "frame": torch.empty(0, self.image_size, self.image_size, dtype=torch.uint8),
        }
        if (colours := self.draws.colours(keys)) is not None:
            matrices, grey = colours
            found |= {"colour": torch.from_numpy(matrices.astype(np.float32)), "grey": torch.from_numpy(grey)}
        if (erased := self.draws.erased(keys)) is not None:
            found["erase"] = torch.from_numpy(erased)
        return found


def cut(images: Sequence[np.ndarray], boxes: np.ndarray) -> np.ndarray:
    """Return the pixels of `images` (each uint8 [H, W, 3]) inside `boxes`, int64 [B, 4] (left, top, right, bottom), as uint8 [B, height,
    width, 3]. Height and width are the greatest height and width of a box. A smaller crop is in the upper left corner, with 0 elsewhere."""
    height, width = (boxes[:, [3, 2]] - boxes[:, [1, 0]]).max(axis=0, initial=1).tolist()
    out = np.zeros((len(images), height, width, 3), dtype=np.uint8)
    for image, (left, top, right, bottom), row in zip(images, boxes.tolist(), out, strict=True):
        row[: bottom - top, : right - left] = image[top:bottom, left:right]
    return out


def augment_batch(batch: Batch) -> Tensor:
    """Return the augmented images of a batch, float32 [B, 3, S, S], whole numbers from 0 to 255. The batch must have the entries that
    `HostDraws` returns."""
    count = len(batch["image"])
    if count <= SAMPLES_AT_ONCE:
        return _augment(batch)
    entries = {name: batch[name] for name in ("image", *PARAMETERS) if name in batch and name != "frame"}
    parts = (slice(first, first + SAMPLES_AT_ONCE) for first in range(0, count, SAMPLES_AT_ONCE))
    return torch.cat([_augment({name: value[part] for name, value in entries.items()} | {"frame": batch["frame"]}) for part in parts])


def _augment(batch: Batch) -> Tensor:
    side = batch["frame"].shape[1]
    pixels = batch["image"].permute(0, 3, 1, 2).float()
    rows, columns = batch["crop_size"].unbind(1)
    mirror_rows, mirror_columns = batch["mirror"].unbind(1)
    with full_float32():
        narrow = whole(pixels.flatten(1, 2) @ filter_weights(columns, mirror_columns, side, pixels.shape[3]).transpose(1, 2))
        narrow = narrow.unflatten(1, pixels.shape[1:3])
        image = whole(filter_weights(rows, mirror_rows, side, pixels.shape[2]).unsqueeze(1) @ narrow)
    if "colour" in batch:
        image = apply_colour(image, batch["colour"], batch["grey"])
    if "erase" in batch:
        image = erase(image, batch["erase"])
    return image


@contextmanager
def full_float32() -> Iterator[None]:
    """Let matrix products within the `with` block use float32, not TF32, which would round the weights to 11 bits."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def filter_weights(length: Tensor, mirror: Tensor, side: int, longest: int) -> Tensor:
    """Return the weights of the antialiased bilinear filter that resizes `length` pixels to `side` pixels: float32 [B, side, longest],
    multiples of 2^-16. `length`: int64 [B]. `mirror`: bool [B], True to reverse the order of the output pixels. The weights of an output
    pixel sum to 1 to within 2^-14."""
    pixel = torch.arange(longest, device=length.device, dtype=torch.float64)
    target = torch.arange(side, device=length.device, dtype=torch.float64)
    target = torch.where(mirror.unsqueeze(1), side - 1 - target, target)  # [B, side]
    scale = (length.double() / side).unsqueeze(1)
    centre, support = (target + 0.5) * scale, scale.clamp(min=1.0)
    distance = (pixel + 0.5 - centre.unsqueeze(2)).abs_().div_(support.unsqueeze(2))
    weight = distance.neg_().add_(1.0).clamp_(min=0.0)
    weight.masked_fill_((pixel >= length.unsqueeze(1)).unsqueeze(1), 0.0)
    weight.div_(weight.sum(2, keepdim=True).clamp_(min=1e-9))  # the sum is 0 only for a photograph that cannot be decoded
    return weight.mul_(UNIT).round_().div_(UNIT).float()


def whole(values: Tensor) -> Tensor:
    """Round `values` in place to the nearest whole numbers from 0 to 255, halves upwards. Return `values`."""
    return values.add_(0.5).floor_().clamp_(0.0, 255.0)


def apply_colour(image: Tensor, matrices: Tensor, grey: Tensor) -> Tensor:
    """Return `image`, float32 [B, 3, S, S] of whole numbers, with the colour maps applied. The operations and their order are the same as
    in `colour.apply_colour`. `matrices`, `grey`: result of `colour.colour_maps`."""
    means = [plane.sum((1, 2), dtype=torch.float64) / plane[0].numel() for plane in image.unbind(1)]
    mean_grey = sum(factor * mean for factor, mean in zip(colour.GREY.tolist(), means, strict=True))
    offset = (grey * mean_grey + 0.5).float().view(-1, 1, 1)
    planes, out = image.unbind(1), torch.empty_like(image)
    for c, result in enumerate(out.unbind(1)):
        torch.mul(planes[0], matrices[:, c, 0].view(-1, 1, 1), out=result)
        for plane, factor in zip(planes[1:], matrices[:, c, 1:].unbind(1), strict=True):
            result.add_(plane * factor.view(-1, 1, 1))
        result.add_(offset)
    return out.clamp_(0.0, 255.5).floor_()


def erase(image: Tensor, boxes: Tensor) -> Tensor:
    """Fill rectangles of `image`, float32 [B, 3, S, S], with `geometry.FILL`, in place. `boxes`: int64 [B, 4] (top, left, bottom, right),
    all 0 for no rectangle. Return `image`."""
    top, left, bottom, right = boxes.t().unsqueeze(-1)
    place = torch.arange(image.shape[-1], device=image.device)
    rows, columns = (place >= top) & (place < bottom), (place >= left) & (place < right)
    inside = (rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1)
    for plane, value in zip(image.unbind(1), geometry.FILL.tolist(), strict=True):
        plane.masked_fill_(inside[:, 0], float(value))
    return image
