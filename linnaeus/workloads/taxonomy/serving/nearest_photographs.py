"""`NearestPhotographs`: find the photographs of an index that are most similar to the photographs of requests, and make their thumbnails.

An index is a file of features that `linnaeus embed` wrote. A client asks for a thumbnail by the position of a photograph in the index, so
the client cannot read files that are not in the index."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from linnaeus.workloads.taxonomy.augment.pipeline import ValidationPipeline
from linnaeus.workloads.taxonomy.images.image_files import FolderFiles
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage
from linnaeus.workloads.taxonomy.observations import Metadata
from linnaeus.workloads.taxonomy.trained.classifier.place_and_time import metadata_of
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
from linnaeus.workloads.taxonomy.trained.embed.cosine_search import nearest
from linnaeus.workloads.taxonomy.trained.embed.feature_index import FeatureIndex
from linnaeus.workloads.taxonomy.trained.embed.match_tables import check_model

SIDE = 192  # pixels of a thumbnail


class NearestPhotographs:
    """Index of photographs (features that `linnaeus embed` wrote) with the files of the photographs.

    `folder`: folder at which relative names in the index begin. Raise `ConfigError` if the features of the index are from another model."""

    def __init__(self, model: TrainedClassifier, index: FeatureIndex, folder: Path) -> None:
        check_model(index, model, "--nearest")
        self.model, self.index = model, index
        self.files = FolderFiles(folder, index.names, listed=True, present=False)
        self.pipeline = ValidationPipeline(SIDE)

    def __len__(self) -> int:
        return len(self.index)

    def notes(self) -> list[str]:
        """Return a list with one warning for the user if the file of the first photograph of the index does not exist; otherwise []."""
        if not len(self) or os.path.isfile(self.files.path(0)):
            return []
        return [f"--nearest: no thumbnails: {self.files.path(0)} does not exist; --photographs gives the folder of the photographs"]

    def search(self, images: Sequence[np.ndarray], metadata: Metadata, count: int) -> list[list[dict[str, Any]]]:
        """Return, for each of B photographs, the `count` most similar photographs of the index as dicts for JSON, the most similar first.

        `images`: pixels of the B photographs, as `TrainedClassifier.read` returns. `metadata` is ignored if the features of the index were
        computed without metadata."""
        used = metadata if self.index.head.metadata else metadata_of(len(images), {})
        features = self.model.features(images, used, normalize=True)
        found = nearest(torch.from_numpy(features).to(self.model.device), self.index, count)
        return [
            [{"number": row, "photograph": self._name(row), "cosine": cosine} for cosine, row in zip(cosines, rows, strict=True)]
            for cosines, rows in zip(found.cosine.tolist(), found.row.tolist(), strict=True)
        ]

    def _name(self, row: int) -> str:
        """Return the name of photograph `row` in the index. If the name is an absolute path, return only the file name."""
        name = self.index.names[row]
        return os.path.basename(name) if os.path.isabs(name) else name

    def thumbnail(self, row: int) -> bytes | None:
        """Return the central square of photograph `row` of the index as a JPEG of `SIDE` x `SIDE` pixels.

        Return None if the index has no such photograph, or if the file of the photograph cannot be read."""
        from PIL import Image

        if not 0 <= row < len(self) or not os.path.isfile(self.files.path(row)):  # a pipe would be waited for
            return None
        try:
            pixels = self.files.decode(row, SIDE, self.model.description.max_image_pixels)
        except (NotAnImage, OSError):
            return None
        square = self.pipeline([pixels], np.empty(0))
        assert isinstance(square, torch.Tensor)
        file = io.BytesIO()
        Image.fromarray(square[0].permute(1, 2, 0).numpy()).save(file, "JPEG", quality=85)
        return file.getvalue()
