"""Arrays of strings, each with its own length (numpy's `StringDType`).

They must be sorted with the stable sort. numpy's default, quicksort, falls back to heapsort on unfavourable orders, which it does not have
for this type: the process ends with a segmentation fault (numpy 2.4.6, 300,000 file names with ascending numbers). `np.unique` without
`return_index`, `np.isin` and `np.sort` use the default.
"""

from collections.abc import Collection, Sequence

import numpy as np


def strings(values: Sequence[str]) -> np.ndarray:
    """Return an array of strings [N]. Unlike `dtype=str`, one long string does not widen the others."""
    return np.array(values, dtype=np.dtypes.StringDType())


def unique_strings(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted distinct strings [U] and the number of each value [N] among them, int64 [N]."""
    distinct, _, number = np.unique(values, return_index=True, return_inverse=True)
    return distinct, number


def positions(values: np.ndarray, wanted: Collection[str]) -> list[int]:
    """Return the positions of the strings [N] that are among `wanted`, in order."""
    return [i for i, value in enumerate(values.tolist()) if value in wanted] if wanted else []
