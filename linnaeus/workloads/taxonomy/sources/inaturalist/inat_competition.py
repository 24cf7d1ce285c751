"""Read data=inat_competition: the JSON files of the iNaturalist competitions of 2017 to 2021, with their unpacked photographs.

    train.json            images, annotations and categories (2017 to 2019: train2018.json); 2021: with coordinates, dates and times in UTC
    val.json              the official validation set
    test.json             or public_test.json, the test set; the test sets of the competitions have no annotations
    categories.json       2018 and 2019: the names of the taxa, which are only numbers in the other files
    train2018_locations.json, val2018_locations.json    2017 and 2018: coordinates, dates and users

All files but the first are optional. They must be in the same folder; locations may be in a subfolder. Categories of 2018 and later have
seven ranks. A category of 2017 has the name of a species, genus or subspecies, and a `supercategory`, which is read as a rank.
"""

import os
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus.errors import ConfigError, counted, list_some, quoted
from linnaeus.files import to_utf8
from linnaeus.workloads.taxonomy.config import InatCompetitionConfig
from linnaeus.workloads.taxonomy.manifest.records import Choose, Records, column_of, in_folder
from linnaeus.workloads.taxonomy.manifest.tables.column import Column, ColumnBuilder
from linnaeus.workloads.taxonomy.manifest.tables.table import Table, without_long_values
from linnaeus.workloads.taxonomy.observations.left_out import LeftOut
from linnaeus.workloads.taxonomy.sources.inaturalist.json_stream import objects

UNCERTAINTY = "coordinateUncertaintyInMeters"
IMAGE = {  # field of an image -> column
    **{"file_name": "path", "latitude": "latitude", "longitude": "longitude", "location_uncertainty": UNCERTAINTY},
    **{"date": "date", "rights_holder": "rights_holder"},
}
LOCATION = {"lat": "latitude", "lon": "longitude", "loc_uncert": UNCERTAINTY, "date": "date", "user_id": "user_id"}
RANKS = ("kingdom", "phylum", "class", "order", "family", "genus")  # fields of a category; its field `name` is the species
CATEGORY = (*RANKS, "specific_epithet", "name", "supercategory")
_TRAINING = re.compile(r"train(20\d\d)?\.json")
_TAXON = re.compile(r"((?:× )?[A-Z][\w-]+)( (?:[×x] )?[\w.-]+)?( .+)?")  # genus, epithet, rest of the name of a subspecies


def read_records(config: InatCompetitionConfig, choose: Choose) -> Records:
    """Return the photographs of the training, validation and test file, in this order.

    Raise ConfigError if the training file does not exist, a file cannot be read, or two files do not have the same categories."""
    paths = _find_files(Path(config.path).expanduser())
    photographs = _Photographs()
    for path in paths.values():
        photographs.read(path)
    photographs.rename_categories(paths["train"])
    table = photographs.table([*paths] if len(paths) > 1 else [], config, choose)
    return in_folder(table, config, paths["train"].parent)


def _find_files(path: Path) -> dict[str, Path]:
    """Return split -> file: the training file, and the validation and test files if they exist.

    The other files are in the folder of the training file and have the same name except for the word "train". `path`: the training file or
    its folder. Raise `ConfigError` if `path` does not exist."""
    path = _training_file(path) if os.path.isdir(path) else path
    if not os.path.isfile(path):
        raise ConfigError(f"data.path: {quoted(str(path), 200)} does not exist; set the training file (train2018.json) or its folder")
    found = {"train": path}
    for split, word in (("val", "val"), ("test", "test"), ("test", "public_test")) if "train" in path.name else ():
        other = path.with_name(path.name.replace("_mini", "").replace("train", word))
        if os.path.isfile(other):
            found.setdefault(split, other)
    return found


