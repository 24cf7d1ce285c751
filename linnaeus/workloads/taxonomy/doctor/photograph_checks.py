"""Check the pixels of photographs: damaged, small, odd in shape, dark, bright, blurred, empty or without colour.

The thresholds are from cleanvision 0.3.7, except the threshold of blur (0.29 in cleanvision, which includes the border of the picture). The
sharpness of 4,367 photographs of plants, including sharp flowers in front of soft leaves, is at least 0.2; after a blur of 4 % of the short
side nearly all are below.
"""

from collections.abc import Iterator

import numpy as np

from linnaeus.workloads.taxonomy.doctor.findings import Finding, Inspected, found
from linnaeus.workloads.taxonomy.doctor.pixels import Pixels

DARK, BRIGHT = 0.32, 0.95  # limits for the brightness of the brightest and of the darkest pixels
SHARP = 0.2
INFORMATIVE = 3.0  # bits per value
SHAPE = 0.35  # short over long side
SMALL = 0.5  # short side over data.image_size


def photograph_findings(records: Inspected, pixels: Pixels) -> list[Finding]:
    """Return a finding for each kind of defect that photographs have. `pixels`: measures of the photographs of the N rows."""
    readable = (records.sizes > 0) & (pixels.reasons == "")
    damaged = np.flatnonzero((records.sizes > 0) & (pixels.reasons != ""))
    findings = found(
        "damaged photograph",
        "error",
        damaged,
        "the photograph cannot be decoded; training leaves it out",
        details=tuple(pixels.reasons[damaged].tolist()),
        leave_out=True,
    )
    for check, defect, values, text in _defects(records, pixels):
        rows = np.flatnonzero(readable & defect)
        findings += found(check, "warning", rows, text, details=tuple(values[row] for row in rows.tolist()))
    findings += found("grey photograph", "note", readable & pixels.grey, "the photograph does not have colours")
    return findings


class Lines:
    """Text for each of N rows, which `lines[row]` formats from `values`. `text`: format string. `values`: arrays [N], one for each field of
    `text`."""

    def __init__(self, text: str, *values: np.ndarray) -> None:
        self.text, self.values = text, values

    def __getitem__(self, row: int) -> str:
        return self.text.format(*(values[row] for values in self.values))


def _defects(records: Inspected, pixels: Pixels) -> Iterator[tuple[str, np.ndarray, Lines, str]]:
    """Yield (name, bool [N], details, text) for each kind of defect that is a warning. The bool array is True for rows with the defect;
    `details[row]` is a line of text about one row; text describes the defect."""
    short, long = np.minimum(pixels.width, pixels.height), np.maximum(pixels.width, pixels.height)
    size = Lines("{} x {} pixels", pixels.width, pixels.height)
    side = records.config.image_size
    yield "tiny photograph", short < SMALL * side, size, f"the short side is below half of data.image_size={side}"
    yield "odd shape", short < SHAPE * long, size, f"one side is less than {SHAPE:g} of the other; a crop shows a small part of it"
    brightest = Lines("brightness of the brightest pixels {:.2f}", pixels.brightest)
    yield "dark photograph", pixels.brightest < DARK, brightest, f"99 % of the pixels are darker than {DARK:g} of white"
    darkest = Lines("brightness of the darkest pixels {:.2f}", pixels.darkest)
    yield "bright photograph", pixels.darkest > BRIGHT, darkest, f"95 % of the pixels are brighter than {BRIGHT:g} of white"
    sharpness = Lines("sharpness {:.2f}", pixels.sharpness)
    yield "blurred photograph", pixels.sharpness < SHARP, sharpness, f"the sharpness is below {SHARP:g}"
    entropy = Lines("{:.1f} bits", pixels.entropy)
    yield "empty photograph", pixels.entropy < INFORMATIVE, entropy, f"the pixels have less than {INFORMATIVE:g} bits of information"
