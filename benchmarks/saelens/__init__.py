"""Code that the comparisons with SAELens share: the script that runs in its environment, the file of trials, and verdicts."""
