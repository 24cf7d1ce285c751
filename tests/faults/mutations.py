"""Mutated settings, manifests and photographs for `fuzz.py`. Each is a function of a seed and the number of the case."""

import csv
import dataclasses
import functools
import io
import random
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from tests.runs import composed

RANKS = ("family", "genus", "species")
ROWS = 60
# Values that are wrong for most keys: other types, limits, empty, unknown interpolations, other alphabets, control characters.
_WORDS = (
    "0 -1 1 2 3 1e9 -1e-9 1e308 nan inf -inf null true false '' \"''\" [] {} [null] [1,2] {a:1} [[]] {a:{b:[]}} 10% "
    "150% -5% 3epochs 0steps 1.5steps 10min adamw cosine linear none auto val/loss ${seed} ${missing} "
    "${oc.env:NO_SUCH_VARIABLE} ${ ${} a,b a=b \\\\ * ../x /dev/null /no/such/file ~ 日本語 é 99999999999999999999 0x10 "
    "1_000 .5 1e-400 on off yes No None [true,false] [10%,20%] [nan] @ # % !!python/object:x "
)
VALUES = _WORDS.split()
# fmt: off
GROUPS = (
    'model', 'optimizer', 'lr_scheduler', 'loss', 'head', 'weighting', 'data', 'augment', 'trainer', 'schedule',
    'workload', 'experiment',
)
CELLS = (
    '', ' ', 'NA', 'nan', '-', '0', '1e999', '-91', '181', '2024-13-45', '31/12/2024', "48°51'N", '\x00', '\x1b[31m',
    '日本語', "a" * 5000, '"', "'", ',', '\n', '\t', '../x.png', '/etc/passwd', 'null', 'TRUE', '😀', '\u202e',
)
# fmt: on
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")


def settings(seed: int, number: int) -> list[str]:
    """Return one to three settings: a known key, or one with a spelling mistake, with a value that is rarely right."""
    rng = random.Random(f"settings {seed} {number}")
    return [_setting(rng) for _ in range(rng.choice((1, 1, 2, 3)))]


def _setting(rng: random.Random) -> str:
    key, default = rng.choice(known_keys())
    value = rng.choice(VALUES)
    kind = rng.random()
    if kind > 0.5:
        value = _similar(rng, default)
    elif kind < 0.08:
        return f"{rng.choice(GROUPS)}={value}"
    if kind < 0.14:
        position = rng.randrange(len(key))
        key = key[:position] + rng.choice("abcxyz._") + key[position + rng.randint(0, 1) :]
    elif kind < 0.2:
        key = rng.choice(("+", "++", "~", "")) + key
    elif kind < 0.24:
        return rng.choice(
            (f"~{key}", key, f"{key}=", f"={value}", f"{key}=={value}", f"{key} = {value}", f"{key}={value}" * 50, f"{key}:{value}")
        )
    elif kind < 0.3:
        value = "".join(rng.choice("[]{},:'\"\\$=0aé ") for _ in range(rng.randint(1, 12)))
    return f"{key}={value}"


def _similar(rng: random.Random, value: object) -> object:
    """Return a value of the same type, that may be right."""
    if isinstance(value, bool):
        return str(not value).lower()
    if isinstance(value, (int, float)):
        return rng.choice((0, 1, 2, -value, 2 * value, value / 2, 1000 * value, value + 1, 0.999, 1e-12))
    if isinstance(value, str) and value[:1].isdigit():
        return rng.choice(("0%", "1%", "50%", "100%", "1steps", "2steps", "1epochs", "3epochs", "1min", "0steps"))
    return rng.choice((1, "[]", "null", "1%", "[1%]", "[1epochs,1steps]", "all", "true", 0.5, 16))


