"""Compute results for many photographs in batches, and continue after a killed command."""
