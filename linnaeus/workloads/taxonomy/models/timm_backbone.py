"""Any timm model as the trunk, with the metadata fused into its pooled feature.

A timm model is asked for its own pooled feature (`forward_head(..., pre_logits=True)`), each metadata component is encoded to
a vector of the same width (a learned one where it is missing), and an MLP over all of them is added as a residual; the classifier's
shared norm follows. timm and its weights are needed only when such a model is configured.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.config import TimmConfig
from linnaeus.workloads.taxonomy.models.metadata import LateFusion, MetadataEncoder
from linnaeus.workloads.taxonomy.models.residual import init_affine
from linnaeus.workloads.taxonomy.preparation import MEAN, STD


class TimmBackbone(nn.Module):
    """The trunk: [B, 1, width] of image, metadata and presence. `width` is that of timm's pooled feature."""

    backbone: Any  # of timm
    metadata: MetadataEncoder | None
    rescale: Tensor | None

    def __init__(self, config: TimmConfig, image_size: int, components: Sequence[str]) -> None:
        super().__init__()
        self.backbone = create_backbone(config, image_size)
        self.width: int = self.backbone.head_hidden_size
        self.metadata = None
        if components:
            self.metadata = MetadataEncoder(components, config.meta_width, config.meta_width)
            self.fusion = LateFusion(self.width, len(components) * config.meta_width)
        rescale = _rescaling(self.backbone) if config.pretrained else None
        self.register_buffer("rescale", rescale, persistent=False)

    @property
    def no_decay(self) -> set[str]:
        """Names timm excludes from decay (positions, class tokens), and our tokens."""
        theirs = self.backbone.no_weight_decay() if hasattr(self.backbone, "no_weight_decay") else ()
        return {f"backbone.{name}" for name in theirs} | ({"metadata.missing"} if self.metadata is not None else set())

    def init_weights(self) -> None:
        """Ours only: timm has initialised the backbone, or loaded it, when it built it."""
        if self.metadata is not None:
            self.metadata.apply(init_affine)
            self.fusion.apply(init_affine)
            self.metadata.init_weights()

    def forward(self, image: Tensor, meta: Tensor, present: Tensor) -> Tensor:
        if self.rescale is not None:
            image = image * self.rescale[0] + self.rescale[1]
        feature = self.backbone.forward_head(self.backbone.forward_features(image), pre_logits=True)
        features = feature.unsqueeze(1)
        if self.metadata is None:
            return features
        return self.fusion(features, self.metadata(meta, present).flatten(1).to(features.dtype))


def _rescaling(backbone: Any) -> Tensor | None:
    """Factor and offset [2, 3, 1, 1] from images normalised our way to the way the weights were trained with; None if alike."""
    mean, std = backbone.pretrained_cfg["mean"], backbone.pretrained_cfg["std"]
    if (tuple(mean), tuple(std)) == (MEAN, STD):
        return None
    factor = [ours / theirs for ours, theirs in zip(STD, std, strict=True)]
    offset = [(ours - theirs) / s for ours, theirs, s in zip(MEAN, mean, std, strict=True)]
    return torch.tensor([factor, offset]).view(2, 3, 1, 1)


def create_backbone(config: TimmConfig, image_size: int) -> nn.Module:
    """timm's model without its classifier. Raises ConfigError for a name timm does not know, weights that cannot be had,
    an image size the model cannot read, and a stochastic depth it does not have."""
    import timm

    name = config.backbone
    if "/" not in name and not timm.is_model(name.split(".")[0]):
        close = ", ".join(difflib.get_close_matches(name, timm.list_models(), n=3))
        raise ConfigError(f"model.backbone: timm has no model {name!r}" + (f"; close: {close}" if close else ""))
    backbone = _sized(config, image_size)
    _rehearse(backbone, name, image_size)
    return backbone


def _sized(config: TimmConfig, image_size: int) -> nn.Module:
    """Models that fix their image size at construction take `img_size`; the others refuse the word and read any size."""
    try:
        return _timm_create(config, img_size=image_size)
    except TypeError as error:
        if "img_size" not in str(error):
            raise
    return _timm_create(config)


def _timm_create(config: TimmConfig, **options: Any) -> nn.Module:
    import timm

    if config.drop_path > 0:
        options["drop_path_rate"] = config.drop_path
    try:
        return timm.create_model(config.backbone, pretrained=config.pretrained, num_classes=0, **options)
    except TypeError as error:
        if "drop_path_rate" not in str(error):
            raise
        raise ConfigError(f"model.drop_path: {config.backbone} has no stochastic depth; set it to 0") from error
    except (OSError, RuntimeError, AssertionError) as error:
        what = "the pretrained weights cannot be had; set model.pretrained=false" if config.pretrained else "timm cannot build it"
        raise ConfigError(f"model.backbone: {config.backbone}: {what} ({_first_line(error)})") from error


def _rehearse(backbone: nn.Module, name: str, image_size: int) -> None:
    """One forward and backward pass without numbers (on the meta device): the model must read images of this size, and
    parameters it never uses are frozen, for DDP waits for the gradient of every other."""
    double: Any = copy.deepcopy(backbone).to("meta")
    try:
        features = double.forward_features(torch.empty(2, 3, image_size, image_size, device="meta"))
        double.forward_head(features, pre_logits=True).sum().backward()
    except NotImplementedError:  # an operation without a meta kernel says nothing about the model
        return
    except (RuntimeError, AssertionError, ValueError) as error:
        raise ConfigError(f"model.backbone: {name} cannot read images of data.image_size={image_size} ({_first_line(error)})") from error
    for ours, rehearsed in zip(backbone.parameters(), double.parameters(), strict=True):
        ours.requires_grad_(rehearsed.grad is not None)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
