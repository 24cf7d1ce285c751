"""Show the progress of a run on the terminal and in train.log: lines, progress reports, the panel, and the last lines."""
