"""`linnaeus prepare SOURCE OUT [KEY=VALUE ...]`: write a source of photographs into a store for training. See `linnaeus prepare --help`."""

from linnaeus.workloads.taxonomy.store.prepare_store import main

__all__ = ["main"]


if __name__ == "__main__":
    raise SystemExit(main())
