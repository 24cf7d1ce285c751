"""Benchmarks: each figure that the project claims, as a command that prints a ratio to a named peer, such as `python -m
benchmarks.loop_overhead`.

A bar is a limit on such a ratio; most commands check bars and exit with status 1 if one is missed. `README.md` in this directory contains
the results with hardware, commit, command and date.
"""
