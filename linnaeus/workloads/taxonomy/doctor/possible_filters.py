"""Count the rows that usual filters would leave out, although none of them is set: rows without a place or a date, with uncertain
coordinates, and of taxa with few photographs."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from linnaeus.errors import escaped
from linnaeus.reporting.formatting import format_percent
from linnaeus.workloads.taxonomy.doctor.findings import Inspected
from linnaeus.workloads.taxonomy.doctor.places import on_earth

UNCERTAINTIES_KM = (1, 10, 100)
FEWEST_PHOTOGRAPHS = (2, 5, 10)


class FilterCount(NamedTuple):
    """Effect of a filter on the rows that training uses."""

    name: str
    rows: int  # that it would leave out
    taxa: int  # of the finest rank, of which it would leave no row
    used: int  # rows without the filter

    def cells(self) -> dict[str, str]:
        """Return the table row of this filter in the report, as heading -> cell."""
        share = format_percent(self.rows / self.used)
        return {"filter (not set)": escaped(self.name), "rows left out": f"{self.rows:,}", "share": share, "taxa lost": f"{self.taxa:,}"}


def filter_counts(records: Inspected) -> list[FilterCount]:
    """Return the effect of each filter for which the source has a column; [] if no row can be used."""
    used = (records.labels >= 0).any(axis=1)
    if not used.any():
        return []
    finest = records.labels[:, -1]
    size = int(finest.max()) + 1
    counts = np.bincount(finest[used & (finest >= 0)], minlength=size)
    found = []
    for name, rows in _filters(records, counts):
        left = np.bincount(finest[used & ~rows & (finest >= 0)], minlength=size)
        found.append(FilterCount(name, int((used & rows).sum()), int(((counts > 0) & (left == 0)).sum()), int(used.sum())))
    return found


def _filters(records: Inspected, counts: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, bool [N]) for each filter. The array is True for the rows that it would leave out. `counts`: int64 [C], rows of each
    taxon of the finest rank."""
    config = records.config
    if config.latitude_column is not None:
        yield "without coordinates", ~on_earth(records)
    if config.uncertainty_column is not None:
        for km in UNCERTAINTIES_KM:
            yield f"uncertainty above {km} km", records.uncertainty > 1000 * km
        yield "without an uncertainty", np.isnan(records.uncertainty)
    if config.date_column is not None:
        yield "without a date (day known)", np.isnat(records.date) | np.isnan(records.metadata.day)
    if config.elevation_column is not None:
        yield "without an elevation", np.isnan(records.metadata.elevation)
    finest = records.labels[:, -1]
    yield f"without a {records.tree.ranks[-1]}", finest < 0
    for least in FEWEST_PHOTOGRAPHS:
        yield f"{records.tree.ranks[-1]} with fewer than {least} photographs", (finest >= 0) & (np.append(counts, 0)[finest] < least)
