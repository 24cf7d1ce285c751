"""Check dates: in the future, before photography, 1 January, and the default dates of clocks."""

import datetime
from collections.abc import Mapping

import numpy as np

from linnaeus.workloads.taxonomy.doctor.findings import Finding, Inspected, found

FIRST_PHOTOGRAPH = np.datetime64("1826-01-01")
CLOCK_STARTS = ("1899-12-30", "1899-12-31", "1900-01-01", "1904-01-01", "1970-01-01", "1980-01-01")  # of spreadsheets, systems and cameras
PEAK, PEAK_ROWS = 10.0, 10  # least number of rows on 1 January: as a multiple of the mean of the other days, and absolute


def dates(records: Inspected, today: datetime.date | None = None) -> list[Finding]:
    """Return findings with the rows whose date is impossible or improbable. `today`: None means the date of this computer."""
    name = records.config.date_column
    if name is None:
        return []
    date = records.date
    tomorrow = np.datetime64(today or datetime.date.today()) + 1  # in time zones to the east, today's date is one day later
    remedy = {"empty": (name,)}
    future, early = date > tomorrow, date < FIRST_PHOTOGRAPH
    default = np.isin(date, np.array(CLOCK_STARTS, dtype="datetime64[D]"))
    return [
        *found("date in the future", "error", future, "after today", **remedy),
        *found("date before photography", "error", early, "before 1826, the year of the first photograph", **remedy),
        *found(
            "default date of a clock",
            "warning",
            default,
            "the day from which programs and cameras count; probably not the date of the photograph",
            **remedy,
        ),
        *new_year(date, future | early | default, remedy),
    ]


def new_year(date: np.ndarray, others: np.ndarray, remedy: Mapping[str, tuple[str, ...]]) -> list[Finding]:
    """Return a finding with the rows of 1 January if they are many more than the rows of a usual day; otherwise [].

    `others`: bool [N], True for rows to ignore because other findings contain them. `remedy`: further fields of the finding."""
    known = ~np.isnat(date) & ~others
    day = (date - date.astype("datetime64[Y]")).astype(np.int64)
    first = known & (day == 0)
    usual = (known.sum() - first.sum()) / 364
    if first.sum() < max(PEAK_ROWS, PEAK * usual):
        return []
    text = f"a usual day has {usual:.1f} rows: dates of which only the year is known"
    return found("1 January", "warning", first, text, **remedy)
