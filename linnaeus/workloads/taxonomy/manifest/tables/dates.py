"""Parse dates and times of a manifest: ISO 8601, partial dates, intervals, dates of EXIF and of Java, or a given strptime format.

If a text cannot be parsed, the functions return the reason as a `str`, such as "impossible date", in place of the result."""

import calendar
import datetime
import re
from collections.abc import Sequence

from linnaeus.errors import ConfigError, quoted

LONGEST_INTERVAL = 31  # days; the middle of a longer interval is a poor estimate of the season
NO_DAY = "no day of the month"  # reason
_DATE = re.compile(r"(\d{4})(?:[-/:](\d{1,2})(?:[-/:](\d{1,2}))?)?$")
_COMPACT_DATE = re.compile(r"(\d{4})(\d{2})(\d{2})$")
_JAVA_DATE = re.compile(r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) (\d{2}) \d{2}:\d{2}:\d{2} \S+ (\d{4})$")  # old downloads from GBIF
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TIME = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,]\d+)?)?\s*(Z|UTC|[+-]\d{2}(?::?\d{2})?)?$", re.IGNORECASE)
_DAYS = [f"{order.replace(' ', mark)}%{year}" for year in "Yy" for mark in "/.-" for order in ("%d %m ", "%m %d ")]
_DAYS += ["%Y.%m.%d", "%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%B %d %Y"]
FORMATS = [day + clock for day in _DAYS for clock in ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")]  # that a message suggests


def check_format(form: str) -> None:
    """Raise ConfigError if `form` is not a strptime format of a day, a month and a year."""
    probe = datetime.datetime(2003, 11, 23, tzinfo=datetime.UTC)
    try:
        complete = datetime.datetime.strptime(probe.strftime(form), form).date() == probe.date()
    except (ValueError, re.error):
        complete = False
    if not complete:
        raise ConfigError(f"data.date_format: {quoted(form)} is not a strptime format with day, month and year; use one such as %d/%m/%Y")


def fitting_formats(values: Sequence[str]) -> list[str]:
    """Return the strptime formats in `FORMATS` that fit all values."""
    return [form for form in FORMATS if all(isinstance(day_of_year(value, form), float) for value in values)]


def day_of_year(text: str, form: str | None = None, later: int = 0) -> float | str:
    """Return a date as the fraction of its year, in [0, 1), at the start of the day; a `str` with the reason if `text` is not a date.

    `form`: strptime format that the text must have; None: the text may be a date, a date with time, a month, or an interval of up to 31
    days. Of a month or an interval, the middle date is used. `later`: days to add to the date."""
    date = _day(text, form)
    try:
        return date if isinstance(date, str) else _fraction_of_year(date + datetime.timedelta(days=later))
    except OverflowError:
        return "impossible date"


def _day(text: str, form: str | None) -> datetime.date | str:
    """Return the date of a text for `day_of_year`; a `str` with the reason if the text has no valid date."""
    if form is not None:
        return _formatted(text, form)
    start, interval, end = text.partition("/") if not re.match(r"\d{4}/", text) or text.count("/") % 2 else (text, "", "")
    period = _period(start)
    until = _period(_complete_end(start.strip(), end.strip())) if interval else period
    if isinstance(period, str) or isinstance(until, str):
        return period if isinstance(period, str) else str(until)
    first, last = period[0], until[1]
    if not 0 <= (last - first).days <= LONGEST_INTERVAL:
        return "interval longer than a month" if last > first else "interval that ends before it starts"
    return first + (last - first) / 2


def _period(text: str) -> tuple[datetime.date, datetime.date] | str:
    """Return the first and the last date of a date (twice the same) or of a month; a `str` with the reason for any other text."""
    date = _date(text)
    if date != NO_DAY:
        return date if isinstance(date, str) else (date, date)
    first = _date(re.split(r"[T ]", text.strip(), maxsplit=1)[0] + "-01")
    return first if isinstance(first, str) else (first, first.replace(day=calendar.monthrange(first.year, first.month)[1]))


def first_date(text: str, form: str | None = None) -> datetime.date | str:
    """Return the date of a text, or the first date of an interval; a `str` with the reason if the text has no valid date.

    `form`: strptime format that the text must have; None: the formats at the top of this file."""
    if form is not None:
        when = _formatted(text, form)
        return when if isinstance(when, str) else when.date()
    return _date(text if re.match(r"\d{4}/", text) else text.partition("/")[0])


def date_range(text: str, form: str | None = None) -> tuple[datetime.date, datetime.date] | str:
    """Return the first and the last date that a text may mean: of a date twice the same, of a month or a year its first and last day, of an
    interval its ends; a `str` with the reason if the text has no valid date. `form`: as in `first_date`."""
    if form is not None:
        when = _formatted(text, form)
        return when if isinstance(when, str) else (when.date(), when.date())
    start, interval, end = text.partition("/") if not re.match(r"\d{4}/", text) or text.count("/") % 2 else (text, "", "")
    first = _range(start)
    last = _range(_complete_end(start.strip(), end.strip())) if interval else first
    if isinstance(first, str) or isinstance(last, str):
        return first if isinstance(first, str) else str(last)
    return (first[0], last[1]) if first[0] <= last[1] else "interval that ends before it starts"


def _range(text: str) -> tuple[datetime.date, datetime.date] | str:
    """Return the first and the last date of a date, a month or a year; a `str` with the reason for any other text."""
    if re.fullmatch(r"\s*[1-9]\d{3}\s*", text):
        return datetime.date(int(text), 1, 1), datetime.date(int(text), 12, 31)
    return _period(text)


def is_utc(text: str) -> bool:
    """Return True if a time is marked as UTC. An offset such as +02:00, also +00:00, marks a local time."""
    return text.strip().upper().endswith(("Z", "UTC"))


def hour_of_day(text: str, form: str | None = None) -> float | str:
    """Return the hour of the day, a number in [0, 24), of a time or of a date with time; a `str` with the reason if `text` has no time.

    Time zones are not converted. `form`: strptime format that the text must have; None: the formats at the top of this file."""
    if form is not None:
        when = _formatted(text, form)
        return when if isinstance(when, str) else when.hour + when.minute / 60 + when.second / 3600
    match = _TIME.match(re.split(r"[T ]", text.strip(), maxsplit=1)[-1].strip() if _has_date(text) else text.strip().lstrip("Tt"))
    if not match:
        return "not a time"
    hour, minute, second = (int(part or 0) for part in match.groups()[:3])
    if hour > 23 or minute > 59 or second > 60:
        return "impossible time"
    return hour + minute / 60 + min(second, 59) / 3600


def _formatted(text: str, form: str) -> datetime.datetime | str:
    try:
        return datetime.datetime.strptime(text.strip(), form)
    except ValueError:
        return f"not in the format {quoted(form)}"


def _has_date(text: str) -> bool:
    return re.match(r"\s*\d{4}[-/:]?\d", text) is not None


def _date(text: str) -> datetime.date | str:
    """Return the date of a text that is a date, or a date with time; a `str` with the reason for any other text."""
    text = text.strip()
    if (java := _JAVA_DATE.match(text)) and java[1] in _MONTHS:
        text = f"{java[3]}-{_MONTHS.index(java[1]) + 1}-{java[2]}"
    text = re.split(r"[T ]", text, maxsplit=1)[0]
    match = _COMPACT_DATE.match(text) or _DATE.match(text)
    if not match:
        return "not a date"
    year, month, day = match.groups()
    if day is None:
        return "no month" if month is None else NO_DAY
    try:
        return datetime.date(int(year), int(month), int(day))
    except ValueError:
        return "impossible date"


def _complete_end(start: str, end: str) -> str:
    """Return the full end date of an interval. In ISO 8601, the end may omit the part that equals the start, as in 2021-04-27/30 and in
    2021-04-27T10:00/12:00."""
    start, day = (re.split(r"[T ]", text, maxsplit=1)[0] for text in (start, end))
    if _TIME.match(end.lstrip("Tt")):
        return start
    return start[: len(start) - len(day)] + day if re.match(r"\d{1,2}(-\d{1,2})?$", day) else end


def _fraction_of_year(date: datetime.date) -> float:
    """Return the fraction of the year, in [0, 1), at the start of a date."""
    return (date.timetuple().tm_yday - 1) / (366 if calendar.isleap(date.year) else 365)
