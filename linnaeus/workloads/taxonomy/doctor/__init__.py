"""The command `linnaeus doctor`: check the records and photographs of a source before training. See `linnaeus doctor --help`."""
