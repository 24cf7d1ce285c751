"""Samples by position: the order of an epoch, its division into micro-batches, loaders, prefetching to the device."""
