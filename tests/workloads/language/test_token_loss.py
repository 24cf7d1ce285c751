"""Token losses: against float64 in every precision, and the memory they keep for backward."""

import pytest
import torch
import torch.nn.functional as F

from linnaeus.workloads.language.model import token_loss
from linnaeus.workloads.language.model.token_loss import token_losses


def losses_and_gradient(logits, target, factors):
    logits = logits.clone().requires_grad_()
    losses = token_losses(logits, target)
    (losses * factors).sum().backward()
    return losses.detach(), logits.grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("chunk", [1, 90, 2**24])
def test_losses_and_gradients_equal_float64(dtype, chunk, monkeypatch):
    """Rows are computed one, two or all at once."""
    monkeypatch.setattr(token_loss, "CHUNK", chunk)
    torch.manual_seed(0)
    logits, target = (torch.randn(2, 5, 40) * 4).to(dtype), torch.randint(40, (2, 5))
    target[0, 1] = target[1, 4] = token_loss.IGNORED
    factors = torch.rand(2, 5, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    losses, gradient = losses_and_gradient(logits, target, factors)
    exact = logits.double().requires_grad_()
    wanted = -exact.log_softmax(-1).gather(-1, target.clamp(min=0)[..., None])[..., 0] * (target >= 0)
    (wanted * factors).sum().backward()
    assert losses.dtype == factors.dtype and gradient.dtype == dtype
    assert (losses - wanted).abs().max() < {torch.float64: 1e-13}.get(dtype, 2e-5), "float32 arithmetic for all logits"
    assert (gradient - exact.grad).abs().max() < max(torch.finfo(dtype).eps, 1e-6 if dtype != torch.float64 else 1e-14)
    assert losses[0, 1] == 0 and not gradient[0, 1].any()


def test_backward_keeps_one_half_precision_copy_of_the_logits():
    def kept(loss):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.nbytes) or t, lambda t: t):
            loss(torch.randn(64, 1000).bfloat16().requires_grad_(), torch.zeros(64, dtype=torch.int64))
        return sum(sizes)

    plain = kept(lambda logits, target: F.cross_entropy(logits.float(), target, reduction="none"))
    assert kept(token_losses) < 64 * 1000 * 2 * 1.02 < plain / 1.9
