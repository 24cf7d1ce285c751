"""Divide rows into training, validation and test: as the user gives it, from a seed, or into folds."""
