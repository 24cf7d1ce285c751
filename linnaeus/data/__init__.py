"""Samples by position: the order of an epoch, its cut into micro-batches, loaders, and the way to the device."""
