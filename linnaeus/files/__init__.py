"""Write files atomically, and retry reads that fail: every file of a run is complete on disk or absent.

atomic         write single files
directories    replace and delete directories, and delete temporary files
reading        read with retries
serialization  JSON, CSV, UTF-8 and digests

A file or directory is written under a temporary `.tmp-` name in the directory of its final name, flushed to the disk, then renamed. A
rename within one directory is atomic on POSIX file systems. A killed process leaves only `.tmp-` names; `remove_stale` deletes them when
the next process has locked the run directory.
"""

from linnaeus.files.atomic import TEMPORARY, atomic_file, no_follow, refuse_links, refuse_read_only, sync_file, write_atomic
from linnaeus.files.directories import (
    ABANDONED_AFTER,
    REPLACED,
    commit_directory,
    delete,
    remove_abandoned,
    remove_directory,
    remove_or_warn,
    remove_stale,
    restore_replaced,
)
from linnaeus.files.reading import (
    Unreadable,
    exists,
    is_absent,
    is_directory,
    read_json,
    read_or_refuse,
    system_error,
    with_retries,
)
from linnaeus.files.serialization import (
    content_digest,
    file_digest,
    finite,
    from_finite,
    json_object,
    text_digest,
    to_csv,
    to_json,
    to_utf8,
    with_distinct_keys,
)

__all__ = [
    "ABANDONED_AFTER",
    "REPLACED",
    "TEMPORARY",
    "Unreadable",
    "atomic_file",
    "commit_directory",
    "content_digest",
    "delete",
    "exists",
    "file_digest",
    "finite",
    "from_finite",
    "is_absent",
    "is_directory",
    "json_object",
    "no_follow",
    "read_json",
    "read_or_refuse",
    "refuse_links",
    "refuse_read_only",
    "remove_abandoned",
    "remove_directory",
    "remove_or_warn",
    "remove_stale",
    "restore_replaced",
    "sync_file",
    "system_error",
    "text_digest",
    "to_csv",
    "to_json",
    "to_utf8",
    "with_distinct_keys",
    "with_retries",
    "write_atomic",
]
