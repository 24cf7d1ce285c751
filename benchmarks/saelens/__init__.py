"""What the comparisons with SAELens share: its side, which runs in an environment of its own, the file of trials, and verdicts."""
