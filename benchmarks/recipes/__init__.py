"""Compare recipes of linnaeus with two plain scripts on real photographs, at equal CPU time: `python -m benchmarks.recipes --help`."""
