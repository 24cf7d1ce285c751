"""`linnaeus generate RUN [--prompt TEXT] ...`: continue a text with the model of a run. See `linnaeus generate --help`."""

from linnaeus.workloads.language.generate_cli import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
