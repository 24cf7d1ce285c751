"""`linnaeus nearest INDEX MODEL PHOTOS...`: for each given photograph, find the most similar photographs of an index. See `linnaeus nearest
--help`."""

from linnaeus.workloads.taxonomy.trained.embed.nearest_cli import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
