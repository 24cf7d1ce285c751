"""A user's mistake: one line that names what is wrong and what would be right, and exit status 2."""

from __future__ import annotations

import contextlib
import difflib
import re
import sys
from collections.abc import Iterator


class ConfigError(ValueError):
    """What the user asked for cannot be done; the text is one line and names the key and the fix."""


@contextlib.contextmanager
def user_errors(status: int) -> Iterator[None]:
    """Turn the mistakes of a user, ours and those Hydra finds, into one line on stderr and `SystemExit(status)`."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
    except (HydraException, OmegaConfBaseException) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
    else:
        return
    raise SystemExit(status)


def one_line(error: Exception) -> str:
    """Hydra's message without its line breaks, with the nearest known key when a key is unknown."""
    text = str(error).strip()
    override = re.match(r"Could not override '([^']+)'", text)
    if override:
        return f"unknown key {override[1]}; {nearest_key(override[1])}"
    options = re.match(r"In '[^']*': Could not find '([^']+)'\s+Available options in '[^']*':\s+(.*?)\s*Config search path", text, re.S)
    if options:
        return f"there is no {options[1]}; choose one of {', '.join(options[2].split())}"
    missing = re.search(r"Missing mandatory value: (\S+)", text)
    if missing:
        return f"{missing[1]} is required; give it as {missing[1]}=..."
    return " ".join(text.split())


def nearest_key(key: str) -> str:
    """A hint: the known key most like `key` in the default configuration."""
    from linnaeus.config.help import describe
    from linnaeus.config.load import compose

    known = [name for name, *_ in describe(compose())]
    close = difflib.get_close_matches(key, known, 1) or difflib.get_close_matches(key.split(".")[-1], [k.split(".")[-1] for k in known], 1)
    full = next((k for k in known if close and (k == close[0] or k.endswith("." + close[0]))), None)
    return f"did you mean {full}?" if full else "`python main.py --help` lists every key"
