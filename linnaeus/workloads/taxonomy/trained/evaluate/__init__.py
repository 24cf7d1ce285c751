"""Compute validation metrics of trained models on the photographs of a manifest, and compare models: `linnaeus evaluate --manifest`."""
