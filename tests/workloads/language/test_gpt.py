"""`gpt`: sizes, initialisation, the function against a slow reference, causality, precision, compilation."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

from linnaeus.errors import ConfigError
from linnaeus.optim.growth_selection import initial_mask, order_stream
from linnaeus.optim.param_groups import parameter_groups
from linnaeus.workloads.language.config import GPTConfig
from linnaeus.workloads.language.language_metrics import LanguageMetrics
from linnaeus.workloads.language.model import causal_attention
from linnaeus.workloads.language.model.causal_attention import rotary_table
from linnaeus.workloads.language.model.gpt import GPT, build_gpt
from tests.covering import every_choice

DEFAULTS = GPTConfig("gpt", "gpt_nano", None, None, None, "learned", None, 1.0, False, False, 0.0, 1, True, [], None, "erf")
VOCABULARY, BLOCK = 37, 24
NAMES = ["calm", "quick", "wide", "odd", "deep"]
VARIANTS = {
    f"{positions}{'-bias' * bias}{'-dimensions' * bool(names)}": {"positions": positions, "bias": bias, "dimensions": names}
    for names in ([], NAMES)
    for positions in ("learned", "rotary")
    for bias in (False, True)
}
NEOX = {"positions": "rotary", "rotary_fraction": 0.25, "parallel_residual": True, "tied_embeddings": False}
VARIANTS |= {"neox": NEOX | {"bias": True, "dimensions": []}, "neox-dimensions": NEOX | {"bias": False, "dimensions": NAMES}}
every_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)


def build(seed=0, vocabulary=VOCABULARY, block=BLOCK, **changes):
    return build_gpt(dataclasses.replace(DEFAULTS, **changes), seed, vocabulary, block)


def shaken(amount=0.1, **changes):
    """Return a model with large random changes to all parameters, norms and biases included."""
    model, generator = build(**changes), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * amount)
    return model


def some_weights(rows=3, seed=0, dtype=torch.float32):
    """Return random weights of the dimensions for each row."""
    return torch.rand(rows, len(NAMES), generator=torch.Generator().manual_seed(seed), dtype=dtype)


def some_tokens(rows=3, length=BLOCK, seed=0):
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def unbuilt(vocabulary, block, **changes):
    with torch.device("meta"):
        return GPT(dataclasses.replace(DEFAULTS, **changes), vocabulary, block)


@pytest.mark.parametrize(
    ("changes", "vocabulary", "block", "golden"),
    [
        ({"size": "gpt2"}, 50257, 1024, 124_337_664),  # learned positions counted, no biases
        ({"size": "gpt_baby"}, 65, 256, 10_745_088),
        ({"size": "gpt_micro"}, 65, 64, 804_096),
        ({"size": "gpt_micro", "positions": "rotary"}, 65, 64, 804_096 - 64 * 128),
        ({"size": "gpt2", "bias": True}, 50257, 1024, 124_439_808),  # as OpenAI published it
        ({"size": "gpt2_medium", "bias": True}, 50257, 1024, 354_823_168),
        ({"size": "gpt2_large", "bias": True}, 50257, 1024, 774_030_080),
        ({"size": "gpt2_xl", "bias": True}, 50257, 1024, 1_557_611_200),
        ({"size": "gpt2", "vocabulary_multiple": 64}, 50257, 1024, 124_337_664 + 47 * 768),  # 50,304 rows
        ({"size": "gpt2", **NEOX, "bias": True}, 50304, 2048, 162_322_944),  # as Pythia-160m is published
        ({"size": "gpt_micro", "dimensions": list("abcdefgh")}, 65, 64, 804_096 + 3 * (128 + 8 * 128 + 2 * 128 * 8 * 16)),
        ({"size": "gpt_micro", "dimensions": ["a"], "adapter_width": 5, "layers": 3}, 65, 64, 607_232 + 3 * (128 + 128 + 2 * 128 * 5)),
        ({"size": "gpt_nano", "dimensions": ["a", "b"], "bias": True}, 5, 3, 85_296 + 3 * (2 * 48 + 2 * 49 + 12 * 49 + 48 * 13)),
        ({"size": "gpt2_xl", "layers": 2, "heads": 2, "width": 6}, 5, 3, 5 * 6 + 3 * 6 + 2 * (12 + 12 * 36) + 6),
    ],
)
def test_golden_parameter_counts(changes, vocabulary, block, golden):
    assert sum(p.numel() for p in unbuilt(vocabulary, block, **changes).parameters()) == golden


def test_golden_flops():
    assert unbuilt(50257, 1024, size="gpt2").flops_per_token(1024) * 1024 == 875_062_886_400
    rotary = unbuilt(50257, 1024, size="gpt2", positions="rotary")
    assert rotary.flops_per_token(1024) * 1024 == 875_062_886_400, "positions are looked up, not multiplied"
    assert rotary.flops_per_token(512) == rotary.flops_per_token(1024) - 12 * 12 * 768 * 512
    untied = unbuilt(50257, 1024, size="gpt2", positions="rotary", tied_embeddings=False)
    assert untied.flops_per_token(1024) == rotary.flops_per_token(1024), "so are tokens, but not by the head"
    small, more = unbuilt(65, 64, size="gpt_micro"), unbuilt(65, 64, size="gpt_micro", dimensions=["a", "b"])
    assert more.flops_per_token(64) - small.flops_per_token(64) == 6 * 3 * (128 + 2 * 128 + 2 * 128 * 32), "adapters run on every token"


def test_only_matrices_decay():
    model = build(bias=True)
    groups = parameter_groups(model, [], 0.1)
    assert {g.weight_decay: len(g.tensors) for g in groups} == {0.1: 2 + 3 * 4, 0.0: 2 + 3 * 8}
    assert model.no_decay == {name for name, p in model.named_parameters() if p.dim() == 1}


def test_maskable_parameters():
    model = build(bias=True)
    named = dict(model.named_parameters())
    maskable = model.maskable_parameters()
    assert sum(named[name].numel() for name in maskable) == 3 * 12 * 48**2 and len(set(maskable)) == 3 * 4
    assert set(named) - set(maskable) == {n for n, p in named.items() if p.dim() == 1} | {"token.weight", "position.weight"}
    added = build(dimensions=NAMES)
    assert set(added.maskable_parameters()) - set(maskable) == {
        f"blocks.{i}.dimensions.{part}.weight" for i in range(3) for part in ("down", "up")
    }


@every_variant
def test_init_weights_sets_every_tensor(variant):
    model = build(**variant)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    turns = model.rotary
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.fill_(torch.nan)
    model.init_weights()
    assert all(t.isfinite().all() for t in [*model.parameters(), *model.buffers()])
    assert before.keys() == model.state_dict().keys() and "rotary" not in before
    assert (turns is None) == (variant["positions"] == "learned")
    assert (model.dimension_weights is None) == (not variant["dimensions"]) and "dimension_weights" not in before


def test_initial_weights_follow_gpt2():
    model = build(size="gpt_micro", bias=True, vocabulary=500, block=200, dimensions=NAMES, adapter_width=64)
    narrow = 0.02 / math.sqrt(2 * 4)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            assert (parameter == (1.0 if "norm" in name and name.endswith("weight") else 0.0)).all(), name
            continue
        wanted = narrow if name.endswith(("attention.output.weight", "perceptron.down.weight", "dimensions.up.weight")) else 0.02
        assert parameter.std().item() == pytest.approx(wanted, rel=0.03 if parameter.numel() > 1000 else 0.15), name
        assert abs(parameter.mean().item()) < 4 * wanted / parameter.numel() ** 0.5, name
        assert parameter.abs().max() > 3 * wanted or parameter.numel() < 1000, "normal, not truncated"


def slow_logits(model, tokens, strengths=()):
    """Return the logits of one row of tokens, computed by head and dimension. `strengths`: weights of the dimensions."""
    weights, width = dict(model.state_dict()), model.size.width // model.size.heads
    later = torch.full((len(tokens), len(tokens)), -torch.inf, dtype=torch.float64).triu(1)

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0)

    def norm(x, name):
        x = x - x.mean(1, keepdim=True)
        return x / (x.square().mean(1, keepdim=True) + 1e-5).sqrt() * weights[f"{name}.weight"] + weights.get(f"{name}.bias", 0)

    def gelu(x):
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))

    def turned(x):
        if model.position is not None:
            return x
        some = int(width * model.rotary_fraction)
        angle = torch.arange(len(x))[:, None] * 10000.0 ** (-2 * torch.arange(some // 2, dtype=torch.float64) / some)
        first, second, rest = x[:, : some // 2], x[:, some // 2 : some], x[:, some:]
        return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos(), rest], 1)

    stream = weights["token.weight"][tokens]
    if model.position is not None:
        stream = stream + weights["position.weight"][: len(tokens)]
    for layer in range(model.size.layers):
        at, start = f"blocks.{layer}.", stream
        parts = linear(norm(stream, at + "norm1"), at + "attention.query_key_value").chunk(3, 1)
        answers = [
            (turned(query) @ turned(key).T / math.sqrt(width) + later).softmax(1) @ value
            for query, key, value in zip(*(part.split(width, 1) for part in parts))
        ]
        stream = stream + linear(torch.cat(answers, 1), at + "attention.output")
        if layer >= model.size.layers // 4 and strengths:
            y = norm(start if model.parallel_residual else stream, at + "dimensions.norm")
            gates = 1 / (1 + torch.exp(-linear(y, at + "dimensions.gate")))
            inner = gelu(linear(y, at + "dimensions.down")).chunk(len(strengths), 1)
            scaled = [strength * gates[:, d : d + 1] * inner[d] for d, strength in enumerate(strengths)]
            stream = stream + linear(torch.cat(scaled, 1), at + "dimensions.up")
        y = norm(start if model.parallel_residual else stream, at + "norm2")
        stream = stream + linear(gelu(linear(y, at + "perceptron.up")), at + "perceptron.down")
    return norm(stream, "norm") @ weights.get("head.weight", weights["token.weight"]).T


@every_variant
def test_the_model_equals_a_slow_reference(variant):
    """Each row has its own weights of the dimensions, one of them 0: the reference adds nothing for that one."""
    model, tokens = shaken(**variant).double(), some_tokens(2, 7)
    if model.rotary is not None:
        model.rotary.copy_(rotary_table(BLOCK, model.rotary_channels, 10000.0))
    batch, strengths = {"input": tokens}, [(), ()]
    if variant["dimensions"]:
        batch["dimensions"] = some_weights(2, dtype=torch.float64) * torch.tensor([1, 1, 0, 1, 1])
        strengths = batch["dimensions"].tolist()
    with torch.no_grad():
        wanted = torch.stack([slow_logits(model, *row) for row in zip(tokens, strengths)])
        assert (model(batch)["logits"] - wanted).abs().max() < 1e-11


def is_causal(model, tokens, t, seed=7, **more):
    """Return True if changing the tokens from t on changes no bit of the logits before t. `more` is added to both batches; dropout has the
    same seed in both."""

    def scores(tokens):
        torch.default_generator.manual_seed(seed)
        with torch.no_grad():
            return model({"input": tokens, **more})["logits"]

    other = changed_from(tokens, t)
    a, b = scores(tokens), scores(other)
    assert not torch.equal(a[:, t:], b[:, t:]), "later logits change"
    return torch.equal(a[:, :t], b[:, :t])


def changed_from(tokens, t):
    other = tokens.clone()
    other[:, t:] = (other[:, t:] + torch.randint(1, VOCABULARY, other[:, t:].shape)) % VOCABULARY
    return other


def sparse(model):
    """Return the model with a random third of its maskable weights."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in model.maskable_parameters():
            shape = parameters[name].shape
            parameters[name].mul_(initial_mask(shape, shape.numel() // 3, order_stream(0, name), torch.device("cpu")))
    return model


@every_choice(name=list(VARIANTS), dropout=[0.0, 0.3], precision=[torch.float32, torch.float64, torch.bfloat16])
def test_later_tokens_do_not_change_earlier_logits(name, dropout, precision):
    """Dense and sparse, in training and evaluation mode, with and without dimension weights in the batch."""
    variant = VARIANTS[name]
    tokens, given = some_tokens(), [{}, {"dimensions": some_weights()}] if variant["dimensions"] else [{}]
    model = shaken(dropout=dropout, **variant)
    model = model.double() if precision == torch.float64 else model
    for connected in (1, 1 / 3):
        model = model if connected == 1 else sparse(model)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
            for training in (True, False):
                model.train(training)
                for more in given:
                    assert all(is_causal(model, tokens, t, **more) for t in (1, 11, BLOCK - 1)), (connected, training, *more)


@pytest.mark.parametrize("broken", ["attention without a mask", "a mean over all positions", "a gate with later positions"])
def test_negative_control_the_causality_check_finds_a_look_ahead(broken, monkeypatch):
    model, batch = shaken(dimensions=NAMES), some_tokens()
    assert is_causal(model, batch, 11)
    if broken == "attention without a mask":
        attend = F.scaled_dot_product_attention
        monkeypatch.setattr(causal_attention.F, "scaled_dot_product_attention", lambda q, k, v, is_causal, dropout_p: attend(q, k, v))
    elif broken == "a mean over all positions":
        model.blocks[1].register_forward_hook(lambda block, given, x: x + 1e-3 * x.mean(1, keepdim=True))
    else:
        model.blocks[1].dimensions.gate.register_forward_hook(lambda gate, given, x: x + 1e-3 * x.mean(1, keepdim=True))
    assert not is_causal(model, batch, 11)


@every_variant
def test_every_parameter_gets_a_gradient(variant):
    model, tokens = build(dropout=0.1, **variant), some_tokens()
    given = {"dimensions": some_weights()} if variant["dimensions"] else {}
    model({"input": tokens, "target": tokens.roll(-1, 1), **given})["losses"].sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all() or not p.grad.any()] == []
    assert all(p.grad.any() for p in model.shared_parameters()) and len(model.trunk_parameters()) == len(list(model.parameters()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, "model.heads is 5, which does not divide the width 48; set model.width=50"),
        ({"width": 3, "positions": "rotary"}, "model.positions=rotary needs an even number of rotated channels per head, not 1 of 1"),
        ({"positions": "rotary", "rotary_fraction": 0.2}, "not 3 of 16; change model.heads, width or rotary_fraction"),
        ({"positions": "rotary", "rotary_fraction": 0.1}, "not 1 of 16"),
        ({"rotary_fraction": 0.5}, "model.rotary_fraction=0.5 has no effect with model.positions=learned; use 1 or rotary"),
        ({"rotary_base": 500.0}, "model.rotary_base=500 has no effect with model.positions=learned"),
        ({"dimensions": ["a", "b", "a"]}, "model.dimensions has a twice"),
        ({"dimensions": ["a", "b c"]}, "model.dimensions has 'b c'; a name must be letters"),
        ({"dimensions": ["9"]}, "model.dimensions has '9'"),
        ({"adapter_width": 4}, "model.adapter_width=4 has no effect without model.dimensions"),
    ],
)
def test_invalid_models_are_refused_in_one_line(changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        unbuilt(VOCABULARY, BLOCK, **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("variant", [VARIANTS["learned"], VARIANTS["rotary"], VARIANTS["learned-dimensions"]], ids=str)
def test_bf16_is_close_and_its_loss_is_float32(variant):
    model, tokens = build(**variant), some_tokens()
    batch = {"input": tokens, "target": tokens.roll(-1, 1)}
    with torch.autocast("cpu", torch.bfloat16):
        losses = model(batch)["losses"]
    assert losses.dtype == torch.float32 and (losses - model(batch)["losses"]).abs().max() < 0.02
    losses.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert model.double()(batch)["losses"].dtype == torch.float64


@pytest.mark.slow
@pytest.mark.parametrize("dimensions", [[], NAMES], ids=["plain", "dimensions"])
def test_the_model_with_its_loss_compiles_to_one_graph(dimensions):
    """In training, and in evaluation with the ablated losses of the dimensions."""
    model, tokens = build(positions="rotary", bias=True, dimensions=dimensions, layers=2), some_tokens()
    batch = {"input": tokens, "target": tokens.roll(-1, 1), "sample": torch.arange(3)}
    if dimensions:
        batch["dimensions"] = some_weights()
    exact = [model.train(training)(batch) for training in (True, False)]
    model.compile(backend="aot_eager", fullgraph=True)
    for training, wanted in zip((True, False), exact):
        found = model.train(training)(batch)
        assert found.keys() == wanted.keys() and ("ablated_losses" in found) == (bool(dimensions) and not training)
        assert all(torch.allclose(found[name], wanted[name], atol=1e-5) for name in found if "losses" in name)
        if training:
            found["losses"].sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_training_computes_losses_only():
    model, tokens = shaken(dimensions=NAMES), some_tokens()
    batch = {"input": tokens, "target": tokens.roll(-1, 1), "sample": torch.arange(3)}
    assert set(model(batch)) == {"losses", "loss_sum"}
    found = model.eval()(batch)
    assert set(found) == {"losses", "loss_sum", "predictions", "ablated_losses"}
    assert torch.equal(found["predictions"], model({"input": tokens})["logits"].argmax(-1))
    assert torch.equal(found["loss_sum"], found["losses"].sum())


def test_weights_and_dropout_are_functions_of_their_seeds():
    def values(seed, noise):
        torch.manual_seed(1)
        model = build(seed, dropout=0.2)
        torch.default_generator.manual_seed(noise)
        return torch.cat([p.flatten() for p in model.parameters()]), model({"input": some_tokens()})["logits"]

    weights, scores = values(1, 5)
    assert all(map(torch.equal, values(1, 5), (weights, scores)))
    assert torch.equal(values(1, 6)[0], weights) and not torch.equal(values(1, 6)[1], scores)
    assert not torch.equal(values(2, 5)[0], weights)


def test_a_batch_without_weights_uses_those_that_were_set():
    final, tokens = [0.5, 0.0, 0.25, 0.25, 0.0], some_tokens()
    model, alike = build(dimensions=NAMES), build(dimensions=NAMES)
    model.set_dimension_weights(final)
    found = model({"input": tokens})["logits"]
    assert torch.equal(found, model({"input": tokens, "dimensions": torch.tensor([final] * 3)})["logits"])
    assert not torch.equal(found, alike({"input": tokens})["logits"])
    model.set_dimension_weights([0.2] * 5)
    assert torch.equal(model({"input": tokens})["logits"], alike({"input": tokens})["logits"])


@pytest.mark.parametrize("layers, having", [(1, [0]), (3, [0, 1, 2]), (4, [1, 2, 3]), (8, [2, 3, 4, 5, 6, 7])])
def test_all_blocks_but_the_lowest_quarter_have_dimensions(layers, having):
    model = build(dimensions=NAMES, layers=layers)
    assert [i for i, block in enumerate(model.blocks) if block.dimensions is not None] == having


def test_ablated_losses_are_causal():
    model, tokens = shaken(dimensions=NAMES).eval(), some_tokens()
    batch = {"input": tokens, "target": tokens.roll(-1, 1), "sample": torch.arange(3)}
    with torch.no_grad():
        a, b = (model(each)["ablated_losses"] for each in (batch, batch | {"input": changed_from(tokens, 9)}))
    assert torch.equal(a[:, :9], b[:, :9]) and not torch.equal(a[:, 9:], b[:, 9:])


def test_sources_without_tokens_and_dimensions_that_no_window_ablates_are_nan():
    metrics, batch = LanguageMetrics(None, torch.device("cpu"), NAMES, ("a", "b")), {"target": torch.ones(2, 3, dtype=torch.int64)}
    batch |= {"source": torch.tensor([0, 0]), "sample": torch.arange(2)}
    outputs = {"losses": torch.ones(2, 3), "ablated_losses": torch.full((2, 3), 1.5), "predictions": batch["target"]}
    metrics.count(outputs, batch)
    found = metrics.compute(metrics.sums(outputs, batch), metrics.counts)
    assert found.pop("top1") == found.pop("loss") == found.pop("source/a/loss") == 1 and found.pop("perplexity") == math.e
    assert found.pop("dimension/calm/score") == found.pop("dimension/quick/score") == 0.5
    assert len(found) == 5 and all(map(math.isnan, found.values()))
