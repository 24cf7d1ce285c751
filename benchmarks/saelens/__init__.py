"""Code that the comparisons with SAELens share: the script that runs in the environment of SAELens, the file of trials, and verdicts."""
