"""Write the formats `camtrap_dp` and `darwin_core` of `linnaeus predict`: tables in the biodiversity standards of published data.

- `camtrap_dp`: `observations.csv` of a Camera Trap Data Package 1.0.2 (https://camtrap-dp.tdwg.org), a row per photograph ("medium") or,
  with --sequence, per sequence ("event"). The manifest must be the package's table of media.
- `darwin_core`: rows of the Identification extension of Darwin Core (https://rs.gbif.org/extension/dwc/identification.xml), one per
  photograph, or per occurrence of a sequence, linked to occurrences by the column `occurrenceID` if the manifest has this column.
"""

from __future__ import annotations

import csv
import datetime
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnaeus.errors import ConfigError, counted, quoted
from linnaeus.workloads.taxonomy.trained.batches.journal import Row
from linnaeus.workloads.taxonomy.trained.predict.answered import UNCALIBRATED, Answered, answer_of, kind_of, open_text

if TYPE_CHECKING:
    from linnaeus.workloads.taxonomy.manifest.tables.table import Column
    from linnaeus.workloads.taxonomy.trained.predict.sequences import Sequences

MEDIA = ("mediaID", "deploymentID", "timestamp")  # required columns of a table of media
OBSERVATIONS = [  # in the order of the schema
    *("observationID", "deploymentID", "mediaID", "eventID", "eventStart", "eventEnd", "observationLevel", "observationType"),
    *("cameraSetupType", "scientificName", "count", "lifeStage", "sex", "behavior", "individualID", "individualPositionRadius"),
    *("individualPositionAngle", "individualSpeed", "bboxX", "bboxY", "bboxWidth", "bboxHeight", "classificationMethod"),
    *("classifiedBy", "classificationTimestamp", "classificationProbability", "observationTags", "observationComments"),
]
RANKS = ("kingdom", "phylum", "class", "order", "family", "genus")  # ranks with a column in Darwin Core
IDENTIFICATIONS = [
    *("identificationID", "occurrenceID", "associatedMedia", "taxonID", "scientificName", "taxonRank", *RANKS, "higherClassification"),
    *("verbatimIdentification", "identifiedBy", "dateIdentified", "identificationRemarks"),
]
STRANGE = "none of the taxa of the model"
NAMESPACE = uuid.UUID("0b3f9a56-2f4e-5d0c-8c53-9f2f4b9f0f7d")  # for identificationIDs


def check_media(columns: Mapping[str, Column]) -> None:
    """Raise `ConfigError` if `camtrap_dp` cannot be written from a manifest with `columns`.

    The reasons are: a column in `MEDIA` is missing or has an empty cell, a mediaID is repeated, or a time has no zone."""
    if absent := [name for name in MEDIA if name not in columns]:
        raise ConfigError(
            f"--format camtrap_dp needs the column {absent[0]}; give media.csv of the package as --manifest, or a table with its columns "
            f"{', '.join(MEDIA)}"
        )
    for name in MEDIA:
        column = columns[name]
        if empty := [row for row, code in enumerate(column.codes.tolist(), 1) if not column.values[code]]:
            raise ConfigError(f"--format camtrap_dp: {name} is empty in {counted(len(empty), 'row')}, such as row {empty[0]}; fill it in")
    ids = columns["mediaID"]
    name, rows = Counter(ids.values[code] for code in ids.codes.tolist()).most_common(1)[0]
    if rows > 1:
        raise ConfigError(f"--format camtrap_dp: mediaID {quoted(name)} is in {rows:,} rows; remove the copies")
    for value in columns["timestamp"].values:
        _with_zone(value)


def check_events(columns: Mapping[str, Column], sequences: Sequences) -> None:
    """Raise `ConfigError` if a sequence has photographs of several deployments. One observation can have only one deployment."""
    codes = columns["deploymentID"].codes
    for number, name in enumerate(sequences.names):
        own = codes[sequences.photographs(number)]
        if (own != own[0]).any():
            raise ConfigError(f"--sequence: {quoted(name)} has photographs of several deployments; choose a column of events")


def _with_zone(text: str) -> str:
    """Return a time in the form of the Camtrap DP schema: to the second, with a time zone. Raise `ConfigError` for a time without a
    zone."""
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ConfigError(f"--format camtrap_dp: timestamp {quoted(text)} must be a time with its zone, such as 2020-05-30T04:57:37+02:00")
    return time.replace(microsecond=0).isoformat().replace("+00:00", "Z")


