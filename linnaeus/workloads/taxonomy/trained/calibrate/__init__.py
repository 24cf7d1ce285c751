"""Fit temperatures and thresholds of a trained classifier on labelled photographs: `linnaeus calibrate`."""
