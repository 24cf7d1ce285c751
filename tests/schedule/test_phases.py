"""Curriculum phases: values computed by hand, a slow reference in exact fractions, and invalid configurations."""

import pickle
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linnaeus.config import compose
from linnaeus.config.schema import Config
from linnaeus.config.schema_optimization import CosineConfig
from linnaeus.config.schema_schedule import PhaseConfig
from linnaeus.errors import ConfigError
from linnaeus.optim import build_scheduler
from linnaeus.reporting.plans.changes import describe_changes
from linnaeus.reporting.plans.plan import schedule_summary, unreached
from linnaeus.reporting.plans.schedule_chart import schedule_picture
from linnaeus.schedule import OpsSchedule
from linnaeus.schedule.phases import Phases
from tests.schedule.configs import make_config, resolve

# Five overlapping phases of a persona curriculum: start, end, multiplier, dimensions in focus (weight 2).
FIVE = {
    "basic_awareness": PhaseConfig("0%", "20%", "identity and basic patterns", 1.2),
    "persona_dimensions": PhaseConfig("15%", "50%", "", 1.0, dimensions={"cognitive": 2, "introspective": 2, "adaptive": 2}),
    "hypergraph_patterns": PhaseConfig("40%", "70%", "", 0.9, dimensions={"neural_symbolic": 2}),
    "recursive_reasoning": PhaseConfig("60%", "85%", "", 0.8, dimensions={"recursive": 2}),
    "adaptive_mastery": PhaseConfig("80%", "100%", "", 0.7),
}
DIMENSIONS = ("cognitive", "introspective", "adaptive", "recursive", "synergistic", "holographic", "neural_symbolic", "dynamic")


def resolved_phases(config: dict[str, PhaseConfig], total: int, per_epoch: int = 7) -> Phases:
    found = Phases.resolve(config, total, per_epoch)
    assert found is not None
    return found


def five(total: int = 1000) -> Phases:
    return resolved_phases(FIVE, total, 100)


def test_steps_shares_and_multipliers_of_five_phases() -> None:
    phases = five()
    assert [phase.name for phase in phases.phases] == list(FIVE)
    assert [(p.start, p.end) for p in phases.phases] == [(0, 200), (150, 500), (400, 700), (600, 850), (800, 1000)]
    assert phases.crossfades() == [(150, 200), (400, 500), (600, 700), (800, 850)]
    assert phases.shares(np.array([175, 425, 1000]))[:, :3].tolist() == [[0.5, 0.5, 0], [0, 0.75, 0.25], [0, 0, 0]]
    multipliers = {0: 1.2, 160: 1.16, 199: 1.004, 200: 1.0, 425: 0.975, 650: 0.85, 840: 0.72, 1000: 0.7}  # 1000: after the run
    assert [phases.lr_multiplier(step) for step in multipliers] == pytest.approx([*multipliers.values()], abs=1e-12)
    names = [phases.at(step)[0] for step in (0, 174, 175, 449, 450, 650, 824, 825, 999)]
    order = list(FIVE)
    assert names == [order[i] for i in (0, 0, 1, 1, 2, 3, 3, 4, 4)], "of two equal shares the later phase"
    assert phases.at(3) == ("basic_awareness", "identity and basic patterns")


def test_dimension_weights_of_five_phases() -> None:
    phases = five()
    first, focus, blend, symbolic = phases.dimension_weights(np.array([0, 300, 450, 550]), DIMENSIONS)
    assert first == pytest.approx([1 / 8] * 8)
    assert focus == pytest.approx([2 / 11] * 3 + [1 / 11] * 5) and round(focus[0], 4) == 0.1818 and round(focus[7], 4) == 0.0909
    assert round(symbolic[6], 4) == 0.2222 and round(symbolic[0], 4) == 0.1111
    assert blend == pytest.approx((focus + symbolic) / 2)


@pytest.mark.parametrize("total", [*range(1, 30), 1000, 123_457])
def test_five_phases_in_a_run_of_any_length(total: int) -> None:
    phases, steps = five(total), np.unique(np.linspace(0, total, 400).astype(int))
    shares = phases.shares(steps)
    assert shares.sum(1) == pytest.approx(np.ones(len(steps)), abs=1e-12)
    assert ((shares > 0).sum(1) <= 2).all() and (shares[0] == [1, 0, 0, 0, 0]).all() and (shares[-1] == [0, 0, 0, 0, 1]).all()


