"""Test the rule for the first words of docstrings: an imperative or a noun, never "The ... of", "What", "Whether" or "Those"."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FORBIDDEN = re.compile(r"The [^.:;,]*\bof\b|What\b|Whether\b|Those\b")
STRING = re.compile(rf"[\"']\s*(?:{FORBIDDEN.pattern})")  # only files with such a string are parsed


def forbidden(source: str) -> list[str]:
    """Return the first lines of the docstrings of `source` that break the rule."""
    if not STRING.search(source):
        return []
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = (ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, kinds))
    return [text.splitlines()[0] for text in texts if FORBIDDEN.match(text)]


def test_no_docstring_begins_with_these_words() -> None:
    files = [ROOT / "main.py", *(path for room in ("linnaeus", "benchmarks", "tests") for path in (ROOT / room).rglob("*.py"))]
    assert len(files) > 500
    assert {str(path.relative_to(ROOT)): found for path in files if (found := forbidden(path.read_text()))} == {}


def test_negative_control_each_form_is_found() -> None:
    texts = ["The parts of a run.", "What a run needs.", "Whether it is set.", "Those that are left out."]
    for text in texts:
        assert forbidden(f'"""{text}"""') == [text]
        assert forbidden(f'class A:\n    def b(self):\n        """{text}\n\n        More."""') == [text]
    assert forbidden('"""Return the parts of a run."""\nx = """The parts of a run."""') == []
