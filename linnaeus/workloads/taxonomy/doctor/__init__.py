"""`linnaeus doctor`: checks of the records and photographs of a source before training. See `linnaeus doctor --help`."""
