"""`linnaeus prepare` of sources at URLs: the same store as from a folder, retries, an account of what is missing, the same bytes after a
kill."""

import csv
import errno
import http.server
import importlib.util
import os
import pickle
import re
import shutil
import socket
import ssl
import sys
import time
import zipfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import fsspec
import numpy as np
import pytest

from linnaeus.errors import ConfigError
from linnaeus.workloads import export_cli
from linnaeus.workloads.taxonomy.doctor import doctor_cli
from linnaeus.workloads.taxonomy.images import url_files
from linnaeus.workloads.taxonomy.images.image_files import UNREACHABLE
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage
from linnaeus.workloads.taxonomy.images.url_files import UrlFiles, UrlFolder, is_url, parent_url, url_below
from linnaeus.workloads.taxonomy.sources.folders.local_files import files_in
from linnaeus.workloads.taxonomy.store import fetched_tables
from linnaeus.workloads.taxonomy.store import prepare_store as preparation
from linnaeus.workloads.taxonomy.store.store_layout import read_record, write_record
from tests import runs
from tests.workloads.taxonomy.sources import darwin_core_writer
from tests.workloads.taxonomy.sources.conftest import photograph, read_in_process, source_of, trains
from tests.workloads.taxonomy.sources.test_camtrap_dp import biota_package
from tests.workloads.taxonomy.sources.test_darwin_core import core_of, media_of
from tests.workloads.taxonomy.sources.test_inat_competition import competition_of, dump
from tests.workloads.taxonomy.sources.test_inat_open_data import not_downloaded, open_data
from tests.workloads.taxonomy.sources.test_store import files, small_parts, store_of, write_rows
from tests.workloads.taxonomy.sources.test_webdataset import sharded

__all__ = ["small_parts"]  # a fixture that is used by every test


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(url_files, "DELAYS", (0.0, 0.0, 0.0))
    monkeypatch.setattr(fetched_tables, "DELAYS", (0.0, 0.0, 0.0))


@pytest.fixture
def memory():
    """Return a function that copies a folder to memory:// and returns its URL."""
    fs = fsspec.filesystem("memory")

    def put(folder, name="data"):
        for path in folder.rglob("*"):
            if path.is_file():
                fs.pipe(f"/{name}/{path.relative_to(folder)}", path.read_bytes())
        return f"memory://{name}"

    yield put
    fs.store.clear()


def prepare(source, out, *keys):
    """Run the command. Return its exit status."""
    try:
        return preparation.main([source, str(out), "--processes=1", *keys])
    except SystemExit as error:
        return error.code


def zipped(folder, path, inside=""):
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, inside + str(file.relative_to(folder)))
    return path


def same_store(ours, theirs):
    """Check that two stores differ only in the description of the source in store.json. Return that of `ours`."""
    differ = {name for name, content in files(ours).items() if files(theirs).get(name) != content}
    assert files(ours).keys() == files(theirs).keys() and differ == {"store.json"}
    left, right = read_record(ours), read_record(theirs)
    assert {key for key in left if left.get(key) != right.get(key)} == {"source", "fetched", "checksum"} and "fetched" not in right
    return left


