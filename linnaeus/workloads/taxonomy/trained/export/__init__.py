"""The command `linnaeus export`: bundles, and forms of a model for other programs."""
