"""Score completions, and compare the model with baselines and the optimum."""
