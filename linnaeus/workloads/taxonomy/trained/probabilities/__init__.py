"""Compute predictions from the probabilities of the network: calibration, place and season, rolled-up answers, familiarity."""
