"""Choose the text that the program prints instead of training: help, the configuration, or the output for shell completion."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from linnaeus.config.completion import candidates, completion_script
from linnaeus.config.environment import hidden_values, hide
from linnaeus.config.help import config_text, help_text, search_text
from linnaeus.config.typed_config import typed_config


def page(options: argparse.Namespace, compose: Callable[[], dict[str, Any]]) -> str:
    """Return the text that the command-line options request.

    `compose`: function that returns the configuration as plain values. It is only called if the text depends on the configuration."""
    if options.shell_completion:
        return completion_script(options.shell_completion)
    if options.complete is not None:
        return "\n".join(candidates(options.complete))
    tree = compose()
    if options.cfg and not options.help:
        return config_text(tree, options.package)
    config = typed_config(tree)
    text = search_text(config, options.search, options.config_dir) if options.search else help_text(config, options.config_dir)
    return hide(text, hidden_values(config))
