"""Compute features of photographs, and search for similar photographs: `linnaeus embed` and `linnaeus nearest`."""
