"""Photographs and labels from a CSV or Parquet manifest: `build_source(config)` for `data=manifest`.

`table` reads, `columns` finds, `files` looks, `cleaning` and `dates` judge, `labels` come from names or, through `taxon_table`,
`taxon_ranks` and `taxa`, from ids in a table of taxa, `split` divides, `build` puts it together; `images` and
`decoding` read photographs while training, and `quarantine` keeps the account of those that cannot be read.
"""

from linnaeus.workloads.taxonomy.manifest.build import build_source
from linnaeus.workloads.taxonomy.manifest.images import ManifestImages
from linnaeus.workloads.taxonomy.manifest.quarantine import Quarantine

__all__ = ["ManifestImages", "Quarantine", "build_source"]
