"""Score models on any labelled photographs with the metrics of validation, and compare them: `linnaeus evaluate --manifest`."""
