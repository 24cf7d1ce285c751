"""Run torchrun and exit with the status of the run: `python -m linnaeus.launch.torchrun --standalone --nproc-per-node=2 main.py ...`.

Whenever a run ends with another status than 0, torchrun itself returns 1 and prints a page of text. The parent of a sweep must distinguish
saved-and-stopped (75) and a mistake in the command (2) from a failure, and the last line of the log should be a line of the run."""

import logging
import sys
from collections.abc import Sequence

from linnaeus.launch.launcher import EXIT_FAILED, EXIT_FINISHED, EXIT_INTERRUPTED, EXIT_USAGE, SEE_ABOVE, signal_name


def main(arguments: Sequence[str]) -> int:
    """Run torchrun with `arguments`. Return the exit status of the run: 0, 1, 2 or 75; or 128 + the signal that torchrun received."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # replaced by the one line below
    try:
        run.run(run.parse_args(list(arguments)))
    except ChildFailedError as error:
        rank, first = error.get_first_failure()
        if first.exitcode in (EXIT_USAGE, EXIT_INTERRUPTED):
            return first.exitcode
        name = signal_name(128 - first.exitcode) if first.exitcode < 0 else None
        reason = f"was killed by {name}" if name else f"failed with exit status {first.exitcode}"
        print(f"error: process rank {rank} {reason}; {SEE_ABOVE}", file=sys.stderr, flush=True)
        return EXIT_FAILED
    except SignalException as received:
        return 128 + int(received.sigval)
    return EXIT_FINISHED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
