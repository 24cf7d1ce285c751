"""Write only the backbone of a classifier, in the layout of timm's hub: model.safetensors and config.json.

`timm.create_model("local-dir:PATH", pretrained=True, num_classes=0)` loads the backbone, whose output is the pooled feature vector. The
layers for metadata, the final norm and the head are not included."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linnaeus.errors import ConfigError, one_line
from linnaeus.files import system_error, to_json, write_atomic
from linnaeus.workloads.taxonomy.inputs.preparation import MEAN, STD
from linnaeus.workloads.taxonomy.models.timm_backbone import TimmBackbone
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
from linnaeus.workloads.taxonomy.trained.export.export_check import Examples

LIMIT = 1e-6  # largest accepted difference, relative to the largest feature: kernels and weights are the same
LEFT_OUT = ("tag", "license", "origin_url", "paper", "notes", "description", "test_")  # keys that describe the published weights only
INPUT_LIMIT = 1e-5  # largest accepted difference of normalised pixels, which are computed in another order


def backbone_of(classifier: TrainedClassifier) -> TimmBackbone:
    """Return the timm backbone of a classifier. Raise `ConfigError` for a model without one."""
    trunk = classifier.model.trunk
    if not isinstance(trunk, TimmBackbone):
        raise ConfigError(f"--form: timm needs a run with model=timm; this one has model={classifier.description.model.name}; leave it out")
    return trunk


def write_timm(classifier: TrainedClassifier, folder: Path) -> None:
    """Write model.safetensors and config.json to `folder`. Raise `ConfigError` if timm cannot describe the model, and `OSError` if a
    file cannot be written."""
    from safetensors import SafetensorError
    from timm.models import save_for_hf

    trunk, side = backbone_of(classifier), classifier.image_size
    own = trunk.backbone.pretrained_cfg
    mean, std = (MEAN, STD) if trunk.rescale is None else (own["mean"], own["std"])
    given = {"mean": mean, "std": std, "input_size": (3, side, side), "interpolation": "bilinear", "crop_mode": "center"}
    given["crop_pct"] = classifier.description.center_crop
    try:
        save_for_hf(trunk.backbone, str(folder), safe_serialization=True)
    except SafetensorError as error:
        raise system_error(error, folder) or error from None
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        raise ConfigError(f"--form: timm cannot describe {classifier.description.model.name} ({one_line(error)}); leave it out") from error
    config = json.loads((folder / "config.json").read_text())
    kept = {name: value for name, value in config["pretrained_cfg"].items() if not name.startswith(LEFT_OUT)}
    write_atomic(folder / "config.json", to_json(config | {"pretrained_cfg": kept | given}))
    (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)  # safetensors lets only the owner read its file


def feature_difference(classifier: TrainedClassifier, folder: Path, checked: Examples) -> float:
    """Return the largest difference between a feature of the model that timm loads from `folder` and of the classifier's backbone, relative
    to the largest feature.

    Raise `ConfigError` if the difference is above `LIMIT`, if normalised pixels differ, or if timm cannot load the folder."""
    import timm

    trunk, largest = backbone_of(classifier), 0.0
    try:
        with warnings.catch_warnings(action="ignore"):
            loaded: Any = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=0).eval()
    except (RuntimeError, OSError, ValueError, TypeError, KeyError, AssertionError) as error:
        raise ConfigError(f"--form: timm cannot load its folder ({one_line(error)}), so nothing is written") from error
    for inputs, _ in checked.batches:
        pixels = torch.from_numpy(inputs["image"])
        with torch.inference_mode():
            image = _normalised(pixels, MEAN, STD)
            image = image if trunk.rescale is None else image * trunk.rescale[0] + trunk.rescale[1]
            stated = _normalised(pixels, loaded.pretrained_cfg["mean"], loaded.pretrained_cfg["std"])
            own = trunk.backbone.forward_head(trunk.backbone.forward_features(image), pre_logits=True)
            difference = (loaded(image) - own).abs().max() / own.abs().max().clamp(min=1)
            same_input = bool((stated - image).abs().max() <= INPUT_LIMIT)
        if not same_input or not difference <= LIMIT:
            reason = f"a feature differs by {float(difference):.1e}" if same_input else "normalised pixels differ"
            raise ConfigError(f"--form: timm disagrees with the model, so nothing is written: {reason}")
        largest = max(largest, float(difference))
    return largest


def _normalised(pixels: Tensor, mean: Any, std: Any) -> Tensor:
    """Return pixels, uint8 [B, 3, S, S], divided by 255 and then normalised, as float [B, 3, S, S]. `mean`, `std`: one value per
    channel."""
    return (pixels / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
