"""Read data=image_folder: photographs in folders that are named after taxa, without a table.

The folders between `data.path` and a photograph name its taxa:

    photos/Quercus robur/1.jpg                                          a species, and its genus from the name
    photos/Fagaceae/Quercus/robur/1.jpg                                 a rank per level, data.levels=[family,genus,species]
    photos/05729_Plantae_Tracheophyta_Magnoliopsida_Fagales_Fagaceae_Quercus_robur/1.jpg    a folder of iNat 2021
    photos/train/Quercus robur/1.jpg, photos/val/...                    a split

Ranks may have any name, as in `data.levels=[group,product]`.
"""

import os
import re
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np

from linnaeus.errors import ConfigError, counted, list_some, quoted
from linnaeus.workloads.taxonomy.config import ImageFolderConfig, ManifestConfig
from linnaeus.workloads.taxonomy.images.decoding import FORMATS
from linnaeus.workloads.taxonomy.images.image_files import FolderFiles
from linnaeus.workloads.taxonomy.images.url_files import is_url
from linnaeus.workloads.taxonomy.manifest.columns import plain_name
from linnaeus.workloads.taxonomy.manifest.labels.ranks import KNOWN_RANKS
from linnaeus.workloads.taxonomy.manifest.records import Choose, Records, check_rows, in_folder, local_or_url, with_values
from linnaeus.workloads.taxonomy.manifest.splitting.split import SPLIT_WORDS
from linnaeus.workloads.taxonomy.manifest.tables.cleaning import is_null
from linnaeus.workloads.taxonomy.manifest.tables.column import Column, ColumnBuilder
from linnaeus.workloads.taxonomy.manifest.tables.table import Table
from linnaeus.workloads.taxonomy.observations.left_out import LeftOut
from linnaeus.workloads.taxonomy.sources.folders.local_files import SUFFIXES, files_in

INAT_RANKS = ("kingdom", "phylum", "class", "order", "family", "genus")  # in names of iNat 2021; the species epithet follows
_INAT = re.compile(r"\d{5}_([A-Z][^_]*)_" + "_".join([r"([^_]*)"] * 5) + r"_(.+)")
_OTHER_COLUMNS = ("", "path", "split")  # names that a rank cannot have
_BINOMIAL = re.compile(r"(×?[A-Z][a-zë-]+)[ _](×?[a-zë-]+.*)")


def read_records(config: ImageFolderConfig, choose: Choose) -> Records:
    """Return the photographs of a folder, in the order of their paths.

    Raise ConfigError if the folder does not exist, has no photographs, or has folders of another depth than data.levels."""
    root = local_or_url(config.path)
    if not is_url(root) and not os.path.isdir(root):
        raise ConfigError(f"data.path: {quoted(str(root), 200)} is not a folder; set the folder that contains a folder per taxon")
    path, folder, others = _photographs(str(root))
    if not len(path.codes):
        formats = ", ".join(FORMATS)
        raise ConfigError(f"data.path: {quoted(str(root), 200)} does not contain a photograph ({formats} by their usual suffixes)")
    folders = [tuple(value.split("/")) if value else () for value in folder.values]
    split = _splits(folders)
    taxa = [names[1:] for names in folders] if split else folders
    excluded, named = LeftOut(), np.array([bool(names) for names in taxa])
    if not named.all():
        excluded.add("photograph outside of a folder of a taxon", path.cells(~named[folder.codes]))
        rows = np.flatnonzero(named[folder.codes])
        number = (np.cumsum(named) - 1).astype(np.int32)
        path, folder = Column(path.codes[rows], path.values), Column(number[folder.codes[rows]], folder.values)
        taxa, split = [names for names in taxa if names], [word for word, names in zip(split, taxa, strict=True) if names] if split else []
    excluded.include(others)
    check_rows(len(path.codes), excluded)
    values = _ranks(taxa, config.levels)
    keys = {"rank_columns": {rank: rank for rank in values}} if not config.rank_columns else {}
    columns = {name: with_values(folder, names) for name, names in (values | ({"split": split} if split else {})).items()}
    columns = {"path": path, **columns}
    table = Table({name: columns[name] for name in choose(list(columns), **keys)}, excluded=excluded)
    records = in_folder(table, config, root)
    if is_url(root) or config.root is not None:
        return records
    return records._replace(files=lambda names: FolderFiles(root, names, listed=True))


def _photographs(root: str) -> tuple[Column, Column, LeftOut]:
    """Return the paths of the photographs and of their folders, relative to `root`, and the files that are left out, with reasons."""
    paths, folders, suffix, text = ColumnBuilder(str), ColumnBuilder(str), LeftOut(), LeftOut()
    for path in files_in(root):
        if not _is_text(path):
            text.add("file whose path is not in UTF-8", [path])
        elif not _is_photograph(path):
            suffix.add("file whose suffix is not that of a photograph", [path])
        else:
            paths.append(path)
            folders.append(path.rpartition("/")[0])
    suffix.include(text)
    return paths.column(), folders.column(), suffix


def _is_photograph(path: str) -> bool:
    return path.rpartition(".")[2].lower() in SUFFIXES


