"""`linnaeus predict MODEL PHOTOS... [--out FILE]`: predict the taxa on photographs. See `linnaeus predict --help`."""

from linnaeus.workloads.taxonomy.trained.predict.predict_cli import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