def write_camtrap_dp(path: Path, answered: Answered) -> None:
    """Write the predictions to `path` as observations.csv.

    The observation type is "unclassified" for a photograph that could not be read, and "unknown" for a photograph without an answer."""
    _write_table(path, OBSERVATIONS, (_observation(answered, number, row) for number, row in enumerate(answered.rows)))


def _observation(answered: Answered, number: int, row: Row) -> dict[str, Any]:
    first, *_ = photographs = answered.photographs(number)
    medium, times = answered.cell("mediaID", first), [_with_zone(answered.cell("timestamp", one)) for one in photographs]
    start = {
        "observationID": f"{medium}-linnaeus-{answered.head['sha256'][:12]}",
        "deploymentID": answered.cell("deploymentID", first),
        "mediaID": medium if answered.sequences is None else "",
        "eventID": answered.cell("eventID", first) if answered.sequences is None else row["sequence"] or medium,
        "eventStart": min(times, key=datetime.datetime.fromisoformat),
        "eventEnd": max(times, key=datetime.datetime.fromisoformat),
        "observationLevel": "media" if answered.sequences is None else "event",
    }
    if "error" in row:
        return start | {"observationType": "unclassified", "observationComments": f"not read: {row['error']}"}
    machine = {"classificationMethod": "machine", "classifiedBy": answered.classifier, "classificationTimestamp": answered.started}
    if not row["calibrated"]:
        machine["observationComments"] = UNCALIBRATED
    answer = answer_of(row)
    if answer is None:
        return start | machine | {"observationType": "unknown"} | ({"observationComments": STRANGE} if row["outside"] else {})
    kind = kind_of(answered.names(answered.node(answer["rank"], answer)))
    taxon = {"scientificName": answer["name"]} if kind == "animal" else {}
    return start | machine | taxon | {"observationType": kind, "classificationProbability": answer["probability"]}


def write_darwin_core(path: Path, answered: Answered) -> None:
    """Write the predictions to `path` as Darwin Core identifications.

    For a photograph that could not be read, the taxon is empty and `identificationRemarks` has the reason."""
    found = ((number, row, one) for number, row in enumerate(answered.rows) for one in _occurrences(answered, number))
    _write_table(path, IDENTIFICATIONS, (_identification(answered, *each) for each in found))


def _occurrences(answered: Answered, number: int) -> list[str]:
    """Return the distinct occurrenceIDs of the photographs of row `number`; [""] if they have none."""
    ids = dict.fromkeys(answered.cell("occurrenceID", one) for one in answered.photographs(number))
    return [one for one in ids if one] or [""]


def _identification(answered: Answered, number: int, row: Row, occurrence: str) -> dict[str, Any]:
    photograph = row["photograph"].encode("utf-8", "backslashreplace").decode()
    identity = "\0".join([answered.head["sha256"], answered.started, str(number), photograph, occurrence])
    start = {
        "identificationID": f"urn:uuid:{uuid.uuid5(NAMESPACE, identity)}",
        "occurrenceID": occurrence,
        "associatedMedia": " | ".join(row.get("photographs", [row["photograph"]])),
    }
    if "error" in row:
        return start | {"identificationRemarks": f"not read: {row['error']}"}
    machine = {"identifiedBy": answered.classifier, "dateIdentified": answered.started}
    used = f"; used {', '.join(row['metadata'])}" if row["metadata"] else ""
    used += "" if row["calibrated"] else f"; {UNCALIBRATED}"
    answer = answer_of(row)
    if answer is None:
        return start | machine | {"identificationRemarks": f"machine identification; {STRANGE if row['outside'] else 'no taxon'}{used}"}
    names = answered.names(answered.node(answer["rank"], answer))
    taxon = {rank: names[rank] for rank in RANKS if rank in names} | {
        "taxonID": answer.get("key", ""),
        "scientificName": answer["name"],
        "taxonRank": answer["rank"],
        "higherClassification": " | ".join([*names.values()][:-1]),
        "verbatimIdentification": answer["lineage"],
    }
    return start | machine | taxon | {"identificationRemarks": f"machine identification; probability {answer['probability']!r}{used}"}


def _write_table(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    with open_text(path) as file:
        table = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
