"""What happens to a batch on the device before the model sees it: normalise, mix pairs, mask metadata; in this order.

The host has drawn everything (`dataset.py`); here are only elementwise operations, and nothing waits for the device. Constants are
copied to each device once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from linnaeus.data.samples import Batch
from linnaeus.workloads.taxonomy.masking import hidden

MEAN = (0.485, 0.456, 0.406)  # of ImageNet, as pretrained networks expect
STD = (0.229, 0.224, 0.225)
HOST_DRAWS = ("box", "pick", "mask", "blend")  # used up here


class BatchPreparation:
    """Makes a model's batch of a host batch that was moved to the device."""

    def __init__(self, components: Sequence[str], slices: Sequence[slice], dtype: torch.dtype = torch.float32) -> None:
        """`slices` are the feature columns of each component; `dtype` is that of images and metadata features."""
        self.components, self.dtype = tuple(components), dtype
        self.column = [m for m, columns in enumerate(slices) for _ in range(columns.start, columns.stop)]
        self._constants: dict[tuple, Tensor] = {}

    def __call__(self, batch: Batch, masked: Sequence[str] = ()) -> Batch:
        """`image` float [B, 3, S, S], `meta` float [B, F] with zeros where absent, `present` bool [B, M] after masking,
        `available` bool [B, M] before it; `masked` components are hidden from all. Other entries pass through."""
        out = {name: value for name, value in batch.items() if name not in HOST_DRAWS}
        out["image"] = self._normalise(batch["image"])
        meta, available = batch["meta"].to(self.dtype), batch["present"]
        if "share" in batch:
            other = partner_rows(len(available), available.device)
            out["share"] = batch["share"].to(self.dtype)
            mix_images(out["image"], batch.get("blend", batch["share"]).to(self.dtype), batch["box"], other)
            available = torch.where(batch["pick"], available[other], available)
            meta = torch.where(self._per_feature(batch["pick"]), meta[other], meta)
        present = available & ~batch["mask"] if "mask" in batch else available
        if masked:
            present = present & ~self._hidden(tuple(masked), present.device)
        out["available"], out["present"] = available, present
        out["meta"] = meta.masked_fill(~self._per_feature(present), 0.0)
        return out

    def _normalise(self, image: Tensor) -> Tensor:
        scale = self._constant("scale", image.device, lambda: torch.tensor([1 / (255 * s) for s in STD], dtype=self.dtype))
        shift = self._constant(
            "shift", image.device, lambda: torch.tensor([-m / s for m, s in zip(MEAN, STD, strict=True)], dtype=self.dtype)
        )
        return image.to(self.dtype).mul_(scale.view(1, 3, 1, 1)).add_(shift.view(1, 3, 1, 1))

    def _per_feature(self, flags: Tensor) -> Tensor:
        column = self._constant("column", flags.device, lambda: torch.tensor(self.column, dtype=torch.int64))
        return flags.index_select(1, column)

    def _hidden(self, masked: tuple[str, ...], device: torch.device) -> Tensor:
        return self._constant(masked, device, lambda: torch.from_numpy(hidden(masked, self.components, "masked")))

    def _constant(self, name: str | tuple[str, ...], device: torch.device, make: Callable[[], Tensor]) -> Tensor:
        if (name, device) not in self._constants:
            self._constants[name, device] = make().to(device)
        return self._constants[name, device]


def partner_rows(count: int, device: torch.device) -> Tensor:
    """int64 [B]: the row of each row's other half; an odd last row is its own (and unmixed)."""
    return torch.arange(count, device=device).bitwise_xor(1).clamp_(max=count - 1)


def mix_images(image: Tensor, share: Tensor, box: Tensor, other: Tensor) -> None:
    """Mix float [B, 3, S, S] `image` in place: `share` [B] of the own picture everywhere, or all of the partner's (rows `other`) inside
    `box` [B, 4] (top, left, bottom, right) and all of the own outside, where it is not empty."""
    partner = image.index_select(0, other)
    top, left, bottom, right = box.t().unsqueeze(-1)
    side = torch.arange(image.shape[-1], device=image.device)
    rows, columns = (side >= top) & (side < bottom), (side >= left) & (side < right)
    keep = torch.where(box[:, 2] > box[:, 0], torch.ones_like(share), share).view(-1, 1, 1)
    keep = keep.masked_fill(rows.unsqueeze(2) & columns.unsqueeze(1), 0.0).unsqueeze(1)
    image.mul_(keep).addcmul_(partner, 1.0 - keep)


def masking_counts(batch: Batch) -> Tensor:
    """int64 [2, M] of a prepared batch: components there before masking, and after it, over the real samples."""
    real = (batch["weight"] > 0).unsqueeze(1)
    return torch.stack([(batch["available"] & real).sum(0), (batch["present"] & real).sum(0)])