def _training_file(folder: Path) -> Path:
    """Return the training file in a folder: train.json or train20YY.json, or else a file with another name that begins with train, such as
    train_mini.json.

    Raise `ConfigError` if there is no such file or more than one."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(".json") and not name.endswith("_locations.json"))
    found = [name for name in names if _TRAINING.fullmatch(name)] or [name for name in names if name.startswith("train")]
    if len(found) != 1:
        problem = "contains several training files" if found else "does not contain a training file, such as train.json or train2018.json"
        shown = list_some([quoted(name) for name in found or names], 4) or "none; unpack the archives"
        raise ConfigError(f"data.path: {quoted(str(folder), 120)} {problem}; set one of its JSON files: {shown}")
    return folder / found[0]


class _Photographs:
    """Photographs of the files that were read so far. Columns are stored as arrays of codes, to save memory."""

    def __init__(self) -> None:
        self.cells = {column: ColumnBuilder() for column in IMAGE.values()}
        self.locations = {column: ColumnBuilder() for column in LOCATION.values()}
        self.categories: dict[int, dict[str, str]] = {}
        self.category: list[np.ndarray] = []  # per file int64 [N]: id of the category
        self.location: list[np.ndarray] = []  # per file int64 [N]: row of `locations`, -1 for none
        self.keep: list[np.ndarray] = []  # per file bool [N]
        self.excluded = LeftOut()
        self.notes: list[str] = []

    def read(self, path: Path) -> None:
        """Add the photographs of a file, with their locations if there is a file of locations.

        Raise `ConfigError` if a file cannot be read, or if its categories differ from those of an earlier file."""
        numbers = {name: array("q") for name in ("id", "image_id", "category_id")}
        for name, item in objects(path):
            if name == "images":
                numbers["id"].append(_whole(item, "id", path))
                for field, column in IMAGE.items():
                    self.cells[column].append(_cell(item.get(field)))
            elif name == "annotations":
                numbers["image_id"].append(_whole(item, "image_id", path))
                numbers["category_id"].append(_whole(item, "category_id", path))
            elif name == "categories":
                self._add_category(_whole(item, "id", path), item, path)
        ids, image, category = (np.array(values, dtype=np.int64) for values in numbers.values())
        if not len(ids):
            raise ConfigError(f"data.path: {quoted(str(path), 200)} does not contain images; set the training file of a competition")
        self.notes.append(f"{path.name}: {counted(len(ids), 'photograph')}, {counted(len(image), 'annotation')}")
        self._label(ids, _find(ids, image), category, path)
        self._locate(ids, path)

    def _label(self, ids: np.ndarray, row: np.ndarray, category: np.ndarray, path: Path) -> None:
        """Set the categories of N photographs from A annotations. `ids`: [N]. `category`: [A], id of the category.

        `row`: [A], position of the annotated photograph in `ids`, -1 for a photograph that is not in the file."""
        if orphans := int((row < 0).sum()):
            self.notes.append(f"{path.name}: {counted(orphans, 'annotation')} of photographs that are not in it")
        row, category = row[row >= 0], category[row >= 0]
        lowest, highest = np.zeros(len(ids), dtype=np.int64), np.zeros(len(ids), dtype=np.int64)
        lowest[row] = highest[row] = category
        np.minimum.at(lowest, row, category)
        np.maximum.at(highest, row, category)
        annotated = np.zeros(len(ids), dtype=bool)
        annotated[row] = True
        keep = np.ones(len(ids), dtype=bool)
        for reason, rows in (
            ("photograph with the id of an earlier one", _find(ids, ids) != np.arange(len(ids))),
            (f"photograph without an annotation in {path.name}", ~annotated),
            ("photograph with annotations of different categories", lowest != highest),
        ):
            first = len(self.cells["path"]) - len(ids)
            self.excluded.add(reason, self._paths(first + np.flatnonzero(keep & rows)))
            keep &= ~rows
        self.category.append(lowest)
        self.keep.append(keep)

    def _locate(self, ids: np.ndarray, path: Path) -> None:
        """Add the locations of the photographs `ids`, int64 [N], that the annotation file `path` lists.

        The locations for train.json are in train_locations.json, in the same folder or in a folder inside it. Without this file the
        photographs have no location."""
        name = f"{path.stem}_locations.json"
        files = [file for file in (path.with_name(name), *sorted(path.parent.glob(f"*/{name}"))) if os.path.isfile(file)]
        start, found = len(self.locations["date"]), array("q")
        for _, item in objects(files[0]) if files else ():
            found.append(_whole(item, "id", files[0]))
            for field, column in LOCATION.items():
                self.locations[column].append(_cell(item.get(field)))
        located = _find(np.array(found, dtype=np.int64), ids)
        self.location.append(np.where(located >= 0, located + start, -1))
        if files:
            self.notes.append(f"{name}: the locations of {int((located >= 0).sum()):,} of {len(ids):,} photographs")

    def _add_category(self, number: int, item: Mapping[str, Any], path: Path) -> None:
        fields = {field: _cell(item.get(field)).strip() for field in CATEGORY}
        other = self.categories.setdefault(number, fields)
        if other["name"] != fields["name"]:
            raise ConfigError(
                f"data.path: the category {number} is {quoted(fields['name'])} in {quoted(str(path), 120)} and {quoted(other['name'])} "
                "before; use the files of one competition"
            )

    def rename_categories(self, training: Path) -> None:
        """Replace the categories by the categories in categories.json, if this file exists. Raise `ConfigError` if the ids of the
        categories differ."""
        years = re.findall(r"20\d\d", training.name)
        beside = [training.with_name(f"categories{year}.json") for year in (*years, "")]
        for path in [path for path in beside if os.path.isfile(path)][:1]:
            given, self.categories = self.categories, {}
            for _, item in objects(path):
                self._add_category(_whole(item, "id", path), item, path)
            if given and self.categories.keys() != given.keys():
                raise ConfigError(
                    f"data.path: {quoted(str(path), 120)} has {len(self.categories)} categories, {training.name} has {len(given)}, and "
                    "their ids differ; use those of one competition"
                )
            self.notes.append(f"{path.name}: the names of {counted(len(self.categories), 'category')}")

    def table(self, splits: Sequence[str], config: InatCompetitionConfig, choose: Choose) -> Table:
        """Return the table of all photographs. `splits`: split of each file, or empty. Raise `ConfigError` if no photograph can be used."""
        category, keep = np.concatenate(self.category), np.concatenate(self.keep)
        category = _find(np.array([*self.categories], dtype=np.int64), category)
        unknown = np.flatnonzero(keep & (category < 0))
        self.excluded.add("photograph of a category without an entry in categories", self._paths(unknown))
        rows = np.flatnonzero(keep & (category >= 0))
        if not len(rows):
            shown = list_some([f"{reason} ({count:,})" for reason, count in self.excluded.items()])
            raise ConfigError(f"data.path: no photograph of {quoted(config.path, 120)} can be used: {shown}")
        used = np.unique(category[rows])
        place = np.zeros(len(self.categories) + 1, dtype=np.int64)  # of each category among those that are used; the last is of -1
        place[used] = np.arange(len(used))
        categories = [*self.categories.values()]
        columns = {name: cells.column() for name, cells in self.cells.items()}
        columns |= {name: _taken(cells, np.concatenate(self.location)) for name, cells in self.locations.items() if len(cells)}
        ranks = {rank: column_of(names) for rank, names in _ranks([categories[i] for i in used.tolist()]).items()}
        columns["date"] = replace(columns["date"], values=[date.replace("+00:00", "Z") for date in columns["date"].values])
        columns |= {rank: Column(column.codes[place[category]], column.values) for rank, column in ranks.items()}
        if splits:
            columns["split"] = Column(np.repeat(np.arange(len(splits), dtype=np.int32), [len(k) for k in self.keep]), list(splits))
        columns = {name: column for name, column in columns.items() if name == "path" or any(column.values)}
        if "species" in columns and all(name.isdigit() for name in columns["species"].values):
            self.notes.append("the names of the taxa are numbers; the categories.json of the competition has their names")
        keys = {"rank_columns": {rank: rank for rank in ranks if rank in columns}} if not config.rank_columns else {}
        chosen = choose(list(columns), **keys)
        table = Table({name: columns[name] for name in chosen}, excluded=self.excluded, notes=tuple(self.notes))
        return without_long_values(table.take(rows))

    def _paths(self, rows: np.ndarray) -> Iterator[str]:
        """Return the path of each photograph in `rows`, or "photograph " and its number if it has no path. `rows`: int64, numbers of the
        photographs, counted through all files."""
        if not len(rows):
            return iter(())
        paths = self.cells["path"].column()
        return (paths.values[code] or f"photograph {row + 1}" for row, code in zip(rows.tolist(), paths.codes[rows].tolist(), strict=True))


def _ranks(categories: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Return rank -> taxon of each category, coarse to fine."""
    ranks = {rank: [category[rank] for category in categories] for rank in RANKS if any(category[rank] for category in categories)}
    names = [category["name"] or f"{category['genus']} {category['specific_epithet']}".strip() for category in categories]
    if ranks:
        return ranks | {"species": names}
    supercategory = [category["supercategory"] for category in categories]
    ranks = {"supercategory": supercategory} if len(set(supercategory)) > 1 else {}
    parts = [match.groups(default="") for name in names if (match := _TAXON.fullmatch(name))]
    if len(parts) < len(names):
        return ranks | {"species": names}
    ranks |= {"genus": [genus for genus, _, _ in parts], "species": [genus + epithet if epithet else "" for genus, epithet, _ in parts]}
    below = [genus + epithet + rest if rest else "" for genus, epithet, rest in parts]
    return ranks | ({"subspecies": below} if any(below) else {})


