import pytest

from linnaeus.config.schema_optimization import LinearGrowthConfig, StepConfig, WSDConfig
from linnaeus.config.schema_schedule import RampConfig
from linnaeus.errors import ConfigError
from linnaeus.reporting.plans.plan import unreached
from linnaeus.schedule import OpsSchedule, resolve_all_schedule_params
from tests.schedule.configs import COMPONENTS, make_config, resolve


def test_at_end_adds_the_last_step_to_the_normal_pass_and_to_those_with_a_cadence() -> None:
    config = make_config(validate=["3epochs"], validate_mask_meta=[], validate_partial_mask_meta=["4epochs"], checkpoint=[])
    resolved = resolve_all_schedule_params(config, 100, 10, COMPONENTS)
    assert resolved.validate.steps() == [30, 60, 90, 100]
    assert resolved.validate_mask_meta.steps() == []
    assert resolved.validate_partial_mask_meta.steps() == [40, 80, 100]
    assert resolved.checkpoint.steps() == [100]
    assert resolved.at_end == ("validate", "validate_partial_mask_meta")
    only_at_end = resolve_all_schedule_params(make_config(validate=[], validate_mask_meta=[]), 100, 10, COMPONENTS)
    assert only_at_end.validate.steps() == [100] and only_at_end.validate_mask_meta.steps() == []
    without = make_config(validate=["3epochs"], validate_at_end=False, checkpoint=[], checkpoint_at_end=False)
    resolved = resolve_all_schedule_params(without, 100, 10, COMPONENTS)
    assert resolved.validate.steps() == [30, 60, 90] and resolved.checkpoint.steps() == [] and resolved.at_end == ()


def test_all_combinations_at_end() -> None:
    config = make_config(
        partial_combinations=[["TEMPORAL", "SPATIAL"]],
        validate_partial_mask_meta=["50%"],
        validate_mask_meta=[],
        all_combinations_at_end=True,
    )
    resolved = resolve_all_schedule_params(config, 100, 10, COMPONENTS)
    assert resolved.combinations == (
        ("SPATIAL", "TEMPORAL"), ("SPATIAL",), ("TEMPORAL",), ("ELEVATION",), ("SPATIAL", "ELEVATION"), ("TEMPORAL", "ELEVATION"),
    )  # fmt: skip
    assert resolved.num_listed == 1
    assert resolved.validate_mask_meta.steps() == [100]  # masking all components is a combination too
    one = resolve(partial_combinations=[], validate_partial_mask_meta=[], all_combinations_at_end=True, components=("SPATIAL",))
    assert one.combinations == () and one.validate_partial_mask_meta.steps() == [] and one.validate_mask_meta.steps() == [100]


@pytest.mark.parametrize("components", [COMPONENTS, COMPONENTS[1:], ("TEMPORAL",), ()])
def test_each_of_several_components_is_masked_by_default(components: tuple[str, ...]) -> None:
    resolved = resolve(partial_combinations=None, validate_partial_mask_meta=["50%"], components=components)
    several = len(components) > 1
    assert resolved.combinations == (tuple((name,) for name in components) if several else ())
    assert resolved.validate_partial_mask_meta.steps() == ([50, 100] if several else [])


def test_gradnorm_starts_after_its_warm_up() -> None:
    resolved = resolve(60, 10, gradnorm=(["10steps"], "3epochs"))
    assert resolved.weighting.steps() == [30, 40, 50, 60]
    assert resolve(60, 10).weighting.steps() == []


def test_max_steps_shortens_the_run_but_does_not_extend_it() -> None:
    resolved = resolve(early_stop={"max_steps": 47})
    assert resolved.last_step == 47 and resolved.validate.steps() == [20, 40, 47]  # 20 % of trainer.length, not of max_steps
    assert resolve(early_stop={"max_steps": 470}).last_step == 100


def test_lr_milestones() -> None:
    step = resolve(scheduler=StepConfig("step", "1epochs", ["60%", "85%"], 0.1))
    assert step.warmup_end == 10 and step.lr_milestones == (("warm-up ends", 10), ("x 0.1", 60), ("x 0.1", 85))
    wsd = resolve(scheduler=WSDConfig("wsd", "0steps", "20%", "sqrt", 0.0))
    assert wsd.lr_milestones == (("decay begins", 80),)


def test_a_constant_density_needs_an_empty_cadence() -> None:
    def growing(start: float, end: float, every: list[str]) -> LinearGrowthConfig:
        return LinearGrowthConfig("linear", start, end, "0%", "50%", every, "gradient")

    resolved = resolve(growth=growing(0.3, 0.3, []))
    assert resolved.density is not None and {resolved.density.at(step) for step in range(101)} == {0.3} and not resolved.growth.ever_due
    with pytest.raises(ConfigError, match=r"^growth.end=0.3 equals growth.start, so no weight would ever be .*growth.every=\[\]"):
        resolve(growth=growing(0.3, 0.3, ["1%"]))
    with pytest.raises(ConfigError, match=r"^growth.every is \[\], so no weight would ever be connected"):
        resolve(growth=growing(0.3, 0.4, []))


