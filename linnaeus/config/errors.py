"""A user's mistake: one line that names what is wrong and what would be right, and exit status 2."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator

LET_RANK_0_SPEAK = 3.0  # seconds; by then the launcher has stopped the others, if rank 0 failed as well


class ConfigError(ValueError):
    """What the user asked for cannot be done; the text is one line and names the key and the fix."""


@contextlib.contextmanager
def user_errors(status: int) -> Iterator[None]:
    """Turn the mistakes of a user, ours and those Hydra finds, into one line on stderr and `SystemExit(status)`."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        yield
        return
    except ConfigError as error:
        line = " ".join(str(error).split())
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        line = one_line(error)
    report(line)
    raise SystemExit(status)


def report(line: str) -> None:
    """The line on stderr, once for all processes: most mistakes are found by each of them, so all but rank 0 wait, and are
    stopped by the launcher unless theirs is another."""
    rank = int(os.environ.get("RANK", "0"))
    if rank:
        time.sleep(LET_RANK_0_SPEAK)
    print(f"error: {line}" if not rank else f"error on process {rank}: {line}", file=sys.stderr, flush=True)


def one_line(error: Exception) -> str:
    """The message of Hydra, OmegaConf or the YAML reader without its line breaks, and with what would be right where we know."""
    text = str(error).strip() or str(error.__cause__)
    for pattern, explain in _EXPLAINED:
        found = re.search(pattern, text, re.S)
        if found:
            return " ".join(explain(found).split())
    return " ".join(text.split())


def _unknown_key(found: re.Match[str]) -> str:
    return f"unknown key {found[1]}; {nearest_key(found[1])}"


def _not_added(found: re.Match[str]) -> str:
    return f"+{found[1]}: no key can be added; leave the + out" if found[1] in _known_keys() else _unknown_key(found)


def _unknown_group(found: re.Match[str]) -> str:
    return f"there is no group {found[1]}; {_did_you_mean(found[1], _groups())}"


def _unknown_choice(found: re.Match[str]) -> str:
    group, _, name = found[1].rpartition("/")
    return f"there is no {found[1]}; {_did_you_mean(name, found[2].split(), f'{group}=')} ({group}: {', '.join(found[2].split())})"


def _unparsed(found: re.Match[str]) -> str:
    override = found[1]
    if "=" not in override:
        return f"{override!r} is no setting; give it as key=value"
    return (
        f"{override!r} cannot be read ({found[2].strip().splitlines()[0]}); quote a value with special characters: '{_quoted(override)}'"
    )


def _quoted(override: str) -> str:
    key, _, value = override.partition("=")
    return f'{key}="{value}"'


def _several_values(found: re.Match[str]) -> str:
    return f"{found[1]} has several values, which is a sweep; add -m for one, or brackets for a list"


# (pattern in the message, what we say instead), the first that is found.
_EXPLAINED = (
    (r"Could not override '([^']+)'\.?\s*No match in the defaults list", _unknown_group),
    (r"Could not override '([^']+)'", _unknown_key),
    (r"Could not append to config\. An item is already at '([^']+)'", lambda m: f"+{m[1]}: the key is there already; leave the + out"),
    (r"Could not delete from config\. '([^']+)' does not exist", _unknown_key),
    (r"Could not append override '([^']+)'", lambda m: f"{m[1]}: {nearest_key(m[1])}"),
    (r"Could not find '([^']+)'\s+Available options in '[^']*':\s+(.*?)\s*Config search path", _unknown_choice),
    (r"Could not load '([^']+)'", lambda m: f"there is no {m[1]}; {_did_you_mean(m[1], _groups())}"),
    (r"Missing mandatory value: (\S+)", lambda m: f"{m[1]} is required; give it as {m[1]}=..."),
    (r"Error parsing override '(.*?)'\s*\n(.*?)\s*(?:See https|$)", _unparsed),
    (r"Ambiguous value for argument '(\S+?)='?", lambda m: f"{m[1]} has several values, which is a sweep; add -m, or brackets for a list"),
    (r"Interpolation key '([^']+)' not found.*?full_key: (\S+)", lambda m: f"{m[2]} refers to ${{{m[1]}}}, which is no key"),
    (r"Environment variable '([^']+)' not found.*?full_key: (\S+)", lambda m: f"{m[2]} needs the environment variable {m[1]}; set it"),
)


def nearest_key(key: str) -> str:
    """A hint: the known key most like `key` in the default configuration."""
    known = _known_keys()
    inside = [name for name in known if name.startswith(key + ".")]
    if inside:
        return f"it is a group of keys: {', '.join(inside[:4])}{', ...' if len(inside) > 4 else ''}"
    return _did_you_mean(key, known)


def _did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """The one of `known` that is most like `name`, as a whole or in its last part."""
    known = list(known)
    close = difflib.get_close_matches(name, known, 1)
    if not close:
        last = {k.rpartition(".")[2]: k for k in reversed(known)}
        close = [last[k] for k in difflib.get_close_matches(name.rpartition(".")[2], last, 1)]
    return f"did you mean {prefix}{close[0]}?" if close else "`python main.py --help` lists what there is"


def _known_keys() -> list[str]:
    from linnaeus.config.help import describe
    from linnaeus.config.load import compose

    return [name for name, *_ in describe(compose())]


def _groups() -> list[str]:
    from linnaeus.config.load import CONF

    return sorted(p.name for p in CONF.iterdir() if p.is_dir())
