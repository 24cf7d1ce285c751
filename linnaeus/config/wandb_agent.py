"""Find out whether `wandb agent` has started this program as a trial of a W&B sweep.

The agent sets WANDB_SWEEP_ID, and in WANDB_RUN_ID the id of the W&B run of the trial. In such a process `wandb.init` ignores the id that it
is given. So the trial takes this id as its own: as the default of `run.name`, so that a trial that is started again finds its directory,
and as `run_id` in run.json. See docs/sweeps.md."""

import os

WORDS = "${args_no_hyphens}"  # the macro in the command of a sweep.yaml that the agent replaces by words key=value


def agent_run() -> str | None:
    """Return the id of the W&B run of this trial; None if no agent has started this program."""
    return os.environ.get("WANDB_RUN_ID") or None if os.environ.get("WANDB_SWEEP_ID") else None
