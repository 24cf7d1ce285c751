"""Read `meta.xml`, the descriptor of a Darwin Core Archive: its files, their encoding and separators, and the terms of their columns.

Specification, with the defaults of missing attributes: http://rs.tdwg.org/dwc/text/.
"""

import posixpath
from dataclasses import dataclass
from xml.etree import ElementTree

from linnaeus.errors import ConfigError, one_line, quoted
from linnaeus.workloads.taxonomy.sources.darwin_core_archive.archive_members import DESCRIPTOR, Archive

_LARGEST = 1 << 22  # most bytes of a descriptor; real ones have 50 kB
_ESCAPES = {"\\t": "\t", "\\n": "\n", "\\r": "\r", "\\\\": "\\"}


@dataclass(frozen=True)
class DataFile:
    """Description of a table of an archive: the core (main table), or an extension, whose rows refer to rows of the core."""

    names: tuple[str, ...]  # files that contain the rows; usually one
    kind: str  # type of the rows: Occurrence, Event, Taxon, Multimedia, ...
    columns: dict[str, int]  # term (without the URL of its vocabulary) -> index of the column
    defaults: dict[str, str]  # term -> value of empty cells
    key: int | None  # index of the column with the id of the row's core record; None: no such column
    encoding: str = "UTF-8"
    delimiter: str = ","
    end: str = "\n"  # end of a line
    quote: str = '"'  # quoting character; "" for none
    header_lines: int = 0
    checked: bool = True  # True: the columns are from a descriptor, and a header in the file must agree with them

    def terms(self) -> list[str]:
        return list(dict.fromkeys([*self.columns, *self.defaults]))


def read_descriptor(archive: Archive) -> tuple[DataFile, list[DataFile]]:
    """Return the descriptions of the core table and of the extensions. Raise `ConfigError` for a descriptor that cannot be used."""
    with archive.open(DESCRIPTOR) as file, archive.reading():
        text = file.read(_LARGEST + 1)
    if len(text) > _LARGEST or b"<!DOCTYPE" in text or b"<!ENTITY" in text:
        raise _bad(f"is larger than {_LARGEST >> 20} MiB" if len(text) > _LARGEST else "has a DOCTYPE, which it must not have")
    try:
        root = ElementTree.fromstring(text.strip())
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise _bad(f"is not XML: {one_line(error)}") from error
    cores = root.findall("{*}core")
    if len(cores) != 1:
        raise _bad(f"must have one element `core`, not {len(cores)}")
    return _data_file(cores[0]), [_data_file(extension) for extension in root.findall("{*}extension")]


def _data_file(element: ElementTree.Element) -> DataFile:
    names = tuple((found.text or "").strip() for found in element.findall("{*}files/{*}location"))
    columns: dict[str, int] = {}
    defaults: dict[str, str] = {}
    for field in element.findall("{*}field"):
        term = posixpath.basename(field.get("term", "").strip().rstrip("/")).rpartition("#")[2].rpartition(":")[2]
        if not term or term in columns:
            continue
        if field.get("index") is not None:
            columns[term] = _number(field, "index")
        if field.get("default"):
            defaults[term] = field.get("default", "")
    key = element.find("{*}id") if element.tag.endswith("core") else element.find("{*}coreid")
    return DataFile(
        names=tuple(name for name in names if name),
        kind=element.get("rowType", "").strip().rpartition("/")[2].rpartition(":")[2],
        columns=columns,
        defaults=defaults,
        key=None if key is None or key.get("index") is None else _number(key, "index"),
        encoding=element.get("encoding", "").strip() or "UTF-8",
        delimiter=_separator(element, "fieldsTerminatedBy", ","),
        end=_separator(element, "linesTerminatedBy", "\n"),
        quote=_unescaped(element.get("fieldsEnclosedBy", '"')).strip(),
        header_lines=_number(element, "ignoreHeaderLines") if element.get("ignoreHeaderLines") else 0,
    )


def _number(element: ElementTree.Element, attribute: str) -> int:
    text = element.get(attribute, "").strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 6):
        raise _bad(f"has {attribute}={quoted(text)}; it must be a small number")
    return int(text)


def _separator(element: ElementTree.Element, attribute: str, default: str) -> str:
    return _unescaped(element.get(attribute, "")) or default


def _unescaped(text: str) -> str:
    for escape, character in _ESCAPES.items():
        text = text.replace(escape, character)
    return text


def _bad(problem: str) -> ConfigError:
    return ConfigError(f"data.path: the descriptor {DESCRIPTOR} {problem}; correct it, or download the archive again")
