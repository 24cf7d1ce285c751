"""Make report.html of a run, and comparison.html of several runs, from the files in the run directories alone. Each page is a single
file."""
