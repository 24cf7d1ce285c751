"""Write the photographs of a store in blocks, the parts. Any process may write a part; its bytes are always the same.

A part has a file of photographs and a table, `NNNNN.npz`. The table is written last, so a part is complete when the table exists. A part is
written again if it is incomplete, because a process was killed, or if its bytes do not match the hashes in its table. The table also has
hashes of the original files. Those of a few are compared when a preparation continues, which shows if the source has changed but kept its
names and sizes. A photograph that cannot be decoded has size 0 and a reason in the table.
"""

import errno
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from linnaeus.errors import ConfigError, one_line, quoted
from linnaeus.files import write_atomic
from linnaeus.workloads.taxonomy.images.contents import WIDE, content_hash, wide_hash
from linnaeus.workloads.taxonomy.images.image_files import FINAL_ERRORS, ImageFiles
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage
from linnaeus.workloads.taxonomy.images.process_pool import each_in_processes
from linnaeus.workloads.taxonomy.store.encoding import Encoding
from linnaeus.workloads.taxonomy.store.store_layout import PARTS, part_path

PART = 1024  # photographs of a part; about 25 MB as JPEG, 200 MB as raw pixels at 256 x 256
TOGETHER, BUFFER = 16, 1 << 24  # most photographs and bytes that are read before they are encoded; one by one takes a tenth longer (caches)
SAMPLE = 8  # original files of a part whose hashes are compared when a preparation continues


@dataclass(frozen=True)
class Part:
    """Table of a part (a block of a store) with M photographs, at most `PART`: sizes, hashes, and reasons of those that cannot be
    decoded."""

    sizes: np.ndarray  # int64 [M]: bytes; 0 for a photograph that cannot be decoded
    shapes: np.ndarray  # int32 [M, 2]: height and width
    hashes: np.ndarray  # uint64 [M]: hashes of the stored bytes
    reasons: list[str]  # [M], "" for a photograph that is stored
    originals: np.ndarray  # uint8 [M, 16]: `wide_hash` of the original files; 0 for a file that cannot be read


