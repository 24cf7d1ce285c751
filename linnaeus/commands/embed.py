"""`linnaeus embed MODEL PHOTOS... --out FILE`: write the feature vectors of photographs. See `linnaeus embed --help`."""

from linnaeus.workloads.taxonomy.trained.embed.embed_cli import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
