"""Write `kept_neox` and `kept_pythia`, small GPT-NeoX models of transformers with random weights, and the logits that transformers computes
from them.

    PYTHON tests/workloads/language/trained/kept_neox.py

PYTHON is an interpreter with transformers; 5.24.0 wrote the files. `test_export_transformers.py` and `test_pythia.py` read them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER, PYTHIA = (Path(__file__).with_name(name) for name in ("kept_neox", "kept_pythia"))
ALPHABET = "abcdefghijklmnopqrstuvwxyz .\n"
TEXT = "a small one of random weights."
SIZES = {"vocab_size": len(ALPHABET), "hidden_size": 8, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
READ = {"use_parallel_residual": False, "tie_word_embeddings": True, "hidden_act": "gelu", "max_position_embeddings": 32}
ROPE = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0}
# As in Pythia: parallel residuals, an output layer of its own, a quarter of the channels rotated, more rows than tokens.
OF_PYTHIA = READ | {"use_parallel_residual": True, "tie_word_embeddings": False}
OF_PYTHIA |= {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 64}


def main() -> None:
    """Write the folders that do not exist."""
    if not FOLDER.exists():
        write(FOLDER, SIZES | READ, ROPE)
    if not PYTHIA.exists():
        write(PYTHIA, SIZES | OF_PYTHIA, ROPE | {"partial_rotary_factor": 0.25})


def write(folder: Path, settings: dict[str, Any], rope: dict[str, Any]) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    network = transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**settings, rope_parameters=rope)).eval()
    with torch.no_grad():
        for parameter in network.parameters():  # biases and norms, too
            parameter.add_(0.4 * torch.randn(parameter.shape))
        logits = network(torch.tensor([[ALPHABET.index(letter) for letter in TEXT]])).logits[0]
    network.save_pretrained(folder)
    vocabulary = {letter: number for number, letter in enumerate(ALPHABET)}
    content = {"normalizer": None, "added_tokens": [], "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"}}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "logits.json").write_text(json.dumps([[round(value, 7) for value in row] for row in logits.tolist()]))
    (folder / "generation_config.json").unlink()
    (folder / "model.safetensors").chmod(0o644)


if __name__ == "__main__":
    main()
