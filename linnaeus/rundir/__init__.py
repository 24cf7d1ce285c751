"""The run directory: which run a configuration is, who holds it, what was started in it. No torch in here."""

from linnaeus.rundir.directory import RunDirectory
from linnaeus.rundir.identity import NOT_UPDATES, Difference, config_difference, run_path, update_hash
from linnaeus.rundir.resolved import dump_yaml, load_yaml

__all__ = ["NOT_UPDATES", "Difference", "RunDirectory", "config_difference", "dump_yaml", "load_yaml", "run_path", "update_hash"]
