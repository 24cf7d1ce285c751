"""`linnaeus calibrate RUN`: find the smallest confidence at which the answers of a trained model have a given precision. See `linnaeus
calibrate --help`."""

from linnaeus.workloads.taxonomy.trained.calibrate.calibrate_cli import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
