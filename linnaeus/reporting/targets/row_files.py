"""Targets that are files in the run directory: CSV tables and TensorBoard event files. Each replay replaces the files by complete files."""

from linnaeus.reporting.sinks import tensorboard_logger
from linnaeus.reporting.sinks.csv_logger import FOLDER, STREAMS, CsvTable, write_tables
from linnaeus.reporting.sinks.saved_rows import SavedRows


class CsvFiles:
    """Target for the CSV tables csv/metrics.csv and csv/timings.csv of a run. `send` replaces both by tables with every row."""

    def __init__(self, run: SavedRows) -> None:
        self.place = str(run.path / FOLDER)

    def send(self, run: SavedRows) -> int:
        write_tables({name: CsvTable(run.path / FOLDER / f"{name}.csv") for name in STREAMS}, run.rows)
        return len(run.rows)

    def close(self, status: str) -> None:
        """Do nothing: the files are complete."""


class EventFiles:
    """Target for the folder tensorboard/ of a run. `send` replaces the folder by one with a single event file that contains every row."""

    def __init__(self, run: SavedRows) -> None:
        self.place = str(run.path / tensorboard_logger.FOLDER)

    def send(self, run: SavedRows) -> int:
        tensorboard_logger.replace_files(run)
        return len(run.rows)

    def close(self, status: str) -> None:
        """Do nothing: the files are complete."""
