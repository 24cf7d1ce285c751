"""Build the loggers that send the rows of metrics of a run to other destinations than its JSONL files."""

from __future__ import annotations

import logging
from typing import Any

from linnaeus.config.schema import Config
from linnaeus.rundir import RunDirectory

log = logging.getLogger("linnaeus")


def build_loggers(config: Config, directory: RunDirectory) -> list[Any]:
    """Return the loggers that the group `logger` switches on in addition to JSONL: W&B, TensorBoard, CSV, MLflow, trackio."""
    loggers: list[Any] = []
    chosen, path = config.logger, directory.path
    if chosen.wandb != "disabled":
        from linnaeus.reporting.sinks.wandb_logger import WandbLogger

        name, project = f"{config.run.experiment}/{path.name}", chosen.wandb_project
        loggers.append(WandbLogger(path, run_id=directory.run_id, mode=chosen.wandb, project=project, name=name, config=directory.saved))
    if chosen.tensorboard:
        from linnaeus.reporting.sinks.tensorboard_logger import TensorBoardLogger

        loggers.append(TensorBoardLogger(path))
    if chosen.csv:
        from linnaeus.reporting.sinks.csv_logger import CsvLogger

        loggers.append(CsvLogger(path))
    if chosen.mlflow or chosen.trackio:
        from linnaeus.reporting.sinks.follower import Follower
        from linnaeus.reporting.targets import missing_package

        address = {} if chosen.mlflow_uri is None else {"MLFLOW_TRACKING_URI": chosen.mlflow_uri}
        followed: list[tuple[str, tuple[str, ...], dict[str, str]]] = [("mlflow", (), address)] if chosen.mlflow else []
        followed += [("trackio", ("--project", chosen.wandb_project), {})] if chosen.trackio else []
        for target, options, environment in followed:
            if missing := missing_package(target):
                log.warning(f"logger.{target} {missing}; no rows are sent, and training continues")
            else:
                loggers.append(Follower(path, target, options, environment))
    return loggers