def _find(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the first position in `ids`, [N], of each value of `wanted`, [M], as int64 [M]; -1 for a value that is not in `ids`."""
    if not len(ids):
        return np.full(len(wanted), -1)
    order = np.argsort(ids, kind="stable")
    place = order[np.minimum(np.searchsorted(ids, wanted, sorter=order), len(ids) - 1)]
    return np.where(ids[place] == wanted, place, -1)


def _taken(cells: ColumnBuilder, rows: np.ndarray) -> Column:
    """Return a column with the cells of `rows`, int64 [M]; an empty cell for -1."""
    cells.append("")
    column = cells.column()
    return Column(column.codes[rows], column.values)


def _whole(item: Mapping[str, Any], field: str, path: Path) -> int:
    """Return a field of a JSON object, which must be a whole number of at most 64 bits. Raise `ConfigError` for another value."""
    try:
        number = int(item[field])
        if -(1 << 63) <= number < 1 << 63:
            return number
    except (KeyError, TypeError, ValueError):
        pass
    raise ConfigError(
        f"data.path: {quoted(str(path), 120)} has an object whose {field} is {quoted(item.get(field))}; it must be a whole number"
    )


def _cell(value: Any) -> str:
    """Return a JSON value as the text of a cell. A lone surrogate, which is not a character, becomes an escape such as \\ud800."""
    text = "" if value is None else str(value)
    return text if text.isascii() else to_utf8(text).decode()
