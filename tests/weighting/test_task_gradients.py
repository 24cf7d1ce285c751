"""Task gradients at the three places, for several splits of the global batch, compared with plain backward; and their cosines."""

import math

import pytest
import torch
from torch import nn

from linnaeus.distributed.summation_tree import SumOrder
from linnaeus.errors import ConfigError
from linnaeus.weighting import FixedWeighting, GradientConflict, TaskGradients, WeightingMeter

TASKS = 2
PLACES = ("shared", "features", "trunk")


def identity(tensor):
    return tensor


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.norm = nn.Linear(5, 8), nn.LayerNorm(8)
        self.heads = nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 4)])

    def features(self, x):
        return self.norm(torch.relu(self.trunk(x)))

    def sums(self, features, labels):
        return [
            nn.functional.cross_entropy(head(features), labels[:, t], reduction="sum", ignore_index=-1) for t, head in enumerate(self.heads)
        ]

    def trunk_parameters(self):
        return [*self.trunk.parameters(), *self.norm.parameters()]


def data():
    generator = torch.Generator().manual_seed(1)
    x, labels = torch.randn(12, 5, generator=generator, dtype=torch.float64), torch.randint(0, 3, (12, TASKS), generator=generator)
    labels[[1, 2, 3, 4, 7], 1] = -1
    return x, labels, (labels >= 0).sum(0).double()


def measured(place, pieces=((slice(0, 12),),), scale=None, stacked=False):
    """Return the totals of the same 12 samples, split into processes (tuples) of micro-batches (slices)."""
    net, (x, labels, counts) = Net().double(), data()
    messages = []

    def collect(message):
        messages.append(message)
        return message

    for rank, micro_batches in enumerate(pieces):
        gradients = TaskGradients(list(net.norm.parameters()), place, net.trunk_parameters())
        gradients.start(at_place=True)
        for part in micro_batches:
            features = net.features(x[part])
            losses = [total / count for total, count in zip(net.sums(features, labels[part]), counts)]
            gradients.add(torch.stack(losses) if stacked else losses, {"per_rank": features}, scale)
        last = rank == len(pieces) - 1
        found = gradients.total((lambda own: sum([*messages, own])) if last else collect)
    assert all(parameter.grad is None for parameter in net.parameters())
    return found


def reference(place):
    """Return [T, P] by one plain backward per task; at the features each sample is run separately."""
    net, (x, labels, counts) = Net().double(), data()
    rows = []
    for task in range(TASKS):
        net.zero_grad()
        if place == "features":
            singles = [net.features(x[i : i + 1]).detach().requires_grad_() for i in range(12)]
            for i, feature in enumerate(singles):
                (net.sums(feature, labels[i : i + 1])[task] / counts[task]).backward()
            rows.append(torch.cat([feature.grad.flatten() for feature in singles]))
        else:
            (net.sums(net.features(x), labels)[task] / counts[task]).backward()
            wanted = net.norm.parameters() if place == "shared" else net.trunk_parameters()
            rows.append(torch.cat([p.grad.flatten() for p in wanted]))
    return torch.stack(rows)


