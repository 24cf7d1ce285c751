"""Targets that are files in the run directory: CSV tables and TensorBoard event files. Each replay replaces the files by complete files."""

import tempfile
from pathlib import Path

from linnaeus.files import remove_directory
from linnaeus.reporting.csv_logger import FOLDER, STREAMS, CsvTable, write_tables
from linnaeus.reporting.saved_rows import SavedRows
from linnaeus.reporting.tensorboard_logger import add_row, open_writer


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
    """Target for the folder tensorboard/ of a run. `send` replaces the folder by one with a single event file that contains every row.

    Each row has the time at which it was logged (`SavedRows.timed`)."""

    def __init__(self, run: SavedRows) -> None:
        self.place = str(run.path / "tensorboard")

    def send(self, run: SavedRows) -> int:
        final = Path(self.place)
        temporary = Path(tempfile.mkdtemp(prefix=".tensorboard-", dir=run.path))
        try:
            temporary.chmod(0o755)  # mkdtemp lets only its owner read
            writer = open_writer(temporary)
            for (_, _, row), seconds in run.timed():
                add_row(writer, row["global_step"], row, seconds)
            writer.close()
            if final.exists():
                remove_directory(final)
            temporary.rename(final)
        finally:
            if temporary.exists():
                remove_directory(temporary)
        return len(run.rows)

    def close(self, status: str) -> None:
        """Do nothing: the files are complete."""
