"""Each figure we claim, as a command that prints a ratio against a named peer: `python -m benchmarks.loop_overhead`.

`README.md` here holds the results with hardware, commit, command and date.
"""