@functools.cache
def known_keys() -> list[tuple[str, object]]:
    """Return the keys of a configuration with their values, groups included."""
    found: list[tuple[str, object]] = []

    def walk(tree: object, prefix: str) -> None:
        if isinstance(tree, dict):
            for name, value in tree.items():
                found.append((f"{prefix}{name}", value))
                walk(value, f"{prefix}{name}.")

    walk(dataclasses.asdict(composed(["experiment=biota_hard"])), "")
    left_out = ("run.root", "launch", "trainer.compile")  # other places, other machines, minutes of compilation
    return [pair for pair in found if not pair[0].startswith(left_out)]


# -- manifests ---------------------------------------------------------------------------------------------------------------------


def manifest(seed: int, number: int, folder: Path) -> tuple[Path, str, int | None]:
    """Write a mutated manifest of `ROWS` photographs. Return its path, the mutations, and its number of rows, None if a mutation makes
    that ambiguous."""
    rng = random.Random(f"manifest {seed} {number}")
    (folder / "photos").mkdir()
    for i in range(6):
        Image.new("RGB", (8, 8), (40 * i, 9, 200)).save(folder / "photos" / f"{i}.png")
    table = [["path", *RANKS, "latitude", "longitude", "date", "elevation"]]
    for i in range(ROWS):
        species = i % 6
        names = [f"F{species // 4}", f"G{species // 2}", f"G{species // 2} s{species}"]
        table.append([f"photos/{i % 6}.png", *names, f"{i - 30}.5", f"{i}.25", f"2024-0{i % 9 + 1}-1{i % 9}", str(i * 7)])
    steps = [rng.choice((_cells, _cells, _columns, _rows))(rng, table) for _ in range(rng.randint(1, 3))]
    text = io.StringIO()
    line_end, delimiter = rng.choice(("\n", "\r\n")), rng.choice(",,,,;\t|")
    csv.writer(text, lineterminator=line_end, delimiter=delimiter).writerows(table)
    divided = delimiter == "\t" and any("\n" in cell or "\r" in cell for row in table for cell in row)  # tables with tabs have no quotes
    content, rows = text.getvalue().encode("utf-8", "surrogatepass"), None if divided else len(table) - 1
    if rng.random() < 0.4:
        content, step = _content(rng, content)
        return _write(folder, content), f"{[*steps, step]}", None
    return _write(folder, content), f"{steps}", rows


def _write(folder: Path, content: bytes) -> Path:
    path = folder / "manifest.csv"
    path.write_bytes(content)
    return path


def _cells(rng: random.Random, table: list[list[str]]) -> str:
    row, column, value = rng.randrange(len(table)), rng.randrange(len(table[0])), rng.choice(CELLS)
    if rng.random() < 0.5:
        for cells in table[1:]:
            if column < len(cells):
                cells[column] = value
        return f"column {column} is {value[:20]!r}"
    if column < len(table[row]):
        table[row][column] = value
    return f"cell {row}, {column} is {value[:20]!r}"


def _columns(rng: random.Random, table: list[list[str]]) -> str:
    column, name = (
        rng.randrange(len(table[0])),
        rng.choice(("split", "weight", "order", "group", "label", "", "species", "PATH", "observation_id")),
    )
    if rng.random() < 0.5:
        table[0][column] = name
        return f"column {column} is called {name!r}"
    value = rng.choice(("train", "val", "test", "", "x", "1"))
    table[0].append(name)
    for cells in table[1:]:
        cells.append(value)
    return f"a column {name!r} of {value!r}"


def _rows(rng: random.Random, table: list[list[str]]) -> str:
    row, kind = rng.randrange(1, len(table)), rng.choice(("repeat", "empty", "short", "long", "delete"))
    if kind == "repeat":
        table.insert(row, list(table[row]))
    elif kind == "delete":
        del table[row:]
    elif kind == "short":
        table[row] = table[row][: rng.randrange(1, len(table[row]))]
    elif kind == "long":
        table[row] = table[row] + ["x"]
    else:
        table[row] = [""] * len(table[row])
    return f"{kind} row {row}"


