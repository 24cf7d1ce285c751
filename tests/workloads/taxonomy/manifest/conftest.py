"""Make configurations of `data=manifest`, and manifests."""

import csv
from pathlib import Path

import pytest
import yaml
from PIL import Image

from linnaeus.workloads.taxonomy.config import ManifestConfig
from linnaeus.workloads.taxonomy.manifest import build_source

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def manifest_config():
    """Return a function that builds the configuration of `data=manifest` with a small image size and the given keys."""
    defaults = yaml.safe_load((ROOT / "conf/data/manifest.yaml").read_text())

    def make(path, **keys):
        return ManifestConfig(**(defaults | {"image_size": 32, "components": []} | keys | {"path": str(path)}))

    return make


@pytest.fixture
def write_manifest(tmp_path):
    """Return a function that writes rows (dicts) as CSV, and a small photograph for each path."""

    def write(rows, photographs=True):
        with (tmp_path / "manifest.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, dict.fromkeys(k for row in rows for k in row), restval="")
            table.writeheader()
            table.writerows(rows)
        for path in {tmp_path / row["path"] for row in rows} if photographs else ():
            if not path.exists():
                Image.new("RGB", (6, 5), "green").save(path)
        return tmp_path / "manifest.csv"

    return write


@pytest.fixture
def build_rows(write_manifest, manifest_config):
    """Return a function that writes a manifest of rows (dicts) with their photographs and builds its source."""
    return lambda rows, **keys: build_source(manifest_config(write_manifest(rows), **keys))
