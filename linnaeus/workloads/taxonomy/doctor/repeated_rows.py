"""Check for photographs and ids that occur in more than one row."""

import numpy as np

from linnaeus.errors import quoted
from linnaeus.workloads.taxonomy.arrays.text_arrays import unique_strings
from linnaeus.workloads.taxonomy.doctor.findings import Finding, Inspected, found
from linnaeus.workloads.taxonomy.manifest.clean_records import contradict
from linnaeus.workloads.taxonomy.manifest.tables.cleaning import value_numbers

NEARLY_UNIQUE = 0.05  # largest share of repeated values in a column of row ids; a column with more contains ids of something else


def repeated_photographs(records: Inspected) -> list[Finding]:
    """Return findings with the rows whose photograph also occurs in an earlier row. Rows that training leaves out do not count."""
    names, number = unique_strings(records.files.names)
    number = np.where((names[number] == "") | ~records.used, -1, number) if len(names) else number
    later, first = later_rows(number)
    same = (records.labels[later] == records.labels[first]).all(axis=1)
    differs = contradict(records.labels[later], records.labels[first])
    lacks = ~same & ~differs
    same_text = "the photograph occurs in an earlier row with the same taxon"
    lacks_text = "the photograph occurs in an earlier row, and one of the two rows lacks taxonomic ranks of the other"
    text = "the photograph occurs in an earlier row with another taxon; one of the two is wrong, or it shows both"
    return [
        *found("photograph twice", "error", later[same], same_text, details=_earlier(records, first[same]), leave_out=True),
        *found("photograph twice, to different ranks", "error", later[lacks], lacks_text, details=_earlier(records, first[lacks])),
        *found("photograph with two taxa", "error", later[differs], text, details=_earlier(records, first[differs])),
    ]


def repeated_ids(records: Inspected) -> list[Finding]:
    """Return findings with the rows whose id (the cell of a column such as photo_id) also occurs in an earlier row.

    Columns in which more than `NEARLY_UNIQUE` of the values repeat are not checked."""
    findings = []
    for name, column in records.ids.items():
        number = value_numbers(column)
        later, first = later_rows(number)
        if len(later) <= NEARLY_UNIQUE * (number >= 0).sum():
            text = f"the {quoted(name)} occurs in an earlier row"
            findings += found(f"{name} twice", "warning", later, text, details=_earlier(records, first))
    return findings


def later_rows(number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows whose value also occurs in an earlier row, int64 [K], and for each of them the first row with that value, int64 [K].
    `number`: int64 [N], the value of each row; rows with -1 are ignored."""
    rows = np.flatnonzero(number >= 0)
    _, first, inverse = np.unique(number[rows], return_index=True, return_inverse=True)
    first = rows[first[inverse]]
    return rows[rows != first], first[rows != first]


def _earlier(records: Inspected, first: np.ndarray) -> tuple[str, ...]:
    return tuple(f"first in row {number}" for number in records.row_numbers[first].tolist())
