"""`linnaeus nearest INDEX MODEL PHOTOS...`: photographs that are alike. See `linnaeus nearest --help`."""

from linnaeus.workloads.taxonomy.trained.embed.nearest_cli import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
