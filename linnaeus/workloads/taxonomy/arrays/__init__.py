"""Hold millions of texts and long arrays without a Python object for each entry."""
