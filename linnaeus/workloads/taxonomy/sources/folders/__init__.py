"""Find photographs in folders, with or without a table, and in zip archives."""
