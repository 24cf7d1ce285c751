"""Sparse dictionaries: `sparse_dictionary.py` has the base class, `variants.py` the six variants."""
