"""`MetricsTracker.dump_metrics_state` contains the whole state."""

import json

import torch

from linnaeus.metrics import MetricsTracker


class Counting:
    def __init__(self):
        self.width, self.counts = 4, {"right": torch.tensor([3, 1]), "n": torch.tensor([4, 4])}


def tracker():
    made = MetricsTracker(("a", "b"), Counting(), torch.device("cpu"))
    made.sums.add(torch.tensor([1.5, 2.5]))
    made.add_update([4.0, 4.0])
    made.smoothed, made.smoothed_weight = 0.25, 0.5
    made.update_validation(7, {"val/loss": 2.0, "val/a/top1": 0.5}, "val/loss", "min")
    return made


CHANGES = {
    "sums": {"valid": torch.full((1, 2), 2.0), "earlier_valid": torch.ones(2)},
    "updates": 11,
    "smoothed": 0.75,
    "smoothed_weight": 0.875,
    "last": {"val/loss": 3.0},
    "last_step": 12,
    "final": {"val/loss": 4.0},
    "best": {"val/loss": {"value": 5.0, "global_step": 6}},
}


def test_every_part_of_the_state_changes_the_dump():
    shown = json.dumps(tracker().dump_metrics_state())
    assert set(tracker().state_dict()) == set(CHANGES)
    for name, value in CHANGES.items():
        other = tracker()
        other.load_state_dict(other.state_dict() | {name: value})
        assert json.dumps(other.dump_metrics_state()) != shown, name
    for name, value in tracker().rank_state_dict().items():
        for added in (0, 1):
            other = tracker()
            other.load_rank_state_dict([tracker().rank_state_dict() | {name: value + added}], 0, 1)
            assert (json.dumps(other.dump_metrics_state()) == shown) == (added == 0), name


def test_the_dump_of_a_validated_run():
    dump = tracker().dump_metrics_state()
    assert dump["since_last_row"]["loss_sums"] == [1.5, 2.5] and dump["since_last_row"]["counts"] == {"right": [3, 1], "n": [4, 4]}
    assert dump["smoothed_loss"] == 0.5
    assert dump["last_validation"] == {"global_step": 7, "results": {"val/loss": 2.0, "val/a/top1": 0.5}}
    assert dump["final"] == dump["last_validation"]["results"] and dump["best"]["val/loss"]["global_step"] == 7
