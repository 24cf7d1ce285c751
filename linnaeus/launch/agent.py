"""torchrun with the exit status of the run: `python -m linnaeus.launch.agent --standalone --nproc-per-node=2 main.py ...`.

torchrun returns 1 and prints a page for whatever ended its processes; whoever waits for a run has to tell saved-and-stopped (75) and
a user's mistake (2) from a failure, and who reads its log wants the run's own last line to be the last.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from linnaeus.launch.base import ended_by_signal

MEANT = (2, 75)  # statuses that a run leaves with on purpose


def main(arguments: Sequence[str]) -> int:
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # what it has to say is said below, in one line
    try:
        run.run(run.parse_args(list(arguments)))
    except ChildFailedError as error:
        rank, first = error.get_first_failure()
        if first.exitcode in MEANT:
            return first.exitcode
        name = ended_by_signal(128 - first.exitcode) if first.exitcode < 0 else None
        how = f"was killed by {name}" if name else f"failed with exit status {first.exitcode}"
        print(f"error: process rank {rank} {how}; its own lines are above", file=sys.stderr, flush=True)
        return 1
    except SignalException as asked:
        return 128 + int(asked.sigval)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
