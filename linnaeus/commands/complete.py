"""`linnaeus complete RUN --weapon NAME [--have GEAR] ...`: choose the missing equipment (gear) of a game character with the model of a run.
See `linnaeus complete --help`."""

from linnaeus.workloads.loadout.complete_cli import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