@pytest.mark.parametrize("protocol", ["file", "memory", "zip"])
def test_a_manifest_at_a_url_gives_the_store_of_its_folder(protocol, records, tmp_path, memory, capsys):
    local = tmp_path / "local"
    assert prepare("manifest", local, f"data.path={records.folder / 'manifest.csv'}", "--images=original") == 0
    place = {
        "file": lambda: f"file://{records.folder}",
        "memory": lambda: memory(records.folder, "deep/data"),
        "zip": lambda: f"zip://a b::file://{zipped(records.folder, tmp_path / 'all.zip', 'a b/')}",
    }[protocol]()
    url = url_below(place, "manifest.csv")
    assert parent_url(url) == place
    assert prepare("manifest", tmp_path / "remote", f"data.path='{url}'", "--images=original") == 0
    record = same_store(tmp_path / "remote", local)
    content = (records.folder / "manifest.csv").read_bytes()
    assert record["source"] == f"data=manifest data.path={url}"
    assert [(name, entry["bytes"]) for name, entry in record["fetched"].items()] == [(url, len(content))]
    ours, theirs = store_of(tmp_path / "remote"), source_of("data=manifest", f"data.path={records.folder / 'manifest.csv'}")
    assert ours.fingerprint == theirs.fingerprint and ours.ids.tolist() == theirs.ids.tolist()
    for a, b in zip(ours.images.read(np.arange(9)), theirs.images.read(np.arange(9)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert prepare("manifest", tmp_path / "remote", f"data.path='{url}'", "--images=original") == 0
    assert "was complete before" in capsys.readouterr().out and not list(tmp_path.rglob(".tmp-*"))


def written(source, records, folder):
    """Write the records as `source` into `folder`. Return the settings, with FOLDER for the folder or its URL."""
    if source == "image_folder":
        for row in records.rows:
            (folder / row["path"]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(records.folder / row["path"], folder / row["path"])
        return ["data.path=FOLDER"]
    if source == "darwin_core":
        darwin_core_writer.write(folder / "download.zip", darwin_core_writer.archive(core_of(records), media_of(records)))
        shutil.copytree(records.folder, folder / "photos")
        return ["data.path=FOLDER/download.zip", "data.root=FOLDER/photos"]
    if source == "camtrap_dp":
        shutil.copytree(records.folder, folder, dirs_exist_ok=True)
        biota_package(records, folder)
        return ["data.path=FOLDER"]
    if source == "inat_competition":
        shutil.copytree(records.folder, folder, dirs_exist_ok=True)
        for split in ("train", "val"):
            dump(folder / f"{split}.json", competition_of(records, split))
        return ["data.path=FOLDER/train.json"]
    sharded(records, folder, "pax")
    return ["data.path=FOLDER"]


@pytest.mark.skipif(importlib.util.find_spec("aiohttp") is None, reason="https:// needs aiohttp")
def test_a_manifest_of_a_web_server_whose_answers_are_errors_at_first(records, tmp_path):
    asked = Counter()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def send_head(self):
            asked[self.command, self.path] += 1
            if asked[self.command, self.path] == 1 and not self.path.startswith("/folder%20name/manifest"):
                return self.send_error(503)
            return super().send_head()

        def log_message(self, *_):
            pass

    folder = tmp_path / "served/folder name"
    shutil.copytree(records.folder, folder)
    rows = [dict(row) for row in records.rows]
    shutil.move(folder / rows[0]["path"], folder / "1 #?%20.jpg")
    rows[0]["path"] = "1 #?%20.jpg"
    assert prepare("manifest", tmp_path / "local", f"data.path={write_rows(folder / 'manifest.csv', rows)}") == 0
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path / "served"))) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        pool.submit(server.serve_forever)
        try:
            url = f"http://127.0.0.1:{server.server_port}/folder name/manifest.csv"
            assert prepare("manifest", tmp_path / "remote", f"data.path='{url}'") == 0
            same_store(tmp_path / "remote", tmp_path / "local")
            (folder / rows[5]["path"]).unlink()
            assert prepare("manifest", tmp_path / "less", f"data.path='{url}'", "data.max_bad_fraction=0.1") == 0
        finally:
            server.shutdown()
    assert read_record(tmp_path / "less")["excluded"] == {"image file missing": 1}
    assert rows[5]["path"] in (tmp_path / "less/left_out.csv").read_text()


@pytest.mark.parametrize("source", ["image_folder", "darwin_core", "camtrap_dp", "inat_competition", "webdataset"])
def test_other_sources_at_a_url_give_the_store_of_their_folder(source, records, tmp_path, memory):
    folder = tmp_path / "source"
    folder.mkdir()
    keys = written(source, records, folder)
    assert prepare(source, tmp_path / "local", *(key.replace("FOLDER", str(folder)) for key in keys), "--short-side=16") == 0
    url = memory(folder)
    assert prepare(source, tmp_path / "remote", *(key.replace("FOLDER", url) for key in keys), "--short-side=16") == 0
    left, right = (store_of(tmp_path / name) for name in ("remote", "local"))
    assert left.fingerprint == right.fingerprint and left.ids.tolist() == right.ids.tolist() and len(left.ids) > 50
    assert files(tmp_path / "remote/parts") == files(tmp_path / "local/parts")
    assert read_record(tmp_path / "remote")["request"] == read_record(tmp_path / "local")["request"]


