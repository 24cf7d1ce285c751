"""Moving average of the weights: values, copied buffers, swapping in."""

import pytest
import torch
from torch import nn

from linnaeus.errors import ConfigError
from linnaeus.optim.ema import EMA
from tests.runs import unequal

APPLIED, SKIPPED = torch.tensor(0.0), torch.tensor(1.0)


def make_model(dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)).to(dtype, memory_format=torch.channels_last)
    model.register_buffer("table", torch.ones(3), persistent=False)
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf], dtype=dtype))
    return model


def train(model, step):
    with torch.no_grad():
        model(torch.randn(2, 3, 5, 5, dtype=model[0].weight.dtype))
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1 * (step + 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decay", [0.999, 0.3])
def test_averages_equal_the_definition(dtype, decay):
    model = make_model(dtype)
    ema = EMA(model, decay)
    slow = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    for step, skipped in enumerate([False, True, False, False]):
        train(model, step)
        ema.update(SKIPPED if skipped else APPLIED)
        n = [1, 1, 2, 3][step]
        weight = 1 - min(decay, (1 + n) / (10 + n))
        for name, tensor in model.state_dict().items():
            if name == "mask" or not tensor.is_floating_point():
                slow[name] = tensor.clone()
            elif not skipped:
                slow[name] += weight * (tensor - slow[name])
    for name, tensor in ema.averaged().items():
        torch.testing.assert_close(tensor, slow[name], rtol=1e-5, atol=1e-6)
    assert int(ema.averaged()["1.num_batches_tracked"]) == 4 and "table" not in ema.averaged()
    assert not torch.equal(ema.averaged()["0.weight"], model[0].weight)
    assert ema.state_dict() == {"applied": 3.0}


def test_swapped_in_is_exact_in_inference_mode_and_after_an_error():
    model = make_model()
    ema = EMA(model, 0.9)
    train(model, 0)
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ema.update(APPLIED)
    assert unequal(own, dict(model.state_dict())) == []
    addresses = [p.data_ptr() for p in model.parameters()]
    with pytest.raises(KeyError), torch.inference_mode(), ema.swapped_in(model):
        assert unequal(dict(model.state_dict()), dict(ema.averaged())) == []
        raise KeyError
    assert unequal(own, dict(model.state_dict())) == []
    assert addresses == [p.data_ptr() for p in model.parameters()]
    model(torch.randn(2, 3, 5, 5)).sum().backward()
    assert model[0].weight.grad is not None
    train(model, 1)
    ema.update(APPLIED)


def test_tied_weights_have_one_average_under_both_names():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    averaged = EMA(model, 0.9).averaged()
    assert averaged["0.weight"] is averaged["1.weight"] and set(averaged) == set(model.state_dict())


def test_loading_averages_of_another_model_raises():
    ema = EMA(make_model(), 0.9)
    good = {name: tensor.clone() + 1 for name, tensor in ema.averaged().items()}
    ema.load_averaged(good)
    assert torch.equal(ema.averaged()["0.weight"], good["0.weight"])
    lacking = {name: tensor for name, tensor in good.items() if name != "2.bias"}
    for wrong, message in ((None, "ema_decay"), (lacking, r"2\.bias"), ({**good, "2.bias": torch.zeros(9)}, r"2\.bias")):
        with pytest.raises(ConfigError, match=message):
            ema.load_averaged(wrong)
