"""Texts of messages: the noun after a number has the right form, and URLs are shown without secrets."""

from __future__ import annotations

import pytest

from linnaeus.errors import counted, one_line, quoted, redacted


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "row", "1 row"),
        (0, "row", "0 rows"),
        (2000, "training row", "2,000 training rows"),
        (1, "taxon", "1 taxon"),
        (2, "taxon", "2 taxa"),
        (2, "medium", "2 media"),
        (2, "category", "2 categories"),
        (2, "day", "2 days"),
        (2, "process", "2 processes"),
    ],
)
def test_the_noun_agrees_with_the_number(number, noun, text):
    assert counted(number, noun) == text


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host/a/b.csv?X-Amz-Signature=SECRET/x", "https://host/a/b.csv"),
        ("https://user:SECRET@host:80/a@b.csv", "https://host:80/a@b.csv"),
        ("https://SECRET@host/a", "https://host/a"),
        ("https://user:SEC@RET@host/a", "https://host/a"),
        ("https://user:SEC/R?E#T@host/a?b=me@SECRET", "https://..."),
        ("zip://a b/1.csv::https://user:SECRET@host/x.zip?sig=SECRET", "zip://a b/1.csv::https://host/x.zip"),
        ("zip://a?SECRET::simplecache::https://u:SECRET@host/x.zip", "zip://a::https://host/x.zip"),
        ("zip://::https://user:SECRET@host/x", "zip://::https://host/x"),
        ("https://host/a?name=my file 'b'&sig=SECRET::x", "https://host/a"),
        ("data=manifest data.path=https://user:SECRET@host/a?b=SECRET", "data=manifest data.path=https://host/a"),
        ("https://host:8000/user@x/a.csv", "https://host:8000/user@x/a.csv"),
        ("http://[::1]:8000/a@b.csv", "http://[::1]:8000/a@b.csv"),
        ("s3://bucket/a:b@c/d.csv", "s3://bucket/a:b@c/d.csv"),
        ("zip://photos::/data/archive.zip", "zip://photos::/data/archive.zip"),
        ("photos/what?.jpg", "photos/what?.jpg"),
    ],
)
def test_a_url_is_shown_without_secrets(url, shown):
    assert redacted(url) == shown == redacted(shown)
    assert quoted(url, 200) == repr(shown)


def test_the_error_of_a_library_is_shown_without_secrets():
    error = RuntimeError("404, message='Not Found',\n url='https://u:SECRET@host/a?sig=SECRET' why?")
    assert one_line(error) == "404, message='Not Found', url='https://host/a why?"