def test_photographs_of_the_open_data_are_read_by_url_and_their_tables_from_files(records, tmp_path, memory):
    data = open_data(records, tmp_path / "data")
    keys = (f"data.path={data.folder}", "--short-side=16")
    assert prepare("inat_open_data", tmp_path / "local", *keys) == 0
    url = memory(data.folder)
    shutil.rmtree(data.folder / "photos")
    assert prepare("inat_open_data", tmp_path / "remote", *keys, f"data.root={url}", "data.max_bad_fraction=0.5") == 0
    assert store_of(tmp_path / "remote").fingerprint == store_of(tmp_path / "local").fingerprint
    assert files(tmp_path / "remote/parts") == files(tmp_path / "local/parts")
    assert read_record(tmp_path / "remote")["excluded"] == {"image file missing": not_downloaded(data)}
    assert any("of them read by URL" in note for note in read_record(tmp_path / "remote")["notes"])


def test_photographs_are_read_by_the_links_of_an_archive(records, tmp_path):
    media = [{name: cell.replace("%20", " ") for name, cell in row.items()} for row in media_of(records, f"file://{records.folder}/")]
    members = darwin_core_writer.archive(core_of(records), media)
    archive = darwin_core_writer.write(tmp_path / "download.zip", members)
    keys = (f"data.path={archive}", f"data.root={records.folder}")
    assert prepare("darwin_core", tmp_path / "local", *keys) == 0
    assert prepare("darwin_core", tmp_path / "remote", keys[0], "data.photo_names=url") == 0
    assert files(tmp_path / "remote/parts") == files(tmp_path / "local/parts")
    assert store_of(tmp_path / "remote").ids[0].startswith("file://")


def test_names_of_photographs_may_be_urls_and_a_run_reads_them(records, tmp_path):
    rows = [dict(row, path=f"file://{records.folder / row['path']}" if i % 2 else row["path"]) for i, row in enumerate(records.rows)]
    path = write_rows(records.folder / "urls.csv", rows)
    trains(tmp_path, "data=manifest", f"data.path={path}")


def test_a_missing_photograph_is_counted_and_named(records, tmp_path, memory, capsys):
    url = memory(records.folder)
    gone = [row["path"] for row in records.rows[::40]]
    for name in gone:
        fsspec.filesystem("memory").rm(f"/data/{name}")
    assert prepare("manifest", tmp_path / "store", f"data.path={url}/manifest.csv", "data.max_bad_fraction=0.1") == 0
    assert read_record(tmp_path / "store")["excluded"] == {"image file missing": len(gone)}
    with (tmp_path / "store/left_out.csv").open(newline="") as file:
        assert sorted(row["record"] for row in csv.DictReader(file)) == sorted(gone)
    assert prepare("manifest", tmp_path / "other", f"data.path={url}/manifest.csv", "data.max_bad_fraction=0") == 2
    assert f"data.max_bad_fraction: {len(gone)} of {len(records.rows)} image files under '{url}'" in capsys.readouterr().err


class Failing:
    """`cat_file` of memory:// that fails at each first read of a file, or from the n-th read on. `reads`: number of calls."""

    def __init__(self, monkeypatch, from_read=None):
        kind = type(fsspec.filesystem("memory"))
        self.original, self.reads, self.seen = kind.cat_file, 0, set()

        def cat_file(fs, path, **keys):
            self.reads += 1
            if (from_read is None and path not in self.seen) or (from_read is not None and self.reads >= from_read):
                self.seen.add(path)
                raise TimeoutError("the server did not answer")
            return self.original(fs, path, **keys)

        monkeypatch.setattr(kind, "cat_file", cat_file)


def test_a_read_that_fails_once_is_repeated(records, tmp_path, memory, monkeypatch):
    url = memory(records.folder)
    assert prepare("manifest", tmp_path / "whole", f"data.path={url}/manifest.csv") == 0
    failing = Failing(monkeypatch)
    assert prepare("manifest", tmp_path / "store", f"data.path={url}/manifest.csv") == 0
    assert failing.reads == 2 * len(records.rows) and files(tmp_path / "store") == files(tmp_path / "whole")


