"""Define the data and model settings of the language workload."""

from dataclasses import dataclass

from linnaeus.config.schema import DataConfig
from linnaeus.config.setting import setting

DIRECTIONS = {"perplexity": "min", "bits_per_byte": "min", "top1": "max", "score": "max"}  # last part of a metric -> direction


@dataclass(frozen=True)
class Size:
    layers: int
    heads: int
    width: int


# GPT-2's sizes (Radford et al. 2019) and smaller ones. Parameters with 50,257 tokens, 1,024 learned positions and no biases: gpt2 124
# million, medium 355, large 774, xl 1,557.
SIZES = {
    "gpt_nano": Size(3, 3, 48),
    "gpt_micro": Size(4, 4, 128),  # learns to spell on a laptop's CPU in minutes
    "gpt_mini": Size(6, 6, 192),
    "gpt_baby": Size(6, 6, 384),
    "gpt2": Size(12, 12, 768),
    "gpt2_medium": Size(24, 16, 1024),
    "gpt2_large": Size(36, 20, 1280),
    "gpt2_xl": Size(48, 25, 1600),
}


@dataclass(frozen=True)
class LanguageDataConfig(DataConfig):
    """Settings that `data=text` and `data=tokens` share."""

    block: int = setting("tokens per window: the number predicted at once and the longest context of the model", low=1)
    order: str = setting("windows: every token once per epoch, shifted each epoch; random: random offsets", choices=("windows", "random"))


@dataclass(frozen=True)
class TextConfig(LanguageDataConfig):
    path: str | None = setting("a text file or a folder of text files; null: files of Python's standard library")
    files: list[str] | None = setting("patterns of the files in the folder, as ['**/*.txt', '*.md']; ** is any depth; null: **/*.txt")
    sources: dict[str, list[str]] | None = setting(
        "named sources, each with the patterns of its files, as {notes: ['**/*.md']}; schedule.phases can mix them and validation reports "
        "the loss of each; a file belongs to the first source that matches; null: one unnamed source"
    )
    encoding: str = setting("encoding of the files, the name of a Python codec")
    separator: str | None = setting("text between two documents of a file, such as <|endoftext|>; null: each file is one document")
    tokenizer: str = setting(
        "character, byte: one token each; bpe: trained on the training text, or read from `tokenizer_file`; gpt2: GPT-2's",
        choices=("character", "byte", "bpe", "gpt2"),
    )
    tokenizer_file: str | None = setting(
        "tokenizer.json of a run or of tokenizers; gpt2: also the folder of its two files; null: built from the text, or downloaded"
    )
    vocabulary: int | None = setting("number of tokens of a bpe tokenizer that is trained; null for the others", low=257)
    validation_fraction: float = setting("share for validation: documents chosen by hash, or the end of a single text", above=0, below=1)
    split_seed: int = setting("seed that selects the validation documents", low=0)


@dataclass(frozen=True)
class TokensConfig(LanguageDataConfig):
    path: str = setting("a folder of token files (.bin, .npy) and, for nanoGPT's characters, meta.pkl")
    train_files: list[str] | None = setting("patterns of the files for training; null: train.bin, or else *train*.bin and *train*.npy")
    validation_files: list[str] | None = setting("patterns of the files for validation; null: val.bin, or else *val*.bin and *val*.npy")
    dtype: str = setting(
        "type of the tokens in a file without a header; auto: uint16 for a vocabulary of up to 65536, else uint32",
        choices=("auto", "uint8", "uint16", "uint32", "uint64"),
    )
    tokenizer_file: str | None = setting(
        "GPT-2's tokenizer.json or its folder, for bits per byte and to generate text, without meta.pkl; null: none"
    )
    vocabulary: int | None = setting("number of tokens, without meta.pkl and tokenizer_file; null: GPT-2's 50257", low=2)


@dataclass(frozen=True)
class GPTConfig:
    name: str = setting("network architecture", choices=("gpt",))
    size: str = setting("named size; it sets layers, heads and width if they are null", choices=tuple(SIZES))
    layers: int | None = setting("number of blocks; null: that of the size", low=1)
    heads: int | None = setting("attention heads per block, which must divide the width; null: that of the size", low=1)
    width: int | None = setting("channels of the residual stream; null: that of the size", low=1)
    positions: str = setting("learned: a vector is added per position; rotary: queries and keys are rotated", choices=("learned", "rotary"))
    rotary_base: float | None = setting("longest rotary wavelength in tokens, over 2 pi; null: 10000, or none if learned", above=1)
    rotary_fraction: float = setting("fraction of each head's channels that rotary positions rotate; Pythia: 0.25", above=0, high=1)
    parallel_residual: bool = setting("a block's attention and perceptron read the same input; false: the perceptron reads after attention")
    bias: bool = setting("use biases in linear layers and layer norms")
    dropout: float = setting("dropout rate of embeddings, attention weights and every branch of a block", low=0, below=1)
    vocabulary_multiple: int = setting("round the rows of the embedding up to a multiple of this; 64 makes 50257 into 50304", low=1)
    tied_embeddings: bool = setting("the output layer shares the weights of the embedding; false: it has its own")
    dimensions: list[str] = setting("names of adapters that phases can weight, in all blocks but the lowest quarter; []: none")
    adapter_width: int | None = setting("channels of each adapter; null: an eighth of the width, rounded up", low=1)
    gelu: str = setting("erf: exact GELU; tanh: the approximation that GPT-2's published weights use", choices=("erf", "tanh"))


SCHEMAS: dict[str, dict[str, type]] = {
    "data": {"text": TextConfig, "tokens": TokensConfig},
    "model": {"gpt": GPTConfig},
}
