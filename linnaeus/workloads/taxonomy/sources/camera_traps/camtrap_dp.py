"""Read data=camtrap_dp: photographs of camera traps in a Camera Trap Data Package (Camtrap DP 1.0), a folder or a zip archive.

Specification: https://camtrap-dp.tdwg.org. The package has a table of media (photographs, videos). Each row of this table becomes a row of
the data, or is counted as left out.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from linnaeus.errors import ConfigError, counted, list_some, quoted
from linnaeus.workloads.taxonomy.config import CamtrapConfig
from linnaeus.workloads.taxonomy.manifest.columns import AUTO
from linnaeus.workloads.taxonomy.manifest.records import Choose, Records, check_rows, column_of, in_folder, local_or_url
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.manifest.tables.table import Table
from linnaeus.workloads.taxonomy.observations.left_out import LeftOut
from linnaeus.workloads.taxonomy.sources.camera_traps.camtrap_labels import Labels, label_media
from linnaeus.workloads.taxonomy.sources.camera_traps.camtrap_links import are, mapped, repeated, row_of
from linnaeus.workloads.taxonomy.sources.camera_traps.camtrap_taxa import ranks_of
from linnaeus.workloads.taxonomy.sources.camera_traps.data_package import Package, open_package
from linnaeus.workloads.taxonomy.sources.darwin_core_archive.occurrences import first_known
from linnaeus.workloads.taxonomy.sources.folders.local_files import NOT_DOWNLOADED, Found, find_files
from linnaeus.workloads.taxonomy.sources.folders.zip_files import ZipFiles

DEPLOYMENTS = ("deploymentID", "latitude", "longitude"), ("coordinateUncertainty", "locationID", "timestampIssues")
MEDIA = ("mediaID", "deploymentID", "timestamp", "filePath"), ("fileMediatype", "fileName")
OBSERVATIONS = (
    ("deploymentID", "eventStart", "eventEnd", "observationLevel", "observationType"),
    ("observationID", "mediaID", "eventID", "scientificName", "bboxX", "classificationMethod", "classificationProbability"),
)


def read_records(config: CamtrapConfig, choose: Choose) -> Records:
    """Return the photographs of a Camera Trap Data Package, in the order of its table of media.

    Raise `ConfigError` if the package cannot be read, if no photograph has a label, or for data.photo_names without URLs."""
    package = open_package(Path(config.path).expanduser())
    deployments = _deployments(package)
    media, observations = package.table("media", *MEDIA), package.table("observations", *OBSERVATIONS)
    labels = label_media(media, observations, package.descriptor.get("taxonomic"), config)
    notes = [
        f"{counted(len(media), 'medium')} of {counted(len(deployments), 'deployment')}",
        *deployments.notes,
        *media.notes,
        *observations.notes,
    ]
    for name, table in (("deployments", deployments), ("observations", observations)):
        notes += [f"{counted(count, 'row')} of {name} left out: {reason}" for reason, count in table.excluded.items()]
    rows, excluded = _usable(media, labels)
    place, inside = package.place, package.folder
    folder = local_or_url(config.root or (inside if package.archive is None else str(place.parent)))
    path = media.columns["filePath"]
    remote = any("://" in path.values[code] for code in np.unique(path.codes[rows]).tolist())
    if remote:
        found = _downloaded(media.take(rows), folder, config)
        there = np.array([value != "" for value in found.path.values], dtype=bool)[found.path.codes]
        excluded.add(NOT_DOWNLOADED, media.columns["mediaID"].cells(rows[~there]))
        notes.append(found.note)
        rows, path = rows[there], Column(found.path.codes[there], found.path.values)
    elif config.photo_names is not None:
        raise ConfigError(f"data.photo_names={config.photo_names} has no effect, because no photograph has a URL; leave it out")
    else:
        path = Column(path.codes[rows], path.values)
    columns = {"path": path, **_taxa(labels, rows), **_metadata(media.take(rows), deployments, notes)}
    columns["eventID"] = _events(observations, labels, rows)
    columns = {name: column for name, column in columns.items() if any(column.values)}
    keys = {}
    if config.group_column in (None, AUTO):
        best = "locationID" if "locationID" in columns else "deploymentID"
        notes.append(f"photographs of a camera have the same background; data.group_column={best} keeps them on one side of the split")
    if config.group_column == AUTO:
        keys["group_column"] = "eventID" if "eventID" in columns else None
    chosen = choose(list(columns), **keys)
    table = Table({name: columns[name] for name in chosen}, deployments.decimal_comma, excluded, (*notes, *labels.notes))
    if package.archive is not None and config.root is None and not remote:
        return Records(table, lambda names: ZipFiles(place, names, inside), str(place))
    return in_folder(table, config, folder)


def _downloaded(media: Table, folder: Path | str, config: CamtrapConfig) -> Found:
    """Return the local files of photographs whose filePath is a URL.

    A file is found by the URL, the mediaID, or a fileName that only one photograph has."""
    name = media.columns["fileName"]
    own = np.where(repeated(name), -1, np.arange(len(media)))
    ids = {"mediaID": media.columns["mediaID"], "fileName": mapped(name, lambda text: Path(text).stem, own)}
    return find_files(folder, media.columns["filePath"], ids, config.photo_names)


def _usable(media: Table, labels: Labels) -> tuple[np.ndarray, LeftOut]:
    """Return the row numbers of `media` that are photographs with a label, int64 [N], and the rows that are left out, with reasons.

    Raise `ConfigError` if no photograph has a label."""
    excluded, keep = LeftOut(media.excluded), np.ones(len(media), dtype=bool)
    for reason, rows in (*_unusable(media), *labels.excluded.items()):
        excluded.add(reason, media.columns["mediaID"].cells(rows & keep))
        keep &= ~rows
    check_rows(int(keep.sum()), excluded)
    return np.flatnonzero(keep), excluded


def _deployments(package: Package) -> Table:
    """Return the table of deployments (a camera at a place for some time). Raise `ConfigError` if a deploymentID occurs twice."""
    table = package.table("deployments", *DEPLOYMENTS)
    ids = table.columns["deploymentID"]
    if (again := repeated(ids)).any():
        name = ids.values[ids.codes[int(np.argmax(again))]]
        raise package.error(
            f"{counted(again.sum(), 'row')} of deployments with the deploymentID of another row, such as {quoted(name)}; remove them"
        )
    return table


def _unusable(media: Table) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (reason, bool [M]) for each reason why media are not readable photographs. The array is True for the media with this reason."""
    kind = media.columns["fileMediatype"]
    other = np.array([value != "" and not value.lower().startswith("image/") for value in kind.values], dtype=bool)[kind.codes]
    if other.any():
        yield f"medium that is not an image ({list_some([kind.values[code] for code in np.unique(kind.codes[other])], 3)})", other
    yield "medium without a filePath", are(media.columns["filePath"], "")
    yield "medium with the mediaID of another row", repeated(media.columns["mediaID"])


