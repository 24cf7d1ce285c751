"""Autograd functions with an approximate backward: the exact gradient is 0, undefined or unwanted in training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Jump(torch.autograd.Function):
    """JumpReLU as an autograd function: z where z > theta, otherwise 0, for z [N, F] and theta = `threshold` [F].

    Source: Rajamanoharan et al. 2024, arXiv 2407.14435, equations 9 and 11.

    The derivative with respect to z is 1 where z > theta, otherwise 0. The derivative with respect to theta is estimated with a rectangular
    kernel of width `bandwidth`: it is -theta / bandwidth where |z - theta| < bandwidth / 2, otherwise 0."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, threshold: Tensor, bandwidth: float) -> Tensor:
        ctx.save_for_backward(z, threshold)
        ctx.bandwidth = bandwidth
        return z * (z > threshold)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        z, threshold = ctx.saved_tensors
        near = (z - threshold).abs() < ctx.bandwidth / 2
        return gradient * (z > threshold), -(threshold / ctx.bandwidth) * (near * gradient).sum(0), None


class Step(torch.autograd.Function):
    """Step as an autograd function: 1 where z > theta, otherwise 0, for z [N, F] and theta = `threshold` [F] (arXiv 2407.14435, equation
    12).

    z has no gradient. The derivative with respect to theta is -1 / bandwidth where |z - theta| < bandwidth / 2, otherwise 0."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, threshold: Tensor, bandwidth: float) -> Tensor:
        ctx.save_for_backward(z, threshold)
        ctx.bandwidth = bandwidth
        return (z > threshold).to(z.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:  # type: ignore[override]
        z, threshold = ctx.saved_tensors
        near = (z - threshold).abs() < ctx.bandwidth / 2
        return None, -(near * gradient).sum(0) / ctx.bandwidth, None


class OnSphere(torch.autograd.Function):
    """Autograd function that returns unit vectors [F, d] unchanged. The backward removes the component along the vector from its gradient.

    That component would only change the norm of the vector (Bricken et al. 2023, "Towards Monosemanticity")."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (rows,) = ctx.saved_tensors
        return torch.addcmul(gradient, rows, (gradient * rows).sum(1, keepdim=True), value=-1)
