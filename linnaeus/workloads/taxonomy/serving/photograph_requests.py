"""Read the requests of POST /predict: receive their bodies within limits, and parse the photograph and the fields.

For a mistake of the client, raise an `HTTPException` with a status and one line of text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from linnaeus.errors import ConfigError, list_some, one_line, quoted
from linnaeus.workloads.taxonomy.trained.classifier.place_and_time import ARGUMENTS, metadata_of

PHOTOGRAPH = "photograph"  # name of the file in a form
FIELDS = (*ARGUMENTS, "top", "clade", "checklist", "region", "heat_map", "nearest")
TRUTH = {"": False, "false": False, "true": True}
LONGEST_FIELD = 200  # bytes of a name and value
TOP, MOST_TAXA = 5, 1000  # default and largest value of `top`
MOST_NEAREST = 50  # largest value of `nearest`
DRAINED = 4  # a body of up to 4 times the limit is read to its end before 413 is sent: many clients read an answer only after sending all
CLIENT_LEFT = 499  # status in the metrics of a request whose client disconnected
RETRY = {"Retry-After": "1"}  # seconds


@dataclass(frozen=True)
class Limits:
    """Largest values that a service accepts."""

    body: int  # bytes of a request
    held: int  # bytes of all requests in memory together
    pixels: int  # pixels of a photograph
    seconds: float  # time to receive a request, and again to answer it
    queue: int  # photographs in progress at the same time


@dataclass(frozen=True)
class Question:
    """Parsed request: the photograph, place and time, and the options of the answer."""

    photograph: bytes  # the image file
    given: Mapping[str, str]  # place and time, as of `metadata_of`, already checked
    top: int = TOP  # listed taxa per rank
    nearest: int = 0  # photographs of the index
    heat_map: bool = False
    checklist: str = ""  # name of a checklist of the service, "" for none
    clade: str = ""  # "" for none
    region: str = ""  # of the table of the service, "" for none

    @property
    def restriction(self) -> tuple[str, str, str]:
        """Return the names of the checklist, the clade and the region that the request chose; "" for a choice that was not made."""
        return self.checklist, self.clade, self.region


class Bodies:
    """Receiver of request bodies. All bodies in memory together have at most `limits.held` bytes."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.held = limits, 0

    @asynccontextmanager
    async def receive(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the body of a request. The body counts towards `limits.held` until the end of the `with` block.

        Raise `HTTPException` with status 408 if receiving takes too long, 413 if the body is too large, 503 if the bodies in memory exceed
        `limits.held`, and 499 if the client disconnects."""
        own, parts, received = 0, list[bytes](), 0
        try:
            async with _time_limit(self.limits.seconds):
                self._refuse_size(_declared(request), DRAINED)
                async for chunk in request.stream():
                    received += len(chunk)
                    self._refuse_size(received, DRAINED)
                    if received > self.limits.body:
                        parts.clear()
                        continue
                    own, self.held = own + len(chunk), self.held + len(chunk)
                    if self.held > self.limits.held:
                        raise HTTPException(503, "the requests in progress fill the memory allowed for them; try again", RETRY)
                    parts.append(chunk)
            self._refuse_size(received, 1)
            yield b"".join(parts)
        except ClientDisconnect:
            raise HTTPException(CLIENT_LEFT, "the client left") from None
        finally:
            self.held -= own

    def _refuse_size(self, size: int, times: int) -> None:
        if size > times * self.limits.body:
            raise HTTPException(413, f"the request is larger than {self.limits.body:,} bytes; send a smaller photograph")


def _declared(request: Request) -> int:
    """Return the Content-Length of a request in bytes; 0 if it has none."""
    text = request.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() else 0


@asynccontextmanager
async def _time_limit(seconds: float) -> AsyncIterator[None]:
    """Raise `HTTPException` with status 408 if the block takes longer than `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise HTTPException(408, f"the request was not received within {seconds:g} s") from None


def read_question(content_type: str, query: Iterable[tuple[str, str]], body: bytes) -> Question:
    """Return the content of a request: the photograph and the checked values of the fields.

    `body`: a form with the file `photograph`, or the bytes of the photograph itself. The fields are in the form, or in `query`, the (name,
    value) pairs of the URL. Raise `HTTPException` with status 400 for a damaged form; with 422 for a missing or empty photograph, an
    unknown field, a field given twice, and an impossible value."""
    pairs = list(query)
    if content_type.partition(";")[0].strip().lower() == "multipart/form-data":
        fields, photograph = _read_form(content_type, body)
        pairs += fields
        if photograph is None:
            raise HTTPException(422, f"the form has no file {PHOTOGRAPH}; send it with -F {PHOTOGRAPH}=@photo.jpg")
    else:
        photograph = body
    if not photograph:
        raise HTTPException(422, f"the photograph is empty; send the form field {PHOTOGRAPH}, or the bytes of an image file")
    given: dict[str, str] = {}
    for name, value in pairs:
        if name not in FIELDS:
            raise HTTPException(422, f"{quoted(name)} is not a field; fields are {PHOTOGRAPH}, {', '.join(FIELDS)}")
        if name in given:
            raise HTTPException(422, f"{name} is given twice; keep one")
        given[name] = value.strip()
    wanted = {name: given.pop(name, "") for name in FIELDS if name not in ARGUMENTS}
    top, nearest = _number("top", wanted["top"], 1, MOST_TAXA) or TOP, _number("nearest", wanted["nearest"], 0, MOST_NEAREST)
    if wanted["heat_map"] not in TRUTH:
        raise HTTPException(422, f"heat_map is {quoted(wanted['heat_map'])}; it must be true or false")
    try:
        metadata_of(1, given)
    except ConfigError as error:
        raise HTTPException(422, one_line(error)) from None
    return Question(
        photograph, given, top, nearest, TRUTH[wanted["heat_map"]], *(wanted[name] for name in ("checklist", "clade", "region"))
    )


def _number(name: str, text: str, low: int, high: int) -> int:
    """Return `text`, the value of the field `name`, as a whole number; 0 if `text` is empty.

    Raise `HTTPException` with status 422 if `text` is not a whole number from `low` to `high`."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else -1
    if text and not low <= number <= high:
        raise HTTPException(422, f"{name} is {quoted(text)}; it must be from {low} to {high}")
    return number if text else 0


def _read_form(content_type: str, body: bytes) -> tuple[list[tuple[str, str]], bytes | None]:
    """Return the fields of a multipart form as (name, value) pairs, and the bytes of the photograph; None if the form has no photograph.

    Raise `HTTPException` with status 400 for a damaged form, and with 422 for too many or too long fields, and for a file other than one
    photograph."""
    from python_multipart import FormParser
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import parse_options_header

    fields: list[tuple[str, str]] = []
    photographs: list[bytes] = []
    ends: list[bool] = []

    def on_field(field: Any) -> None:
        name, value = (part or b"" for part in (field.field_name, field.value))
        if len(fields) >= 2 * len(FIELDS) or len(name) + len(value) > LONGEST_FIELD:
            raise HTTPException(422, f"the form has a field of more than {LONGEST_FIELD} bytes, or too many; send {PHOTOGRAPH} as a file")
        fields.append((name.decode(errors="replace"), value.decode(errors="replace")))

    def on_file(file: Any) -> None:
        name = (file.field_name or b"").decode(errors="replace")
        if name != PHOTOGRAPH or photographs:
            raise HTTPException(422, f"the form has the file {list_some([name])}; send one file, {PHOTOGRAPH}")
        file.file_object.seek(0)
        photographs.append(file.file_object.read())

    try:
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        in_memory = {"MAX_MEMORY_FILE_SIZE": len(body) + 1}
        parser = FormParser("multipart/form-data", on_field, on_file, lambda: ends.append(True), boundary, config=in_memory)
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise HTTPException(400, f"the multipart form cannot be read ({one_line(error)})") from None
    if not ends:
        raise HTTPException(400, "the multipart form is cut off: its last boundary is missing")
    return fields, photographs[0] if photographs else None
