"""Read the photographs of a command in batches. Threads read the next batches while the network computes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from linnaeus.errors import counted, one_line
from linnaeus.reporting.terminal.preparation_progress import PreparationProgress
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage
from linnaeus.workloads.taxonomy.observations import Metadata
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
from linnaeus.workloads.taxonomy.trained.photographs.photograph_list import Inputs

AHEAD = 3  # batches that are read in advance


@dataclass(frozen=True)
class ReadBatch:
    """Batch of photographs of `inputs` that were read. `first`: position in `inputs` of the first photograph of the batch.

    `found`: for each photograph its central square, uint8 [S, S, 3], or the reason why it cannot be read."""

    inputs: Inputs
    first: int
    found: list[np.ndarray | str]

    def __len__(self) -> int:
        return len(self.found)

    @cached_property
    def good(self) -> list[int]:
        """Return the positions, within this batch, of the photographs that could be read."""
        return [i for i, image in enumerate(self.found) if not isinstance(image, str)]

    @property
    def images(self) -> np.ndarray:
        """Return the central squares of the photographs that could be read, uint8 [N, S, S, 3]; at least one must be."""
        return np.stack([image for image in self.found if not isinstance(image, str)])

    @property
    def metadata(self) -> Metadata:
        """Return the metadata of the photographs that could be read."""
        return self.inputs.metadata.take(np.array(self.good, dtype=np.int64) + self.first)

    @property
    def names(self) -> list[str]:
        """Return the names of all photographs of the batch."""
        return self.inputs.names[self.first : self.first + len(self)]

    @property
    def errors(self) -> list[str | None]:
        """Return, for each photograph, the reason why it cannot be read; None if it was read."""
        return [image if isinstance(image, str) else None for image in self.found]


def read_batches(
    model: TrainedClassifier,
    inputs: Inputs,
    size: int,
    threads: int,
    activity: str,
    done: int = 0,
    ends: Sequence[int] | None = None,
) -> Iterator[ReadBatch]:
    """Yield batches of `size` photographs of `inputs`, and show the progress. Skip the first `done` photographs.

    `activity`: word beside the progress, such as "predicting". `ends`: number of photographs before the end of each batch, ascending, for
    batches of unequal size; None: batches of `size`. The central squares have the image size of `model`."""
    stops = [*range(size, len(inputs), size), len(inputs)] if ends is None else list(ends)
    parts = [range(first, last) for first, last in zip([0, *stops], stops, strict=False) if done <= first < last]
    bar = PreparationProgress(activity, len(inputs), counted(len(inputs), "photograph"), done)
    with ThreadPoolExecutor(threads) as pool, bar as progress:
        read = lambda part: [pool.submit(_read, model, inputs, row) for row in part]
        waiting = [(part.start, read(part)) for part in parts[:AHEAD]]
        try:
            for following in itertools.chain(parts[AHEAD:], [None] * AHEAD):
                if not waiting:
                    return
                first, futures = waiting.pop(0)
                if following is not None:
                    waiting.append((following.start, read(following)))
                yield ReadBatch(inputs, first, [future.result() for future in futures])
                progress.add(len(futures))
        finally:
            pool.shutdown(cancel_futures=True)


def _read(model: TrainedClassifier, inputs: Inputs, row: int) -> np.ndarray | str:
    """Return the central square of photograph `row`, uint8 [S, S, 3], or the reason why it cannot be read."""
    try:
        return model.crop(inputs.files.decode(row, model.short_side, model.description.max_image_pixels))
    except OSError as error:
        return error.strerror or one_line(error)
    except NotAnImage as error:
        return one_line(error)
