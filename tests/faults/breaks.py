"""Broken resumes for negative controls, put into a launch by the same hook as the kills: name -> (target, patch).

Each is a mistake that real trainers make, as small as it can be; a comparison that does not see it proves nothing.
"""

from __future__ import annotations

from typing import Any


def _order_shifted(original: Any) -> Any:
    """Read the epoch that is resumed one sample too late; later epochs are correct."""

    def micro_batch(self: Any, order: Any, epoch: int, step: int, number: int) -> Any:
        import numpy as np

        return original(self, np.roll(order, -1) if self.start and epoch == self.epoch else order, epoch, step, number)

    return micro_batch


def _one_forgotten(original: Any) -> Any:
    """Never run the first pass that is pending at the resume."""

    def finish_pending_validations(t: Any) -> None:
        if t.progress.has_pending_validations():
            t.progress.pending_validations.pop(0)
        original(t)

    return finish_pending_validations


BREAKS = {
    "one sample shifted": ("linnaeus.data.sampler:PositionSampler._micro_batch", _order_shifted),
    "scheduler state dropped": ("linnaeus.optim.lr_schedulers:Plateau.load_state_dict", lambda original: lambda self, state: None),
    "one pending validation forgotten": ("linnaeus.train.restore:finish_pending_validations", _one_forgotten),
}
