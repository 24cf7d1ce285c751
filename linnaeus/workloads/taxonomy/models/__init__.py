"""Build the networks of the taxonomy workload: a trunk (`mformer`, or any timm model) and a head. `build_classifier` builds the configured
network."""

from collections.abc import Sequence
from typing import cast

import torch

from linnaeus.config.contracts import check_arguments, check_members, class_name
from linnaeus.config.registry import registered
from linnaeus.config.schema import Config
from linnaeus.randomness import INIT, key
from linnaeus.schedule.image_sizes import image_sizes
from linnaeus.workloads.base import check_no_decay
from linnaeus.workloads.taxonomy.config import HeadConfig, MformerConfig, ModelConfig, TimmConfig
from linnaeus.workloads.taxonomy.heads import build_head
from linnaeus.workloads.taxonomy.models.classifier import Classifier, Trunk
from linnaeus.workloads.taxonomy.models.mformer import Mformer
from linnaeus.workloads.taxonomy.models.timm_backbone import TimmBackbone
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


def build_classifier(config: Config, tree: TaxonomyTree, components: Sequence[str]) -> Classifier:
    """Return the network of `config.model` and `config.head`, on the CPU, with weights determined by `config.seed`.

    `components`: the metadata components, in the order of a batch's `meta` and `present`. Raise `ConfigError` for a model that cannot
    be built as configured."""
    torch.default_generator.manual_seed(key(config.seed, INIT) & 0x7FFFFFFFFFFFFFFF)
    return build_network(config.model, config.head, image_sizes(config), tree, components)


def build_network(
    config: ModelConfig, head: HeadConfig, sizes: Sequence[int], tree: TaxonomyTree, components: Sequence[str], pretrained: bool = True
) -> Classifier:
    """Return a network of `config` and `head` with initial weights from torch's default generator.

    `sizes`: sides of the training images, the final side last. `pretrained`: False ignores the pretrained weights that `config` names, for
    a network whose weights are loaded afterwards. Raise `ConfigError` for a model that cannot be built as configured."""
    ranks, part = len(tree.ranks), registered("model", config.name)
    trunk: Trunk
    if part is not None:
        trunk = check_members(part.build(config, sizes[-1], ranks, components), Trunk, f"model.name={config.name}: the builder returns")
        check_arguments(getattr(trunk, "forward", trunk), ("image", "meta", "present"), f"{class_name(type(trunk))}.forward")
        check_no_decay(trunk)
    elif isinstance(config, MformerConfig):
        trunk = Mformer(config, sizes, ranks, components)
    else:
        trunk = TimmBackbone(cast(TimmConfig, config), sizes, components, pretrained)
    model = Classifier(trunk, build_head(head, trunk.width, tree), ranks, config.dropout)
    model.init_weights()
    return model
