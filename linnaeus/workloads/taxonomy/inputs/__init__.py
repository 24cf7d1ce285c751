"""Make the batches that the network reads: augmented photographs, labels, and metadata, some of it masked."""
