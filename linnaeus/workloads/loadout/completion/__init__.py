"""Fill the free slots of a build from the probabilities of a model, and read requests for completions."""
