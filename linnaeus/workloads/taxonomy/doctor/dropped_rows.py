"""Report the rows that training leaves out and the cells that it sets to missing: a finding for each reason."""

import numpy as np

from linnaeus.errors import counted
from linnaeus.workloads.taxonomy.doctor.findings import Finding, Inspected, Severity, found
from linnaeus.workloads.taxonomy.images.image_files import REASONS, UNREACHABLE
from linnaeus.workloads.taxonomy.manifest.splitting.given_split import NOT_IN_FILE, UNDATED

NO_ROWS = np.empty(0, dtype=np.int64)
ZERO, OUTSIDE = "coordinates 0, 0", "tude outside ["  # parts of the reasons that `clean_metadata` gives and the check `coordinates` reports
_INCOMPLETE = ("no month", "interval longer than a month", "midnight")  # of dates that are incomplete, not wrong


def dropped_rows(records: Inspected) -> list[Finding]:
    """Return a finding for each reason for which training leaves rows out."""
    findings = [
        Finding("left out by the reader", "warning", NO_ROWS, f"{counted(count, 'row')} of the source: {reason}")
        for reason, count in records.excluded.items()
    ]
    for reason, rows in records.left_out.items():
        if reason == REASONS[UNREACHABLE]:
            text = "linnaeus prepare stops at such a photograph; a corrected manifest does not have the rows"
            findings += found(reason, "error", rows, text, leave_out=True)
        elif reason in REASONS.values():
            findings += found(reason, "error", rows, "training leaves the rows out", leave_out=True)
        elif reason in (NOT_IN_FILE, UNDATED):
            findings += found("on no side of the split", "warning", rows, f"{reason}; training leaves the rows out", leave_out=True)
        else:
            findings += found("no label", "warning", rows, f"{reason}; training leaves the rows out", leave_out=True)
    return findings


def problems(records: Inspected) -> list[Finding]:
    """Return a finding for each mistake with which training would not start."""
    return [Finding("training would not start", "error", NO_ROWS, text) for text in records.problems]


def emptied_cells(records: Inspected) -> list[Finding]:
    """Return a finding for each reason for which training sets cells to missing."""
    findings = []
    for (role, reason), rows in records.missing.items():
        if reason.startswith(ZERO) or OUTSIDE in reason:
            continue
        check = reason.removesuffix(", set to missing").partition(" (")[0]
        severity: Severity = "note" if any(words in reason for words in _INCOMPLETE) else "error"
        name = str(getattr(records.config, f"{role}_column"))
        findings += found(check, severity, rows, f"training sets {name!r} to missing in these rows", empty=(name,))
    return findings
