"""Print an error of this program, Hydra, OmegaConf or the YAML reader as one line on stderr, and choose the exit status."""

import contextlib
import dataclasses
import difflib
import hashlib
import re
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

from linnaeus.config.environment import hide
from linnaeus.config.foreign_names import foreign_hint
from linnaeus.config.schema import Config
from linnaeus.distributed import DistributedContext, get_rank_safely, get_world_size, store_made_by_agent, write_torchrun_error
from linnaeus.errors import ConfigError, RunFailed, escaped
from linnaeus.files import to_utf8
from linnaeus.streams import flush_or_discard, prepare_streams, reader_ended

READER_ENDED = 141  # exit status if the reader of stdout ended early (`| head`), as a shell gives for SIGPIPE
WAIT_FOR_RANK_0 = timedelta(seconds=3)  # most errors are found by every rank; a line without a rank number is easier to read
MAX_LENGTH = 800  # characters of a line; the middle of a longer one is left out
_LIST = re.compile(r"\[([^][{}'\"]+)\]")  # a list of texts that are not quoted
WAIT_FOR_LINE = timedelta(seconds=20)  # a rank that exits earlier would make the launcher end the one that prints


@contextlib.contextmanager
def user_errors(status: int) -> Iterator[None]:
    """Return a context manager that turns each error of the user in its block into one line on stderr and `SystemExit(status)`.

    `RunFailed` and `FloatingPointError` exit with status 1. Other exceptions, which are errors of the program, pass through with their
    traceback. Values from the environment are hidden in the traceback."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    prepare_streams()
    try:
        yield
        flush_or_discard(sys.stdout)
        return
    except BrokenPipeError:
        if flush_or_discard(sys.stdout) and not reader_ended(sys.stdout):  # another pipe has broken
            raise
        raise SystemExit(READER_ENDED) from None
    except (FloatingPointError, RunFailed) as error:  # FloatingPointError: the run diverged
        line, status = " ".join(str(error).split()), 1
    except (ConfigError, HydraException, OmegaConfBaseException, YAMLError) as error:
        line = explain(error)
    except ValueError as error:
        if not _raised_in_hydra(error):
            raise
        line = explain(error)
    except TypeError as error:
        found = _class_mistake(error)
        if found is None:
            raise
        line = found
    except Exception:
        trace = traceback.format_exc()
        if hide(trace) == trace:
            raise
        sys.stderr.write(hide(trace))
        raise SystemExit(1) from None
    report(escaped(hide(line)))
    raise SystemExit(status)


def _raised_in_hydra(error: ValueError) -> bool:
    """Return True if the ValueError was raised inside Hydra, which raises plain ValueErrors for some mistakes of the user."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "").startswith("hydra.")


def _class_mistake(error: TypeError) -> str | None:
    """Return an error line, with file and line number, for a `TypeError` caused by a mistake in a plugin's class; None for any other
    `TypeError`.

    There are two such mistakes: a dataclass that is not frozen but inherits from a frozen one, and a class that does not define all
    abstract methods."""
    where = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.endswith("dataclasses.py")][-1]
    position, text = f"{where.filename}:{where.lineno}", str(error)
    if "cannot inherit non-frozen dataclass from a frozen one" in text:
        return f"{position}: the dataclass must be frozen; write @dataclass(frozen=True)"
    found = re.match(r"Can't instantiate abstract class (\w+) with(?:out an implementation for)? abstract methods? (.*)", text)
    return found and f"{position}: {found[1]} does not define {found[2]}, which its abstract class requires"


