"""Compare runs in one page: results with seeds folded together, paired differences, cost, curves and configurations."""
