"""Read the photographs of a command in batches, in threads ahead of the network."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from linnaeus.errors import one_line
from linnaeus.reporting.preparation_progress import PreparationProgress
from linnaeus.workloads.taxonomy.manifest.integrity import NotAnImage
from linnaeus.workloads.taxonomy.observations import Metadata
from linnaeus.workloads.taxonomy.trained.photograph_list import Inputs
from linnaeus.workloads.taxonomy.trained.trained_classifier import TrainedClassifier

AHEAD = 3  # batches that are read before the network needs them


@dataclass(frozen=True)
class ReadBatch:
    """Photographs from `first` on. `found`: pixels as `TrainedClassifier.read` returns them, or the reason for which there are none."""

    inputs: Inputs
    first: int
    found: list[np.ndarray | str]

    def __len__(self) -> int:
        return len(self.found)

    @cached_property
    def good(self) -> list[int]:
        """Return the numbers in the batch of the photographs that were read."""
        return [i for i, image in enumerate(self.found) if not isinstance(image, str)]

    @property
    def images(self) -> list[np.ndarray]:
        """Return the pixels of `good`."""
        return [image for image in self.found if not isinstance(image, str)]

    @property
    def metadata(self) -> Metadata:
        """Return the metadata of `good`."""
        return self.inputs.metadata.take(np.array(self.good, dtype=np.int64) + self.first)

    @property
    def names(self) -> list[str]:
        """Return the names of all."""
        return self.inputs.names[self.first : self.first + len(self)]

    @property
    def errors(self) -> list[str | None]:
        """Return the reason for which each photograph was not read, None for those that were."""
        return [image if isinstance(image, str) else None for image in self.found]


def read_batches(model: TrainedClassifier, inputs: Inputs, size: int, threads: int, activity: str, done: int = 0) -> Iterator[ReadBatch]:
    """Yield batches of `size` photographs, from photograph `done` on, and show the progress of an activity such as "predicting"."""
    starts = range(done, len(inputs), size)
    with ThreadPoolExecutor(threads) as pool, PreparationProgress(activity, len(inputs), f"{len(inputs):,} photographs") as progress:
        read = lambda first: [pool.submit(_read, model, inputs, row) for row in range(first, min(first + size, len(inputs)))]
        waiting = [(first, read(first)) for first in starts[:AHEAD]]
        try:
            for following in itertools.chain(starts[AHEAD:], [None] * AHEAD):
                if not waiting:
                    return
                first, futures = waiting.pop(0)
                if following is not None:
                    waiting.append((following, read(following)))
                yield ReadBatch(inputs, first, [future.result() for future in futures])
                progress.add(len(futures))
        finally:
            pool.shutdown(cancel_futures=True)


def _read(model: TrainedClassifier, inputs: Inputs, row: int) -> np.ndarray | str:
    """Return a photograph as `TrainedClassifier.read` does, or the reason why it cannot be read."""
    try:
        return inputs.files.decode(row, model.short_side, model.description.max_image_pixels)
    except OSError as error:
        return error.strerror or one_line(error)
    except NotAnImage as error:
        return one_line(error)
