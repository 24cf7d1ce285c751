"""Write `kept_neox`, a small GPT-NeoX of transformers with random weights, and the logits that transformers computes from it.

    PYTHON tests/workloads/language/trained/kept_neox.py

PYTHON is an interpreter with transformers; 5.24.0 wrote the files. `test_export_transformers.py` reads them.
"""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).with_suffix("")
ALPHABET = "abcdefghijklmnopqrstuvwxyz .\n"
TEXT = "a small one of random weights."
SIZES = {"vocab_size": len(ALPHABET), "hidden_size": 8, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
READ = {"use_parallel_residual": False, "tie_word_embeddings": True, "hidden_act": "gelu", "max_position_embeddings": 32}  # not Pythia's
ROPE = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0}


def main() -> None:
    """Write the folder. End with an error if it exists."""
    import torch
    import transformers

    assert not FOLDER.exists(), f"{FOLDER} must stay as it is"
    torch.manual_seed(0)
    network = transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**SIZES, **READ, rope_parameters=ROPE)).eval()
    with torch.no_grad():
        for parameter in network.parameters():  # biases and norms, too
            parameter.add_(0.4 * torch.randn(parameter.shape))
        logits = network(torch.tensor([[ALPHABET.index(letter) for letter in TEXT]])).logits[0]
    network.save_pretrained(FOLDER)
    vocabulary = {letter: number for number, letter in enumerate(ALPHABET)}
    content = {"normalizer": None, "added_tokens": [], "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"}}
    (FOLDER / "tokenizer.json").write_text(json.dumps(content))
    (FOLDER / "logits.json").write_text(json.dumps([[round(value, 7) for value in row] for row in logits.tolist()]))
    (FOLDER / "generation_config.json").unlink()
    (FOLDER / "model.safetensors").chmod(0o644)


if __name__ == "__main__":
    main()
