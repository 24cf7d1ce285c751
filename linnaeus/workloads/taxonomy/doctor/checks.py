"""List the checks of `linnaeus doctor` in the order in which their findings are reported."""

from collections.abc import Callable

from linnaeus.workloads.taxonomy.doctor.at_sea import at_sea
from linnaeus.workloads.taxonomy.doctor.dropped_rows import dropped_rows, emptied_cells, problems
from linnaeus.workloads.taxonomy.doctor.duplicate_photographs import duplicate_findings
from linnaeus.workloads.taxonomy.doctor.findings import SEVERITIES, Finding, Inspected
from linnaeus.workloads.taxonomy.doctor.known_places import near_known_places
from linnaeus.workloads.taxonomy.doctor.leaks import bursts, group_leaks
from linnaeus.workloads.taxonomy.doctor.photograph_checks import photograph_findings
from linnaeus.workloads.taxonomy.doctor.pixels import measure_rows
from linnaeus.workloads.taxonomy.doctor.places import coordinates, elevations, shared_points, uncertainties
from linnaeus.workloads.taxonomy.doctor.repeated_rows import repeated_ids, repeated_photographs
from linnaeus.workloads.taxonomy.doctor.species_ranges import far_from_their_species
from linnaeus.workloads.taxonomy.doctor.taxon_names import foreign_genus, lineage_conflicts, spellings
from linnaeus.workloads.taxonomy.doctor.times import dates

CHECKS: tuple[Callable[[Inspected], list[Finding]], ...] = (
    problems,
    dropped_rows,
    repeated_photographs,
    repeated_ids,
    group_leaks,
    bursts,
    emptied_cells,
    coordinates,
    far_from_their_species,
    at_sea,
    near_known_places,
    shared_points,
    uncertainties,
    elevations,
    dates,
    lineage_conflicts,
    spellings,
    foreign_genus,
)


def examine(records: Inspected, processes: int) -> list[Finding]:
    """Return the findings of all checks, errors first. `processes`: number of processes that read photographs; 0: check the table only."""
    findings = [finding for check in CHECKS for finding in check(records)]
    if processes:
        pixels = measure_rows(records.files, records.sizes, records.config.max_image_pixels, processes)
        findings += photograph_findings(records, pixels) + duplicate_findings(records, pixels)
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
