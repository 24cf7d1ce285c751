"""Sparse dictionaries: `variants.py` has the six variants, `sparse_dictionary.py` has their base class."""
