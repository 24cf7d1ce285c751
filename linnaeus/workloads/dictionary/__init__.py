"""Sparse dictionaries of the activations of a trained model."""
