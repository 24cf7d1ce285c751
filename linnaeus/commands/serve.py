"""`linnaeus serve MODEL [--port 8000]`: predict the taxa on photographs sent over HTTP, with a page in the browser. See `linnaeus serve
--help`."""

from linnaeus.workloads.taxonomy.serving.serve_cli import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