def test_learning_rates_of_five_phases() -> None:
    """Computed by hand for lr 1e-4, a warm-up of 5,000 of 50,000 steps and a cosine to 0.1, at steps with a single phase."""
    schedule = build_scheduler(CosineConfig("cosine", "5000steps", 0.1), 1e-4, 50_000, 50_000, five(50_000))
    plain = build_scheduler(CosineConfig("cosine", "5000steps", 0.1), 1e-4, 50_000, 50_000)
    golden = {4_999: 1.2e-4, 10_000: 9.729e-5, 25_000: 5.653e-5, 49_999: 7.0e-6}
    assert [schedule.at(step) for step in golden] == pytest.approx([*golden.values()], rel=2e-4)
    for step in (0, 4_999, 9_000, 22_222, 41_000, 49_999):
        assert schedule.scale(step) == plain.scale(step) * five(50_000).lr_multiplier(step)


# -- against a slow reference --------------------------------------------------------------------------------------------------


def random_phases(draw: random.Random) -> tuple[dict[str, PhaseConfig], int]:
    """Return valid phases in steps, some adjacent and some overlapping, and the length of the run."""
    config, start, least = {}, 0, 1
    for number in range(draw.randint(1, 6)):
        end = max(start, least) + draw.randint(1, 30)
        weights = lambda names: {name: draw.choice([0, 1, 2.5]) for name in names if draw.random() < 0.7} | {names[0]: 1.5}
        data = weights("abc") if draw.random() < 0.7 else {}
        config[f"p{number}"] = PhaseConfig(f"{start}steps", f"{end}steps", "", draw.choice([0.5, 1.0, 1.7]), data, weights("xyz"))
        start, least = draw.choice([end, draw.randint(max(start, least), end)]), end
    return config, end


def slow_shares(config: Mapping[str, PhaseConfig], step: int) -> list[Fraction]:
    """Return the shares by definition: 1 for a single phase; in an overlap the fraction that has passed for the new phase."""
    bounds = [(int(phase.start.removesuffix("steps")), int(phase.end.removesuffix("steps"))) for phase in config.values()]
    active = [i for i, (start, end) in enumerate(bounds) if start <= step < end]
    shares = [Fraction(0)] * len(bounds)
    if len(active) == 1:
        shares[active[0]] = Fraction(1)
    else:
        old, new = active
        shares[new] = Fraction(step - bounds[new][0], bounds[old][1] - bounds[new][0])
        shares[old] = 1 - shares[new]
    return shares


def slow_row(config: Mapping[str, PhaseConfig], step: int, names: str, otherwise: Any, of: Callable[[PhaseConfig], Mapping]) -> list[float]:
    found = [Fraction(0)] * len(names)
    for share, phase in zip(slow_shares(config, step), config.values(), strict=True):
        weights = [Fraction(of(phase).get(name, otherwise[i])) if of(phase) else Fraction(otherwise[-1][i]) for i, name in enumerate(names)]
        found = [total + share * weight / sum(weights) for total, weight in zip(found, weights, strict=True)]
    return [float(value) for value in found]


@pytest.mark.parametrize("seed", range(40))
def test_phases_equal_the_slow_reference(seed: int) -> None:
    config, total = random_phases(random.Random(seed))
    phases = resolved_phases(config, total)
    steps, sizes = np.arange(total), (5, 30, 1)
    assert phases.shares(steps) == pytest.approx(np.array([slow_shares(config, s) for s in range(total)], float), abs=1e-12)
    mixture = [slow_row(config, s, "abc", [0, 0, 0, sizes], lambda p: p.data) for s in range(total)]
    assert phases.mixture(steps, "abc", sizes) == pytest.approx(np.array(mixture), abs=1e-12)
    weights = [slow_row(config, s, "wxyz", [1, 1, 1, 1, (1, 1, 1, 1)], lambda p: p.dimensions) for s in range(total)]
    assert phases.dimension_weights(steps, "wxyz") == pytest.approx(np.array(weights), abs=1e-12)
    one_by_one = (phases.shares(steps) * [phase.lr for phase in phases.phases]).sum(1)
    assert [phases.lr_multiplier(s) for s in range(total)] == one_by_one.tolist(), "the same bits"
    pieces = np.concatenate([phases.mixture(steps[i : i + 1], "abc", sizes) for i in range(total)])
    assert (pieces == phases.mixture(steps, "abc", sizes)).all(), "one step at a time gives the same bits"


def test_negative_control_an_overlap_differs_from_adjacent_phases() -> None:
    config = {"old": PhaseConfig("0steps", "30steps", "", 2.0), "new": PhaseConfig("10steps", "50steps")}
    overlap, meet = (resolved_phases(each, 50) for each in (config, config | {"new": PhaseConfig("30steps", "50steps")}))
    assert overlap.lr_multiplier(20) == 1.5
    assert [meet.lr_multiplier(step) for step in (20, 29, 30)] == [2.0, 2.0, 1.0]


