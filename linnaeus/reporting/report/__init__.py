"""Make report.html of a run and comparison.html of several runs, from the files of their directories alone. Each page is one file."""
