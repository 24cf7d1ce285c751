"""Mutations of records, of files in a folder, and of zip and tar files, for `archives.py`. Each appends its name to `steps`."""

import io
import os
import random
import re
import tarfile
import zipfile
from pathlib import Path

from tests.faults.mutations import CELLS, DAMAGE

BOMB = 1 << 26  # bytes of a file that is packed into a few kilobytes
LONG_LINE = 300_000  # characters
NAMES = ("../../{}", "/{}", "a/../{}", "./{}", "a\\..\\{}", "{}/", "\x1b[31m{}", "{}\x00", "c:{}", "é{}", "{}" * 40)  # of members


def cells(rng: random.Random, rows: list[dict[str, str]], columns: tuple[str, ...], steps: list[str]) -> bool:
    """Change cells of the records. Return False if that may change the number of rows of a table with tabs and without quotes."""
    if not columns:
        return True
    row, column, kind = rng.choice(rows), rng.choice(columns), rng.choice(("cell", "cell", "column", "swap", "repeat"))
    value = rng.choice(CELLS)
    steps.append(f"{kind} {column} {value[:20]!r}")
    if kind == "swap":
        other = rng.choice(columns)
        row[column], row[other] = row[other], row[column]
        return True
    if kind == "repeat":
        rows.insert(rng.randrange(len(rows)), dict(row))
        return True
    for changed in rows if kind == "column" else [row]:
        changed[column] = value
    return not any(letter in value for letter in '\n\t"\x00') and len(value) < 100


def damage_file(rng: random.Random, folder: Path, steps: list[str]) -> bool:
    """Change a file of the folder. Return False if the number of records may change."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files:
        return False
    path = rng.choice(files)
    change = rng.choice((*BYTES, *BYTES, *TEXTS, *PLACES))
    steps.append(f"{change.__name__.strip('_')} {path.relative_to(folder)}")
    if change in PLACES:
        change(rng, path)
        return False
    path.write_bytes(change(rng, path.read_bytes() or b"x"))
    return path.suffix == ".jpg"


def _words(rng: random.Random, content: bytes) -> bytes:
    """Replace a number or a word everywhere."""
    words = sorted({match[0] for match in re.finditer(rb"[A-Za-z_]{3,}|-?\d+", content[:20_000])}) or [b"0"]
    new = rng.choice((b"", b"99999999999999999999", b"-1", b"1e999", b"null", b"[]", b"{}", b'""', b"../../x", b"\xff", b"\x00", b"true"))
    return content.replace(rng.choice(words), new)


def _lines(rng: random.Random, content: bytes) -> bytes:
    """Repeat, swap, or delete lines."""
    lines = content.split(b"\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    return b"\n".join(rng.choice(([*lines, lines[i]], [*lines[:i], lines[j], *lines[i:]], lines[:i] + lines[i + 1 :], lines * 20)))


def _columns(rng: random.Random, content: bytes) -> bytes:
    """Swap two cells of every line, or delete one."""
    mark = max((b"\t", b","), key=content.count)
    i, j = rng.randrange(9), rng.randrange(9)
    changed = []
    for line in content.split(b"\n"):
        cells = line.split(mark)
        if max(i, j) < len(cells):
            cells[i], cells[j] = cells[j], cells[i]
        changed.append(mark.join(cells[: rng.randrange(8, 20)] if j == 0 else cells))
    return b"\n".join(changed)


def _long_line(rng: random.Random, content: bytes) -> bytes:
    position = rng.randrange(len(content) + 1)
    return content[:position] + b"x" * LONG_LINE + content[position:]


def _encoding(rng: random.Random, content: bytes) -> bytes:
    """Write the text in another encoding, or with letters that are not text in it."""
    text = content.decode("utf-8", "replace")
    position = rng.randrange(len(content) + 1)
    broken = (
        content[:position]
        + rng.choice((b"\xe9", b"\xc3\x28", b"\xed\xa0\x80", b"\x00", b'"', b"'", b"\\", b"<", b"]]>"))
        + content[position:]
    )
    return rng.choice((text.encode("utf-16"), text.encode("utf-32"), text.encode("utf-7"), b"\xef\xbb\xbf" + content, broken, broken))


def _delete(rng: random.Random, path: Path) -> None:
    path.unlink()


def _rename(rng: random.Random, path: Path) -> None:
    path.rename(path.with_name(rng.choice((f"{path.stem}.txt", path.name.upper(), f"{path.name}.gz", f".{path.name}", "\x1b[31m\n é.csv"))))


def _folder(rng: random.Random, path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link(rng: random.Random, path: Path) -> None:
    path.unlink()
    path.symlink_to(rng.choice((path.name, "..", "/dev/zero", "/no/such/file")))


def _pipe(rng: random.Random, path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


BYTES = DAMAGE
TEXTS = (_words, _words, _lines, _columns, _long_line, _encoding)
PLACES = (_delete, _rename, _folder, _link, _pipe)


def pack(rng: random.Random, path: Path, members: dict[str, bytes], steps: list[str]) -> Path:
    """Write the members into a zip or a tgz, with unusual members and damage."""
    if members and rng.random() < 0.2:
        steps.append("member names")
        name = rng.choice(sorted(members))
        members[rng.choice(NAMES).format(*[name] * 40)] = members.pop(name) if rng.random() < 0.5 else b"x"
    if members and rng.random() < 0.05:
        steps.append("bomb")
        members[rng.choice((*members, "photo.jpg"))] = bytes(BOMB)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for name, content in members.items():
                file.writestr(name, content)
                if rng.random() < 0.01:
                    steps.append("member twice")
                    file.writestr(name, b"another")
    else:
        with tarfile.open(path, "w:gz") as tar:
            for name, content in members.items():
                info = tarfile.TarInfo(name.replace("\x00", ""))
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    if rng.random() < 0.25:
        steps.append("packed")
        content = path.read_bytes()
        if rng.random() < 0.5:  # in the list of members at the end
            end = max(0, len(content) - 300)
            content = content[:end] + rng.choice(BYTES)(rng, content[end:])
        else:
            content = rng.choice(BYTES)(rng, content)
        path.write_bytes(content)
    return path
