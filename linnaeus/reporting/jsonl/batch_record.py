"""Write `batches-rank<r>.jsonl`, with `debug.batch_hashes=true`: the sample ids and a hash of every micro-batch of process rank r.

Two runs on the same data with the same micro-batch size write equal rows: the hash covers sample order, augmentation, mixing and masking.
`micro_batch` in a row is the index of the micro-batch in its global batch, so the rows of all processes together are the rows of a run on
one process. Hashing reads every byte of a batch on the host, which is slow.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from linnaeus.reporting.jsonl.row_writer import RowWriter


class BatchRecord(RowWriter):
    """Writer of `batches-rank<r>.jsonl` for one process: a row per micro-batch that this process used."""

    def __init__(self, directory: Path, names: Callable[[Sequence[int]], list[str]], rank: int, world_size: int) -> None:
        """`directory`: run directory. `names`: function from indices in the training set to the names of these samples. `rank`: process
        rank."""
        super().__init__(directory / f"batches-rank{rank}.jsonl")
        self.names, self.rank, self.world_size = names, rank, world_size

    def truncate_after(self, global_step: int) -> int:
        """Remove the rows of updates after `global_step` from the file of this process, and return the number of rows removed.

        Rank 0 also removes such rows from the files of ranks >= `world_size`, which an earlier launch with more processes wrote."""
        if self.rank == 0:
            kept = {self.path.with_name(f"batches-rank{rank}.jsonl") for rank in range(self.world_size)}
            for path in set(self.path.parent.glob("batches-rank*.jsonl")) - kept:
                RowWriter(path).truncate_after(global_step)
        return super().truncate_after(global_step)

    def window(self, global_step: int, batches: Sequence[Mapping[str, Tensor]], places: Iterable[int]) -> None:
        """Write a row for each micro-batch of one update.

        global_step: number of updates, including this one. batches: the micro-batches that this process used for the update, as host
        tensors. places: the index of each of them in the global batch."""
        for place, batch in zip(places, batches):
            samples = self.names(batch["sample"].tolist())
            self.log(global_step, {"micro_batch": place, "samples": samples, "hash": batch_hash(batch)})


def batch_hash(batch: Mapping[str, Tensor]) -> str:
    """Return the BLAKE2b hash (32 hexadecimal digits) of the names, dtypes, shapes and bytes of the tensors of a batch on the host."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(batch.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
