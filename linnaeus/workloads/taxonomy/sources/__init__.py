"""Readers of formats other than a manifest, one module each, for `data=NAME`. `manifest/records.py` says what a reader is.

Foreign tables become columns with known names; cleaning, splits, labels and files are those of a manifest.
"""
