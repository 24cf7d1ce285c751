"""Read the labels of rows: names at taxonomic ranks, or ids in a table of taxa."""
