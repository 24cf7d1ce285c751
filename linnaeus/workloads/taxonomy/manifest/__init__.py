"""Read a manifest (a table of photographs) as the data source of a run: `build_source(config)`, also for the formats of `sources/`.

Each package imports only packages above it in this list:

tables              read the file into columns; null cells, names, dates
labels              names at taxonomic ranks, or ids in a table of taxa; the choice of the ranks
splitting           training, validation and test rows; folds

The modules use them, and each may use the modules above it:

columns             finds the columns that are used
metadata_columns    converts cells to metadata; impossible values become missing
records             is what a reader of a format returns; contains the reader of `data=manifest`
clean_records       does all of the above: records with labels in a tree of taxa and metadata as numbers
manifest_source     builds the `Source` of a run from the records
source_options      adds the arguments `SOURCE [KEY=VALUE ...]` to commands
"""

from linnaeus.workloads.taxonomy.manifest.manifest_source import build_source

__all__ = ["build_source"]
