"""Replace and delete directories so that a crash leaves the old or the new one, and delete temporary files of killed processes."""

from __future__ import annotations

import logging
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from linnaeus.files.atomic import TEMPORARY, sync_file

log = logging.getLogger("linnaeus")

ABANDONED_AFTER = 24 * 3600.0  # seconds without a change
REPLACED = ".replaced"  # suffix of a committed directory while another one of the same name replaces it


def commit_directory(temporary: Path, final: Path) -> None:
    """Flush all files below the directory `temporary` to the disk and rename the directory to `final`.

    If `final` exists, it is first renamed to `final.replaced`, and deleted afterwards. After a crash between the two renames,
    `restore_replaced` renames `final.replaced` back to `final`. If this function raises `OSError`, the old directory still exists under one
    of these two names. If `final` does not exist, `final.replaced` is not touched: it may be a folder of the user."""
    for file in sorted(temporary.rglob("*")):
        sync_file(file)
    sync_file(temporary)
    replaced, replacing = final.with_name(final.name + REPLACED), final.exists()
    if replacing:
        if replaced.exists():
            delete(replaced)
        os.rename(final, replaced)
    try:
        os.rename(temporary, final)
    except OSError:
        if replacing:
            os.rename(replaced, final)
        raise
    sync_file(final.parent)
    if replacing:
        remove_or_warn(replaced)  # the new directory is committed, even if the old one cannot be deleted


def remove_directory(path: Path) -> None:
    """Rename a directory to a temporary name, then delete it. After a crash the directory is either complete under its own name or
    absent."""
    renamed = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-deleted")
    os.rename(path, renamed)
    delete(renamed)


def remove_or_warn(path: Path) -> bool:
    """Delete a directory by `remove_directory` and return True. If `remove_directory` raises `OSError`, log a warning and return False."""
    try:
        remove_directory(path)
    except OSError as error:
        log.warning("%s is no longer used but could not be deleted (%s); it takes up space", path, error.strerror or error)
        return False
    return True


def delete(path: Path) -> None:
    """Delete a file, or a directory with all its content."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def restore_replaced(directory: Path) -> None:
    """Complete the replacements by `commit_directory` that a crash interrupted in `directory`.

    Delete each `NAME.replaced` if the new directory NAME exists; otherwise rename it back to NAME."""
    for old in sorted(directory.glob(f"*{REPLACED}")):
        final = old.with_name(old.name.removesuffix(REPLACED))
        if final.exists():
            remove_or_warn(old)
        else:
            os.rename(old, final)


def remove_stale(directory: Path) -> list[str]:
    """Delete the temporary files that killed processes left in `directory`. Return the names of the deleted files.

    The caller must have locked the run, so that no live process writes there. Log a warning for each file that cannot be deleted (a network
    disk refuses to delete files that a process has open)."""
    removed = []
    for path in sorted(directory.glob(f"{TEMPORARY}*")) if directory.is_dir() else []:
        try:
            delete(path)
        except OSError as error:
            log.warning("the temporary file %s could not be deleted (%s); it takes up space", path, error.strerror or error)
        else:
            removed.append(path.name)
    return removed


def remove_abandoned(directory: Path) -> None:
    """Delete the temporary files and directories in `directory` that have not changed for `ABANDONED_AFTER` seconds. For directories that
    several runs share: a younger one may belong to a live process."""
    for path in directory.glob(f"{TEMPORARY}*"):
        with suppress(FileNotFoundError):  # another run has just renamed or deleted it
            inside = path.iterdir() if path.is_dir() else []
            if time.time() - max((file.stat().st_mtime for file in inside), default=path.stat().st_mtime) > ABANDONED_AFTER:
                delete(path)
