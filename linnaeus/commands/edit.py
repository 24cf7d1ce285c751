"""`linnaeus edit RUN --feature N --scale S INPUT...`: show a model's outputs while features of a sparse dictionary are scaled. See
`linnaeus edit --help`.
"""

from linnaeus.workloads.dictionary.edit_cli import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
