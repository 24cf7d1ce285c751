"""`linnaeus nearest INDEX MODEL PHOTOS...`: find the photographs of an index that are most similar. See `linnaeus nearest --help`."""

from linnaeus.workloads.taxonomy.trained.embed.nearest_cli import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
