"""Dimensions of a model: the effect of their weights, ablation scores, and the weights that a run saves for generation."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from linnaeus.errors import ConfigError
from linnaeus.workloads.language import generate_cli
from linnaeus.workloads.language.language_metrics import LanguageMetrics
from linnaeus.workloads.language.model import build_gpt
from linnaeus.workloads.language.trained_model import load_trained_model
from tests import runs
from tests.workloads.language.test_gpt import BLOCK, NAMES, VOCABULARY, changed_from, config, shaken, some_tokens, some_weights

D = len(NAMES)


def batch_of(rows, seed=0, first=0):
    """Return a validation batch with some missing targets."""
    tokens = some_tokens(rows, BLOCK + 1, seed)
    target = tokens[:, 1:].clone()
    target[-1, BLOCK // 3 :] = -1
    return {"input": tokens[:, :-1], "target": target, "sample": torch.arange(first, first + rows)}


# -- the model -------------------------------------------------------------------------------------------------------------------


def without_dimension(model, name, bias):
    """Return the same model without one of its dimensions, and the indices of the others."""
    kept = [i for i, other in enumerate(model.dimensions) if other != name]
    names, narrow = [model.dimensions[i] for i in kept], model.blocks[0].dimensions.up.in_features // len(model.dimensions)
    smaller = build_gpt(config(dimensions=names, adapter_width=narrow, bias=bias), 0, VOCABULARY, BLOCK).double()
    state = dict(model.state_dict())
    rows = torch.cat([torch.arange(i * narrow, (i + 1) * narrow) for i in kept])
    for key, value in state.items():
        if ".dimensions.gate." in key:
            state[key] = value[kept]
        elif ".dimensions.down." in key:
            state[key] = value[rows]
        elif key.endswith("dimensions.up.weight"):
            state[key] = value[:, rows]
    smaller.load_state_dict(state)
    return smaller, kept


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_weight_zero_equals_a_model_without_the_dimension(name, bias):
    model = shaken(dimensions=NAMES, bias=bias).double()
    smaller, kept = without_dimension(model, name, bias)
    tokens, weights = some_tokens(), some_weights(dtype=torch.float64)
    others = {"input": tokens, "dimensions": weights[:, kept]}
    without = {"input": tokens, "dimensions": weights * torch.tensor([other != name for other in NAMES])}
    difference = lambda one, other: (model(one)["logits"] - smaller(other)["logits"]).abs().max()
    assert difference(without, others) < 1e-12
    assert difference({"input": tokens, "dimensions": weights}, others) > 1e-3, "negative control"


def test_a_dimension_of_weight_zero_gets_no_gradient():
    model, weights = shaken(dimensions=NAMES), some_weights()
    weights[:, 2] = 0
    model({**batch_of(3), "dimensions": weights})["losses"].sum().backward()
    for block in model.blocks:
        gate, down, up = (getattr(block.dimensions, part).weight.grad for part in ("gate", "down", "up"))
        moved = torch.stack([gate.abs().sum(1), down.unflatten(0, (D, -1)).abs().sum((1, 2)), up.unflatten(1, (D, -1)).abs().sum((0, 2))])
        assert (moved > 0).tolist() == [[True, True, False, True, True]] * 3


def test_each_sample_has_its_own_weights():
    model, tokens, weights = shaken(dimensions=NAMES), some_tokens(), some_weights()
    together = model({"input": tokens, "dimensions": weights})["logits"]
    for row in range(3):
        alone = model({"input": tokens[row : row + 1], "dimensions": weights[row : row + 1]})["logits"]
        assert torch.allclose(together[row], alone[0], atol=1e-4)
    swapped = model({"input": tokens, "dimensions": weights.flip(0)})["logits"]
    assert torch.equal(swapped[1], together[1]) and not torch.allclose(swapped[0], together[0], atol=1e-2)


def test_a_batch_without_weights_uses_those_that_were_set():
    final = [0.5, 0.0, 0.25, 0.25, 0.0]
    model = build_gpt(config(dimensions=NAMES), 0, VOCABULARY, BLOCK)
    model.set_dimension_weights(final)
    tokens = some_tokens()
    given = {"input": tokens, "dimensions": torch.tensor([final] * 3)}
    assert torch.equal(model({"input": tokens})["logits"], model(given)["logits"])
    alike = build_gpt(config(dimensions=NAMES), 0, VOCABULARY, BLOCK)
    assert not torch.equal(model({"input": tokens})["logits"], alike({"input": tokens})["logits"])
    model.set_dimension_weights([0.2] * D)
    assert torch.equal(model({"input": tokens})["logits"], alike({"input": tokens})["logits"])
    with pytest.raises(AssertionError):
        model.set_dimension_weights([1.0])


@pytest.mark.parametrize("layers, having", [(1, [0]), (3, [0, 1, 2]), (4, [1, 2, 3]), (8, [2, 3, 4, 5, 6, 7])])
def test_all_blocks_but_the_lowest_quarter_have_dimensions(layers, having):
    model = build_gpt(config(dimensions=NAMES, layers=layers), 0, VOCABULARY, BLOCK)
    assert [i for i, block in enumerate(model.blocks) if block.dimensions is not None] == having


# -- scores ----------------------------------------------------------------------------------------------------------------------


def scores_of(model, batches):
    """Return the metrics of a validation pass."""
    metrics = LanguageMetrics(False, None, torch.device("cpu"), model.dimensions)
    total = torch.zeros(metrics.width, dtype=torch.float64)
    with torch.inference_mode():
        for batch in batches:
            outputs = model.eval()(batch)
            total += metrics.sums(outputs, batch)
            metrics.count(outputs, batch)
    return metrics.compute(total, metrics.counts)


def slow_scores(model, batches):
    """Return the scores, computed one window at a time from the logits: with all weights, then with one weight set to 0."""
    lost, tokens = dict.fromkeys(NAMES, 0.0), dict.fromkeys(NAMES, 0)
    for batch in batches:
        for row, sample in enumerate(batch["sample"].tolist()):
            name, known = NAMES[sample % D], batch["target"][row] >= 0
            losses = []
            for off in (None, sample % D):
                weights = model.dimension_weights.clone()
                if off is not None:
                    weights[off] = 0
                with torch.no_grad():
                    logits = model({"input": batch["input"][row : row + 1], "dimensions": weights[None]})["logits"][0]
                losses.append(-F.log_softmax(logits, 1).gather(1, batch["target"][row, :, None].clamp(min=0))[known, 0].sum().item())
            lost[name] += losses[1] - losses[0]
            tokens[name] += int(known.sum())
    return {f"dimension/{name}/score": lost[name] / tokens[name] for name in NAMES}


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_score_is_the_loss_without_the_dimension_minus_the_loss(positions):
    model = shaken(dimensions=NAMES, positions=positions).double()
    model.set_dimension_weights([0.4, 0.3, 0.1, 0.2, 0.0])
    batches = [batch_of(7, 1), batch_of(6, 2, first=7), batch_of(1, 3, first=13)]
    found, wanted = scores_of(model, batches), slow_scores(model, batches)
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, abs=1e-11)
    assert found[f"dimension/{NAMES[-1]}/score"] == 0.0, "exactly 0 for a dimension of weight 0"
    assert min(abs(found[f"dimension/{name}/score"]) for name in NAMES[:-1]) > 1e-4
    assert found["loss"] == pytest.approx(np.mean(list(losses_of(model, batches))), rel=1e-12)


def losses_of(model, batches):
    with torch.no_grad():
        for batch in batches:
            yield from model({"input": batch["input"], "target": batch["target"]})["losses"][batch["target"] >= 0].tolist()


def test_a_dimension_that_no_window_ablates_has_no_score():
    found = scores_of(shaken(dimensions=NAMES), [batch_of(2)])
    scores = [found[f"dimension/{name}/score"] for name in NAMES]
    assert np.isnan(scores).tolist() == [False, False, True, True, True]


def test_ablated_losses_are_causal():
    model = shaken(dimensions=NAMES).eval()
    batch = batch_of(4)
    other = batch | {"input": changed_from(batch["input"], 9)}
    with torch.no_grad():
        a, b = model(batch)["ablated_losses"], model(other)["ablated_losses"]
    assert torch.equal(a[:, :9], b[:, :9]) and not torch.equal(a[:, 9:], b[:, 9:])


def test_training_computes_no_ablated_losses():
    model = shaken(dimensions=NAMES)
    assert set(model(batch_of(2))) == {"losses", "loss_sum"}
    metrics = LanguageMetrics(True, None, torch.device("cpu"), NAMES)
    assert not any("dimension" in name for name in metrics.compute(torch.tensor([3.0, 2.0]), metrics.counts))


# -- the command -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with one phase that triples the weight of one dimension."""
    phase = "schedule.phases={only: {start: 0%, end: 100%, dimensions: {calm: 3}}}"
    more = ["model.dimensions=[calm,wide]", "model.width=24", "trainer.length=4steps", phase]
    return runs.run("language", tmp_path_factory.mktemp("dimensions"), *more)


