"""`linnaeus export RUN OUT`: write a trained model as a folder that can be used without the run, or as ONNX. See `linnaeus export
--help`."""

from linnaeus.workloads.export_cli import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
