"""The command `linnaeus evaluate --manifest`: the metrics of validation on any labelled photographs, and comparisons of models."""