def report(line: str) -> None:
    """Print an error line on stderr, only once if several process ranks report the same line. A line longer than `MAX_LENGTH` is shortened.

    Under torchrun rank 0 prints the line; if rank 0 is late, the first other rank prints it. All other ranks return once the line is
    printed. torchrun then prints a report of its own, which ends with the line.

    Under another launcher, ranks other than 0 wait some seconds before they print. Usually the launcher ends them during this wait, because
    rank 0 has failed."""
    if len(line) > MAX_LENGTH:
        line = f"{line[: MAX_LENGTH // 2]} ... {line[-MAX_LENGTH // 2 :]}"
    write_torchrun_error(f"error: {line}")
    name, store, is_first = f"error/{hashlib.sha256(to_utf8(line)).hexdigest()}", None, True
    rank = get_rank_safely()
    if get_world_size() > 1 and store_made_by_agent():
        with contextlib.suppress(RuntimeError):  # the agent has died
            store = DistributedContext().store
            if rank:
                with contextlib.suppress(RuntimeError):  # rank 0 has not printed this line in time
                    store.wait([f"{name}/printed"], WAIT_FOR_RANK_0)
            is_first = store.add(name, 1) == 1
    elif rank:
        time.sleep(WAIT_FOR_RANK_0.total_seconds())
    if is_first:
        with contextlib.suppress(OSError):  # nobody reads stderr
            print(f"error on process {rank}: {line}" if rank else f"error: {line}", file=sys.stderr, flush=True)
        flush_or_discard(sys.stderr)
    if store is not None:
        with contextlib.suppress(RuntimeError):
            if is_first:
                store.set(f"{name}/printed", "")
            else:
                store.wait([f"{name}/printed"], WAIT_FOR_LINE)


def explain(error: Exception) -> str:
    """Return the message of an error as one line.

    If the fix for a message of Hydra, OmegaConf or the YAML reader is known, return the fix instead."""
    text = str(error).strip() or str(error.__cause__)
    override = getattr(error, "override", None)
    if isinstance(override, str):
        text = _unreadable(override)
    elif not isinstance(error, ConfigError):
        matches = ((re.search(pattern, text, re.S), message) for pattern, message in _EXPLAINED)
        text = next((message(found) for found, message in matches if found), text)
    return " ".join(text.split())


def _unreadable(override: str) -> str:
    override = override.lstrip("+")
    key, equals, value = override.partition("=")
    if not equals or not key.strip():
        return f"{override!r} is not a setting; give it as key=value"
    if key != key.rstrip():
        return f"{override!r} cannot be read; leave the blank before = out: {key.rstrip()}={value}"
    if listed := _LIST.fullmatch(value):
        items = ",".join(f"'{item.strip()}'" for item in listed[1].split(","))
        return f'{override!r} cannot be read; quote the texts in the list: "{key}=[{items}]"'
    return f"{override!r} cannot be read; close its brackets, or quote a text with special characters: {key}='\"{value}\"'"


def _unknown_choice(found: re.Match[str]) -> str:
    group, _, name = found[1].rpartition("/")
    choices = found[2].split()
    close = difflib.get_close_matches(name, choices, 1)
    return f"there is no {group}={name}; {f'did you mean {close[0]}? There are' if close else 'choose one of'} {', '.join(choices)}"


# (pattern in the message, the message that replaces it); the first match counts.
_EXPLAINED = (
    (r"Could not append to config\. An item is already at '([^']+)'", lambda m: f"+{m[1]}: the key exists already; leave the + out"),
    (r"Could not find '([^']+)'\s+Available options in '[^']*':\s+(.*?)\s*Config search path", _unknown_choice),
    (
        r"Multiple values for ([^.]+)\. To override a value use 'override",
        lambda m: f"{m[1]} is chosen twice; leave the + of +{m[1]}=... out, or write `- override /{m[1]}: ...` in the file",
    ),
    (r"force-add of config groups is not supported: '([^']+)'", lambda m: f"{m[1]}: a group is chosen without +; leave the ++ out"),
    (
        r"Error merging override \+*([^=\s]+)=([^\n]*)",
        lambda m: f"{m[1]} is {m[2]}, which is not of its type; `linnaeus --help {m[1]}` shows the type",
    ),
    (
        r"Unexpected type annotation: Set.*object_type=(Range|Choice|Interval)Sweep",
        lambda m: f"{m[1].lower()}(...) cannot be one of several values; write the values out, as in seed=1,2,5",
    ),
    (r"Missing mandatory value: .*?full_key: (\S+)", lambda m: f"{m[1]} is required; give it as {m[1]}=..."),
    (
        r"Ambiguous value for argument '\+*([^'=]+)=",
        lambda m: f"{m[1]} has several values, which is a sweep: add -m for one, or brackets for a list",
    ),
    (r"Interpolation key '([^']+)' not found.*?full_key: (\S+)", lambda m: f"{m[2]} refers to ${{{m[1]}}}, which is not a key"),
    (r"Environment variable '([^']+)' not found.*?full_key: (\S+)", lambda m: f"{m[2]} needs the environment variable {m[1]}; set it"),
    (
        r"Config group override must be .* Got",
        lambda _: "a group takes the name of one of its files, as in trainer=default; see `linnaeus --help-keys`",
    ),
)


