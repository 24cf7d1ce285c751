"""`batches-rank<r>.jsonl`: sample ids and a hash of every micro-batch of a process, with `debug.batch_hashes=true`.

Two runs on the same data have the same rows: the hash covers order, augmentation, mixing and masking, but not how the batch is split.
`micro_batch` is the index of the micro-batch in its global batch, so the rows of all processes together are the rows of a run on one
process. Hashing reads every byte of a batch on the host, which is slow.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from linnaeus.reporting.rows import RowWriter


class BatchRecord(RowWriter):
    """Rows of one process."""

    def __init__(self, directory: Path, names: Callable[[Sequence[int]], list[str]], rank: int, world_size: int) -> None:
        """`names` returns stable names of training samples for their dataset indices."""
        super().__init__(directory / f"batches-rank{rank}.jsonl")
        self.names, self.rank, self.world_size = names, rank, world_size

    def truncate_after(self, global_step: int) -> int:
        """Keep the rows of the updates up to `global_step`. Rank 0 also cuts the files of ranks that do not exist any more."""
        if self.rank == 0:
            kept = {self.path.with_name(f"batches-rank{rank}.jsonl") for rank in range(self.world_size)}
            for path in set(self.path.parent.glob("batches-rank*.jsonl")) - kept:
                RowWriter(path).truncate_after(global_step)
        return super().truncate_after(global_step)

    def window(self, global_step: int, batches: Sequence[Mapping[str, Tensor]]) -> None:
        """Write rows for the micro-batches, on the host, of the update that ends at `global_step`."""
        for number, batch in enumerate(batches):
            samples = self.names(batch["sample"].tolist())
            micro_batch = number * self.world_size + self.rank
            self.log(global_step, {"micro_batch": micro_batch, "samples": samples, "hash": batch_hash(batch)})


def batch_hash(batch: Mapping[str, Tensor]) -> str:
    """Return the BLAKE2b hash of names, types, shapes and bytes of a host batch."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(batch.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
