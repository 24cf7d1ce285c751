"""`linnaeus export RUN OUT`: write the model of a run as a folder that stands alone. See `linnaeus export --help`."""

from linnaeus.workloads.taxonomy.trained.export_cli import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
