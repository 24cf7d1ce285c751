"""Generation: the cache against a full forward, batches against single prompts, windows, draws, stops, randomness."""

import random

import numpy as np
import pytest
import torch

from linnaeus.errors import ConfigError
from linnaeus.workloads.language import generation
from linnaeus.workloads.language.generation import IncrementalDecoder, Sampling, draw, generate, probabilities, window_start
from tests.covering import every_choice
from tests.workloads.language import test_gpt

VOCABULARY, BLOCK = 21, 16
GREEDY = Sampling(temperature=0)
PROMPTS = [[3], [1, 2, 3, 4, 5, 6, 7], [9] * 15, [8, 4] * 8, [5, 6, 7] * 9]  # the last is longer than a block


def shaken(dtype=torch.float64, **changes):
    """Return a small model with large random weights, so that its predictions are far from uniform."""
    return test_gpt.shaken(0.3, vocabulary=VOCABULARY, block=BLOCK, layers=2, heads=2, width=16, **changes).to(dtype)


def full_logits(model, tokens, slide):
    """Return the logits of the next token from a full forward over the window."""
    window = tokens[window_start(len(tokens), BLOCK, slide) :]
    with torch.no_grad():
        return model({"input": torch.tensor([window])})["logits"][0, -1, :VOCABULARY]


@every_choice(name=list(test_gpt.VARIANTS), slide=[1, 5, BLOCK])
def test_logits_with_the_cache_equal_those_without(name, slide, monkeypatch):
    """Prompts of many lengths in one batch, some far longer than the block."""
    monkeypatch.setattr(generation, "SPAN", 4)
    model = shaken(vocabulary_multiple=8, **test_gpt.VARIANTS[name])
    rows, choose = [list(p) for p in PROMPTS], random.Random(0)
    decoder = IncrementalDecoder(model, rows, 3 * BLOCK, slide)
    for _ in range(2 * BLOCK + 3):
        with torch.inference_mode():
            scores = decoder.next_logits()
        for row, found in zip(rows, scores, strict=True):
            assert (found - full_logits(model, row, slide)).abs().max() < 1e-10
            row.append(choose.randrange(VOCABULARY))


def test_negative_control_a_damaged_cache_changes_the_logits():
    model = shaken()
    rows = [list(PROMPTS[1])]
    decoder = IncrementalDecoder(model, rows, BLOCK, 4)
    with torch.inference_mode():
        decoder.next_logits()
        decoder.cache.values[0, 0, :, 2] += 0.1
        rows[0].append(3)
        assert (decoder.next_logits()[0] - full_logits(model, rows[0], 4)).abs().max() > 1e-4


