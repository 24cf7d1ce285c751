"""Files of photographs whose identifiers are URLs: each convention, choosing between them, and the line where none is found."""

import numpy as np
import pytest

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.manifest.records import column_of
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.sources.folders.local_files import find_files

URLS = ["https://a.org/photos/1/original.jpg", "https://a.org/photos/2/original.jpg", "", "https://b.org/img/Oak%20leaf.JPG?size=l"]
IDS = ["10", "10", "11", "12"]
BY_PATH_TOO = "gbifID: 2 of 4; by the path of the URL 1"


def found(folder, urls=URLS, ids=IDS, convention=None):
    paths, note = find_files(folder, column_of(urls), {"gbifID": column_of(ids)}, convention)
    return [paths.values[code] for code in paths.codes], note


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


@pytest.mark.parametrize(
    "names, expected, words",
    [
        (["photos/1/original.jpg", "photos/2/original.jpg"], [0, 1, None, None], "the path of the URL: 2 of 4"),
        (
            ["a.org/photos/2/original.jpg", "b.org/img/Oak leaf.JPG"],
            [None, 0, None, 1],
            "the path of the URL: 2 of 4; by the last part of the path 1",
        ),
        (["original.jpg", "photos/Oak%20leaf.JPG"], [None, None, None, 1], "the last part of the path: 1 of 4"),
        (["deep/Oak leaf.png", "9.jpg"], [None, None, None, 0], "the last part of the path: 1 of 4"),
        (["x/10.jpg", "10.jpg", "12.png", "y/12.jpg"], [1, None, None, 2], "gbifID: 2 of 4"),
        (["10.jpg", "10_1.jpg", "12.png"], [0, 1, None, 2], "gbifID: 3 of 4"),
        (["10.jpg", "10_2.jpg", "12_1.jpg"], [0, 1, None, 2], "gbifID: 3 of 4"),
        (["10_0.jpg", "10_1.jpg", "11.jpg", "12_0.jpg"], [0, 1, None, 3], "gbifID: 3 of 4"),
        (
            ["x/10.jpg", "y/10.jpg", "12.jpg", "photos/1/original.jpg", "10_2.jpg"],
            [None, 4, None, 2],
            BY_PATH_TOO,
        ),
    ],
)
def test_each_convention_is_found_out_from_the_files(tmp_path, names, expected, words):
    touch(tmp_path, *names)
    paths, note = found(tmp_path)
    assert paths == ["" if i is None else names[i] for i in expected]
    assert note == f"files of photographs found by {words}"


def test_conventions_that_find_equally_many_files_need_the_key(tmp_path):
    touch(tmp_path, "2.jpg", "1.jpg")
    urls, ids = ["http://a.org/1.jpg", "http://a.org/2.jpg"], ["2", "1"]
    with pytest.raises(ConfigError, match=r"data.photo_names: the path of the URL and gbifID find 2 photographs each, .* set path or id"):
        found(tmp_path, urls, ids)
    assert found(tmp_path, urls, ids, "name")[0] == ["1.jpg", "2.jpg"]
    assert found(tmp_path, urls, ids, "id")[0] == ["2.jpg", "1.jpg"]


def test_no_file_is_one_line_with_the_names_that_were_looked_for(tmp_path):
    touch(tmp_path, "else.jpg", ".hidden/10.jpg")
    names = "'photos/1/original.jpg', 'original.jpg', '10.jpg'"
    with pytest.raises(ConfigError, match=rf"data.root: not one of 4 photographs has a file in .*; the first would be {names}; "):
        found(tmp_path)
    with pytest.raises(ConfigError, match=r"data.root: .* cannot be read: No such file"):
        found(tmp_path / "none")


def test_a_column_may_have_an_identifier_twice_among_its_values(tmp_path):
    """As the column of two tables of media, or of links in two records, that contain the same photograph."""
    touch(tmp_path, "photos/1/original.jpg", "photos/2/original.jpg")
    twice = Column(np.arange(4, dtype=np.int32), [*URLS[:2], *URLS[:2]])
    path, note = find_files(tmp_path, twice, {"gbifID": column_of(IDS)})
    assert [path.values[code] for code in path.codes] == ["photos/1/original.jpg", "photos/2/original.jpg"] * 2 and ": 4 of 4" in note


def test_a_file_of_two_photographs_is_not_used(tmp_path):
    touch(tmp_path, "img/1.jpg", "2.jpg")
    urls = ["http://a.org/img/1.jpg", "http://b.org/img/1.jpg", "http://b.org/2.jpg", "http://b.org/2.jpg", "http://[b.org/3.jpg"]
    paths, _ = found(tmp_path, urls, list("vwxyz"))
    assert paths == ["", "", "2.jpg", "2.jpg", ""]
    assert np.array_equal(found(tmp_path, urls, list("vwxyz"), "path")[0], paths)
