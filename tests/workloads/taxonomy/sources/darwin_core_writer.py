"""Write Darwin Core Archives: a descriptor and its tables, in any encoding, with any separators."""

import io
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TERMS = "http://rs.tdwg.org/dwc/terms/"
MULTIMEDIA = "http://rs.gbif.org/terms/1.0/Multimedia"
Rows = Sequence[Mapping[str, str]]


def table(rows: Rows, delimiter="\t", end="\n", quote="", header=True, encoding="utf-8") -> bytes:
    names = list(rows[0])
    lines = [names] * header + [[row[name] for name in names] for row in rows]
    return "".join(delimiter.join(f"{quote}{cell}{quote}" for cell in line) + end for line in lines).encode(encoding)


def described(tag: str, name: str, kind: str, rows: Rows, key: str, defaults: Mapping[str, str] | None = None, **form: Any) -> str:
    """Return the element of a table; `key` is the column of the id."""
    names = list(rows[0])
    escaped = {"\t": "\\t", "\n": "\\n", "\r": "\\r", '"': "&quot;"}
    show = lambda value: "".join(escaped.get(letter, letter) for letter in value)
    attributes = (
        f'encoding="{form.get("encoding", "utf-8")}" fieldsTerminatedBy="{show(form.get("delimiter", chr(9)))}" '
        f'linesTerminatedBy="{show(form.get("end", chr(10)))}" fieldsEnclosedBy="{show(form.get("quote", ""))}" '
        f'ignoreHeaderLines="{int(form.get("header", True))}" rowType="{kind}"'
    )
    fields = "".join(f'<field index="{i}" term="{TERMS}{n}"/>' for i, n in enumerate(names) if n not in ("id", "coreid"))
    fields += "".join(f'<field default="{value}" term="{TERMS}{term}"/>' for term, value in (defaults or {}).items())
    place = "id" if tag == "core" else "coreid"
    return f'<{tag} {attributes}><files><location> {name} </location></files><{place} index="{names.index(key)}"/>{fields}</{tag}>'


def archive(core: Rows, media: Rows = (), kind="Occurrence", key="id", events: Rows = (), defaults=None, **form: Any) -> dict[str, bytes]:
    """Return the members of an archive: name -> bytes."""
    members = {f"{kind.lower()}.txt": table(core, **form)}
    elements = [described("core", f"{kind.lower()}.txt", TERMS + kind, core, key, defaults, **form)]
    if events:
        members["occurrence.txt"] = table(events, **form)
        elements.append(described("extension", "occurrence.txt", TERMS + "Occurrence", events, "coreid", **form))
    if media:
        members["multimedia.txt"] = table(media, **form)
        elements.append(described("extension", "multimedia.txt", MULTIMEDIA, media, "coreid", **form))
    text = f'<?xml version="1.0"?>\n<archive xmlns="http://rs.tdwg.org/dwc/text/">{"".join(elements)}</archive>'
    return {"meta.xml": text.encode(), **members}


def write(path: Path, members: Mapping[str, bytes], inside: str = "") -> Path:
    """Write the members as a folder, a zip or a tgz, by the suffix of `path`; `inside`: in this folder of it."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for name, content in members.items():
                file.writestr(inside + name, content)
    elif path.suffix == ".tgz":
        with tarfile.open(path, "w:gz") as file:
            for name, content in members.items():
                info = tarfile.TarInfo(inside + name)
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))
    else:
        (path / inside).mkdir(parents=True)
        for name, content in members.items():
            (path / inside / name).write_bytes(content)
    return path
