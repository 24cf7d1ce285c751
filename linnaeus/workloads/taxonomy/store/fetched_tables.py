"""Fetch the tables and archives of a source that is a URL, before a store is prepared from it: `fetched`.

    data.path=s3://bucket/photos/manifest.csv     the table; its photographs are read by URL, relative to its folder
    data.path=https://host/download.zip           the archive
    data.path=s3://bucket/package                 all tables and archives below the folder, such as datapackage.json and media.csv

The files are written to `OUT/.tmp-source`, and their sizes and checksums to `fetched.json` in it. A preparation that continues checks these
files and uses them, so that it ends with the same bytes even if the tables at the URL have changed meanwhile. With another URL, such as one
with a new signature, it fetches them again, and continues if they are the same. The folder is deleted when the store is complete;
store.json keeps the sizes and checksums. A URL may contain secrets: fetched.json has a hash of it in its place, and store.json has it
`redacted`.
"""

import hashlib
import itertools
import os
import posixpath
from dataclasses import replace
from pathlib import Path
from typing import Any

from linnaeus.errors import ConfigError, list_some, quoted, redacted, shorten
from linnaeus.files import file_digest, read_json, sync_file, to_json, to_utf8, write_atomic
from linnaeus.reporting.terminal.preparation_progress import PreparationProgress
from linnaeus.workloads.taxonomy.config import CamtrapConfig, InatOpenDataConfig, ManifestConfig
from linnaeus.workloads.taxonomy.images.image_files import retry
from linnaeus.workloads.taxonomy.images.url_files import DELAYS, FINAL, UrlFolder, is_url, parent_url, reading, url_below
from linnaeus.workloads.taxonomy.store.store_layout import FETCHED

RECORD = "fetched.json"
KEYS = ("path", "taxonomy", "images", "split_file")  # of the configuration; the value of each is a file, or for `path` also a folder
ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz")
SUFFIXES = (".csv", ".tsv", ".txt", ".json", ".xml", ".parquet", ".pq", ".arrow", ".h5", ".hdf5", *ARCHIVES)  # of the files to fetch
WITH_OTHERS = ("camtrap_dp", "darwin_core", "inat_competition")  # sources that read other tables beside a table that is data.path

Fetched = dict[str, dict[str, Any]]  # redacted URL -> bytes and SHA-256 of the file


def fetched(config: ManifestConfig, store: Path) -> tuple[ManifestConfig, Fetched]:
    """Return the configuration with local files in place of the URLs of tables and archives, and the sizes and checksums of the files.

    Raise `ConfigError` for a source that cannot be read by URL, and for a file that cannot be fetched."""
    urls = {key: str(url) for key in KEYS if is_url(url := getattr(config, key, None))}
    if isinstance(config, InatOpenDataConfig) and "path" in urls:
        raise ConfigError("data.path: the tables of the iNaturalist Open Data are not read by URL; download the three tables")
    copies = _Copies(store / FETCHED)
    path = None if config.name == "image_folder" else urls.pop("path", None)  # a folder of photographs has no tables
    if path is not None:
        name = _file_name(path)
        if name and not (config.name in WITH_OTHERS and not name.endswith(ARCHIVES)):
            local = copies.file(path, "path")
        else:
            local = copies.folder(parent_url(path) if name else path) / name
        inside = isinstance(config, CamtrapConfig) and name.endswith(ARCHIVES)  # a packed package contains its photographs
        root = config.root if config.root is not None or inside else parent_url(path) if name else path
        config = replace(config, path=str(local), root=root)
    others: dict[str, Any] = {key: str(copies.file(url, key)) for key, url in urls.items() if key != "path"}
    return replace(config, **others), copies.record


def _file_name(url: str) -> str:
    """Return the name of the file at a URL, "" if its suffix is not one of a table or an archive, so that the URL is a folder."""
    name = posixpath.basename(url.partition("::")[0].partition("://")[2].partition("?")[0])
    return name if name.lower().endswith(SUFFIXES) else ""


def _stays_inside(name: str) -> bool:
    """Return True if a name that a server or an archive lists is a path below the folder: not absolute, and without empty parts, `.` and
    `..`."""
    return not {"", ".", ".."} & set(name.split("/")) and "\0" not in name


class _Copies:
    """Copies of files at URLs in the folder `where`. `record`: the files that were fetched for this preparation."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.record: Fetched = {}

    def file(self, url: str, key: str) -> Path:
        """Fetch a file. Return its local path."""
        fs, path = UrlFolder(url, f"data.{key}").open()
        return self._copy(fs, path, url, self.where / key / (_file_name(url) or "file"), key)

    def folder(self, url: str) -> Path:
        """Fetch all tables and archives below a folder. Return the local path. Raise `ConfigError` if there are none, or if one has a name
        that would lead out of the local folder."""
        place = UrlFolder(url, "data.path")
        names = place.names()
        tables = [name for name in names if name.lower().endswith(SUFFIXES)]
        if not tables:
            raise ConfigError(f"data.path: {quoted(url, 160)} has neither tables nor archives; its files are {list_some(names)}")
        if outside := [name for name in tables if not _stays_inside(name)]:
            raise ConfigError(f"data.path: {quoted(url, 160)} lists {list_some(outside)}, which is not the name of a file below it")
        for name in tables:
            self._copy(*place.place(name), url_below(url, name), self.where / "path" / name, "path")
        return self.where / "path"

    def _copy(self, fs: Any, path: str, url: str, local: Path, key: str) -> Path:
        """Fetch a file, unless an earlier start has done so. Return `local`."""
        hashed = hashlib.sha256(to_utf8(url)).hexdigest()[:16]
        before = (read_json(self.where / RECORD) or {}).get(hashed)
        if before is None or not local.is_file() or before != _described(local):
            local.parent.mkdir(parents=True, exist_ok=True)
            try:
                retry(lambda: _download(fs, path, local), FINAL, DELAYS)
            except OSError as error:
                raise ConfigError(f"data.{key}: {quoted(url, 200)} cannot be fetched: {error.strerror or error}") from error
            before = _described(local)
            write_atomic(self.where / RECORD, to_json((read_json(self.where / RECORD) or {}) | {hashed: before}))
        self._add(redacted(url), before)
        return local

    def _add(self, name: str, described: dict[str, Any]) -> None:
        """Record a file under its redacted URL. If that is the name of another file, whose URL differs in the query, append a number."""
        names = (f"{name} ({number})" if number > 1 else name for number in itertools.count(1))
        self.record[next(name for name in names if self.record.get(name, described) == described)] = described


def _described(path: Path) -> dict[str, Any]:
    return {"bytes": os.path.getsize(path), "sha256": file_digest(path)}


def _download(fs: Any, path: str, local: Path) -> None:
    """Fetch a file and rename it when it is complete. Raise `OSError` if it cannot be read, or has another size than the server states."""
    from fsspec.callbacks import Callback

    part = local.with_name(f"{local.name}.part-{os.uname().nodename}-{os.getpid()}")
    try:
        with reading(path):
            size = fs.info(path).get("size")
            with PreparationProgress(f"fetching {shorten(local.name, 20)}", size or 0, f"{(size or 0) / 1e6:.0f} MB") as progress:
                fs.get_file(path, str(part), callback=Callback(hooks={"": lambda size, value: progress.add(value - progress.done)}))
        if size is not None and os.path.getsize(part) != size:
            raise OSError(None, f"{os.path.getsize(part)} of {size} bytes were received", path)
        sync_file(part)
        os.replace(part, local)
    finally:
        part.unlink(missing_ok=True)