def _content(rng: random.Random, content: bytes) -> tuple[bytes, str]:
    """Return the bytes of the file with damage that csv readers differ about."""
    position = rng.randrange(len(content))
    kind = rng.choice(("quote", "two quotes", "zero", "flip", "cut", "bom", "utf-16", "latin", "empty", "long line"))
    if kind == "quote":
        content = content[:position] + b'"' + content[position:]
    elif kind == "two quotes":
        content = content[:position] + b'"' + content[position : position + 400] + b'"' + content[position + 400 :]
    elif kind == "zero":
        content = content[:position] + b"\0" + content[position:]
    elif kind == "flip":
        content = content[:position] + bytes([content[position] ^ 1 << rng.randrange(8)]) + content[position + 1 :]
    elif kind == "cut":
        content = content[:position]
    elif kind == "bom":
        content = b"\xef\xbb\xbf" + content
    elif kind == "utf-16":
        content = content.decode("utf-8", "replace").encode("utf-16")
    elif kind == "latin":
        content = content[:position] + b"\xe9" + content[position:]
    elif kind == "empty":
        content = content[: rng.choice((0, 1, content.index(b"\n") + 1))]
    else:
        content = content[:position] + b"x" * 300_000 + content[position:]
    return content, f"{kind} at byte {position}"


# -- photographs -------------------------------------------------------------------------------------------------------------------


def photographs(seed: int, count: int, folder: Path) -> tuple[Path, set[str]]:
    """Write `count` mutated photographs of every format, four intact ones of each of six species, and a manifest. Return its path and the
    names of the files that Pillow does not decode completely."""
    rng = random.Random(f"photographs {seed}")
    (folder / "photos").mkdir()
    rows, refused = [["path", *RANKS, "split"]], set[str]()
    for i in range(count + 48):
        name, species = f"photos/{i}.bin", i % 6
        content = photograph(rng, FORMATS[i % len(FORMATS)])
        if i >= 48:
            content = rng.choice(DAMAGE)(rng, content)
        (folder / name).write_bytes(content)
        rows.append([name, f"F{species // 4}", f"G{species // 2}", f"s{species}", "val" if i < 24 else "train"])
        if not decodes_completely(folder / name):
            refused.add(name)
    with (folder / "manifest.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder / "manifest.csv", refused


def decodes_completely(path: Path) -> bool:
    """Return True if Pillow verifies the file and decodes all of it."""
    try:
        with Image.open(path) as image:
            image.verify()
        with Image.open(path) as image:
            image.load()
        return True
    except Exception:
        return False


def photograph(rng: random.Random, kind: str) -> bytes:
    """Return the file of a photograph of 24 x 24 pixels in a format of Pillow."""
    image = Image.frombytes("RGB", (24, 24), rng.randbytes(24 * 24 * 3))
    exif = Image.Exif()
    exif[0x0112] = rng.randint(1, 8)
    file = io.BytesIO()
    image.save(file, kind, **({"exif": exif} if kind in ("PNG", "JPEG", "WEBP", "TIFF") else {}))
    return file.getvalue()


def _flip(rng: random.Random, content: bytes) -> bytes:
    position = rng.randrange(len(content))
    return content[:position] + bytes([content[position] ^ 1 << rng.randrange(8)]) + content[position + 1 :]


def _cut(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content))]


def _zeros(rng: random.Random, content: bytes) -> bytes:
    position = rng.randrange(len(content))
    return content[:position] + bytes(len(content[position : position + 64])) + content[position + 64 :]


def _repeat(rng: random.Random, content: bytes) -> bytes:
    position = rng.randrange(len(content))
    return content[:position] + content[position - 40 if position > 40 else 0 :]


def _replace(rng: random.Random, content: bytes) -> bytes:
    return rng.choice(
        (b"", b"\0" * 100, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n{} loop\n", b"<html>", b"GIF89a", rng.randbytes(300))
    )


DAMAGE: tuple[Callable[[random.Random, bytes], bytes], ...] = (_flip, _flip, _cut, _zeros, _repeat, _replace)
