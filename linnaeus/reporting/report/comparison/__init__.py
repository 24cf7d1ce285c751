"""Compare runs on one page: results as mean and standard deviation over seeds, paired differences, cost, curves and configurations."""