@pytest.fixture
def generated(run, capsys):
    def command(*options):
        assert generate_cli.main([str(run), "--tokens", "30", "--prompt", "abc", *options]) == 0
        return capsys.readouterr().out

    return command


def test_a_run_saves_its_last_dimension_weights(run):
    assert json.loads((run / "dimensions.json").read_text()) == {"calm": 0.75, "wide": 0.25}
    assert load_trained_model(str(run)).model.dimension_weights.tolist() == [0.75, 0.25]


def test_the_saved_weights_are_those_of_the_last_update(tmp_path):
    """The run of 8 steps stops after 6. Its last update, at step 5, is in the middle of a cross-fade."""
    phases = "schedule.phases={one: {start: 0%, end: 100%, dimensions: {calm: 3}}, two: {start: 25%, end: 100%}}"
    more = ["model.dimensions=[calm,wide]", "model.width=24", "trainer.length=8steps", "schedule.early_stop.max_steps=6", phases]
    run = runs.run("language", tmp_path, *more)
    kept = json.loads((run / "dimensions.json").read_text())
    assert kept == pytest.approx({"calm": (0.75 + 0.5) / 2, "wide": (0.25 + 0.5) / 2}, rel=1e-12)
    last = runs.rows(run / "reports.jsonl")[-1]
    assert last["global_step"] == 6 and {name: last[f"phase/dimension/{name}"] for name in kept} == kept
    assert load_trained_model(str(run)).model.dimension_weights.tolist() == pytest.approx(list(kept.values()))


