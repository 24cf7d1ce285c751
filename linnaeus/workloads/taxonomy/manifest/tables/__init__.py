"""Read a table file into dictionary-encoded columns, clean its cells, and parse dates."""
