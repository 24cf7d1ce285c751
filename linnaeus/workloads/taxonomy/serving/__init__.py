"""Serve a trained classifier over HTTP, with a web page: `linnaeus serve`. This package does not import the training loop or Hydra."""
