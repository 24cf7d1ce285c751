"""Photographs and labels from a CSV or Parquet manifest: `build_source(config)` for `data=manifest`.

table, columns                 read the file, find its columns, and choose the ranks
image_files, decoding          check and read the image files
cleaning                       convert cells to metadata; impossible values become missing
row_labels                     labels from columns of names, or from ids in a table of taxa
taxon_table, taxa              read a table of taxa and place its taxa on ranks
split                          training and validation rows
manifest_source                all of it as one `Source`
quarantine                     the record of photographs that cannot be decoded
"""

from linnaeus.workloads.taxonomy.manifest.manifest_source import build_source
from linnaeus.workloads.taxonomy.manifest.quarantine import Quarantine

__all__ = ["Quarantine", "build_source"]
