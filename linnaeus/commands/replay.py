"""`linnaeus replay RUN... --to TARGET`: send the rows of runs to W&B, TensorBoard, MLflow, trackio or CSV files, at any time."""

from linnaeus.reporting.targets.replay_rows import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
