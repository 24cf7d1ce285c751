"""Make a small tree with a missing rank, prepared batches, and configurations of models."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from linnaeus.config.schema_schedule import ImageSizeConfig
from linnaeus.workloads.taxonomy.config import HeadConfig, MformerConfig, TimmConfig
from linnaeus.workloads.taxonomy.observations.components import COMPONENTS, WIDTHS
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

RANKS = ("order", "family", "genus", "species")


@pytest.fixture(scope="session")
def tree() -> TaxonomyTree:
    """Return a tree of 3 orders, 5 families, 7 genera (one of them without a family) and 13 species."""
    rows = [(f"o{i % 3}", f"o{i % 3}f{i % 2}" if i % 7 else "", f"o{i % 3}f{i % 2}g{i % 4 // 2}", f"s{i}") for i in range(13)]
    return TaxonomyTree.from_lineages(RANKS, np.array(rows))[0]


@pytest.fixture(scope="session")
def make_config():
    """Return a function that makes the config of `build_classifier`: `make_config(size="micro")`, `make_config(backbone="resnet10t")`."""

    def make(*, image_size=48, start=None, seed=0, dropout=0.0, drop_path=0.0, **choice):
        if "size" in choice:
            model = MformerConfig("mformer", dropout, drop_path, 32, choice["size"])
        else:
            model = TimmConfig("timm", dropout, drop_path, 32, **({"pretrained": False, "pretrained_file": None} | choice))
        schedule = SimpleNamespace(image_size=ImageSizeConfig(start, 16, "0%", "80%"))
        data, head = SimpleNamespace(image_size=image_size), HeadConfig("linear", "ignore")
        return SimpleNamespace(seed=seed, model=model, head=head, data=data, schedule=schedule)

    return make


@pytest.fixture(scope="session")
def make_batch(tree):
    """Return a function that makes a prepared batch of random samples with null labels, absent components, placeholders and mixed pairs."""

    def make(count=6, image_size=48, seed=0, mixed=False, dtype=torch.float32, components=COMPONENTS):
        g = torch.Generator().manual_seed(seed)
        label = lambda: torch.stack([torch.randint(-1, size, (count,), generator=g) for size in tree.sizes], 1)
        batch = {
            "image": torch.randn(count, 3, image_size, image_size, generator=g, dtype=dtype),
            "meta": torch.randn(count, sum(WIDTHS[c] for c in components), generator=g, dtype=dtype),
            "present": torch.rand(count, len(components), generator=g) < 0.5,
            "label": label(),
            "weight": (torch.rand(count, generator=g) < 0.8).float(),
        }
        return batch | ({"label2": label(), "share": torch.rand(count, generator=g)} if mixed else {})

    return make
