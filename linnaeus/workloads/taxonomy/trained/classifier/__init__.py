"""Build a trained classifier from a run directory or a bundle, and ask it about photographs."""
