"""Write a language model for `linnaeus export RUN OUT`: a folder, tokenizer included, that the library transformers and this program's
`load_model` can load.

    config.json, model.safetensors            GPT-2 with learned positions, GPT-NeoX with rotary ones (`transformers_layout.py`)
    tokenizer.json, tokenizer_config.json     the tokenizer of the run (`library_tokenizers.py`)
    README.md                                 the model card

Before the folder gets its final name, this program and, if it is installed, transformers read it again and compare it with the model."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnaeus.checkpoint.weight_files import write_weights
from linnaeus.errors import ConfigError, counted
from linnaeus.files import TEMPORARY, commit_directory, delete, to_json, write_atomic
from linnaeus.reporting.formatting import format_size
from linnaeus.workloads.language.tokenizers import END
from linnaeus.workloads.language.trained.language_model import LanguageModel
from linnaeus.workloads.language.trained.library_tokenizers import FILE, library_json
from linnaeus.workloads.language.trained.load_language_model import load_model
from linnaeus.workloads.language.trained.transformers_check import check_reading, check_transformers
from linnaeus.workloads.language.trained.transformers_folder import CONFIG, WEIGHTS, is_transformers_folder
from linnaeus.workloads.language.trained.transformers_layout import configuration, layout_of, to_layout
from linnaeus.workloads.run_weights import find_run
from linnaeus.workloads.trained_models import validated

TOKENIZER_CONFIG, CARD = "tokenizer_config.json", "README.md"
ARCHITECTURES = {"gpt2": "GPT-2", "gpt_neox": "GPT-NeoX"}
OPEN = "*to be filled in*"
CODE = """from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("FOLDER"), AutoModelForCausalLM.from_pretrained("FOLDER")
tokens = model.generate(**tokenizer("PROMPT", return_tensors="pt"), max_new_tokens=100, do_sample=True)
print(tokenizer.decode(tokens[0]))
"""


def export_model(options: argparse.Namespace) -> list[str]:
    """Write the folder `options.out`. Return the lines to print.

    Raise `ConfigError` for a model that cannot be loaded or whose architecture transformers does not have, for a folder that exists, and
    for a folder that differs from the model when it is read again."""
    for name in ("form", "plugins"):
        if getattr(options, name):
            raise ConfigError(f"--{name} has no effect with a language model, which is written for transformers; leave it out")
    if is_transformers_folder(options.run):
        raise ConfigError(f"RUN: {options.run} is a folder of transformers already; give the directory of a run")
    if options.out.exists():
        raise ConfigError(f"OUT: {options.out} exists; choose another folder, or remove it")
    model = load_model(options.run, checkpoint=options.checkpoint, tokenizer=options.tokenizer)
    layout = layout_of(model.network)
    checks = write_folder(model, options.out, validated(find_run(options.run), model.source))
    size = sum(file.stat().st_size for file in options.out.iterdir())
    about = f"{options.out}: {ARCHITECTURES[layout]}, {format_size(size)}; {CARD} is the model card, whose open fields are yours to fill in"
    return [*model.notes, about, *checks, f'linnaeus generate {options.out} --prompt "..."']


def write_folder(model: LanguageModel, folder: Path, metrics: Mapping[str, Any]) -> list[str]:
    """Write the folder completely or not at all, and check it. Return lines about the checks. `metrics`: validation metrics of the model's
    weights.

    Raise `ConfigError` if the folder cannot be written."""
    temporary = folder.with_name(f"{TEMPORARY}{folder.name}")
    try:
        if temporary.exists():
            delete(temporary)
        temporary.mkdir(parents=True)
        write_weights(temporary / WEIGHTS, to_layout(model.network))
        for name, text in texts_of(model, metrics).items():
            write_atomic(temporary / name, text)
        check_reading(model, load_model(temporary))
        lines = check_transformers(model, temporary)
        commit_directory(temporary, folder)
    except OSError as error:
        raise ConfigError(f"OUT: {folder} cannot be written ({error.strerror}); choose another folder") from None
    finally:
        if temporary.exists():
            delete(temporary)
    return lines


def texts_of(model: LanguageModel, metrics: Mapping[str, Any]) -> dict[str, str]:
    """Return file name -> content of each text file of the folder."""
    end = model.tokenizer.end
    tokens = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.network.block, "clean_up_tokenization_spaces": False}
    return {
        CONFIG: to_json(configuration(model.network, end)),
        FILE: library_json(model.tokenizer),
        TOKENIZER_CONFIG: to_json(tokens | ({} if end is None else {"bos_token": END, "eos_token": END})),
        CARD: model_card(model, metrics),
    }


def model_card(model: LanguageModel, metrics: Mapping[str, Any]) -> str:
    """Return the content of README.md, with the front matter that model hubs read."""
    size, network, tokenizer = model.network.size, model.network, model.tokenizer
    parameters = sum(parameter.numel() for parameter in network.parameters())
    shown = {"loss": "nats per token", "perplexity": "perplexity", "bits_per_byte": "bits per byte", "top1": "top-1 accuracy"}
    rows = [f"| {title} | {value:.4f} |" for name, title in shown.items() if (value := _metric(metrics, name)) is not None]
    blocks = [
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\nlicense: other\n---\n\n# A language model",
        f"{ARCHITECTURES[layout_of(network)]} with {counted(size.layers, 'layer')}, {counted(size.heads, 'head')}, width "
        f"{size.width} and {parameters:,} parameters. Context: {network.block:,} tokens. "
        f"Tokenizer: {tokenizer.kind}, {tokenizer.size:,} tokens.",
        f"## Use\n\n```python\n{CODE}```",
        "## Results\n\n"
        + ("On the validation text of the run.\n\n| | |\n|---|---:|\n" + "\n".join(rows) if rows else "These weights were not validated."),
        f"## Data, intended use and licence\n\nData: {OPEN}. Intended use: {OPEN}. Licence of the weights: {OPEN}. Contact: {OPEN}.",
    ]
    return "\n\n".join(blocks) + "\n"


def _metric(metrics: Mapping[str, Any], name: str) -> float | None:
    """Return the validation metric `name` of the averaged weights, or else of the raw weights; None if neither was validated with this
    metric."""
    values = (metrics.get(f"{prefix}/{name}") for prefix in ("val_ema", "val"))
    return next((value for value in values if isinstance(value, float) and math.isfinite(value)), None)