def unknown_key(error: Exception, overrides: Sequence[str], config_dir: Path | str | None) -> ConfigError | None:
    """Return a `ConfigError` with a hint if Hydra's `error` is an unknown key in `overrides`; None if it is another error."""
    from hydra.errors import HydraException

    from linnaeus.config.load import compose, group_files

    found = re.search(r"Could not (?:override|delete from config\.|append override|delete|load) '([^']+)'", str(error))
    if found is None:
        return None
    names = {"plugins", *group_files(config_dir)}
    choices = [text for text in overrides if text.lstrip("+").partition("=")[0] in names]
    try:
        # if all overrides choose groups, one of these is the mistake
        config = compose(choices if len(choices) < len(overrides) else (), config_dir, missing_ok=True)
    except (ConfigError, HydraException):  # the chosen options contradict each other; report the unknown key first
        config = compose()
    return ConfigError(f"unknown key {found[1]}; {nearest_key(found[1], config)}")


def source_of_option(group: str, name: object) -> str:
    """Return a hint for an option `name` that `group` does not have: the workloads of this program that have it, or a plugin."""
    from linnaeus.config.load import group_files
    from linnaeus.config.typed_config import variants_of

    owners = [file.stem for file in group_files()["workload"] if name in list(variants_of(file.stem).get(group, {}))]
    return f"add workload={' or '.join(owners)} for {name}" if owners else "a package of your own can add one (plugins, docs/extending.md)"


def nearest_key(key: str, config: Config) -> str:
    """Return a hint for an unknown key: the group options that have this key, or the most similar key or group of `config`."""
    from linnaeus.config.help import describe
    from linnaeus.config.load import group_files
    from linnaeus.config.typed_config import variants_of

    group, _, name = key.partition(".")
    choices = [pair for file in group_files()["workload"] for pair in variants_of(file.stem).get(group, {}).items()]
    owners = dict.fromkeys(f"{group}={choice}" for choice, cls in choices if name in {field.name for field in dataclasses.fields(cls)})
    if not owners and key.count(".") < 2 and (hint := foreign_hint(key)):
        return hint
    if owners:
        return f"choose {' or '.join(owners)} for it"
    known = {row[0]: row[1] for row in describe(config)}
    parent, siblings = key.rpartition(".")[0], _siblings(key, known)
    of_a_group = group in {k.partition(".")[0] for k in known}
    if known.get(parent, "").startswith(("dict", "mapping")) or (parent not in known and of_a_group and not siblings):
        return f"`linnaeus --cfg job --package {parent}` without this setting shows which there are"
    if parent in known:
        return f"{parent} is not a group"
    if close := similar_key(key, known):
        return f"did you mean {close}?"
    return f"the keys there are {', '.join(sorted(siblings))}" if siblings and parent else "`linnaeus --help-keys` lists every key"


def similar_key(key: str, known: Iterable[str]) -> str | None:
    """Return the key or group most similar to the unknown `key`, by its last name: in the same group, otherwise anywhere. Return None if
    none is similar. `known`: dotted names of all keys."""
    parent, dot, last = key.rpartition(".")
    close = difflib.get_close_matches(last, _siblings(key, known), 1, 0.7)
    if close:
        return parent + dot + close[0]
    elsewhere = {k.rpartition(".")[2]: k for k in reversed(list(known))}
    close = difflib.get_close_matches(last, elsewhere, 1, 0.8)
    return elsewhere[close[0]] if close else None


def _siblings(key: str, known: Iterable[str]) -> set[str]:
    """Return the names in the group of `key`, without the group. `known`: dotted names of all keys."""
    parent = key.rpartition(".")[0]
    return {k.removeprefix(parent + ".").partition(".")[0] for k in known if not parent or k.startswith(parent + ".")}
