"""Build the parts of a run: plan, data loader, network, optimizers, reduction of the gradients. Find the largest micro-batch."""
