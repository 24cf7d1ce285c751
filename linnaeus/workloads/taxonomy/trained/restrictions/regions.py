"""Read a table of the taxa of regions, for `--region NAME=FILE`: names as in a checklist (`checklist.py`), and the region of each row.

The region is in one column of the table: the first of `region`, `countryCode` and `country` that has a value in some row. Only an empty
cell is no value: NA is the country code of Namibia. Rows without a value in this column are left out and counted. A taxon of several
regions has several rows."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from linnaeus.errors import ConfigError, counted, list_some, quoted
from linnaeus.workloads.taxonomy.manifest.tables.cleaning import is_null
from linnaeus.workloads.taxonomy.trained.restrictions.checklist import check_file, table_rows
from linnaeus.workloads.taxonomy.trained.restrictions.restriction import Restriction, Row, of_rows
from linnaeus.workloads.taxonomy.trained.restrictions.taxon_index import TaxonIndex

COLUMNS = ("region", "countrycode", "country")  # normalised names
SHOWN = 8  # regions in a message


class Regions:
    """Taxa of each region that a table lists. `notes`: lines of text about rows of the table that were not used."""

    def __init__(self, path: Path, index: TaxonIndex) -> None:
        """Read the table in the file `path`. `index`: taxa of the model.

        Raise `ConfigError` for a file that cannot be read, and for a table without regions or without names of taxa."""
        check_file(path, "--region", "a table of taxa and regions")
        self.path, self.index = path, index
        rows, self.notes = table_rows(path, index, "--region", COLUMNS)
        words = [name for name in COLUMNS if any(not is_null(cells.get(name, "")) for cells, _ in rows)]  # not only NA
        column = next(iter([*words, *(name for name in COLUMNS if any(name in cells for cells, _ in rows))]), None)
        if column is None:
            raise ConfigError(f"--region: {quoted(str(path), 200)} has no column of regions with values; name one region")
        self.rows: dict[str, list[Row]] = {}
        for cells, row in rows:
            if column in cells:
                self.rows.setdefault(cells[column], []).append(row)
        if missing := sum(column not in cells for cells, _ in rows):
            self.notes.append(f"{counted(missing, 'row')} of {path.name} left out: no {column}")

    @cached_property
    def names(self) -> list[str]:
        """Return the names of the regions in alphabetical order."""
        return sorted(self.rows)

    def restriction(self, name: str) -> Restriction:
        """Return the restriction of predictions to the taxa of the region `name`.

        Raise `ConfigError` if the table does not have this region, or if no taxon of the region is a taxon of the model."""
        if name not in self.rows:
            raise ConfigError(f"region: {quoted(name)} is not in {self.path.name}, which has {list_some(self.names, SHOWN)}")
        return of_rows(self.index, self.rows[name], f"region {quoted(name)}")


def split_region(text: str) -> tuple[str, Path]:
    """Return NAME and FILE from the text `NAME=FILE`. Raise `ConfigError` for any other text."""
    name, found, path = text.partition("=")
    if not (name.strip() and found and path):
        raise ConfigError(f"--region: {quoted(text)} is not NAME=FILE; give a region and the table that has its taxa")
    return name.strip(), Path(path)
