"""`linnaeus edit RUN --feature N --scale S INPUT...`: answer with a model while features of a dictionary are edited. See `linnaeus edit
--help`."""

from linnaeus.workloads.dictionary.edit_cli import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
