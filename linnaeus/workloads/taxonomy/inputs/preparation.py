"""Prepare a batch on the device: augment (for augment.place=device), normalise, mix pairs, and mask metadata, in this order.

All random draws are made on the host (`image_dataset.py`). The operations here do not synchronise host and device. Constants are copied to
each device once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from linnaeus.data.samples import Batch
from linnaeus.workloads.taxonomy.augment.on_device import PARAMETERS, augment_batch
from linnaeus.workloads.taxonomy.inputs.masking import component_mask

MEAN = (0.485, 0.456, 0.406)  # of ImageNet, which pretrained networks expect
STD = (0.229, 0.224, 0.225)
HOST_DRAWS = ("box", "pick", "mask", "blend", *PARAMETERS)  # entries of a batch with random draws; the model does not get them


class BatchPreparation:
    """Function from a batch of `TaxonomyDataset`, moved to the device, to the prepared batch that the model reads."""

    def __init__(self, components: Sequence[str], slices: Sequence[slice], dtype: torch.dtype = torch.float32) -> None:
        """Take the metadata components and their columns in the features (`column_slices`). `dtype`: type of the prepared images and
        features."""
        self.components, self.dtype = tuple(components), dtype
        scale, shift = [1 / (255 * s) for s in STD], [-m / s for m, s in zip(MEAN, STD, strict=True)]
        self._host: dict[str | tuple[str, ...], Tensor] = {
            "scale": torch.tensor(scale, dtype=dtype).view(1, 3, 1, 1),
            "shift": torch.tensor(shift, dtype=dtype).view(1, 3, 1, 1),
            "column": torch.tensor([m for m, own in enumerate(slices) for _ in range(own.start, own.stop)], dtype=torch.int64),
        }
        self._by_device: dict[tuple, Tensor] = {}
        self._prepare_training = self._prepare

    def compile(self, device: torch.device) -> None:
        """Compile the preparation of training batches on `device`, without the augmentation."""
        for name in self._host:
            self._constant(name, device)  # the compiler cannot trace the copy
        self._prepare_training = torch.compile(self._prepare, dynamic=False)

    def __call__(self, batch: Batch, masked: Sequence[str] = ()) -> Batch:
        """Return a batch with `image` float [B, 3, S, S], `meta` float [B, F] (0 where absent), `present` bool [B, M] after masking, and
        `available` bool [B, M] before masking. Other entries are passed on. `masked`: components to mask for all samples."""
        if "frame" in batch:
            image = augment_batch(batch)
            batch = {name: value for name, value in batch.items() if name not in PARAMETERS} | {"image": image}
        return self._prepare(batch, tuple(masked)) if masked or not torch.is_grad_enabled() else self._prepare_training(batch)

    def _prepare(self, batch: Batch, masked: tuple[str, ...] = ()) -> Batch:
        out = {name: value for name, value in batch.items() if name not in HOST_DRAWS}
        device, image = batch["image"].device, batch["image"]
        out["image"] = image.to(self.dtype).mul_(self._constant("scale", device)).add_(self._constant("shift", device))
        meta, available = batch["meta"].to(self.dtype), batch["present"]
        if "share" in batch:
            other = partner_rows(len(available), device)
            out["share"] = batch["share"].to(self.dtype)
            mix_images(out["image"], batch.get("blend", batch["share"]).to(self.dtype), batch["box"], other)
            available = torch.where(batch["pick"], available[other], available)
            meta = torch.where(self._per_feature(batch["pick"]), meta[other], meta)
        present = available & ~batch["mask"] if "mask" in batch else available
        if masked:
            if masked not in self._host:
                self._host[masked] = torch.from_numpy(component_mask(masked, self.components, "masked"))
            present = present & ~self._constant(masked, device)
        out["available"], out["present"] = available, present
        out["meta"] = meta.masked_fill(~self._per_feature(present), 0.0)
        return out

    def _per_feature(self, flags: Tensor) -> Tensor:
        """Return a value per feature column, [B, F], from `flags`, [B, M], a value per component: each flag is repeated for the columns of
        its component."""
        return flags.index_select(1, self._constant("column", flags.device))

    def _constant(self, name: str | tuple[str, ...], device: torch.device) -> Tensor:
        if (name, device) not in self._by_device:
            self._by_device[name, device] = self._host[name].to(device)
        return self._by_device[name, device]


def partner_rows(count: int, device: torch.device) -> Tensor:
    """Return for each row of a batch the index of its partner: rows 2i and 2i + 1 are a pair. int64 [count]. An unpaired last row, which is
    not mixed, is its own partner."""
    return torch.arange(count, device=device).bitwise_xor(1).clamp_(max=count - 1)


def mix_images(image: Tensor, share: Tensor, box: Tensor, other: Tensor) -> None:
    """Mix images [B, 3, S, S] with the images of their partners in place. `other`: int64 [B], the row of each partner.

    If `box` [B, 4] (top, left, bottom, right) is empty, the result is share x own + (1 - share) x partner, with `share` [B]. Otherwise the
    result is the partner inside the box and the own image outside."""
    partner = image.index_select(0, other)
    top, left, bottom, right = box.t().unsqueeze(-1)
    side = torch.arange(image.shape[-1], device=image.device)
    rows, columns = (side >= top) & (side < bottom), (side >= left) & (side < right)
    keep = torch.where(box[:, 2] > box[:, 0], torch.ones_like(share), share).view(-1, 1, 1)
    keep = keep.masked_fill(rows.unsqueeze(2) & columns.unsqueeze(1), 0.0).unsqueeze(1)
    image.mul_(keep).addcmul_(partner, 1.0 - keep)


def masking_counts(batch: Batch) -> Tensor:
    """Return the number of real samples of a prepared batch that have each component, int64 [2, M]: before masking (row 0) and after
    masking (row 1)."""
    real = (batch["weight"] > 0).unsqueeze(1)
    return torch.stack([(batch["available"] & real).sum(0), (batch["present"] & real).sum(0)])