def test_events_beyond_the_run_are_noted() -> None:
    config = make_config(
        validate=["20epochs"],
        validate_at_end=False,
        mixup_prob=RampConfig(0.0, 1.0, "0steps", "400steps"),
        mixup_group_level=[{"from": "0%", "level": "genus"}, {"from": "100%", "level": "species"}],
        scheduler=StepConfig("step", "20epochs", [], 0.1),
    )
    notes = unreached(resolve_all_schedule_params(config, 100, 10, COMPONENTS))
    names = ["validate", "schedule.mixup_prob", "schedule.mixup_group_level", "lr_scheduler.warmup"]
    assert [note.split(":")[0] for note in notes] == names
    assert unreached(resolve()) == []


def test_an_early_limit_of_steps_and_changes_of_the_learning_rate_beyond_it_are_noted() -> None:
    step, wsd = StepConfig("step", "0steps", ["20%", "60%"], 0.1), WSDConfig("wsd", "0steps", "1epochs", "linear", 0.0)
    assert unreached(resolve(scheduler=step, early_stop={"max_steps": 61})) == []
    assert unreached(resolve(scheduler=step, early_stop={"max_steps": 60})) == [
        "lr_scheduler: step 60 (x 0.1) is not before the last step 60"
    ]
    notes = unreached(resolve(scheduler=wsd, early_stop={"max_steps": 60}))
    assert notes == ["lr_scheduler: step 90 (decay begins) is not before the last step 60"]
    assert unreached(resolve(early_stop={"max_steps": 400})) == ["schedule.early_stop.max_steps=400 has no effect: the run has 100 steps"]


def test_a_mixing_level_replaced_in_the_epoch_of_its_start_is_noted() -> None:
    levels = [{"from": f"{step}steps", "level": level} for step, level in ((0, "species"), (31, "genus"), (39, "family"), (40, "order"))]
    resolved = resolve(mixup_group_level=levels)
    assert [OpsSchedule(resolved).get_mixup_group_level(epoch) for epoch in (3, 4)] == ["species", "order"]
    key = "schedule.mixup_group_level"
    assert unreached(resolved) == [
        f"{key}: genus has no effect, because family starts in the same epoch, 5",
        f"{key}: family has no effect, because order starts in the same epoch, 5",
    ]


def test_augmentation_and_mixing_end_together() -> None:
    mixed = {"mixup_prob": RampConfig(0.5, 0.5, "0%", "100%"), "mixup_group_level": [{"from": "0%", "level": "genus"}]}
    for off_last, end in (("10%", 90), ("5steps", 95), ("3epochs", 70), ("1.5%", 98), ("100%", 0)):
        ops = OpsSchedule(resolve(off_last=off_last, **mixed))
        assert [step for step in range(100) if not ops.get_augmentation(step)] == list(range(end, 100))
        assert [ops.get_mixup_prob(step) for step in range(100)] == [0.5] * end + [0.0] * (100 - end)
        assert ops.get_meta_mask_prob(99) == ops.resolved.meta_mask_prob.end > 0
    ops = OpsSchedule(resolve(**mixed))
    assert ops.resolved.augmentation_end is None and ops.get_augmentation(99) and ops.get_mixup_prob(99) == 0.5


def test_an_end_of_augmentation_that_is_not_reached_or_cuts_a_ramp_is_noted() -> None:
    rising = RampConfig(0.0, 1.0, "0%", "100%")
    levels = [{"from": "0%", "level": "genus"}]
    notes = unreached(resolve(off_last="20%", mixup_prob=rising, mixup_group_level=levels))
    assert notes == ["schedule.mixup_prob: the ramp ends at step 100, after the end of mixing at step 80, and reaches 0.79"]
    notes = unreached(resolve(off_last="20%", early_stop={"max_steps": 80}))
    assert notes == ["augment.off_last: augmentation would end at step 80, not before the last step 80"]


def test_the_note_names_the_density_of_the_last_growth() -> None:
    """In 50 of 100 steps, from 0.1 to 1.0: the initial density if no update connects weights."""
    growth = LinearGrowthConfig("linear", 0.1, 1.0, "0%", "90steps", ["90%"], "random")
    notes = unreached(resolve(growth=growth, early_stop={"max_steps": 50}))
    assert "growth: the ramp ends at step 90, after the last step 50, and reaches 0.1" in notes


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"mixup_prob": RampConfig(0.0, 1.0, "50%", "10%")}, "schedule.mixup_prob.until=10%"),
        ({"mixup_group_level": [{"at": "0%", "level": "genus"}]}, "schedule.mixup_group_level[0] has the keys at, level"),
        ({"mixup_group_level": [{"from": "5%", "level": "a"}, {"from": "1%", "level": "b"}]}, "schedule.mixup_group_level[1].from=1%"),
        ({"partial_combinations": [["SPATIAL", "TEMPORAL"], ["TEMPORAL", "SPATIAL"]]}, "schedule.partial_combinations[1] is listed twice"),
        ({"partial_combinations": [[]]}, "schedule.partial_combinations[0] is empty"),
        ({"partial_combinations": []}, "schedule.validate_partial_mask_meta needs schedule.partial_combinations"),
        (
            {"early_stop": {"metric_bound": 0.1, "monitor": "val_mask_SPATIAL/loss"}, "validate_partial_mask_meta": []},
            "schedule.validate_partial_mask_meta is []",
        ),
        ({"gradnorm": (["15min"], "0steps")}, "weighting.every"),
    ],
)
def test_an_impossible_schedule_raises_one_line(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve(**changes)
    assert message in str(error.value) and "\n" not in str(error.value)
