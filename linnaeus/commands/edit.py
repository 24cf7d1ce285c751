"""`linnaeus edit RUN --feature N --scale S INPUT...`: multiply features of a sparse dictionary by a factor and show how the outputs of the
model change. See `linnaeus edit --help`."""

from linnaeus.workloads.dictionary.edit_cli import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
