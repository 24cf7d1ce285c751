"""`linnaeus report RUN...`: write report.html of runs from their files, at any time."""

from linnaeus.reporting.results import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
