"""`linnaeus report RUN...`: write report.html of runs from their files, at any time."""

from linnaeus.reporting.html_report import main

__all__ = ["main"]