# -- through the schedule ------------------------------------------------------------------------------------------------------


def test_ops_schedule_with_and_without_phases() -> None:
    ops = OpsSchedule(resolve(1000, 100, phases=FIVE))
    ops = pickle.loads(pickle.dumps(ops))
    phases = ops.resolved.phases
    assert phases is not None and phases.at(450) == ("hypergraph_patterns", "") and phases.lr_multiplier(160) == pytest.approx(1.16)
    assert ops.get_dimension_weights(np.array([300]), DIMENSIONS)[0, 0] == pytest.approx(2 / 11)
    assert ops.get_mixture(np.array([300, 450]), ("a", "b"), (30, 10)).tolist() == [[0.75, 0.25]] * 2, "no phase sets data"
    for phases in ({}, None):
        plain = OpsSchedule(resolve(1000, 100, phases=phases))
        assert plain.resolved.phases is None
        assert plain.get_mixture(np.array([3, 4]), ("a", "b"), (30, 10)).tolist() == [[0.75, 0.25]] * 2
        assert plain.get_dimension_weights(np.array([3]), DIMENSIONS).tolist() == [[0.125] * 8]
        assert plain.get_dimension_weights(np.array([3]), ()).shape == (1, 0)


def test_the_plan_shows_phases(tmp_path: Path) -> None:
    resolved = resolve(1000, 100, phases=FIVE)
    text = schedule_summary(resolved)
    assert "x 1.2 (basic_awareness) at step 0, towards x 1 at step 150, x 1 (persona_dimensions) at step 200" in text
    section = text.split("phases\n")[1].split("events\n")[0]
    assert "from step 0 to step 200, learning rate x 1.2: identity and basic patterns" in section
    assert "from step 400 to step 700, fade-in ends at step 500, learning rate x 0.9, dimensions neural_symbolic 2" in section
    schedule_picture(resolved, lambda step: 1e-3 * five().lr_multiplier(step), tmp_path / "schedule.svg")
    drawn = (tmp_path / "schedule.svg").read_text()
    assert drawn.count("<polygon") == 5 and "identity and basic patterns" in drawn and "adaptive_mastery" in drawn
    plain = resolve(1000, 100)
    schedule_picture(plain, lambda step: 1e-3, tmp_path / "plain.svg")
    assert "phases" not in schedule_summary(plain) and "<polygon" not in (tmp_path / "plain.svg").read_text()


def test_a_phase_without_updates_is_noted() -> None:
    resolved = resolve(1000, 100, early_stop={"max_steps": 300}, phases=FIVE)
    assert [note.split(":")[0] for note in unreached(resolved) if "phases" in note] == [f"schedule.phases.{name}" for name in [*FIVE][2:]]
    assert not [note for note in unreached(resolve(1000, 100, phases=FIVE)) if "phases" in note]


@pytest.mark.parametrize("seed", range(40))
def test_unused_sources_have_probability_0_in_every_update(seed: int) -> None:
    config, total = random_phases(random.Random(seed))
    phases = resolved_phases(config, total)
    for last in range(1, total + 1):
        drawn = phases.mixture(np.arange(last), "abcd", (1, 1, 1, 1)).any(0)
        assert phases.unused_sources("abcd", last) == [name for name, is_drawn in zip("abcd", drawn, strict=True) if not is_drawn]


def test_changes_of_a_longer_run() -> None:
    old, new = make_config({"length": "10epochs"}, phases=FIVE), make_config({"length": "20epochs"}, phases=FIVE)

    def changes(old: Config, new: Config, step: int) -> str:
        return describe_changes(asdict(old), new, 80, (), step)

    text = changes(old, new, 45)
    assert "phase at step 45 (now)" in text and "hypergraph_patterns" in text and "from step 40 to step 70, fade-in ends at step 50" in text
    assert "from step 80 to step 140, fade-in ends at step 100" in text and "basic_awareness" not in text, "that is over"
    early = changes(old, new, 25)
    assert "from step 0 to step 40, learning rate x 1.2" in early and "from step 0 to step 20" not in early, "over in the old plan"
    rates = text.split("learning rate of the update\n")[1]
    assert f"{0.1 * 0.95 * 0.5 * (1 + np.cos(np.pi * 0.45)):.6g}" in rates, "times the multiplier, half-way between two phases"
    dropped = changes(old, make_config({"length": "10epochs"}), 45)
    assert "adaptive_mastery" in dropped and dropped.splitlines()[0].count("schedule.phases") > 4
    assert "phases" not in changes(make_config(), make_config({"length": "20epochs"}), 45)


