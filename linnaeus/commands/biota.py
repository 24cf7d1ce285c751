"""`linnaeus biota export DIR`: write the embedded organisms as photographs with a manifest."""

from linnaeus.workloads.taxonomy.biota.__main__ import main

__all__ = ["main"]
