"""Parse the command line of `python main.py`, and refuse mistakes before Hydra composes the configuration.

Mistakes are unknown options, options and settings without effect, and a key that is given twice (Hydra would use the last value)."""

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from linnaeus.config.foreign_names import foreign_hint
from linnaeus.config.wandb_agent import WORDS, agent_run
from linnaeus.errors import ConfigError

KEY = re.compile(r"\s*(\+\+|\+|~)?\s*([^=\s]+?)\s*=")
_SWEEP = re.compile(r"\s*\+{0,2}sweep(\.\w+)*\s*=")
_HYDRA = re.compile(r"\s*[+~]{0,2}hydra[./](?!searchpath)")
_HYPHENS = re.compile(r"unrecognized arguments: --?(\w+(?:\.\w+)+\S*|\w+=\S*)")
_NESTED = re.compile(r"([\w.]+)=\{'([\w.]+)'")  # the text of a Python mapping, which is not in Hydra's grammar


class _StoreOnce(argparse._StoreAction):
    """Store the value of an option. Raise `ConfigError` if the option is given twice: argparse would use the last value."""

    given = False

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None) -> None:
        if self.given and option_string is not None:
            raise ConfigError(f"{option_string} is given twice; give it once{', before all its values' if self.nargs == '+' else ''}")
        self.given = True
        super().__call__(parser, namespace, values, option_string)


class OneLineParser(argparse.ArgumentParser):
    """An argument parser that raises `ConfigError` instead of printing its usage. `user_errors` prints the error as one line.

    An option with a value may be given once, unless its action is another one, such as "append"."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for name in (None, "store"):
            self.register("action", name, _StoreOnce)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message + self._nearest(message))

    def _nearest(self, message: str) -> str:
        """Return a hint with the option or choice that is most similar to the unknown one in argparse's `message`; "" if there is none."""
        option = re.match(r"unrecognized arguments: (--[\w-]+)", message)
        choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if option:
            close = difflib.get_close_matches(option[1], self._option_string_actions, 1)
        else:
            close = difflib.get_close_matches(choice[1], re.findall(r"[\w.-]+", choice[2]), 1) if choice else []
        return f"; did you mean {close[0]}?" if close else ""


def parse_command_line(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. Return a namespace with the options and three more attributes: `overrides`, the settings KEY=VALUE; `search`,
    the words after --help; `prints`, True if the program only prints a text and does not train.

    In a trial of a W&B agent, `run.name` is added to `overrides` unless it is given: the id of the trial (`wandb_agent.py`).

    Raise `ConfigError` for an unknown option, a wrong value, an option or setting without effect, and a key that is given twice."""
    parser = OneLineParser(add_help=False, allow_abbrev=False)
    parser.error = _refuse  # type: ignore[method-assign]
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--cfg", "-c", choices=["job"])
    parser.add_argument("--package", "-p")
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--shell-completion", choices=["bash", "zsh", "fish"])
    parser.add_argument("--complete")
    parsed = parser.parse_intermixed_args(list(arguments))  # options may stand between settings
    parsed.prints = bool(parsed.help or parsed.cfg or parsed.shell_completion or parsed.complete is not None)
    parsed.search = [text for text in parsed.overrides if parsed.help and re.fullmatch(r"[\w.]+", text)]
    parsed.overrides = [text for text in parsed.overrides if text not in parsed.search]
    for name in ("multirun", "help"):
        if getattr(parsed, name) and parsed.cfg:
            raise ConfigError(f"--{name} and --cfg exclude each other; give one")
    if parsed.package is not None and parsed.cfg is None:
        raise ConfigError(f"--package {parsed.package} has no effect without --cfg; add --cfg job")
    for text in parsed.overrides:
        if text.lstrip().startswith("="):
            raise ConfigError(f"{text!r} is not a setting; give it as key=value")
        if found := _NESTED.match(text):
            raise ConfigError(f"{text} is a nested parameter of W&B; call it {found[1]}.{found[2]} in sweep.yaml")
        if _HYDRA.match(text):
            hint = "run.root and run.name set the run directory; sweep=grid or optuna, and launch=process, torchrun or slurm start runs"
            raise ConfigError(f"{text} has no effect here: Hydra only composes; {hint}")
        if _SWEEP.match(text) and not (parsed.multirun or parsed.prints):
            raise ConfigError(f"{text} has no effect without -m; type `linnaeus -m {' '.join(parsed.overrides)}`")
    check_given_once(parsed.overrides)
    trial = agent_run()
    if trial is not None and not parsed.multirun and not parsed.prints and "run.name" not in map(_key, parsed.overrides):
        parsed.overrides.append(f"run.name='{trial}'")
    return parsed


def setting_text(key: str, text: str) -> str:
    """Return the setting KEY=VALUE of a text, as Hydra reads it: in quotes if the text has other characters than those of usual paths. In a
    shell it must be quoted as well (`shlex`)."""
    if re.fullmatch(r"[\w./-]+", text, re.ASCII):
        return f"{key}={text}"
    escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + found[2].replace("'", r"\'"), text)
    return f"{key}='{escaped}'"


def _refuse(message: str) -> NoReturn:
    option, hyphens = re.search(r"unrecognized arguments: (--?[\w.-]+)", message), _HYPHENS.search(message)
    if option and "." not in option[1] and (hint := foreign_hint(option[1])):
        raise ConfigError(f"there is not an option {option[1]}; {hint}")
    if hyphens:
        raise ConfigError(f"there is not an option --{hyphens[1]}; settings have no hyphens: {hyphens[1]} (W&B's sweep.yaml: {WORDS})")
    raise ConfigError(f"{message}; settings are given as key=value, `linnaeus --help-keys` lists them")


def check_given_once(overrides: Sequence[str]) -> None:
    """Raise `ConfigError` if two of the settings `overrides` set the same key."""
    seen: dict[str, str] = {}
    for text in overrides:
        key = _key(text)
        if key in seen:
            raise ConfigError(f"{key} is given twice, {seen[key]!r} and {text!r}; keep one")
        seen[key] = text


def _key(text: str) -> str:
    match = KEY.match(text)
    return match[2] if match else text
