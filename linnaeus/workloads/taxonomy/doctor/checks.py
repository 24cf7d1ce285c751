"""The checks of the doctor, in the order in which their findings are reported."""

from collections.abc import Callable

from linnaeus.workloads.taxonomy.doctor.dropped_rows import dropped_rows, emptied_cells
from linnaeus.workloads.taxonomy.doctor.findings import SEVERITIES, Finding, Inspected
from linnaeus.workloads.taxonomy.doctor.leaks import bursts, group_leaks
from linnaeus.workloads.taxonomy.doctor.places import coordinates, shared_points, uncertainties
from linnaeus.workloads.taxonomy.doctor.repeated_rows import repeated_ids, repeated_photographs
from linnaeus.workloads.taxonomy.doctor.times import dates

CHECKS: tuple[Callable[[Inspected], list[Finding]], ...] = (
    dropped_rows,
    repeated_photographs,
    repeated_ids,
    group_leaks,
    bursts,
    emptied_cells,
    coordinates,
    uncertainties,
    shared_points,
    dates,
)


def examine(records: Inspected) -> list[Finding]:
    """Return the findings of all checks, errors first."""
    findings = [finding for check in CHECKS for finding in check(records)]
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
