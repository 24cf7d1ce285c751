"""Where numbers and lines go: console, train.log, metrics.jsonl, W&B, TensorBoard, summary.json, report.html. No torch in here."""

from linnaeus.logging.console import ProgressDisplay, attach_log_file, setup_logging
from linnaeus.logging.report import write_report
from linnaeus.logging.rows import RowWriter
from linnaeus.logging.sinks import LogSinks
from linnaeus.logging.summary import write_summary

__all__ = ["LogSinks", "ProgressDisplay", "RowWriter", "attach_log_file", "setup_logging", "write_report", "write_summary"]
