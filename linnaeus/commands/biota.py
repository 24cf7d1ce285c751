"""`linnaeus biota export DIR`: write the synthetic organisms of the demo as photographs with a manifest."""

import sys

from linnaeus.workloads.taxonomy.biota.__main__ import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
