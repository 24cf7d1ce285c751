"""Make report.html of a run, and comparison.html of several runs: one file each, made from the files of run directories alone."""
