"""The run directory: its name, its lock, its configuration and the record of every start. No module here imports torch."""

from linnaeus.rundir.directory import RunDirectory
from linnaeus.rundir.identity import NON_UPDATE_KEYS, Difference, config_difference, run_path, update_hash
from linnaeus.rundir.saved_config import dump_yaml

__all__ = ["NON_UPDATE_KEYS", "Difference", "RunDirectory", "config_difference", "dump_yaml", "run_path", "update_hash"]
