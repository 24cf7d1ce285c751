"""Recovery of planted features by the dictionaries of linnaeus and of SAELens, and by controls."""