SPLITS = [((slice(0, 12),),), ((slice(0, 5), slice(5, 12)),), ((slice(0, 3), slice(3, 6)), (slice(6, 9), slice(9, 12)))]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("pieces", SPLITS, ids=("whole", "two micro-batches", "two processes"))
def test_norms_and_products_do_not_depend_on_the_split(place, pieces):
    rows, at_shared = reference(place), reference("shared")
    for stacked in (False, True):
        losses, norms, gramian, shared = measured(place, pieces, stacked=stacked)
        torch.testing.assert_close(norms, rows.norm(dim=1), rtol=1e-12, atol=0)
        torch.testing.assert_close(gramian, rows @ rows.T, rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(shared, at_shared @ at_shared.T, rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(losses, measured(place)[0], rtol=1e-12, atol=0)


def test_negative_control_places_differ_and_so_does_a_sum_of_norms():
    norms = {place: measured(place)[1] for place in PLACES}
    relative = {place: (found[0] / found[1]).item() for place, found in norms.items()}
    assert len({round(value, 6) for value in relative.values()}) == 3
    parts = [measured("shared", ((part,),))[1] for part in (slice(0, 6), slice(6, 12))]
    assert not torch.allclose(sum(parts), norms["shared"], rtol=1e-3)


@pytest.mark.parametrize("place", PLACES)
def test_the_loss_scale_is_divided_out(place):
    for scaled, plain in zip(measured(place, scale=torch.tensor(4096.0)), measured(place), strict=True):
        torch.testing.assert_close(scaled, plain, rtol=1e-12, atol=1e-15)


def test_without_at_place_only_the_last_shared_layer_is_differentiated():
    net, (x, labels, _) = Net().double(), data()
    gradients = TaskGradients(list(net.norm.parameters()), "trunk", net.trunk_parameters())
    gradients.start(at_place=False)
    gradients.add(net.sums(net.features(x), labels))
    assert gradients._vectors.shape == (TASKS, 16)


def test_frozen_parameters_are_left_out_and_a_frozen_layer_has_no_conflict():
    net = Net()
    net.norm.bias.requires_grad_(False)
    assert TaskGradients(list(net.norm.parameters())).shared == [net.norm.weight]
    net.norm.weight.requires_grad_(False)
    gradients = TaskGradients(list(net.norm.parameters()))
    conflict = GradientConflict(("a", "b"), torch.device("cpu"))
    weighting_meter = WeightingMeter(FixedWeighting(torch.ones(TASKS)), conflict, gradients, SumOrder(1, identity), lambda outputs: None)
    weighting_meter.start(1, torch.ones(TASKS), due=False, conflict_due=True)
    x, labels, _ = data()
    weighting_meter.measure(torch.stack(net.sums(net.features(x.float()), labels)), None, None)
    weighting_meter.finish()
    assert weighting_meter.conflict.row() == {}


@pytest.mark.parametrize("outputs", [torch.ones(3), {"logits": torch.ones(3)}, {"per_rank": [1.0]}])
def test_a_model_without_features_raises_one_line(outputs):
    net, (x, labels, _) = Net().double(), data()
    gradients = TaskGradients(list(net.norm.parameters()), "features")
    with pytest.raises(ConfigError, match=r"^weighting.place=features: this model .*use weighting.place=shared$"):
        gradients.add(net.sums(net.features(x), labels), outputs)
    with pytest.raises(ConfigError, match="do not depend"):
        gradients.add(net.sums(net.features(x), labels), {"per_rank": torch.ones(3, requires_grad=True)})


# -- conflict ----------------------------------------------------------------------------------------------------------------------


def test_cosines_are_of_the_whole_gradients_and_logged_once():
    conflict = GradientConflict(("genus", "species"), torch.device("cpu"))
    assert conflict.row() == {}
    for pieces in SPLITS:
        conflict.update(measured("features", pieces)[3])
        row, expected = conflict.row(), torch.nn.functional.cosine_similarity(*reference("shared"), dim=0).item()
        norms = dict(zip(("train/genus/grad_norm", "train/species/grad_norm"), reference("shared").norm(dim=1).tolist(), strict=True))
        assert row == pytest.approx({**norms, "train/conflict/genus/species": expected}, rel=1e-12)
        assert conflict.row() == {}, "until the next measurement"
    halves = []
    for part in (slice(0, 6), slice(6, 12)):
        conflict.update(measured("shared", ((part,),))[3])
        halves.append(conflict.row()["train/conflict/genus/species"])
    assert abs(sum(halves) / 2 - expected) > 1e-3, "negative control: a mean of cosines is another number"


def test_a_task_without_a_gradient_has_no_cosine():
    conflict = GradientConflict("abc", torch.device("cpu"))
    rows = torch.tensor([[1.0, 0.0], [0.0, 0.0], [-1.0, 1.0]])
    conflict.update(rows @ rows.T)
    expected = {"a/b": math.nan, "a/c": -math.sqrt(0.5), "b/c": math.nan}
    norms = {"train/a/grad_norm": 1.0, "train/b/grad_norm": 0.0, "train/c/grad_norm": math.sqrt(2.0)}
    assert conflict.row() == pytest.approx(norms | {f"train/conflict/{pair}": cosine for pair, cosine in expected.items()}, nan_ok=True)