def _taxa(labels: Labels, rows: np.ndarray) -> dict[str, Column]:
    """Return rank -> column of labels. A column has the taxon of each of the media numbers `rows`, "" where it is not labelled at the
    rank."""
    used, codes = np.unique(labels.lineage[rows], return_inverse=True)
    lineages = [labels.lineages[i] for i in used.tolist()]
    columns = {rank: column_of([lineage.get(rank, "") for lineage in lineages]) for rank in ranks_of(lineages)}
    return {rank: Column(column.codes[codes], column.values) for rank, column in columns.items()}


def _events(observations: Table, labels: Labels, rows: np.ndarray) -> Column:
    """Return the event of each of the media numbers `rows`, "" for none.

    Photographs within the time windows of event-level observations are of one event, which is named by the eventID or observationID of its
    first observation; windows that share a photograph are one event. The event of other photographs is the eventID of their observation."""
    first = labels.event[rows]
    seen = np.where(first >= 0, first, labels.observation[rows])
    own, window = observations.columns["eventID"], observations.columns["observationID"]
    return first_known(mapped(own, str, seen), mapped(window, str, first))


def _metadata(media: Table, deployments: Table, notes: list[str]) -> dict[str, Column]:
    """Return name -> column for the columns of place, date and time of `media`. Append lines about values that are not used to `notes`."""
    row = row_of(media.columns["deploymentID"], deployments.columns["deploymentID"])
    if (row < 0).any():
        notes.append(f"{counted((row < 0).sum(), 'photograph')} with a deploymentID that is not in deployments, so without coordinates")
    issues = np.append(_true(deployments.columns["timestampIssues"]), False)[row]
    if issues.any():
        notes.append(f"{counted(issues.sum(), 'photograph')} of deployments with timestampIssues: dates and times are not used")
    time = media.columns["timestamp"]
    dated = np.where(issues, -1, np.arange(len(media)))
    place = {name: mapped(deployments.columns[name], str, row) for name in ("latitude", "longitude", "coordinateUncertainty", "locationID")}
    return {
        **place,
        "date": mapped(time, lambda text: _parts(text)[0], dated),
        "time": mapped(time, lambda text: _parts(text)[1], dated),
        "mediaID": media.columns["mediaID"],
        "deploymentID": media.columns["deploymentID"],
    }


def _parts(timestamp: str) -> tuple[str, str]:
    """Return the date and the time of a timestamp. The two are separated by T, or by a space, as programs for tables write it."""
    date, _, time = timestamp.strip().replace(" ", "T", 1).partition("T")
    return date, time


def _true(column: Column) -> np.ndarray:
    """Return bool [N]: True where a cell is "true", "1" or another spelling of true in the Table Schema specification."""
    return np.array([value in ("true", "True", "TRUE", "1") for value in column.values], dtype=bool)[column.codes]
