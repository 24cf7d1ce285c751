"""Draw schedule.svg, the schedule of a run as one picture over the steps.

From the top: epochs, learning rate, phases of a curriculum, probabilities, a row of marks for each kind of event, mixing levels,
augmentation, image sizes, steps. Dotted lines mark 25, 50 and 75 % of the run. A red line marks the step at which `early_stop.max_steps`
ends the run.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from linnaeus.durations import first_step_at
from linnaeus.files import write_atomic
from linnaeus.reporting.charts import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, SKY, VERMILION, Chart, Scale, document, nice_ticks
from linnaeus.schedule.resolved import DENSITY, ResolvedSchedule

WIDTH, LEFT, RIGHT, TOP, GAP = 1070, 190, 180, 64, 40  # pixels
RAMP_COLOURS = {"meta_mask_prob": BLUE, "partial_meta_mask_prob": SKY, "null_mask_prob": VERMILION, "mixup_prob": GREEN, DENSITY: PURPLE}
EVENT_COLOURS = {"checkpoint": ORANGE, "weighting": PURPLE, "conflict": PURPLE, "report": GREY, "log": GREY}
AREA_COLOURS = ("#dcecf5", "#fbeccb", "#d6efe6", "#f6e2ed")


def schedule_picture(resolved: ResolvedSchedule, lr_at: Callable[[int], float], path: str | Path) -> None:
    """Write the picture to `path`. `lr_at(step)` returns the learning rate of the update made at `global_step` = `step`."""
    write_atomic(path, _Picture(resolved, lr_at).svg())


class _Picture:
    """Picture of one schedule: panels, each below the one before it."""

    def __init__(self, resolved: ResolvedSchedule, lr_at: Callable[[int], float]) -> None:
        self.r, self.lr_at = resolved, lr_at
        self.x = Scale(0, resolved.total_steps, LEFT, WIDTH - RIGHT)
        self.charts: list[Chart] = []
        self.bottom = TOP + 20.0  # pixel of the lower edge of the panels so far

    def svg(self) -> str:
        self._learning_rate()
        self._phases()
        self._probabilities()
        self._events()
        self._mixing_levels()
        self._augmentation()
        self._image_sizes()
        self._frame()
        return document(WIDTH, self.bottom + 48, [part for chart in self.charts for part in chart.parts])

    def _panel(self, name: str, height: float, gap: float = 0.0, high: float | None = None) -> Chart:
        """Add a panel of `height` pixels below the others, followed by `gap` empty pixels, and return it.

        high: the y axis goes from 0 to `high`, and the name is beside its upper end; None: the panel is a row without a y axis, and the
        name is beside its middle."""
        chart = Chart(self.x, Scale(0, high or 1.0, self.bottom + height, self.bottom))
        if high is None:
            chart.text(LEFT - 10, self.bottom + height / 2 + 4, name, "end", INK)
        else:
            chart.text(20, self.bottom + 4, name, colour=INK)
            chart.y_axis({share * high: f"{share * high:.3g}" for share in (0, 0.5, 1)})
        self.charts.append(chart)
        self.bottom += height + gap
        return chart

    def _learning_rate(self) -> None:
        r = self.r
        of_phases = r.phases.lr_milestones(r.total_steps) if r.phases is not None else []
        steps = _sampled(r.total_steps, [step for _, step in r.lr_milestones])
        rates = [self.lr_at(step) for step in steps]
        chart = self._panel("learning rate", 170, GAP, max(rates) or 1.0)
        if r.warmup_end:
            chart.area((0, 0, r.warmup_end, r.warmup_end), "#f3f3f3")
        chart.curve(list(zip(steps, rates)), BLUE)
        chart.x_axis({step: f"{what}, step {step:,}" for what, step in r.lr_milestones if (what, step) not in of_phases}, tick=-5)

    def _phases(self) -> None:
        """Draw the phases as areas. The border between two phases is oblique: from the start of the fade at the bottom to its end at the
        top."""
        if self.r.phases is None:
            return
        chart, total = self._panel("phases", 46, 28), self.r.total_steps
        borders = [(0, 0), *self.r.phases.crossfades(), (total, total)]
        for number, phase in enumerate(self.r.phases.phases):
            (start, whole), (fade, end) = borders[number], borders[number + 1]
            title = ": ".join(filter(None, (phase.name, phase.description)))
            chart.area((start, whole, end, fade), AREA_COLOURS[number % 4], phase.name, f"x {phase.lr:g}", title)

    def _probabilities(self) -> None:
        last = self.r.total_steps - 1
        ramps = {name: ramp for name, ramp in self.r.ramps().items() if ramp.start or ramp.end}
        if not ramps:
            return
        chart = self._panel("probability", 110, GAP, 1.0)
        for name, ramp in ramps.items():
            changes = [ramp.begin_step, ramp.until_step, *([] if ramp.off_step is None else [ramp.off_step])]
            corners = [s for c in changes for s in (c - 1, c) if 0 <= s <= last]  # a jump is drawn upright
            chart.curve([(step, ramp.at(step)) for step in sorted({0, *corners, last})], RAMP_COLOURS[name])
        y = 0.0
        names = sorted(ramps, key=lambda name: (-ramps[name].at(last), name))
        for below, name in zip(reversed(range(len(names))), names):
            y = max(chart.y(ramps[name].at(last)), y + 15)  # 15 pixels apart, and none below the panel
            chart.text(WIDTH - RIGHT + 8, min(y, chart.y.start - 15 * below) + 4, name, colour=RAMP_COLOURS[name])

    def _events(self) -> None:
        for name, every in self.r.events().items():
            steps = every.steps()
            if not steps and not every.seconds:
                continue
            chart = self._panel(name, 24)
            y = chart.y(0.5)
            chart.line(LEFT, y, WIDTH - RIGHT, y, "#dddddd")
            columns = sorted({round(self.x(step) * 2) / 2 for step in steps})  # marks closer than half a pixel are one
            path = "".join(f"M{x:g} {y - 7:g}v14" for x in columns)
            width = 1.6 if len(columns) < 200 else 0.8
            chart.add("path", d=path, class_="events", stroke=EVENT_COLOURS.get(name, GREEN), stroke_width=width)
            count = [f"{len(steps):,} x"] if steps else []
            clock = [f"every {', '.join(f'{seconds / 60:g}' for seconds in every.seconds)} min"] if every.seconds else []
            chart.text(WIDTH - RIGHT + 8, y + 4, ", ".join(count + clock))

    def _mixing_levels(self) -> None:
        r = self.r
        if not r.mixup_group_levels or not (r.mixup_prob.start or r.mixup_prob.end):
            return
        self.bottom += 8
        chart, steps = self._panel("mixing level", 24), [epoch * r.steps_per_epoch for epoch, _ in r.mixup_group_levels]
        for i, ((_, level), start, end) in enumerate(zip(r.mixup_group_levels, steps, [*steps[1:], r.total_steps])):
            end = min(end, r.total_steps)
            if start < end:
                chart.area((start, start, end, end), AREA_COLOURS[i % 4], level)

    def _augmentation(self) -> None:
        end, total = self.r.augmentation_end, self.r.total_steps
        if end is None:
            return
        self.bottom += 8
        chart = self._panel("augmentation", 24)
        chart.area((0, 0, end, end), AREA_COLOURS[0], "on")
        chart.area((end, end, total, total), AREA_COLOURS[1], "off")

    def _image_sizes(self) -> None:
        if self.r.image_sizes is None:
            return
        self.bottom += 8
        stages, total = self.r.image_sizes.stages, self.r.total_steps
        chart, ends = self._panel("image size", 24), [step for step, _ in stages[1:]]
        for i, ((start, side), end) in enumerate(zip(stages, [*ends, total])):
            if start < total:
                end = min(end, total)
                chart.area((start, start, end, end), AREA_COLOURS[i % 4], str(side))

    def _frame(self) -> None:
        """Draw the title, the axes of epochs and steps, and the lines that mark 25, 50 and 75 % of the run, and its last step if it
        ends early."""
        self.bottom += 24
        r, bottom, right = self.r, self.bottom, WIDTH - RIGHT
        epochs = Chart(Scale(0, r.total_steps / r.steps_per_epoch, LEFT, right), Scale(0, 1, TOP, 0))
        steps = Chart(self.x, Scale(0, 1, bottom, TOP))
        self.charts += [epochs, steps]
        size = f"{r.total_steps:,} steps, {r.steps_per_epoch:,} per epoch, {r.global_batch_size:,} samples per step"
        epochs.text(LEFT, 24, "Training schedule", colour=INK, font_size="16", font_weight="bold")
        epochs.text(right, 24, size, "end")
        epochs.text(LEFT - 10, TOP - 9, "epochs done", "end")
        epochs.line(LEFT, TOP, right, TOP, "#bbbbbb")
        epochs.x_axis(_whole_ticks(epochs.x.high, 12), above=9, tick=5)
        steps.line(LEFT, bottom, right, bottom, INK)
        steps.x_axis(_whole_ticks(r.total_steps, 8), INK, tick=-5)
        steps.text((LEFT + right) / 2, bottom + 40, "step (optimizer updates)", "middle")
        marks: dict[float, str] = {}
        for percent in (25, 50, 75):
            step = first_step_at(percent * r.total_steps / 100)
            marks[step] = f"{marks[step]}, {percent}%" if step in marks else f"{percent}%"
        for mark in marks:
            steps.line(self.x(mark), TOP, self.x(mark), bottom - 16, GREY, stroke_dasharray="2 4")
        steps.x_axis(marks, above=4)
        if r.last_step < r.total_steps:
            x = self.x(r.last_step)
            steps.line(x, TOP, x, bottom, VERMILION, stroke_width=1.5)
            steps.text(x + 4, TOP + 13, f"stops at {r.last_step:,}", colour=VERMILION)


def _sampled(total: int, corners: Sequence[int]) -> list[int]:
    """Return the sorted steps from 0 to `total` - 1 at which a curve is drawn: about one per pixel (all steps if there are fewer), and each
    of `corners` with the steps before and after it.

    corners: steps at which the curve bends."""
    count = min(total, WIDTH - LEFT - RIGHT)
    even = {i * (total - 1) // max(1, count - 1) for i in range(count)}
    return sorted(even | {step for c in corners for step in (c - 1, c, c + 1) if 0 <= step < total})


def _whole_ticks(end: float, count: int) -> dict[float, str]:
    """Return number -> label for about `count` evenly spaced whole numbers from 0 to `end`."""
    return {tick: f"{tick:,.0f}" for tick in nice_ticks(0, end, count) if tick == int(tick)}
