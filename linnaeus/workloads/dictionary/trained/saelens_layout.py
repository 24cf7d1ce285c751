"""Convert a sparse dictionary to the layout of SAELens 6: cfg.json and sae_weights.safetensors.

    variant                  architecture of SAELens
    relu                     standard
    gated                    gated
    topk                     topk
    batch_topk, matryoshka   jumprelu, with the threshold of evaluation for all features
    jumprelu                 jumprelu

SAELens computes p = (x - b_dec) W_enc + b_enc from unscaled activations x [N, d] (N activations, d channels). A dictionary was trained on
activations multiplied by a scale, so its biases and thresholds are divided by this scale. The decoder vectors have norm 1 and do not
change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from linnaeus.workloads.dictionary.model.sparse_dictionary import SparseDictionary

ARCHITECTURES = {
    "relu": "standard",
    "gated": "gated",
    "topk": "topk",
    "batch_topk": "jumprelu",
    "matryoshka": "jumprelu",
    "jumprelu": "jumprelu",
}
VERSION = "6.54.12"  # without a version SAELens reads cfg.json as that of a version before 6, which had other keys and defaults


def to_saelens(dictionary: SparseDictionary, metadata: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return (content of cfg.json, name -> tensor of sae_weights.safetensors).

    `metadata`: values such as `hook_name` to add to the entry `metadata` of cfg.json. The tensors are copies on the CPU."""
    folded = dictionary.folded()
    architecture = ARCHITECTURES[dictionary.config.name]
    config = {
        "architecture": architecture,
        "d_in": folded.width,
        "d_sae": folded.features,
        "dtype": str(folded.decoder.dtype).removeprefix("torch."),
        "device": "cpu",
        "apply_b_dec_to_input": True,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "metadata": {"sae_lens_version": VERSION, "sae_lens_training_version": None} | dict(metadata),
    }
    if architecture == "topk":
        config |= {"k": int(dictionary.config.k), "rescale_acts_by_decoder_norm": False}
    weights = {"W_enc": folded.encoder.T, "W_dec": folded.decoder, "b_dec": folded.bias} | _encoder(architecture, folded)
    return config, {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}


def _encoder(architecture: str, folded: Any) -> dict[str, Tensor]:
    """Return {name: tensor} of all SAELens weights except `W_enc`, `W_dec` and `b_dec`.

    architecture: architecture of SAELens. folded: dictionary with its scale folded into the weights (`SparseDictionary.folded`)."""
    if architecture == "gated":
        return {"b_gate": folded.encoder_bias, "r_mag": folded.log_gain, "b_mag": folded.magnitude_bias}
    if architecture == "jumprelu":  # batch_topk has one threshold for all features
        return {"b_enc": folded.encoder_bias, "threshold": torch.as_tensor(folded.threshold).expand(folded.features)}
    return {"b_enc": folded.encoder_bias}
