"""`linnaeus serve`: a trained classifier as an HTTP service, with a page. Nothing here imports the training loop or Hydra's composition."""
