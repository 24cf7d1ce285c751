"""The schedule as one picture (SVG, written by hand: a plotting library would cost a second of every start).

From the top: the learning rate, the phases of a curriculum, the probabilities that change, a row of ticks for each kind of event, the
mixing levels; epochs above, steps below, the 25, 50 and 75 % marks through all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from linnaeus.durations import first_step_at
from linnaeus.schedule.resolved import DENSITY, ResolvedSchedule

WIDTH, LEFT, RIGHT, TOP = 1040, 190, 150, 64
CURVE_HEIGHT, RAMP_HEIGHT, PHASE_HEIGHT, ROW_HEIGHT, GAP = 170, 110, 46, 24, 40
# Okabe and Ito's palette, told apart by the colour-blind as well.
BLUE, ORANGE, GREEN, PURPLE, VERMILION, SKY, INK, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#222222", "#8a8a8a",
)  # fmt: skip
RAMP_COLOURS = {"meta_mask_prob": BLUE, "partial_meta_mask_prob": SKY, "null_mask_prob": VERMILION, "mixup_prob": GREEN, DENSITY: PURPLE}
LEVEL_COLOURS = ("#dcecf5", "#fbeccb", "#d6efe6", "#f6e2ed")


def schedule_picture(resolved: ResolvedSchedule, lr_at: Callable[[int], float], path: str | Path) -> None:
    """Write the picture to `path`. `lr_at(step)` is the learning rate of the update made at `global_step` = step, from 0."""
    Path(path).write_text(_Picture(resolved, lr_at).svg(), encoding="utf-8")


class _Picture:
    """Draws from the top down: `y` is how far it has come."""

    def __init__(self, resolved: ResolvedSchedule, lr_at: Callable[[int], float]) -> None:
        self.r, self.lr_at = resolved, lr_at
        self.y = float(TOP)
        self.parts: list[str] = []

    def svg(self) -> str:
        self._learning_rate()
        self._phases()
        self._probabilities()
        self._events()
        self._mixing_levels()
        self._axes()
        height = self.y + 58
        r = self.r
        title = f"{r.total_steps:,} steps, {r.steps_per_epoch:,} an epoch, {r.global_batch_size:,} samples a step"
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}" '
            f'font-family="Helvetica, Arial, DejaVu Sans, sans-serif" font-size="12" fill="{INK}">'
            f'<rect width="100%" height="100%" fill="white"/>'
            f'<text x="{LEFT}" y="24"><tspan font-size="16" font-weight="bold">Training schedule</tspan>'
            f'<tspan dx="14" fill="{GREY}">{title}</tspan></text>'
        )
        return head + "\n".join(self.parts) + "</svg>\n"

    # ---- panels

    def _learning_rate(self) -> None:
        top, bottom = self.y + 14, self.y + 14 + CURVE_HEIGHT
        of_phases = self.r.phases.lr_milestones(self.r.total_steps) if self.r.phases is not None else []
        steps = _sampled(self.r.total_steps, [step for _, step in self.r.lr_milestones])
        rates = [self.lr_at(step) for step in steps]
        peak = max(rates) or 1.0
        if self.r.warmup_end:
            width = self._x(self.r.warmup_end) - LEFT
            self.parts.append(f'<rect x="{LEFT}" y="{top}" width="{width:.1f}" height="{CURVE_HEIGHT}" fill="#f3f3f3"/>')
        for share in (0, 0.5, 1):
            self._gridline(bottom - share * CURVE_HEIGHT, f"{share * peak:.3g}")
        self._heading(top, "learning rate")
        self._curve(steps, [bottom - rate / peak * CURVE_HEIGHT for rate in rates], BLUE)
        last = -math.inf
        for what, step in self.r.lr_milestones:
            x = self._x(step)
            if x - last > 110 and (what, step) not in of_phases:  # under the zero line, where no curve is
                late = x > WIDTH - RIGHT - 110
                self._line(x, bottom, x, bottom + 5, GREY)
                self._text(x - 4 if late else x + 4, bottom + 14, f"{what}, {step:,}", "end" if late else "start", GREY)
                last = x
        self.y = bottom + GAP

    def _phases(self) -> None:
        """Each phase as high as its share: where two overlap, the border between them rises as the new one takes over."""
        if self.r.phases is None:
            return
        total, width, height = self.r.total_steps, WIDTH - LEFT - RIGHT, PHASE_HEIGHT
        borders = [(0, 0), *self.r.phases.crossfades(), (total, total)]
        self._text(LEFT - 10, self.y + height / 2 + 4, "phases", "end")
        self.parts.append(f'<svg x="{LEFT}" y="{self.y}" width="{width}" height="{height}">')  # which cuts off what is beyond
        for number, phase in enumerate(self.r.phases.phases):
            left, right = ([self._x(step) - LEFT for step in borders[i]] for i in (number, number + 1))
            corners = f"{left[0]:.1f},{height} {left[1]:.1f},0 {right[1]:.1f},0 {right[0]:.1f},{height}"
            about = escape(": ".join(filter(None, (phase.name, phase.description))))
            self.parts.append(f'<polygon points="{corners}" fill="{LEVEL_COLOURS[number % 4]}"><title>{about}</title></polygon>')
            room, middle = sum(right) - sum(left), (sum(right) + sum(left)) / 4
            letters = int(room / 2 / 6.5)
            if letters > 3:
                name = phase.name if len(phase.name) <= letters else phase.name[: letters - 1] + "…"
                self._text(middle, height / 2 - 3, name, "middle")
                self._text(middle, height / 2 + 14, f"x {phase.lr:g}", "middle", GREY)
        self.parts.append("</svg>")
        self.y += height + GAP - 12

    def _probabilities(self) -> None:
        ramps = {name: ramp for name, ramp in self.r.ramps().items() if ramp.start or ramp.end}
        if not ramps:
            return
        top, bottom = self.y, self.y + RAMP_HEIGHT
        for share in (0, 0.5, 1):
            self._gridline(bottom - share * RAMP_HEIGHT, f"{share:g}")
        self._heading(top, "probability")
        ends = []
        for name, ramp in ramps.items():
            # Sampled just before and at each corner, so that a jump is drawn upright.
            corners = [s for c in (ramp.begin_step, ramp.until_step) for s in (c - 1, c) if 0 <= s < self.r.total_steps]
            steps = sorted({0, *corners, self.r.total_steps - 1})
            self._curve(steps, [bottom - ramp.at(s) * RAMP_HEIGHT for s in steps], RAMP_COLOURS[name])
            ends.append((bottom - ramp.at(self.r.total_steps - 1) * RAMP_HEIGHT, name))
        for y, (_, name) in zip(_spread([y for y, _ in sorted(ends)], 15, bottom), sorted(ends), strict=True):
            self._text(WIDTH - RIGHT + 8, y + 4, name, "start", RAMP_COLOURS[name])
        self.y = bottom + GAP

    def _events(self) -> None:
        colours = {"checkpoint": ORANGE, "weighting": PURPLE, "conflict": PURPLE, "report": GREY, "log": GREY}
        for name, every in self.r.events().items():
            steps = every.steps()
            if not steps and not every.seconds:
                continue
            middle = self.y + ROW_HEIGHT / 2
            self._line(LEFT, middle, WIDTH - RIGHT, middle, "#dddddd")
            self._text(LEFT - 10, middle + 4, name, "end")
            self._ticks(steps, middle, colours.get(name, GREEN))
            count = f"{len(steps):,} x" if steps else ""
            clock = "every " + ", ".join(f"{s / 60:g} min" for s in every.seconds) if every.seconds else ""
            self._text(WIDTH - RIGHT + 8, middle + 4, ", ".join(filter(None, (count, clock))), "start", GREY)
            self.y += ROW_HEIGHT
        self.y += 8

    def _ticks(self, steps: Sequence[int], middle: float, colour: str) -> None:
        """One tick per event, drawn as one path; events closer than two pixels run together into a band."""
        columns = sorted({round(self._x(step) * 2) / 2 for step in steps})
        path = "".join(f"M{x:g} {middle - 7:g}v14" for x in columns)
        if path:
            self.parts.append(f'<path d="{path}" stroke="{colour}" stroke-width="{1.6 if len(columns) < 200 else 0.8}"/>')

    def _mixing_levels(self) -> None:
        r = self.r
        if not r.mixup_group_levels or not (r.mixup_prob.start or r.mixup_prob.end):
            return
        starts = [(min(epoch * r.steps_per_epoch, r.total_steps), level) for epoch, level in r.mixup_group_levels]
        self._text(LEFT - 10, self.y + 16, "mixing level", "end")
        for i, (step, level) in enumerate(starts):
            until = starts[i + 1][0] if i + 1 < len(starts) else r.total_steps
            x, width = self._x(step), self._x(until) - self._x(step)
            if width > 0:
                self.parts.append(f'<rect x="{x:.1f}" y="{self.y}" width="{width:.1f}" height="22" fill="{LEVEL_COLOURS[i % 4]}"/>')
            if width > 8 * len(level):
                self._text(x + width / 2, self.y + 15, level, "middle")
        self.y += 34

    def _axes(self) -> None:
        """Steps below, epochs above, the marks of the run and the last step through everything."""
        self.y += 12  # room for the names of the marks
        r, bottom = self.r, self.y
        self._line(LEFT, bottom, WIDTH - RIGHT, bottom, INK)
        for step in _round_ticks(r.total_steps, 8):
            self._line(self._x(step), bottom, self._x(step), bottom + 5, INK)
            self._text(self._x(step), bottom + 19, f"{step:,}", "middle")
        self._text((LEFT + WIDTH - RIGHT) / 2, bottom + 40, "step (optimizer updates)", "middle", GREY)
        self._line(LEFT, TOP, WIDTH - RIGHT, TOP, "#bbbbbb")
        for epoch in _round_ticks(r.total_steps / r.steps_per_epoch, 12):
            x = self._x(epoch * r.steps_per_epoch)
            self._line(x, TOP - 5, x, TOP, GREY)
            self._text(x, TOP - 9, f"{epoch:,}", "middle", GREY)
        self._text(LEFT - 10, TOP - 9, "epochs done", "end", GREY)
        for percent in (25, 50, 75):
            x = self._x(first_step_at(percent * r.total_steps / 100))
            self._line(x, TOP, x, bottom, GREY, 'stroke-dasharray="2 4"')
            self._text(x + 4, bottom - 4, f"{percent}%", "start", GREY)
        if r.last_step < r.total_steps:
            x = self._x(r.last_step)
            self._line(x, TOP, x, bottom, VERMILION, 'stroke-width="1.5"')
            self._text(x + 4, TOP + 14, f"stops at {r.last_step:,}", "start", VERMILION)

    # ---- strokes

    def _x(self, step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / self.r.total_steps

    def _text(self, x: float, y: float, text: str, anchor: str, colour: str = INK) -> None:
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>')

    def _line(self, x1: float, y1: float, x2: float, y2: float, colour: str, extra: str = "") -> None:
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {extra}/>')

    def _heading(self, top: float, text: str) -> None:
        self._text(20, top + 4, text, "start")

    def _gridline(self, y: float, label: str) -> None:
        self._line(LEFT, y, WIDTH - RIGHT, y, "#e6e6e6")
        self._text(LEFT - 10, y + 4, label, "end", GREY)

    def _curve(self, steps: Sequence[int], heights: Sequence[float], colour: str) -> None:
        points = " ".join(f"{self._x(step):.1f},{y:.1f}" for step, y in zip(steps, heights, strict=True))
        self.parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>')


def _sampled(total: int, corners: Sequence[int]) -> list[int]:
    """Steps 0..total-1 at most a pixel or so apart, with both sides of every corner."""
    count = min(total, WIDTH - LEFT - RIGHT)
    even = {i * (total - 1) // max(1, count - 1) for i in range(count)}
    return sorted(even | {step for c in corners for step in (c - 1, c, c + 1) if 0 <= step < total})


def _round_ticks(end: float, most: int) -> list[int]:
    """Whole multiples of 1, 2 or 5 x 10^n from 0 to `end`, at most about `most` of them."""
    size = max(1.0, end / most)
    power = 10 ** math.floor(math.log10(size))
    step = next(int(m * power) for m in (1, 2, 5, 10) if m * power >= size)
    return list(range(0, math.floor(end) + 1, step))


def _spread(heights: Sequence[float], apart: float, bottom: float) -> list[float]:
    """Ascending `heights` moved so that labels at them do not overlap and none falls below `bottom`."""
    spread: list[float] = []
    for y in heights:
        spread.append(max(y, spread[-1] + apart) if spread else y)
    overshoot = max(0.0, spread[-1] - bottom) if spread else 0.0
    for i in range(len(spread) - 1, -1, -1):
        limit = bottom if i == len(spread) - 1 else spread[i + 1] - apart
        spread[i] = min(spread[i], limit) if overshoot else spread[i]
    return spread
