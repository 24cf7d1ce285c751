"""Read a manifest (a table of photographs) as the data source of a run: `build_source(config)`, also for the formats of `sources/`.

records                        what a reader of a format returns; the reader of `data=manifest`
table, column, columns         read the file into columns, and find those that are used
cleaning, metadata_columns      convert cells to metadata; impossible values become missing
row_labels                     labels from columns of names, or from ids in a table of taxa
taxon_table, taxa              read a table of taxa with their parents, and find the taxon of each label at each rank
spellings                      find names that are probably one taxon
clean_records                  does all of the above: records with labels in a tree of taxa and metadata as numbers
ranks                          the order of taxonomic ranks, and the choice of those to predict
split, folds                   divide rows into training and validation
manifest_source                builds the `Source` of a run from the records
"""

from linnaeus.workloads.taxonomy.manifest.manifest_source import build_source

__all__ = ["build_source"]