def test_a_server_that_fails_stops_the_preparation_which_continues_later(records, tmp_path, memory, monkeypatch, capsys):
    url = memory(records.folder)
    assert prepare("manifest", tmp_path / "whole", f"data.path={url}/manifest.csv") == 0
    with pytest.MonkeyPatch.context() as patch:
        failing = Failing(patch, from_read=71)
        assert prepare("manifest", tmp_path / "store", f"data.path={url}/manifest.csv") == 2
        assert failing.reads == 70 + 1 + len(url_files.DELAYS)
    error = capsys.readouterr().err
    assert "the server did not answer" in error and records.rows[70]["path"] in error and "to continue" in error
    assert len(list((tmp_path / "store/parts").glob("*.npz"))) == 2  # of 30 photographs each
    assert prepare("manifest", tmp_path / "store", f"data.path={url}/manifest.csv") == 0
    assert files(tmp_path / "store") == files(tmp_path / "whole")


def test_a_preparation_from_a_url_that_was_killed_anywhere_ends_with_the_same_bytes(records, tmp_path, memory):
    url, table = f"{memory(records.folder)}/manifest.csv", (records.folder / "manifest.csv").read_bytes()
    assert prepare("manifest", tmp_path / "whole", f"data.path={url}") == 0
    whole, calls, original = files(tmp_path / "whole"), [], os.replace
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", lambda *names: calls.append(names) or original(*names))
        prepare("manifest", tmp_path / "counted", f"data.path={url}")
    fetches = [call for call, names in enumerate(calls, 1) if ".tmp-source" in str(names[1])]
    assert len(fetches) == 2 and len(calls) > 15
    for call in (*fetches, len(calls) // 2, len(calls)):
        for after in (False, True):
            out = tmp_path / f"killed{call}"
            with runs.killed(os, "replace", call, after=after):
                prepare("manifest", out, f"data.path={url}")
            kept = (out / ".tmp-source/fetched.json").exists()
            if kept:  # the table that was fetched is used, whatever has become of it
                fsspec.filesystem("memory").pipe("/data/manifest.csv", table.replace(b"species", b"sp\xe9cies"))
            assert prepare("manifest", out, f"data.path={url}") == 0
            fsspec.filesystem("memory").pipe("/data/manifest.csv", table)
            assert files(out) == whole, (call, after)
            shutil.rmtree(out)


def test_a_damaged_copy_of_a_table_is_fetched_again(records, tmp_path, memory):
    url = f"{memory(records.folder)}/manifest.csv"
    assert prepare("manifest", tmp_path / "whole", f"data.path={url}") == 0
    with runs.killed(os, "replace", 5, after=False):
        prepare("manifest", tmp_path / "store", f"data.path={url}")
    copy = tmp_path / "store/.tmp-source/path/manifest.csv"
    copy.write_bytes(copy.read_bytes()[:-9])
    assert prepare("manifest", tmp_path / "store", f"data.path={url}") == 0
    assert files(tmp_path / "store") == files(tmp_path / "whole")


FOLDER, TABLE = "user:SECRETWORD@host/set", "manifest.csv?X-Amz-Signature=SECRETTOKEN"


def signed(records, memory, table=TABLE):
    """Copy the records to memory://, with a password and a query in the URL of the table. Return this URL."""
    url = f"{memory(records.folder, FOLDER)}/{table}"
    fsspec.filesystem("memory").pipe(f"/{FOLDER}/{table}", (records.folder / "manifest.csv").read_bytes())
    return url


def with_secrets(folder):
    """Return the names of the files below a folder that contain a password or a token."""
    return [name for name, content in files(folder).items() if b"SECRET" in content or "SECRET" in name]


@pytest.mark.slow
def test_passwords_and_tokens_of_a_url_are_not_recorded(records, tmp_path, memory):
    url = signed(records, memory)
    with runs.killed(os, "replace", 5):
        prepare("manifest", tmp_path / "store", f"data.path='{url}'")
    assert "SECRET" in url and (tmp_path / "store/.tmp-source/fetched.json").exists() and with_secrets(tmp_path / "store") == []
    assert prepare("manifest", tmp_path / "store", f"data.path='{url}'") == 0
    record = read_record(tmp_path / "store")
    assert record["source"] == "data=manifest data.path=memory://host/set/manifest.csv"
    assert list(record["fetched"]) == ["memory://host/set/manifest.csv"]
    trains(tmp_path / "runs", "data=store", f"data.path={tmp_path / 'store'}")
    (run,) = [path.parent for path in (tmp_path / "runs").rglob("dataset.json")]
    assert export_cli.main([str(run), str(tmp_path / "bundle")]) == 0
    assert "memory://host/set/manifest.csv" in (tmp_path / "bundle/README.md").read_text() and with_secrets(tmp_path) == []


def test_an_old_store_with_a_token_does_not_pass_it_on(records, tmp_path):
    assert prepare("manifest", tmp_path / "store", f"data.path={records.folder / 'manifest.csv'}") == 0
    note = "data=manifest data.path=https://user:SECRETWORD@host/a.csv?name=a b&sig=SECRETTOKEN"
    record = read_record(tmp_path / "store")
    notes = [*record["notes"], "photographs such as https://host/1.jpg?SECRETTOKEN have copies"]
    write_record(tmp_path / "store", record | {"source": note, "notes": notes})
    found = store_of(tmp_path / "store").notes
    assert found[0].endswith("from data=manifest data.path=https://host/a.csv")
    assert "photographs such as https://host/1.jpg have copies" in found and not [line for line in found if "SECRET" in line]


def test_a_preparation_continues_with_another_signature(records, tmp_path, memory, capsys):
    assert prepare("manifest", tmp_path / "whole", f"data.path='{signed(records, memory)}'") == 0
    later = signed(records, memory, TABLE + "2")
    with runs.killed(preparation, "finish", 1):
        prepare("manifest", tmp_path / "store", f"data.path='{signed(records, memory)}'")
    fsspec.filesystem("memory").rm(f"/{FOLDER}/{TABLE}")
    assert prepare("manifest", tmp_path / "store", f"data.path='{later}'") == 0
    assert files(tmp_path / "store") == files(tmp_path / "whole")
    with runs.killed(preparation, "finish", 1):
        prepare("manifest", tmp_path / "other", f"data.path='{later}'")
    table = (records.folder / "manifest.csv").read_bytes().splitlines(keepends=True)
    fsspec.filesystem("memory").pipe(f"/{FOLDER}/{TABLE}3", b"".join(table[:-1]))
    capsys.readouterr()
    assert prepare("manifest", tmp_path / "other", f"data.path='memory://{FOLDER}/{TABLE}3'") == 2
    assert "was begun with another records" in (error := capsys.readouterr().err) and "SECRET" not in error


def test_files_whose_urls_differ_in_the_query_are_recorded_apart(tmp_path, memory):
    for number in (1, 2, 3):
        fsspec.filesystem("memory").pipe(f"/data/get.csv?id={number}", b"x" * min(number, 2))
    copies = fetched_tables._Copies(tmp_path)
    for number, key in enumerate(("path", "taxonomy", "split_file"), 1):
        copies.file(f"memory://data/get.csv?id={number}", key)
    assert {name: one["bytes"] for name, one in copies.record.items()} == {"memory://data/get.csv": 1, "memory://data/get.csv (2)": 2}


@pytest.mark.parametrize(
    "url", ["memory://user:SECRET@absent/a.csv?SECRET", "zip://a.csv::file:///absent.zip?SECRET", "nowhere://u:SECRET@a/b.csv"]
)
def test_errors_show_urls_without_secrets(url, tmp_path, memory, capsys):
    assert prepare("manifest", tmp_path / "store", f"data.path='{url}'") == 2
    error = capsys.readouterr().err
    assert "data.path" in error and error.count("\n") == 1 and "SECRET" not in error


def test_a_table_that_arrives_cut_is_fetched_again(records, tmp_path, memory, monkeypatch, capsys):
    url, kind = f"{memory(records.folder)}/manifest.csv", type(fsspec.filesystem("memory"))
    original, count = kind.get_file, []

    def cut(fs, path, local, **keys):
        original(fs, path, local, **keys)
        count.append(path)
        if len(count) % 5:
            os.truncate(local, os.path.getsize(local) - 7)

    monkeypatch.setattr(kind, "get_file", cut)
    assert prepare("manifest", tmp_path / "store", f"data.path={url}") == 2  # four attempts
    assert "cannot be fetched" in (error := capsys.readouterr().err) and "bytes were received" in error and error.count("\n") == 1
    assert prepare("manifest", tmp_path / "store", f"data.path={url}") == 0 and len(count) == 5


@pytest.mark.parametrize("name", ["{tmp}/mine.csv", "../mine.csv", "a/../../../mine.csv", "a//mine.csv"])
def test_a_name_that_leads_out_of_the_folder_is_refused(name, tmp_path, monkeypatch, capsys):
    """A server or an archive lists the names: `/home/me/table.csv` must not be written."""
    (tmp_path / "mine.csv").write_text("mine")
    name = name.format(tmp=tmp_path)
    fs = fsspec.filesystem("memory")
    fs.pipe("/evil/good.csv", b"path,species\n")
    monkeypatch.setattr(UrlFolder, "names", lambda folder: ["good.csv", name])
    monkeypatch.setattr(UrlFolder, "place", lambda folder, name: (fs, "/evil/good.csv"))
    try:
        assert prepare("camtrap_dp", tmp_path / "store", "data.path=memory://evil") == 2
    finally:
        fs.store.clear()
    error = capsys.readouterr().err
    assert "which is not the name of a file below it" in error and error.count("\n") == 1
    assert (tmp_path / "mine.csv").read_text() == "mine" and not list((tmp_path / "store").rglob("*.csv"))


def test_a_folder_with_other_files_is_refused_before_anything_is_fetched(records, tmp_path, memory, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    assert prepare("manifest", tmp_path / "mine", f"data.path={memory(records.folder)}/manifest.csv") == 2
    assert "is not an empty folder" in capsys.readouterr().err and os.listdir(tmp_path / "mine") == ["notes.txt"]


@pytest.mark.parametrize(
    "source, path, message",
    [
        ("manifest", "memory://data/absent.csv", r"data.path: 'memory://data/absent.csv' cannot be fetched: No such file or directory"),
        ("manifest", "memory://absent", r"data.path: 'memory://absent' is not a folder with files; check the URL"),
        ("manifest", "memory://data/photos", r"data.path: 'memory://data/photos' has neither tables nor archives; its files are 1.png"),
        ("image_folder", "memory://absent", r"data.path: 'memory://absent' is not a folder with files; check the URL"),
        ("manifest", "nowhere://data/a.csv", r"data.path: 'nowhere://data/a.csv' cannot be opened: Protocol not known: nowhere"),
        ("manifest", "zip://a.csv::file:///absent.zip", r"data.path: .* cannot be opened: .*No such file or directory"),
        ("inat_open_data", "s3://inaturalist-open-data", r"data.path: .* Open Data are not read by URL; download the three tables"),
        *[
            ("manifest", f"{protocol}://place/a.csv", rf"'{protocol}://place/a.csv' needs a package that is not installed: .*{package}")
            for protocol, package in (("https", "aiohttp"), ("s3", "s3fs"), ("gs", "gcsfs"))
            if importlib.util.find_spec(package) is None
        ],
    ],
)
def test_a_url_that_cannot_be_read_is_one_line(source, path, message, tmp_path, memory, capsys):
    (tmp_path / "source").mkdir()
    (tmp_path / "source/1.png").write_bytes(photograph(1))
    memory(tmp_path / "source", "data/photos")
    assert prepare(source, tmp_path / "store", f"data.path='{path}'") == 2
    error = capsys.readouterr().err
    assert re.search(message, error) and error.count("\n") == 1


def test_a_run_reads_tables_from_local_files_only(records):
    with pytest.raises(ConfigError, match=r"'memory://data/a.csv' is a URL; `linnaeus prepare manifest OUT data.path=URL` reads it"):
        source_of("data=manifest", "data.path=memory://data/a.csv")


def test_the_names_below_a_url_are_in_the_order_of_a_folder(tmp_path, memory):
    for name in ("b.jpg", "a/2.jpg", "a/1 ü#%20.jpg", "a.jpg", "a-b/1.jpg", ".hidden/1.jpg", "a/.x.jpg"):
        (tmp_path / "x" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "x" / name).write_bytes(b"x")
    local = list(files_in(str(tmp_path / "x")))
    archive = zipped(tmp_path / "x", tmp_path / "x.zip", "in/")
    for url in (f"file://{tmp_path / 'x'}", memory(tmp_path / "x", "n"), f"zip://in::file://{archive}"):
        assert list(files_in(url)) == local and len(local) == 5
        assert UrlFiles(url, local).sizes().tolist() == [1] * 5


def test_errors_of_a_url_are_those_of_files(tmp_path, memory):
    (tmp_path / "x/folder").mkdir(parents=True)
    (tmp_path / "x/1.png").write_bytes(photograph(1))
    (tmp_path / "x/folder/2.png").write_bytes(b"")
    found = UrlFiles(memory(tmp_path / "x"), ["1.png", "absent.png", "folder", "folder/2.png", "", "./folder/../1.png"])
    assert found.sizes().tolist() == [len(photograph(1)), -2, -3, 0, -1, len(photograph(1))]
    with pytest.raises(OSError, match="No such file"):
        found.read(1)

    of_libraries = (RuntimeError("boom"), ssl.SSLError(1, "boom"), ssl.SSLWantReadError(2, "boom"), socket.gaierror(-2, "boom"))
    for error in of_libraries:  # their numbers are not those of the system: 1 and 2 would mean that a photograph is missing for good
        with pytest.raises(OSError, match=r"\[Errno 5\].*boom"), url_files.reading("https://x"):
            raise error
    with pytest.raises(OSError, match="boom") as ended, url_files.reading("https://u:SECRET@x/a?SECRET"):
        raise RuntimeError("boom, url='https://x/a?SECRET'")
    assert "https://x/a" in str(ended.value) and "SECRET" not in str(ended.value)
    archive = zipped(tmp_path / "x", tmp_path / "x.zip")
    damaged = bytearray(archive.read_bytes())
    damaged[damaged.index(photograph(1)) + 5] ^= 1
    archive.write_bytes(damaged)
    with pytest.raises(NotAnImage, match="damaged in the archive: Bad CRC-32"):
        UrlFiles(f"zip://::file://{archive}", ["1.png"]).read(0)


class Answer(Exception):
    """Error of aiohttp for an answer of a web server."""

    def __init__(self, status, message=""):
        self.status, self.message = status, message


class TooManyRedirects(Answer):
    """Error of aiohttp for an answer that leads to itself."""


@pytest.mark.parametrize(
    "error, number, text",
    [
        *[(Answer(status), errno.ENOENT, "No such file") for status in (404, 410)],
        *[(Answer(status), errno.EACCES, "Permission denied") for status in (400, 401, 403, 405, 451)],
        *[(Answer(status, "Busy"), errno.EIO, f"the server answered {status} Busy") for status in (408, 425, 429, 500, 503)],
        (TooManyRedirects(0), errno.ELOOP, "Too many levels"),
    ],
)
def test_answers_after_which_a_further_attempt_is_useless(error, number, text):
    with pytest.raises(OSError, match=text) as ended, url_files.reading("https://x/a.jpg"):
        raise error
    assert ended.value.errno == number and (number in url_files.FINAL) == (number != errno.EIO)


def test_a_transfer_may_take_any_time(monkeypatch):
    monkeypatch.setitem(sys.modules, "aiohttp", SimpleNamespace(ClientTimeout=dict))
    patience = {"total": None, "sock_connect": url_files.SILENCE, "sock_read": url_files.SILENCE}
    for url in ("https://host/a.zip", "zip://a.csv::https://host/a.zip", "zip://a.csv::simplecache::https://host/a.zip"):
        assert url_files._web_options(url) == {"https": {"client_kwargs": {"timeout": patience}}}
    monkeypatch.setitem(fsspec.config.conf, "http", {"client_kwargs": {"trust_env": True, "timeout": 5}})
    assert url_files._web_options("http://host/a") == {"http": {"client_kwargs": {"trust_env": True, "timeout": 5}}}
    assert url_files._web_options("memory://a") == url_files._web_options("s3://https/a") == {}


@pytest.mark.skipif(importlib.util.find_spec("aiohttp") is None, reason="https:// needs aiohttp")
def test_a_table_that_arrives_slowly_is_fetched(tmp_path, monkeypatch):
    import aiohttp

    monkeypatch.setattr("aiohttp.client.DEFAULT_TIMEOUT", aiohttp.ClientTimeout(total=0.5))  # 5 minutes

    class Slow(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "15")
            self.end_headers()
            for _ in range(3 if self.command == "GET" else 0):
                self.wfile.write(b"path\n")
                time.sleep(0.4)

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever)
        try:
            url = f"http://127.0.0.1:{server.server_port}/a.csv"
            assert fetched_tables._Copies(tmp_path).file(url, "path").read_text() == "path\n" * 3
        finally:
            server.shutdown()


def test_the_doctor_names_photographs_on_a_server_that_does_not_answer(records, tmp_path, memory, monkeypatch, capsys):
    """`linnaeus prepare` stops at each of them; the corrected manifest does not have them."""
    url, kind, asked = memory(records.folder), type(fsspec.filesystem("memory")), Counter()
    gone, answer = [row["path"] for row in records.rows[::9]], kind.info

    def info(fs, path, **keys):
        asked[path] += 1
        if path.removeprefix("/data/") in gone:
            raise TimeoutError
        return answer(fs, path, **keys)

    monkeypatch.setattr(kind, "info", info)
    given = ["manifest", f"data.path={records.folder / 'manifest.csv'}", f"data.root={url}"]
    assert prepare("manifest", tmp_path / "store", *given[1:]) == 2
    error = capsys.readouterr().err
    assert "TimeoutError" in error and "linnaeus doctor --corrected FILE leaves out such photographs" in error
    fixed = tmp_path / "fixed.csv"
    assert doctor_cli.main([*given, "--no-images", f"--out={tmp_path / 'doctor'}", f"--corrected={fixed}"]) == 0
    assert f"{fixed}: {len(gone)} rows left out" in capsys.readouterr().out
    with (tmp_path / "doctor/findings.csv").open(newline="") as file:
        named = [row["photograph"] for row in csv.DictReader(file) if row["check"] == "image file on a server that does not answer"]
    assert named == gone
    assert prepare("manifest", tmp_path / "store", f"data.path={fixed}", f"data.root={url}") == 0
    assert read_record(tmp_path / "store")["records"] == len(records.rows) - len(gone)
    asked.clear()
    monkeypatch.setattr(url_files, "GIVE_UP", 2)
    monkeypatch.setattr(url_files, "BLOCK", len(records.rows))  # one thread
    gone = [row["path"] for row in records.rows]
    found = UrlFiles(url, gone)
    assert (found.tolerant().sizes() == UNREACHABLE).all() and len(asked) == 2
    with pytest.raises(OSError, match="TimeoutError"):
        found.sizes()


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_another_process_reads_the_same(start, tmp_path):
    (tmp_path / "1.png").write_bytes(photograph(1))
    found = UrlFiles(f"zip://::file://{zipped(tmp_path, tmp_path / 'x.zip')}", ["1.png"])
    assert found.read(0) == photograph(1) == read_in_process(found, 0, start)
    assert len(pickle.dumps(found)) < 1000


def test_names_of_urls(monkeypatch):
    assert parent_url("https://host/a/b.csv") == "https://host/a" and url_below("https://host/a", "b/c.jpg") == "https://host/a/b/c.jpg"
    assert parent_url("zip://b.csv::https://host/a.zip") == "zip://::https://host/a.zip"
    assert url_below("zip://::https://host/a.zip", "b.csv") == "zip://b.csv::https://host/a.zip"
    assert parent_url("https://host/a/b.csv?key=c/d") == "https://host/a" == parent_url("https://host/a/b.csv#c/d")
    assert parent_url("s3://bucket/a?b/c.csv") == "s3://bucket/a?b"  # a letter of a key
    urls = ["https://host/a.jpg", "zip://a.jpg::https://host/a.zip", "simplecache::s3://bucket/a.jpg"]
    assert all(map(is_url, urls)) and not any(map(is_url, ["cam::b.jpg", "cam:b.jpg", "a/b.jpg", "C:\\b.jpg", "://x"]))

    class Http:
        protocol = ("http", "https")

        def find(self, root):
            return [f"{root}/a%20b/1%23.jpg"]

    folder = UrlFolder("https://host/x", "data.root")
    monkeypatch.setattr(url_files, "_open", lambda url, key: (Http(), url))
    assert folder.names() == ["a b/1#.jpg"] and folder.place("a b/1#.jpg")[1] == "https://host/x/a%20b/1%23.jpg"