def _is_text(path: str) -> bool:
    """Return True if a path is valid UTF-8. Python represents bytes that are not UTF-8 by surrogates, which this function looks for."""
    return path.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in path)


def _splits(folders: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the split of each folder, such as "train". The split is the first part of the path.

    Return [] unless all first parts are names of splits and at least two of them differ. The folder with all of them has the split ""."""
    first = {folder[0].lower() for folder in folders if folder}
    return [folder[0] if folder else "" for folder in folders] if first <= SPLIT_WORDS and len(first) > 1 else []


def _ranks(folders: Sequence[tuple[str, ...]], levels: Sequence[str] | None) -> dict[str, list[str]]:
    """Return rank -> taxon of each folder, coarse to fine. `folders`: the parts of each path. `levels`: rank of each part (data.levels).

    With `levels` None, the name of the folder gives the ranks (`ranks_of_names`). Raise `ConfigError` if the paths do not all have one part
    per rank of `levels`, or a single part if `levels` is None, and if `levels` has a name twice or that of another column."""
    depths = sorted({len(folder) for folder in folders})
    if levels is not None:
        if len({*levels, *_OTHER_COLUMNS}) < len(levels) + len(_OTHER_COLUMNS):
            raise ConfigError(f"data.levels: {levels} must be different names of ranks, other than path and split")
        if depths != [len(levels)]:
            wrong = next(folder for folder in folders if len(folder) != len(levels))
            where = quoted("/".join(wrong), 120)
            raise ConfigError(
                f"data.levels: {len(levels)} ranks, but {where} has {counted(len(wrong), 'folder')}; name the rank of each level, and put "
                "photographs without a label at a rank into a folder `unknown`"
            )
        return {rank: [folder[i] for folder in folders] for i, rank in enumerate(levels)}
    if depths != [1]:
        shown = list_some([quoted("/".join(folder), 80) for folder in dict.fromkeys(folders)], 3)
        raise ConfigError(f"data.levels: the folders {shown} have {' or '.join(map(str, depths))} levels; set the rank of each level")
    return ranks_of_names([folder[0] for folder in folders])


def ranks_of_names(names: Sequence[str]) -> dict[str, list[str]]:
    """Return rank -> taxon for each name, coarse to fine. A null name, such as "" or "unknown", is "" at every rank.

    If all other names have the form of iNat 2021, they give all ranks; if all are binomials, genus and species; otherwise the name is the
    species."""
    names = [unicodedata.normalize("NFC", name) for name in names]  # a Mac writes letters and their accents apart
    known = {name for name in names if not is_null(name.replace("_", " "))}
    inat = {name: match for name in known if (match := _INAT.fullmatch(name))}
    if known and len(inat) == len(known):
        lineages = {name: match.groups() for name, match in inat.items()}
        columns = {rank: [lineages[name][i] if name in inat else "" for name in names] for i, rank in enumerate(INAT_RANKS)}
        species = {name: f"{lineage[5]} {lineage[6].replace('_', ' ')}" for name, lineage in lineages.items()}
        return columns | {"species": [species.get(name, "") for name in names]}
    binomial = {name: match[1] for name in known if (match := _BINOMIAL.fullmatch(name))}
    species_names = [name.replace("_", " ") if name in known else "" for name in names]
    if known and len(binomial) == len(known):
        return {"genus": [binomial.get(name, "") for name in names], "species": species_names}
    return {"species": species_names}


def split_words(names: Sequence[str]) -> list[str]:
    """Return the split with which each name begins, such as "train" for train-0000.tar. Return [] if a name has no split or all names have
    the same split."""
    words = _first_words(names)
    return words if set(words) <= SPLIT_WORDS and len(set(words)) > 1 else []


def split_notes(names: Sequence[str]) -> list[str]:
    """Return a line for the user if some names begin with a split and others do not, so that `split_words` returns []; otherwise []."""
    words = _first_words(names)
    if not set(words) & SPLIT_WORDS or set(words) <= SPLIT_WORDS:
        return []
    other = names[next(i for i, word in enumerate(words) if word not in SPLIT_WORDS)]
    splits = ", ".join(sorted(set(words) & SPLIT_WORDS))
    return [f"names of files are not the split: some begin with {splits}, {quoted(other, 60)} does not"]


def _first_words(names: Sequence[str]) -> list[str]:
    return [re.split(r"[-_.\d]", name, maxsplit=1)[0].lower() for name in names]


def label_ranks(names: Sequence[str], labels: Sequence[str], column: Callable[[str], Column], config: ManifestConfig) -> dict[str, Column]:
    """Return rank -> column of labels, computed by `ranks_of_names` from one column: the first of `labels` that is in `names`.

    Return {} if rank columns are configured or recognised by their names, or if there is no such column. `names`: names of all columns.
    `column(name)` returns a column."""
    if config.rank_columns or config.taxonomy is not None or any(plain_name(name) in KNOWN_RANKS for name in names):
        return {}
    label = next((column(name) for name in labels if name in names), None)
    return {rank: with_values(label, taxa) for rank, taxa in ranks_of_names(label.values).items()} if label is not None else {}
