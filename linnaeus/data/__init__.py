"""Read training data by position: the order of an epoch, its division into micro-batches, loaders, and prefetching to the device."""