@dataclass(frozen=True)
class PartWriter:
    """Writer of the parts of a store. Each part has `length` photographs; the last part may have fewer."""

    store: Path
    files: ImageFiles  # the original photographs
    encoding: Encoding
    length: int = PART
    first: int = 0  # number of the part to which the first of `files` belongs

    def one(self, part: int) -> "PartWriter":
        """Return a writer whose `files` are only the files of one part."""
        return replace(self, files=self.files.take(np.asarray(self.rows(part))), first=part)

    def count(self) -> int:
        """Return the number of parts."""
        return -(-len(self.files.names) // self.length)

    def rows(self, part: int) -> range:
        """Return the positions in `files` of the photographs of a part."""
        start = (part - self.first) * self.length
        return range(start, min(start + self.length, len(self.files.names)))

    def sample(self, part: int) -> list[int]:
        """Return up to `SAMPLE` positions in `files`. The original files of these photographs are compared when a preparation continues."""
        rows = self.rows(part)
        return [rows[i] for i in sorted({i * (len(rows) - 1) // (SAMPLE - 1) for i in range(SAMPLE)})]

    def write(self, part: int) -> int:
        """Write a part. Return the number of its photographs. Raise `OSError` for an original file that may be readable later."""
        rows = self.rows(part)
        sizes, shapes, hashes, reasons, originals = [], [], [], [], []
        path = part_path(self.store, part)
        temporary = path.with_suffix(f".tmp-{os.uname().nodename}-{os.getpid()}")
        with open(temporary, "wb", buffering=BUFFER) as file:
            for block in self._blocks(rows):
                encoded = [self._encoded(original) for original in block]
                originals += [wide_hash(original) if isinstance(original, bytes) else bytes(WIDE) for original in block]
                file.writelines(data for data, _, _ in encoded)
                sizes += [len(data) for data, _, _ in encoded]
                shapes += [shape for _, shape, _ in encoded]
                hashes += [content_hash(data) if data else 0 for data, _, _ in encoded]
                reasons += [reason for _, _, reason in encoded]
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        content = io.BytesIO()
        np.savez(
            content,
            sizes=np.array(sizes, np.int64),
            shapes=np.array(shapes, np.int32),
            hashes=np.array(hashes, np.uint64),
            reasons=np.array(reasons, dtype=str),
            originals=np.frombuffer(b"".join(originals), np.uint8).reshape(-1, WIDE),
        )
        write_atomic(path.with_suffix(".npz"), content.getvalue())
        return len(rows)

    def _blocks(self, rows: range) -> Iterator[list[bytes | str]]:
        """Yield the original files of the rows, a few at once: the bytes of each, or (a str) the reason why it can never be read."""
        block: list[bytes | str] = []
        size = 0
        for row in rows:
            try:
                original: bytes | str = self._read(row)
            except NotAnImage as error:
                original = _reason(error)
            block.append(original)
            size += len(original)
            if len(block) == TOGETHER or size > BUFFER:
                yield block
                block, size = [], 0
        if block:
            yield block

    def _encoded(self, original: bytes | str) -> tuple[bytes, tuple[int, int], str]:
        """Return the bytes to store, (height, width) and "" for an original file; b"", (0, 0) and the reason if the file cannot be decoded.

        `original`: bytes of the file, or (a str) the reason why the file cannot be read."""
        if isinstance(original, bytes):
            try:
                return *self.encoding.encode(original), ""
            except NotAnImage as error:
                original = _reason(error)
        return b"", (0, 0), original

    def is_complete(self, part: int) -> bool:
        return part_path(self.store, part).with_suffix(".npz").exists()

    def is_intact(self, part: int) -> bool:
        """Return True if the files of a complete part are unchanged, False if they are damaged and must be written again.

        Raise `ConfigError` if original files have changed since the part was written."""
        try:
            found = self.read(part)
            with open(part_path(self.store, part), "rb") as file:
                if any(content_hash(file.read(size)) != expected for size, expected in zip(found.sizes, found.hashes, strict=True) if size):
                    return False
        except (ConfigError, OSError, ValueError):
            return False
        for row in self.sample(part):
            if self._original_hash(row) != found.originals[row - self.rows(part).start].tobytes():
                raise ConfigError(
                    f"OUT: {quoted(str(self.files.names[row]))} is not the photograph that was prepared, although its name and size are "
                    f"the same: the source has changed; choose a new folder, or delete {quoted(str(self.store), 120)}"
                )
        return True

    def read(self, part: int) -> Part:
        """Return the table of a complete part. Raise `ConfigError` if the table is damaged or the file of photographs has another size."""
        path = part_path(self.store, part)
        try:
            with np.load(path.with_suffix(".npz"), allow_pickle=False) as table:
                found = Part(table["sizes"], table["shapes"], table["hashes"], table["reasons"].tolist(), table["originals"])
            if len(found.sizes) != len(self.rows(part)) or found.originals.shape != (len(found.sizes), WIDE):
                raise ValueError("the table of another part, or of an earlier program")
        except Exception as error:  # numpy raises errors of zip files, of zlib, of its headers and of Python's tokenizer
            raise ConfigError(f"OUT: {path.with_suffix('.npz')} is damaged ({one_line(error)}); repeat the command") from error
        if not path.exists() or path.stat().st_size != int(found.sizes.sum()):
            raise ConfigError(f"OUT: {path} is incomplete; repeat the command")
        return found

    def _original_hash(self, row: int) -> bytes:
        try:
            return wide_hash(self._read(row))
        except NotAnImage:
            return bytes(WIDE)

    def _read(self, row: int) -> bytes:
        try:
            return self.files.read(row)
        except OSError as error:
            if error.errno not in FINAL_ERRORS:
                raise
            raise NotAnImage(os.strerror(error.errno or errno.EIO)) from error


def _reason(error: NotAnImage) -> str:
    return (str(error) or "not an image")[:200]


def write_parts(writer: PartWriter, parts: list[int], processes: int) -> Iterator[int]:
    """Write the parts with these numbers in several processes. After each part, yield the number of its photographs.

    Parts that are incomplete after an interruption are written again by the next call."""
    (writer.store / PARTS).mkdir(parents=True, exist_ok=True)
    processes = min(processes, len(parts))
    if writer.files.keeps:
        yield from each_in_processes(writer.write, parts, processes)
    else:  # the memory of a process does not depend on the number of records
        yield from each_in_processes(_write_one, ((writer.one(part), part) for part in parts), processes)


def _write_one(item: tuple[PartWriter, int]) -> int:
    writer, part = item
    return writer.write(part)
