"""`linnaeus evaluate RUN [--split test] [--checkpoint best] [KEY=VALUE ...]`: score a trained model. See `linnaeus evaluate --help`."""

from linnaeus.train.evaluation import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
