"""Use any timm model as the trunk, with the metadata fused into its pooled feature.

The trunk takes the model's pooled feature (`forward_head(..., pre_logits=True)`) and encodes each metadata component as a vector (a learned
vector where the component is missing). An MLP of the feature and the vectors is added to the feature as a residual; the classifier's norm
follows. timm is imported only when such a model is configured."""

import contextlib
import copy
import difflib
import functools
import logging
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from linnaeus.errors import ConfigError, one_line
from linnaeus.hub import offline_if_unreachable
from linnaeus.workloads.repeated_blocks import block_distances, find_repeated_blocks
from linnaeus.workloads.taxonomy.config import TimmConfig
from linnaeus.workloads.taxonomy.inputs.preparation import MEAN, STD
from linnaeus.workloads.taxonomy.models.classifier import DropPath, LateFusion, MetadataEncoder, init_affine
from linnaeus.workloads.taxonomy.models.patch_convolution import replace_patch_convolutions
from linnaeus.workloads.taxonomy.models.timm_weights import import_timm, load_pretrained_file

log = logging.getLogger("linnaeus")
_UNMATCHED = "~"  # a parameter name that no model has


class TimmBackbone(nn.Module):
    """Trunk that maps image, metadata and presence to features [B, 1, width], where `width` is the width of timm's pooled feature."""

    backbone: Any  # a timm model
    metadata: MetadataEncoder | None
    rescale: Tensor | None

    def __init__(self, config: TimmConfig, image_sizes: Sequence[int], components: Sequence[str], pretrained: bool = True) -> None:
        """`image_sizes`: sides of the images in pixels, the final side last. `pretrained`: False ignores the pretrained weights that
        `config` names."""
        super().__init__()
        without = replace(config, pretrained=False, pretrained_file=None)
        self.backbone = create_backbone(config if pretrained else without, image_sizes)
        _replace_drop_path(self.backbone)
        replace_patch_convolutions(self.backbone)
        self.width: int = self.backbone.head_hidden_size
        self.metadata = None
        if components:
            self.metadata = MetadataEncoder(components, config.meta_width, config.meta_width)
            self.fusion = LateFusion(self.width, len(components) * config.meta_width)
        self.separate = config.fusion == "separate"
        rescale = _rescaling(self.backbone) if config.pretrained or config.pretrained_file else None
        self.register_buffer("rescale", rescale, persistent=False)

    @property
    def no_decay(self) -> set[str]:
        """Return the names of the parameters that timm excludes from weight decay (positions, class tokens) and of the learned metadata
        tokens."""
        names = self.backbone.no_weight_decay() if hasattr(self.backbone, "no_weight_decay") else ()
        return {f"backbone.{name}" for name in names} | ({"metadata.missing"} if self.metadata is not None else set())

    def layer_distances(self) -> dict[str, int]:
        """Return {parameter name: number of layers between the parameter and the output} as timm's recipes count the layers of this model;
        for a model that does not define its layers, by the order of its blocks. Metadata layers, which come last, have 0."""
        return {f"backbone.{name}": distance for name, distance in _distances(self.backbone).items()}

    def init_weights(self) -> None:
        """Initialise the metadata layers. timm has already initialised the backbone or loaded its weights."""
        if self.metadata is not None:
            self.metadata.apply(init_affine)
            self.fusion.apply(init_affine)
            self.metadata.init_weights()

    def forward(self, image: Tensor, meta: Tensor, present: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return features [B, 1, width] of image [B, 3, H, W], meta [B, F] and present bool [B, M].

        With `model.fusion=separate` return in training two features: with the metadata, and of the image alone. The first one has no
        gradient with respect to the backbone. Both are equal for a sample without metadata."""
        if self.rescale is not None:
            image = image * self.rescale[0] + self.rescale[1]
        feature = self.backbone.forward_head(self.backbone.forward_features(image), pre_logits=True)
        features = feature.unsqueeze(1)
        if self.metadata is None:
            return features
        tokens = self.metadata(meta, present).flatten(1).to(features.dtype)
        if not self.separate:
            return self.fusion(features, tokens)
        alone = features.detach()
        fused = torch.where(present.any(1)[:, None, None], self.fusion(alone, tokens), alone)
        return (fused, features) if self.training else fused


@functools.cache  # two rules of `automatic`, and each trial of a sweep, ask for the same network, which takes up to 0.7 s
def count_layers(name: str) -> int:
    """Return the number of layers of timm's model `name` below its head, as `optimizer.layer_decay` counts them; 0 if it defines none, and
    for a model of a hub, which may not be on this machine.

    Raise `ConfigError` for an unknown name."""
    _check_name(name)
    if "/" in name:
        return 0
    with torch.device("meta"):
        return max(_distances(import_timm().create_model(name, num_classes=0)).values(), default=0)


def _distances(backbone: Any) -> dict[str, int]:
    return _timm_distances(backbone) or block_distances(backbone, find_repeated_blocks(backbone))


def _timm_distances(backbone: Any) -> dict[str, int]:
    """Return {parameter name: number of layers between the parameter and the output} by timm's `group_matcher`; {} if the model does not
    have one, or if it has one layer only.

    timm's last layer has the classifier, which this program does not use, and every name that no pattern matches. Such a name is added
    here, to get the number of the last layer."""
    from timm.models import group_parameters

    if not hasattr(backbone, "group_matcher"):
        return {}
    names = [*backbone.named_parameters(), (_UNMATCHED, None)]
    network: Any = SimpleNamespace(named_parameters=lambda: names)
    layers = group_parameters(network, backbone.group_matcher(coarse=False), reverse=True)
    last = layers.pop(_UNMATCHED)
    return {name: last - layer for name, layer in layers.items()} if last > 1 else {}


def _replace_drop_path(backbone: nn.Module) -> None:
    """Replace timm's modules for stochastic depth by `DropPath`, which computes the same and lets blocks share a compiled graph."""
    from timm.layers import DropPath as TimmDropPath

    for parent in list(backbone.modules()):
        for name, child in parent.named_children():
            if type(child) is TimmDropPath:
                setattr(parent, name, DropPath(child.drop_prob, child.scale_by_keep))


def _rescaling(backbone: Any) -> Tensor | None:
    """Return factor and offset, stacked to [2, 3, 1, 1], that convert images normalised by `preparation` to the normalisation of the
    pretrained weights; None if both normalisations are equal."""
    mean, std = backbone.pretrained_cfg["mean"], backbone.pretrained_cfg["std"]
    if (tuple(mean), tuple(std)) == (MEAN, STD):
        return None
    factor = [own / timm for own, timm in zip(STD, std, strict=True)]
    offset = [(own - timm) / s for own, timm, s in zip(MEAN, mean, std, strict=True)]
    return torch.tensor([factor, offset]).view(2, 3, 1, 1)


def create_backbone(config: TimmConfig, image_sizes: Sequence[int]) -> nn.Module:
    """Return timm's model without its classifier, built for the last of `image_sizes`.

    Raise `ConfigError` for an unknown name, for `model.pretrained` together with `model.pretrained_file`, for pretrained weights that
    cannot be loaded, for an image size that the model cannot read, and for `model.drop_path` above 0 with a model without stochastic
    depth."""
    name = config.backbone
    if config.pretrained and config.pretrained_file:
        raise ConfigError("model.pretrained=true and model.pretrained_file exclude each other: set model.pretrained=false to use the file")
    _check_name(name)
    with offline_if_unreachable() if config.pretrained else contextlib.nullcontext():
        backbone = _create_for(config, image_sizes)
    if config.pretrained_file is not None:
        log.info(load_pretrained_file(backbone, config.pretrained_file))
    for size in image_sizes:
        _check_forward(backbone, name, size, "data.image_size" if size == image_sizes[-1] else "schedule.image_size")
    return backbone


def _check_name(name: str) -> None:
    """Raise `ConfigError` if timm does not have a model `name`, with similar names. A name with a / is that of a hub."""
    timm = import_timm()
    if "/" not in name and not timm.is_model(name.split(".")[0]):
        close = ", ".join(difflib.get_close_matches(name, timm.list_models(), n=3))
        raise ConfigError(f"model.backbone: {name!r} is not a timm model" + (f"; similar names: {close}" if close else ""))


def _create_for(config: TimmConfig, image_sizes: Sequence[int]) -> nn.Module:
    """Return timm's model. A model whose image size is fixed at construction gets the argument `img_size`, and for several image sizes also
    `dynamic_img_size` if the model has this argument, so that it resamples its position embeddings. Other models read any size."""
    fixed: dict[str, Any] = {"img_size": image_sizes[-1]}
    for options in [fixed | {"dynamic_img_size": True}] * (len(image_sizes) > 1) + [fixed]:
        try:
            return _timm_create(config, **options)
        except TypeError as error:
            if "img_size" not in str(error):
                raise
    return _timm_create(config)


def _timm_create(config: TimmConfig, **options: Any) -> nn.Module:
    if config.drop_path > 0:
        options["drop_path_rate"] = config.drop_path
    try:
        return import_timm().create_model(config.backbone, pretrained=config.pretrained, num_classes=0, **options)
    except TypeError as error:
        if "drop_path_rate" not in str(error):
            raise
        raise ConfigError(f"model.drop_path={config.drop_path}: {config.backbone} does not have stochastic depth; set it to 0") from error
    except (OSError, RuntimeError, AssertionError) as error:
        advice = "set model.pretrained_file=FILE to weights on this machine, or model.pretrained=false"
        reason = f"the pretrained weights cannot be loaded; {advice}" if config.pretrained else "timm cannot build it"
        raise ConfigError(f"model.backbone: {config.backbone}: {reason} ({one_line(error)})") from error


def _check_forward(backbone: nn.Module, name: str, image_size: int, key: str) -> None:
    """Run one forward and backward pass of a copy of `backbone` on the meta device. Raise `ConfigError` if the model cannot read images of
    `image_size`; `key` is the configuration key of that size. In `backbone`, freeze the parameters that got no gradient in the copy, since
    DDP waits for the gradient of every trainable parameter."""
    twin: Any = copy.deepcopy(backbone).to("meta")
    try:
        features = twin.forward_features(torch.empty(2, 3, image_size, image_size, device="meta"))
        twin.forward_head(features, pre_logits=True).sum().backward()
    except NotImplementedError:  # an operation without a meta kernel: nothing can be checked
        return
    except (RuntimeError, AssertionError, ValueError) as error:
        raise ConfigError(f"model.backbone: {name} cannot read images of {key}={image_size} ({one_line(error)})") from error
    for parameter, tried in zip(backbone.parameters(), twin.parameters(), strict=True):
        parameter.requires_grad_(tried.grad is not None)