def test_dimensions_that_validation_cannot_score_are_logged(tmp_path):
    few = ["model.dimensions=[calm,wide,deep]", "model.width=24", "trainer.length=2steps", "data.block=40"]
    log = (runs.run("language", tmp_path, *few) / "train.log").read_text()
    assert "dimension deep: validation has too few windows, 2, to score it" in log and "dimension wide" not in log


def test_the_dimension_option_changes_the_text(generated):
    assert generated() == generated("--dimension", "calm=3") == generated("--dimension", "calm=6", "--dimension", "wide=2")
    assert generated("--dimension", "calm=0", "--temperature", "0.2") != generated("--dimension", "wide=0", "--temperature", "0.2")


@pytest.mark.parametrize(
    "given, message",
    [
        (["odd=1"], "odd is not a dimension of this model; it has calm, wide"),
        (["calm"], "calm: the weight must be a number of at least 0"),
        (["calm=-1"], "the weight must be a number of at least 0, as in calm=2"),
        (["calm=nan"], "the weight must be a number"),
        (["calm=0", "wide=0"], "all weights are 0"),
    ],
)
def test_invalid_dimension_options_are_refused(given, message):
    with pytest.raises(ConfigError, match=message) as caught:
        generate_cli.dimension_weights(["calm", "wide"], given)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="it has none"):
        generate_cli.dimension_weights([], ["calm=1"])


def test_a_run_without_its_dimension_weights_is_refused(run):
    (run / "dimensions.json").rename(run / "away.json")
    with pytest.raises(ConfigError, match=r"dimensions\.json does not have the weights of the dimensions"):
        load_trained_model(str(run))
    (run / "dimensions.json").write_text('{"calm": 1}')
    with pytest.raises(ConfigError, match="wide"):
        load_trained_model(str(run))
    (run / "away.json").rename(run / "dimensions.json")
