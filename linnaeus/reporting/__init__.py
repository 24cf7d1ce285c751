"""Write the output of a run: console, train.log, metrics.jsonl, W&B and other destinations of metric rows, progress reports, summary.json,
report.html, and the plan (the schedule as text).
"""

from linnaeus.reporting.console import attach_log_file, setup_logging
from linnaeus.reporting.display import ProgressDisplay
from linnaeus.reporting.log_sinks import LogSinks
from linnaeus.reporting.row_writer import RowWriter

__all__ = ["LogSinks", "ProgressDisplay", "RowWriter", "attach_log_file", "setup_logging"]
