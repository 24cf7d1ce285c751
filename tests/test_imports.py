"""Test the import rules between the rooms of the package: downwards only, without a circle, imports for type checking included."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "linnaeus"
GROUND = {"errors", "durations", "files", "randomness"}
FORBIDDEN = {  # room -> rooms it must not import
    **{room: {"train", "workloads"} for room in ("reporting", "checkpoint", "schedule")},
    "train": {"workloads.taxonomy", "workloads.language", "workloads.loadout", "workloads.dictionary"},
    "workloads": {"train", "workloads.taxonomy", "workloads.language", "workloads.loadout", "workloads.dictionary"},
    "workloads.taxonomy": {"train", "workloads.language", "workloads.loadout", "workloads.dictionary"},
    "workloads.language": {"train", "workloads.taxonomy", "workloads.loadout", "workloads.dictionary"},
    "workloads.loadout": {"train", "workloads.taxonomy", "workloads.language", "workloads.dictionary"},
    "workloads.dictionary": {"train", "workloads.taxonomy", "workloads.language", "workloads.loadout"},
}
SHARED_NAMES = {"__init__.py", "__main__.py", "config.py", "workload.py"}  # the last two: the contract of a workload


def room_of(module: str) -> str:
    parts = module.split(".")[1:]
    if parts[:1] == ["workloads"] and len(parts) > 1 and (PACKAGE / "workloads" / parts[1]).is_dir():
        return ".".join(parts[:2])
    return parts[0] if parts else "linnaeus"


@functools.cache
def imports_of(source: str) -> list[str]:
    """Return the modules of the package that a file imports, anywhere in it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "linnaeus":
            found += [f"linnaeus.{name.name}" for name in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("linnaeus."):
            found.append(str(node.module))
        elif isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.startswith("linnaeus.")]
    return found


def sources() -> dict[str, str]:
    """Return module name -> source of every file of the package."""
    files = {".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts): p.read_text() for p in PACKAGE.rglob("*.py")}
    return {name.removesuffix(".__init__"): text for name, text in files.items()}


def violations(files: dict[str, str]) -> list[str]:
    """Return a line for every broken rule."""
    edges: dict[str, set[str]] = {}
    for module, text in files.items():
        edges.setdefault(room_of(module), set()).update(room_of(name) for name in imports_of(text))
    edges = {room: rooms - {room} for room, rooms in edges.items()}
    found = [f"{room} imports {other}" for room in GROUND for other in edges.get(room, set()) - GROUND]
    found += [f"{room} imports {other}" for room, rooms in FORBIDDEN.items() for other in edges.get(room, set()) & rooms]
    while leaves := [room for room, rooms in edges.items() if not rooms & edges.keys()]:
        for room in leaves:
            del edges[room]
    return found + ([f"a circle among {', '.join(sorted(edges))}"] if edges else [])


def test_imports_go_downwards():
    assert violations(sources()) == []


@pytest.mark.parametrize(
    "module, text",
    {
        "linnaeus.durations": "from linnaeus.config import compose",
        "linnaeus.reporting.jsonl.rows": "from linnaeus.train.state import Training",
        "linnaeus.checkpoint.format": "from linnaeus.workloads.base import Workload",
        "linnaeus.train.loop": "from linnaeus.workloads.taxonomy import tree",
        "linnaeus.schedule.events": "if TYPE_CHECKING:\n    from linnaeus.progress import TrainingProgress",
        "linnaeus.config.load": "def late():\n    import linnaeus.rundir.directory",
        "linnaeus.data.order": "from linnaeus import metrics",
    }.items(),
)
def test_a_planted_violation_is_found(module: str, text: str):
    files = sources()
    assert violations({**files, module: f"{files[module]}\n{text}\n"})


def stated_orders(files: dict[str, str]) -> dict[str, list[str]]:
    """Return package -> its packages in the order that its docstring states: lines of a name, two or more spaces and a description."""
    found = {}
    for module, text in files.items():
        _, sentence, listed = (ast.get_docstring(ast.parse(text)) or "").partition("Each package imports only packages above it")
        folder = PACKAGE.parent.joinpath(*module.split("."))
        names = re.findall(r"^(\w+)  +\S", listed, re.MULTILINE)
        if sentence:
            found[module] = [name for name in names if (folder / name).is_dir()]
    return found


def upward_imports(files: dict[str, str]) -> list[str]:
    """Return a line for every import of a package that is listed below the importing one in a stated order."""
    found = []
    for parent, names in stated_orders(files).items():
        length = parent.count(".") + 2
        for module, text in files.items():
            own = module.removeprefix(f"{parent}.").partition(".")[0]
            if module.startswith(f"{parent}.") and own in names:
                below = {f"{parent}.{name}" for name in names[names.index(own) + 1 :]}
                found += [f"{module} imports {name}" for name in imports_of(text) if ".".join(name.split(".")[:length]) in below]
    return found


def test_packages_of_a_room_import_those_listed_above_them():
    files = sources()
    orders = stated_orders(files)
    assert {"linnaeus.reporting", "linnaeus.workloads.taxonomy", "linnaeus.workloads.loadout"} <= orders.keys()
    assert all(len(names) > 2 for names in orders.values()) and upward_imports(files) == []


def test_a_planted_upward_import_is_found():
    module, text = "linnaeus.workloads.taxonomy.tree.taxonomy_tree", "from linnaeus.workloads.taxonomy.heads import Head"
    files = sources()
    assert upward_imports({**files, module: f"{files[module]}\n{text}\n"}) == [f"{module} imports linnaeus.workloads.taxonomy.heads"]


def test_no_two_files_share_a_name():
    names: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        names.setdefault(path.name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: paths for name, paths in names.items() if len(paths) > 1 and name not in SHARED_NAMES} == {}
