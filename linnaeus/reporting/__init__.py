"""Write the output of a run: console, train.log, metrics.jsonl, W&B and other destinations of metric rows, progress reports, summary.json,
report.html, and the plan (the schedule as text).

Each package imports only packages above it in this list, and formatting and charts:

jsonl          the JSONL files of a run
performance    throughput, memory, the state of a GPU, slow processes
plans          the schedule as text and as a picture
report         report.html and comparison.html
terminal       lines of the log, progress reports, the panel
sinks          destinations of metric rows while a run trains; `loggers.py` opens those of the configuration
targets        destinations of `linnaeus replay`
"""

from linnaeus.reporting.jsonl.row_writer import RowWriter
from linnaeus.reporting.sinks.log_sinks import LogSinks
from linnaeus.reporting.terminal.console import attach_log_file, setup_logging
from linnaeus.reporting.terminal.display import ProgressDisplay

__all__ = ["LogSinks", "ProgressDisplay", "RowWriter", "attach_log_file", "setup_logging"]
