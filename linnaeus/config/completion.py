"""Tab completion of settings in bash, zsh and fish, for `python main.py`, `linnaeus` and `torchrun`. One of these commands switches it on:

- bash: eval "$(python main.py --shell-completion bash)"
- zsh: eval "$(python main.py --shell-completion zsh)"
- fish: python main.py --shell-completion fish | source"""

from __future__ import annotations

import os
import shlex
import sys

from linnaeus.config.command_line import parse_command_line
from linnaeus.config.help import describe
from linnaeus.config.load import compose, group_files
from linnaeus.errors import ConfigError

OPTIONS = ("--help", "--multirun", "--cfg", "--package", "--config-dir", "--shell-completion")
_BASH = r"""
_linnaeus_complete() {
    local line="${COMP_LINE:0:COMP_POINT}" IFS=$'\n'
    [[ $line == linnaeus\ * || $line == *main.py\ * ]] || return
    local word="${line##* }"
    local start=""
    [[ $word == *=* ]] && start="${word%%=*}="
    local found=($(PROGRAM --complete "$line" 2>/dev/null))
    COMPREPLY=("${found[@]#"$start"}")
}
complete -o nospace -o default -F _linnaeus_complete linnaeus python python3 torchrun
"""
_ZSH = r"""
_linnaeus_complete() {
    local line="${(j: :)words[1,CURRENT-1]} $PREFIX"
    [[ $line == linnaeus\ * || $line == *main.py\ * ]] || { _default; return }
    local -a found
    found=(${(f)"$(PROGRAM --complete "$line" 2>/dev/null)"})
    (( $#found )) && compadd -S '' -a found || _default
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _linnaeus_complete linnaeus python python3 torchrun
"""
_FISH = r"""
function _linnaeus_complete
    PROGRAM --complete (commandline --cut-at-cursor --current-process | string collect) 2>/dev/null
end
for program in linnaeus python python3 torchrun
    set --local words '^linnaeus |main\.py '
    complete --command $program --arguments '(_linnaeus_complete)' \
        --condition "string match --quiet --regex '$words' -- (commandline --cut-at-cursor --current-process)"
end
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}  # shell -> the text that it evaluates


def completion_script(shell: str) -> str:
    """Return the script that switches completion on in `shell` (bash, zsh or fish). The script calls this program each time Tab is
    pressed."""
    return SCRIPTS[shell].replace("PROGRAM", shlex.join([sys.executable, os.path.abspath(sys.argv[0])])).strip()


def candidates(line: str) -> list[str]:
    """Return the possible completions of the last word of the command line `line`: options, groups, keys, or the values of a key.

    The earlier words are taken into account: `workload=` and `model=` change which keys exist."""
    *before, word = line.split(" ")
    settings, config_dir = _settings(before)
    if word.startswith("-"):
        return [name for name in OPTIONS if name.startswith(word)]
    groups = {group: sorted({file.stem for file in files}) for group, files in group_files(config_dir).items()}
    try:
        config = compose(settings, config_dir, missing_ok=True)
    except Exception:  # a mistake in the earlier words, which Hydra may raise too: complete without them
        config = compose(missing_ok=True)
    rows = {key: kind for key, kind, *_ in describe(config)}
    key, equals, _ = word.partition("=")
    if equals:
        values = groups.get(key) or {"bool": ["true", "false"]}.get(rows.get(key, ""), rows.get(key, "").split("|"))
        found = [f"{key}={value}" for value in values if key in groups or len(values) > 1]
    elif "." in word:
        found = [f"{name}=" for name in rows]
    else:
        found = [f"{name}=" for name in (*groups, *rows) if "." not in name] + [
            f"{name.partition('.')[0]}." for name in rows if "." in name
        ]
    return sorted({one for one in found if one.startswith(word)})


def _settings(words: list[str]) -> tuple[list[str], str | None]:
    """Return (the settings KEY=VALUE, the value of --config-dir) among the words before the last one. Return ([], None) if these words
    contain a mistake."""
    program = next((i for i, word in enumerate(words) if word.endswith(("main.py", "linnaeus"))), 0)
    try:
        parsed = parse_command_line([word for word in words[program + 1 :] if word])
    except ConfigError:
        return [], None
    return parsed.overrides, parsed.config_dir
