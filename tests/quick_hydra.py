"""Remember what Hydra has read and composed, so that a composition takes 60 ms instead of 90, and the same one for the third time 10 ms.

`install()` is called in each process of pytest and in the fork server. Files whose time or size has changed are read again. A process that
starts a real interpreter remembers nothing."""

from __future__ import annotations

import copy
import os
from typing import Any


def install() -> None:
    """Replace the methods of Hydra that read one file and that compose all of them by methods that do so once for the same files."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.sources_registry import SourcesRegistry
    from hydra.core.plugins import Plugins

    Plugins.instance()  # imports the class of the next line once more
    FileConfigSource: Any = SourcesRegistry.instance().resolve("file")

    files: dict[Any, Any] = {}
    compositions: dict[Any, Any] = {}
    read, compose = FileConfigSource.load_config, ConfigLoaderImpl.load_configuration

    def load_config(self: Any, config_path: str) -> Any:
        version = _version(os.path.join(self.path, self._normalize_file_name(config_path)))
        if version is None:
            return read(self, config_path)
        key = (self.path, self.provider, config_path, version)
        if key not in files:
            files[key] = read(self, config_path)
        return copy.deepcopy(files[key])

    def load_configuration(self: Any, config_name: str, overrides: list[str], *more: Any, **named: Any) -> Any:
        folders = [source.path for source in self.repository.get_sources() if source.scheme() == "file"]
        folders += [word.split("file://", 1)[1].rstrip("]") for word in overrides if word.startswith("hydra.searchpath=[file://")]
        key = (
            config_name,
            *overrides,
            repr((more, named)),
            *((path, _version(path)) for folder in folders for path in _yaml_files(folder)),
        )
        if key not in compositions:  # most are composed once only, and a copy takes 10 ms
            compositions[key] = None
            return compose(self, config_name, overrides, *more, **named)
        if compositions[key] is None:
            compositions[key] = compose(self, config_name, overrides, *more, **named)
        return copy.deepcopy(compositions[key])

    FileConfigSource.load_config = load_config
    ConfigLoaderImpl.load_configuration = load_configuration  # type: ignore[method-assign]


def _version(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _yaml_files(folder: str) -> list[str]:
    return sorted(os.path.join(inside, name) for inside, _, names in os.walk(folder) for name in names if name.endswith(".yaml"))
