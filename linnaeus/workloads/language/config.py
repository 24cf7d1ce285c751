"""The language workload's own groups of the configuration: data and model."""

from __future__ import annotations

from dataclasses import dataclass

from linnaeus.config.schema import DataConfig
from linnaeus.config.setting import setting

DIRECTIONS = {"perplexity": "min", "bits_per_byte": "min", "top1": "max", "score": "max"}  # by the last part of a metric's name

TOKENIZERS = ("character", "byte", "bpe", "gpt2")
ORDERS = ("windows", "random")
GPT_SIZES = ("gpt_nano", "gpt_micro", "gpt_mini", "gpt_baby", "gpt2", "gpt2_medium", "gpt2_large", "gpt2_xl")
POSITIONS = ("learned", "rotary")
GELUS = ("erf", "tanh")


@dataclass(frozen=True)
class LanguageDataConfig(DataConfig):
    """What text and ready-made tokens have in common."""

    block: int = setting("tokens of a window: how many are predicted at once, and the longest context the model sees", low=1)
    order: str = setting(
        "windows: every token once an epoch, in windows whose beginnings move with the epoch; random: at random offsets, with replacement",
        choices=ORDERS,
    )


@dataclass(frozen=True)
class TextConfig(LanguageDataConfig):
    path: str | None = setting("a text file, or a folder of them; null: files of the standard library of Python")
    files: list[str] | None = setting("which files of the folder, as patterns: ['**/*.txt', '*.md'], ** being any depth; null: **/*.txt")
    sources: dict[str, list[str]] | None = setting(
        "sources by name, each the patterns of its files, as {notes: ['**/*.md']}: apart for schedule.phases to mix and for validation; a "
        "file is of the first that matches; null: none are told apart"
    )
    encoding: str = setting("how the files are encoded, as Python names it")
    separator: str | None = setting("text between two documents of a file, such as <|endoftext|>; null: a file is one document")
    tokenizer: str = setting(
        "character, byte: one token each; bpe: trained on the training text, or from `tokenizer_file`; gpt2: GPT-2's own",
        choices=TOKENIZERS,
    )
    tokenizer_file: str | None = setting(
        "tokenizer.json of a run or of the tokenizers library, or for gpt2 the folder of its vocab.json and merges.txt; null: made of the "
        "text, or fetched"
    )
    vocabulary: int | None = setting("tokens of a bpe that is trained; null otherwise", low=257)
    validation_fraction: float = setting("share held out: of the documents, by a hash of each; of a single text, its end", above=0, below=1)
    split_seed: int = setting("which of the possible splits of documents", low=0)


@dataclass(frozen=True)
class TokensConfig(LanguageDataConfig):
    path: str = setting("a folder with train.bin and val.bin, whole numbers of 16 bits without a header, and meta.pkl with the characters")
    tokenizer_file: str | None = setting(
        "GPT-2's tokenizer.json or folder, where there is no meta.pkl: for bits per byte and to write text; null: none"
    )
    vocabulary: int | None = setting("number of tokens where neither of them says it; null: GPT-2's 50257", low=2)


@dataclass(frozen=True)
class GPTConfig:
    name: str = setting("which network", choices=("gpt",))
    size: str = setting("named size: what layers, heads and width are where they are null", choices=GPT_SIZES)
    layers: int | None = setting("blocks; null: those of the size", low=1)
    heads: int | None = setting("attention heads of a block, which must divide the width; null: those of the size", low=1)
    width: int | None = setting("channels of a token; null: those of the size", low=1)
    positions: str = setting("how a token knows its place: a learned vector for each, or by turning queries and keys", choices=POSITIONS)
    rotary_base: float | None = setting(
        "largest wavelength of rotary positions over 2 pi, in tokens; null: 10000, or none if learned", above=1
    )
    bias: bool = setting("biases in linear layers and norms")
    dropout: float = setting("dropout of embeddings, attention weights and every branch of a block", low=0, below=1)
    vocabulary_multiple: int = setting("rows of the embedding are rounded up to a multiple of this; 64 makes 50257 into 50304", low=1)
    dimensions: list[str] = setting("names of adapters that phases weigh, in all blocks but the lowest quarter; []: none")
    adapter_width: int | None = setting("channels of each of them; null: an eighth of the width, rounded up", low=1)
    gelu: str = setting("GELU by the error function, or by tanh, as the published weights of GPT-2 want it", choices=GELUS)


SCHEMAS: dict[str, dict[str, type]] = {
    "data": {"text": TextConfig, "tokens": TokensConfig},
    "model": {"gpt": GPTConfig},
}
