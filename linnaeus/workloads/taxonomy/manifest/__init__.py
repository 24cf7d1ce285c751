"""Photographs and labels from records: `build_source(config)` for `data=manifest` and the formats of `sources/`.

records                        the table and the image files of a source; the reader of `data=manifest`

table, column, columns         read the file into columns, find those that are used, and choose the ranks
image_files, decoding, jpeg    check and read the image files
cleaning, metadata_columns      convert cells to metadata; impossible values become missing
row_labels                     labels from columns of names, or from ids in a table of taxa
taxon_table, taxa              read a table of taxa and place its taxa on ranks
clean_records                  all of the above: records on a tree, with metadata as numbers
split                          training and validation rows
manifest_source                the records as one `Source`
photographs                    the reader of photographs
quarantine                     the record of photographs that cannot be decoded
"""

from linnaeus.workloads.taxonomy.manifest.manifest_source import build_source
from linnaeus.workloads.taxonomy.manifest.quarantine import Quarantine

__all__ = ["Quarantine", "build_source"]
