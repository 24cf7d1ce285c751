"""Read or generate builds, split them, and hide parts of them: the datasets of a run."""
