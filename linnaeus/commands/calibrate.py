"""`linnaeus calibrate RUN`: find the confidence above which a trained model's answers have a stated precision. See `linnaeus calibrate
--help`."""

from linnaeus.workloads.taxonomy.trained.calibrate.calibrate_cli import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
