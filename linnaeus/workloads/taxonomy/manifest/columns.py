"""Find the columns of a manifest that are used: named in `data.*_column`, or, where such a key is `auto`, recognised by their names.

`NAMES` lists the names that are recognised. Columns of a metadata component are recognised only if the model reads the component.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from linnaeus.errors import ConfigError, list_some, quoted, shorten
from linnaeus.workloads.taxonomy.config import ManifestConfig
from linnaeus.workloads.taxonomy.manifest.labels.ranks import KNOWN_RANKS, check_order
from linnaeus.workloads.taxonomy.manifest.splitting.given_split import SplitFile, without_column
from linnaeus.workloads.taxonomy.manifest.tables.dates import check_format
from linnaeus.workloads.taxonomy.observations.components import column_slices

AUTO = "auto"
LONGEST_NAME = 200  # characters of the name of a column by which it is recognised
NAMES = {  # role -> names of its column, the preferred one first, in the form of `plain_name`
    "image": ("path", "imagepath", "filepath", "image", "imagefile", "filename", "file"),
    "latitude": ("decimallatitude", "latitude", "lat", "gpslatitude", "verbatimlatitude"),
    "longitude": ("decimallongitude", "longitude", "lon", "long", "lng", "gpslongitude", "verbatimlongitude"),
    "uncertainty": ("coordinateuncertaintyinmeters", "coordinateuncertainty", "positionalaccuracy", "uncertainty"),
    "date": (
        *("eventdate", "date", "observedon", "dateobserved", "observationdate", "datetime", "datetimeoriginal", "timestamp"),
        "verbatimeventdate",
    ),
    "time": ("eventtime", "time", "localtime", "timeobserved", "observationtime"),
    "elevation": (
        *("minimumelevationinmeters", "elevation", "elevationinmeters", "elev", "altitude", "altitudeinmeters", "gpsaltitude"),
        "verbatimelevation",
    ),
    "split": ("split", "datasplit", "datasetsplit"),
    "group": tuple(
        name + end for name in ("observation", "occurrence", "individual", "organism", "sequence") for end in ("", "id", "uuid")
    ),
}
COMPONENT = {"latitude": "SPATIAL", "longitude": "SPATIAL", "uncertainty": "SPATIAL"}
COMPONENT |= {"date": "TEMPORAL", "time": "TEMPORAL", "elevation": "ELEVATION"}
ROLES = ("image", "taxon", "latitude", "longitude", "uncertainty", "date", "time", "elevation", "weight", "split", "group")
_GROUPS = "observation obs occurrence individual organism specimen event parentevent sequence deployment group site location plot camera"
GROUP_NAMES = {name + end for name in (*_GROUPS.split(), "observer", "photographer", "user") for end in ("", "id", "uuid")} | {
    "recordedby",
    "rightsholder",
}
USED, NOT_USED = "columns used: ", "columns not used: "  # beginnings of notes
_AS_GROUP = " as group"  # end of the group column in the list of columns that are used
SPLIT_NAMES = ("set", "subset", "partition", "fold", "usage")  # possible names of a split column; too general to be recognised


class Columns(NamedTuple):
    """Names of the columns of a manifest that are used, and notes about them."""

    config: ManifestConfig  # the configuration with names of columns in place of `auto`; None if the manifest has no such column
    ranks: dict[str, str]  # taxonomic rank -> column, coarse to fine; empty if the labels are ids
    group_like: list[str]  # other columns whose names are those of groups; [] if the user has set a group column
    notes: list[str]  # lines for the user
    split_file: SplitFile | None = None  # content of data.split_file

    def read(self) -> list[str]:
        """Return the names of all columns to read: the ranks, the columns with a role such as "date", and columns that may be groups."""
        return [*self.ranks.values(), *roles(self.config).values(), *self.group_like]


def roles(config: ManifestConfig) -> dict[str, str]:
    """Return role (such as "image" or "date") -> name of its column, for the roles that have a column."""
    named = {role: getattr(config, f"{role}_column") for role in ROLES}
    return {role: column for role, column in named.items() if column is not None}


def find_columns(config: ManifestConfig, header: Sequence[str], labels: bool = True) -> Columns:
    """Return the columns that are used, of a manifest whose column names are `header`. `labels`: False if columns of labels are not needed.

    Raise `ConfigError` for a configured column that does not exist, for keys that do not fit together, and for a manifest without a column
    of image paths or (with `labels`) of a rank."""
    _check_label_keys(config)
    config = without_column(config, AUTO)
    chosen = config.group_column not in (None, AUTO)  # by the user
    named = {f"data.{role}_column": column for role, column in roles(config).items() if column != AUTO or role not in NAMES}
    named |= {f"data.rank_columns.{rank}": column for rank, column in config.rank_columns.items()}
    for key, column in named.items():
        _check_exists(key, column, header)
    ranks = _find_ranks(config, header) if labels else {}
    by_name = {plain_name(name): name for name in reversed(header)}  # of several columns of one name, the first
    found = {role: next((by_name[name] for name in names if name in by_name), None) for role, names in NAMES.items()}
    found = {role: column for role, column in found.items() if getattr(config, f"{role}_column") == AUTO}
    needed = {None, *config.components}
    unread = {column: COMPONENT[role] for role, column in found.items() if column and COMPONENT.get(role) not in needed}
    unread = {column: component for column, component in unread.items() if not (config.split_dates and column == found.get("date"))}
    found = {role: None if column in unread else column for role, column in found.items()}
    if "image" in found and found["image"] is None:
        raise ConfigError(f"data.image_column: no column is named path; set the column of image paths from {list_some(header)}")
    _drop_halves(config, found)
    columns: dict[str, Any] = {f"{role}_column": column for role, column in found.items()}
    config = replace(config, **columns)
    _check_metadata_keys(config)
    used = {*ranks.values(), *roles(config).values()}
    unused = [name for name in header if name and name not in used]
    group_like = [] if chosen else [name for name in unused if plain_name(name) in GROUP_NAMES]
    return Columns(config, ranks, list(dict.fromkeys(group_like)), _notes(config, ranks, unused, unread))


def plain_name(name: str) -> str:
    """Return the name of a column in lower case, without a prefix (`dwc:`), a unit in brackets, spaces, and punctuation. Only the first
    `LONGEST_NAME` characters are used: the time of the search for brackets grows with the square of their number."""
    without_unit = re.sub(r"\(.*?\)|\[.*?\]", "", name[:LONGEST_NAME].rpartition(":")[2])
    return "".join(letter for letter in without_unit.casefold() if letter.isalnum())


def _find_ranks(config: ManifestConfig, header: Sequence[str]) -> dict[str, str]:
    """Return rank -> column, coarse to fine; {} if the labels are ids (data.taxonomy). Without data.rank_columns, columns named like known
    ranks are the rank columns.

    Raise `ConfigError` if no rank column is found, or if the name of a rank contains "|"."""
    if config.taxonomy is not None:
        return {}
    by_name = {plain_name(name): name for name in reversed(header)}  # of several columns of one name, the first
    spellings = {rank: (rank, f"taxon{rank}name") for rank in KNOWN_RANKS}  # iNaturalist: taxon_genus_name
    ranks = dict(config.rank_columns) or {r: by_name[n] for r, names in spellings.items() for n in reversed(names) if n in by_name}
    if not ranks:
        named = config.ranks if config.ranks and set(config.ranks) <= set(header) else []
        example = ", ".join(f"{name}: {name}" for name in named) or "genus: COLUMN, species: COLUMN"
        raise ConfigError(
            f"data.rank_columns: no column is named like a taxonomic rank; name the columns of the ranks, coarse to fine: "
            f"'data.rank_columns={{{example}}}'; the columns are {list_some(header)}"
        )
    if "|" in "".join(ranks):
        raise ConfigError(f"data.rank_columns: the name of a rank must not contain '|': {list(ranks)}")
    check_order(list(ranks))
    return ranks


def _drop_halves(config: ManifestConfig, found: dict[str, str | None]) -> None:
    """Set recognised columns that are useless without another column to None in `found` (role -> column).

    These are a latitude without a longitude, a longitude without a latitude, and an uncertainty without coordinates."""
    place = {role: found.get(role, getattr(config, f"{role}_column")) for role in ("latitude", "longitude")}
    if None in place.values():
        found |= {role: None for role in ("latitude", "longitude", "uncertainty") if role in found}


def _notes(config: ManifestConfig, ranks: dict[str, str], unused: Sequence[str], unread: dict[str, str]) -> list[str]:
    """Return lines of text about the columns that are used, the columns that are not used, and the columns that may be a split.

    `unread`: recognised column -> its metadata component, which the model does not read."""
    named = {"image": config.image_column, **ranks, **roles(config)}
    used = [column if column == role else f"{column} as {role}" for role, column in named.items()]
    why = {column: f" ({component} is not in data.components)" for column, component in unread.items()}
    notes = [f"{USED}{list_some(used, 40)}"]
    notes += [f"{NOT_USED}{list_some([name + why.get(name, '') for name in unused], 200)}"] if unused else []
    if config.split_column is None and not config.split_file and not config.split_dates:
        split_like = [name for name in unused if plain_name(name) in SPLIT_NAMES]
        notes += [f"{quoted(name)} may be a split, and is not used; data.split_column={name} uses it" for name in split_like]
    return notes


def with_group(notes: Sequence[str], column: str | None) -> list[str]:
    """Return notes about columns, changed so that `column` is used as the group column, in place of another. `column`: None for none.
    `notes`: notes of a prepared store (encoded images)."""
    lists = {start: _listed(notes, start) for start in (USED, NOT_USED)}
    used, unused = lists.values()
    before = [name for name in used if name.endswith(_AS_GROUP)]
    after = [] if column is None else [f"{shorten(column)}{_AS_GROUP}"]
    if before == after:
        return list(notes)
    used = [name for name in used if name not in before] + after
    unused = [name for name in unused if f"{name}{_AS_GROUP}" not in after] + [name.removesuffix(_AS_GROUP) for name in before]
    others = [note for note in notes if not note.startswith((USED, NOT_USED))]
    return [f"{start}{', '.join(names)}" for start, names in ((USED, used), (NOT_USED, unused)) if names] + others


def _listed(notes: Sequence[str], start: str) -> list[str]:
    """Return the names of columns in the note that begins with `start`; [] without such a note."""
    return next((note.removeprefix(start).split(", ") for note in notes if note.startswith(start)), [])


def _check_metadata_keys(config: ManifestConfig) -> None:
    column_slices(config.components)  # raises `ConfigError` for a name that is not a component
    if (config.latitude_column is None) != (config.longitude_column is None):
        raise ConfigError("data.latitude_column and data.longitude_column must be set together; set both or neither")
    needs = {
        "uncertainty_column": ("latitude_column", "longitude_column"),
        "keep_zero_coordinates": ("latitude_column", "longitude_column"),
        "elevation_missing": ("elevation_column",),
        "date_format": ("date_column",),
    }
    for key, others in needs.items():
        value = getattr(config, key)
        if value is not None and value is not False and getattr(config, others[0]) is None:
            raise ConfigError(f"data.{key} has no effect without {' and '.join(f'data.{other}' for other in others)}; set it too")
    if config.date_format is not None:
        check_format(config.date_format)


def _check_label_keys(config: ManifestConfig) -> None:
    if (config.taxonomy is None) != (config.taxon_column is None):
        raise ConfigError("data.taxonomy and data.taxon_column must be set together: a table of taxa, and the column with their ids")
    if config.taxonomy is not None and config.rank_columns:
        raise ConfigError("data.rank_columns and data.taxonomy both define the labels; set only one of them")


def _check_exists(key: str, column: str, header: Sequence[str]) -> None:
    """Raise `ConfigError`, with a similar name as a hint, if `column` is not in the header. `key`: configuration key of the column."""
    if column in header:
        return
    close = {name.lower(): name for name in header}.get(column.lower()) or next(iter(difflib.get_close_matches(column, header, 1)), None)
    hint = f" (did you mean {quoted(close)}?)" if close else ""
    raise ConfigError(f"{key}: the manifest does not have a column {quoted(column)}{hint}; the columns are {list_some(header)}")