def test_window_starts():
    assert [window_start(n, 8, 3) for n in range(1, 16)] == [0] * 8 + [3, 3, 3, 6, 6, 6, 9]
    for block in (1, 2, 7, 64):
        for slide in {1, max(1, block // 4), block}:
            for n in range(1, 5 * block):
                start = window_start(n, block, slide)
                assert start % slide == 0 and n - start <= block and n - start >= min(n, block - slide + 1)


@every_choice(sampling=[GREEDY, Sampling(), Sampling(0.8, 7, 0.9)], dtype=[torch.float32, torch.float64], positions=["learned", "rotary"])
def test_a_prompt_in_a_batch_continues_as_alone(positions, dtype, sampling):
    model = shaken(dtype, positions=positions)
    together = generate(model, PROMPTS, 40, sampling, seed=3)
    assert together == [generate(model, [prompt], 40, sampling, seed=3)[0] for prompt in PROMPTS]
    assert together == generate(model, PROMPTS[::-1], 40, sampling, seed=3)[::-1]
    assert all(len(found) == 40 for found in together)


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_other_rows_of_a_batch_change_no_bit(positions):
    """Nor does the order of rows. (Another number of rows changes rounding: a product of another shape adds in another order.)"""
    model = shaken(torch.float32, positions=positions)

    def scores(neighbour):
        rows = [list(PROMPTS[1]), list(neighbour)]
        decoder, found = IncrementalDecoder(model, rows, 30, 4), []
        for n in range(30):
            with torch.inference_mode():
                found.append(decoder.next_logits()[0])
            rows[0].append(n % VOCABULARY)
            rows[1].append((n + neighbour[0]) % VOCABULARY)
        return torch.stack(found)

    assert torch.equal(scores([1, 2, 3, 4]), scores([7, 7, 7, 7]))
    model.blocks[0].register_forward_hook(lambda block, given, x: x + 1e-3 * x.flip(0))  # negative control: rows that mix
    assert not torch.equal(scores([1, 2, 3, 4]), scores([7, 7, 7, 7]))


def test_generation_is_a_function_of_seed_prompt_and_copy():
    model = shaken()
    state = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    twice = generate(model, [[3], [3], [4]], 20, Sampling(), seed=1)
    assert (torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()) == (pytest.approx(state[0]), *state[1:])
    assert twice[0] != twice[1], "copies of a prompt differ"
    torch.manual_seed(99)
    assert twice == generate(model, [[3], [3], [4]], 20, Sampling(), seed=1)
    assert twice[:2] == generate(model, [[4], [3], [3]], 20, Sampling(), seed=1)[1:]
    assert twice != generate(model, [[3], [3], [4]], 20, Sampling(), seed=2)
    assert twice[0][:5] == generate(model, [[3]], 5, Sampling(), seed=1)[0], "a shorter text is a prefix of a longer one"


@pytest.mark.parametrize("training", [True, False])
def test_generate_restores_the_models_mode_and_state(training):
    model = shaken(dropout=0.5).train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert generate(model, [[1, 2]], 12, GREEDY) == generate(model.eval(), [[1, 2]], 12, GREEDY), "no dropout"
    model.train(training)
    with pytest.raises(KeyError):
        generate(model, [[1, 2]], 3, GREEDY, stop_when=lambda tokens: {}["x"])
    assert model.training == training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_stop_tokens_and_stop_conditions_end_a_row():
    model, calls = shaken(), []
    free = generate(model, PROMPTS[:3], 30, Sampling(), seed=5)
    for whole in free:
        stop = whole[7]
        stopped = generate(model, PROMPTS[:3], 30, Sampling(), seed=5, stop_tokens=[stop])
        assert stopped == [other[: other.index(stop)] if stop in other else other for other in free], "other rows are unchanged"
    ended = generate(model, PROMPTS[:3], 30, Sampling(), seed=5, stop_when=lambda tokens: len(tokens) >= 4)
    assert ended == [whole[:4] for whole in free]
    model.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    generate(model, [[1], [2]], 30, GREEDY, stop_when=lambda tokens: len(tokens) == 3)
    assert len(calls) == 3, "nothing is computed when all rows have stopped"


def test_padding_rows_of_the_embedding_are_never_drawn():
    model = shaken(vocabulary_multiple=64)
    with torch.no_grad():
        model.token.weight[VOCABULARY:] = 50 * model.token.weight[:1]
    for sampling in (GREEDY, Sampling(temperature=5.0)):
        assert max(map(max, generate(model, PROMPTS, 40, sampling))) < VOCABULARY


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: generate(shaken(), [], 3, GREEDY), "prompt"),
        (lambda: generate(shaken(), [[1], []], 3, GREEDY), "prompt is empty"),
        (lambda: generate(shaken(), [[1, VOCABULARY]], 3, GREEDY), "token 21 is not one of the model's 21"),
        (lambda: generate(shaken(), [[1]], 3, GREEDY, slide=17), "slide is 17"),
        (lambda: Sampling(temperature=-1.0), "temperature is -1"),
        (lambda: Sampling(top_k=0), "top_k is 0"),
        (lambda: Sampling(top_p=0.0), "top_p is 0"),
        (lambda: Sampling(top_p=1.5), "top_p is 1.5"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(call, message):
    with pytest.raises(ConfigError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def slow_probabilities(scores, sampling):
    """Return the probabilities of one row of logits, computed from the definition."""
    ranked = sorted(range(len(scores)), key=lambda token: -scores[token])
    kept = ranked[: sampling.top_k]
    weights = {token: np.exp((scores[token] - scores[ranked[0]]) / sampling.temperature) for token in kept}
    total, share, nucleus = sum(weights.values()), 0.0, []
    for token in kept:
        if share >= (1.0 if sampling.top_p is None else sampling.top_p):
            break
        nucleus.append(token)
        share += weights[token] / total
    total = sum(weights[token] for token in nucleus)
    return [weights[token] / total if token in nucleus else 0.0 for token in range(len(scores))]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [None, 1, 6, 500])
@pytest.mark.parametrize("top_p", [None, 0.05, 0.7, 1.0])
def test_probabilities_equal_a_slow_reference(temperature, top_k, top_p):
    sampling = Sampling(temperature, top_k, top_p)
    scores = torch.randn(4, 30, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 3
    found = probabilities(scores, sampling)
    for row in range(4):
        assert found[row].tolist() == pytest.approx(slow_probabilities(scores[row].tolist(), sampling), abs=1e-12)


def test_draws_follow_the_probabilities():
    """Numbers spread evenly over [0, 1) draw each token in proportion to its probability."""
    sampling, n = Sampling(0.9, 9, 0.95), 20_000
    scores = torch.randn(1, 30, generator=torch.Generator().manual_seed(3)).expand(n, -1)
    drawn = draw(scores, sampling, (torch.arange(n, dtype=torch.float64) + 0.5) / n)
    wanted = probabilities(scores[:1], sampling)[0]
    assert (torch.bincount(drawn, minlength=30) / n - wanted).abs().max() < 1.01 / n
    edges = draw(scores[:2], sampling, torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)).tolist()
    assert edges == [int(wanted.nonzero()[0]), int(wanted.nonzero()[-1])]
    tiny = draw(scores[:1], Sampling(temperature=1e-300), torch.tensor([0.5], dtype=torch.float64))
    assert tiny.item() == scores[0].argmax().item() == draw(scores[:1], GREEDY, torch.tensor([0.9])).item()
