"""`linnaeus score MODEL TEXT...`: compute the loss of a language model on texts. See `linnaeus score --help`."""

from linnaeus.workloads.language.trained.score_cli import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