# -- from the configuration ----------------------------------------------------------------------------------------------------


def test_only_start_and_end_are_required() -> None:
    config = compose(["schedule.phases={one:{start:0%,end:60%},two:{start:50%,end:100%,lr:2,data:{a:1}}}"])
    assert config.schedule.phases == {
        "one": PhaseConfig("0%", "60%", "", 1.0, {}, {}),
        "two": PhaseConfig("50%", "100%", "", 2.0, {"a": 1.0}),
    }
    assert compose(["schedule.phases=null"]).schedule.phases is None and compose().schedule.phases == {}


INVALID = {
    "{a:{start:0%,end:40%},b:{start:60%,end:100%}}": "no phase covers steps 40 to 60, between a and b",
    "{a:{start:0%,end:50%},b:{start:30%,end:80%},c:{start:40%,end:100%}}": "a, b and c overlap from step 40 to step 50",
    "{a:{start:0%,end:100%},b:{start:50%,end:40%}}": "schedule.phases.b.end=40% (step 40) does not come after schedule.phases.b.start=50%",
    "{a:{start:0%,end:50%},b:{start:50%,end:50%}}": "schedule.phases.b.end=50% (step 50) does not come after",
    "{b:{start:50%,end:100%},a:{start:0%,end:60%}}": "schedule.phases.a starts at step 0, before b (step 50); sort",
    "{a:{start:0%,end:100%},b:{start:30%,end:80%}}": "schedule.phases.b ends at step 80, before a (step 100)",
    "{a:{start:5%,end:100%}}": "schedule.phases.a starts at step 5, and no phase covers the steps before",
    "{a:{start:0%,end:90%}}": "schedule.phases.a ends at step 90, and no phase covers the rest of the run of 100 steps",
    "{a:{start:0%,end:15min}}": "schedule.phases.a.end is 15min; a time cannot be converted to steps",
    "{a:{start:0,end:100%}}": "schedule.phases.a.start is 0; it needs a unit",
    "{a:{start:0%}}": "schedule.phases.a.end is missing",
    "{a:{start:0%,end:100%,ends:5}}": "unknown key schedule.phases.a.ends; did you mean schedule.phases.a.end?",
    "{a:{start:0%,end:100%,lr:0}}": "schedule.phases.a.lr is 0.0; it must be more than 0",
    "{a:{start:0%,end:100%,data:{x:-1}}}": "schedule.phases.a.data.x is -1.0; it must be at least 0",
    "{a:{start:0%,end:100%,data:{x:.inf}}}": "schedule.phases.a.data.x is",
    "{a:{start:0%,end:100%,data:{x:0}}}": "schedule.phases.a.data={'x': 0.0}: all weights are 0",
    "{a:{start:0%,end:100%,dimensions:[x]}}": "schedule.phases.a.dimensions is ['x']; it must be a mapping",
    "{a:50%}": "schedule.phases.a is '50%'; it must be a mapping of keys",
}


@pytest.mark.parametrize("phases", INVALID)
def test_an_invalid_curriculum_raises_one_line(phases: str) -> None:
    with pytest.raises(ConfigError) as error:
        read = compose([f"schedule.phases={phases}"]).schedule.phases
        resolve(phases=read)
    assert INVALID[phases] in str(error.value) and "\n" not in str(error.value)


NAMES = [
    ({"data": {"news": 1.0, "nwes": 1.0}}, "schedule.phases.a.data names nwes, which is not a source; choose from news, prose"),
    ({"dimensions": {"deep": 1.0}}, "schedule.phases.a.dimensions names deep, which is not a dimension; choose from wide, tall"),
    ({"dimensions": {"wide": 0.0, "tall": 0.0}}, "schedule.phases.a.dimensions: all dimensions have weight 0"),
]


@pytest.mark.parametrize("given, message", NAMES)
def test_check_names(given: dict[str, Any], message: str) -> None:
    phases = resolved_phases({"a": PhaseConfig("0%", "100%", **given)}, 10)
    with pytest.raises(ConfigError) as error:
        phases.check_names(("news", "prose"), ("wide", "tall"))
    assert message in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(ConfigError, match=r"no named sources|no dimensions"):
        phases.check_names((), ())
    resolved_phases({"a": PhaseConfig("0%", "100%", "", 1.0, {"news": 1.0}, {"wide": 0.0})}, 10).check_names(("news",), ("wide", "tall"))
