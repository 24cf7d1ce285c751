"""Test mformer: sizes, initialisation, gradients of all parameters, masked metadata, rotary positions, precision, compilation."""

import subprocess
import sys

import pytest
import torch

from linnaeus.train.building.freezing import batch_statistics
from linnaeus.workloads.taxonomy.heads import HEADS
from linnaeus.workloads.taxonomy.models import build_classifier
from linnaeus.workloads.taxonomy.models.classifier import Classifier
from linnaeus.workloads.taxonomy.models.mformer import SIZES, Attention, Mformer, rotary_table, rotate
from linnaeus.workloads.taxonomy.observations.components import COMPONENTS, column_slices

PARAMETER_COUNTS = {  # of the trunk and the final norm: 4 ranks, 3 components, meta_width 32
    "micro": 467_344,
    "nano": 3_713_120,
    "tiny": 21_588_480,
    "small": 30_149_632,
    "base": 75_588_160,
    "large": 99_621_472,
}


def parameters(module):
    return sum(p.numel() for p in module.parameters())


def total(outputs):
    return sum(z.float().logsumexp(1).sum() for z in outputs["scores"].logits)


@pytest.fixture
def micro(tree, make_config):
    return build_classifier(make_config(size="micro"), tree, COMPONENTS)


@pytest.mark.parametrize("size", SIZES)
def test_parameter_counts(tree, make_config, size):
    with torch.device("meta"):
        trunk = Mformer(make_config(size=size).model, [224], 4, COMPONENTS)
        head = HEADS["linear"](trunk.width, tree)
        model = Classifier(trunk, head, 4, 0.0)
    assert parameters(model) - parameters(head) == PARAMETER_COUNTS[size]
    assert parameters(head) == sum(tree.sizes) * (trunk.width + 1)


@pytest.mark.parametrize(("size", "image_size"), [("micro", 48), ("micro", 33), ("nano", 64)])
def test_shapes(tree, make_config, make_batch, size, image_size):
    model = build_classifier(make_config(size=size, image_size=image_size), tree, COMPONENTS)
    for side in (image_size, image_size + 16):  # images of another size than configured work too
        outputs = model(make_batch(3, side))
        assert [tuple(z.shape) for z in outputs["scores"].logits] == [(3, c) for c in tree.sizes]
        assert outputs["features"].shape == (3, model.trunk.width)
    assert not batch_statistics(model)


def test_init_weights_initialises_every_parameter(micro):
    with torch.no_grad():
        for parameter in micro.parameters():
            parameter.fill_(torch.nan)
    micro.init_weights()
    assert [name for name, p in micro.named_parameters() if not p.isfinite().all()] == []


@pytest.mark.parametrize("choice", [{"size": "micro"}, {"backbone": "vit_tiny_patch16_224", "image_size": 32}])
def test_initial_weights_depend_on_the_seed_only(tree, make_config, choice):
    def weights(seed, noise):
        torch.manual_seed(noise)
        return torch.cat([p.flatten() for p in build_classifier(make_config(seed=seed, **choice), tree, COMPONENTS).parameters()])

    assert torch.equal(weights(1, 5), weights(1, 6)) and not torch.equal(weights(1, 5), weights(2, 5))


def test_initial_loss_is_log_of_the_number_of_classes(micro, tree, make_batch):
    for z, size in zip(micro(make_batch(16))["scores"].logits, tree.sizes, strict=True):
        assert z.logsumexp(1).mean().item() == pytest.approx(torch.tensor(float(size)).log().item(), abs=0.3)


@pytest.mark.parametrize("present", [False, True])
@pytest.mark.parametrize("components", [(), ("TEMPORAL",), COMPONENTS])
def test_every_parameter_gets_a_gradient(tree, make_config, make_batch, components, present):
    model = build_classifier(make_config(size="micro", image_size=32, dropout=0.1, drop_path=0.1), tree, components)
    batch = make_batch(4, 32, components=components)
    batch["present"][:] = present
    total(model(batch)).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []
    assert all(p.grad.any() for p in model.shared_parameters())
    used = "missing" if not present else "encoders"
    for name, p in model.named_parameters():
        if name.startswith("trunk.metadata"):
            assert p.grad.any() == (used in name), name


def test_masked_values_do_not_change_outputs_or_gradients(micro, make_batch):
    """Masked values may be NaN. Values that are present do change the outputs."""
    clean = make_batch(8)
    poisoned = {**clean, "meta": clean["meta"].clone()}
    for m, columns in enumerate(column_slices(COMPONENTS)):
        poisoned["meta"][~clean["present"][:, m], columns] = torch.nan

    def results(batch):
        micro.zero_grad()
        outputs = micro(batch)
        total(outputs).backward()
        return [*outputs["scores"].logits, *(p.grad.clone() for p in micro.parameters())]

    for a, b in zip(results(clean), results(poisoned), strict=True):
        assert torch.equal(a, b)
    changed = {**clean, "meta": clean["meta"] + 1}
    assert not torch.equal(results(changed)[0], results(clean)[0])
    zeros = {**clean, "meta": torch.zeros_like(clean["meta"]), "present": torch.ones_like(clean["present"])}
    for component in range(3):
        hidden = {**zeros, "present": torch.arange(3).ne(component).expand(8, -1)}
        assert (micro(zeros)["features"] - micro(hidden)["features"]).abs().max() > 1e-3, "a missing component differs from zeros"


def test_each_rank_reads_its_own_class_token(micro, make_batch):
    batch = make_batch(2)
    micro(batch)["scores"].logits[1].sum().backward()
    gradient = micro.trunk.class_tokens.grad.abs().sum(1)
    assert gradient[1] > 0
    features = micro.trunk(batch["image"], batch["meta"], batch["present"])
    assert (features[:, 0] - features[:, 1]).abs().max() > 1e-3


def test_rotary_scores_depend_on_row_and_column_offsets():
    table = rotary_table(5, 6, 16, special=2).double()
    q, k = torch.randn(2, 16, dtype=torch.float64)
    at = lambda row, column: table[:, 2 + row * 6 + column]
    score = lambda a, b: rotate(q, a) @ rotate(k, b)
    for shift in [(1, 0), (0, 2), (2, 1)]:
        moved = score(at(1 + shift[0], 1 + shift[1]), at(2 + shift[0], 3 + shift[1]))
        assert moved.item() == pytest.approx(score(at(1, 1), at(2, 3)).item(), abs=1e-6)
    assert abs(score(at(0, 0), at(0, 1)) - score(at(0, 0), at(1, 0))) > 1e-3, "rows and columns differ"
    assert torch.equal(rotate(q, table[:, 0]), q), "special tokens are not rotated"
    assert rotate(q, at(3, 4)).norm().item() == pytest.approx(q.norm().item(), rel=1e-6)


def test_attention_depends_on_image_token_positions():
    torch.manual_seed(0)
    attention = Attention(32, 16)
    tokens = torch.randn(1, 1 + 9, 32)
    shuffled = torch.cat([tokens[:, :1], tokens[:, 1:].flip(1)], 1)
    positions, no_positions = rotary_table(3, 3, 16, 1), rotary_table(1, 1, 16, 9)
    difference = lambda table: (attention(tokens, table, 1) - attention(shuffled, table, 1)).abs().max()
    assert difference(no_positions) < 1e-6, "without positions the order of tokens has no effect"
    # The class token has no position, so one layer with the class token as the only query gives the same result for any order.
    two_layers = lambda x, table: attention(attention(x, table, None), table, 1)
    assert (two_layers(tokens, positions) - two_layers(shuffled, positions)).abs().max() > 1e-4


def test_attention_with_fewer_queries_gives_the_same_tokens():
    torch.manual_seed(0)
    attention, tokens, table = Attention(32, 16), torch.randn(2, 7, 32), rotary_table(2, 2, 16, 3)
    assert torch.allclose(attention(tokens, table, 3), attention(tokens, table, None)[:, :3], atol=1e-6)


def test_precisions_and_memory_formats(micro, make_batch):
    batch = make_batch(4)
    exact = micro(batch)["scores"].logits[-1]
    with torch.autocast("cpu", torch.bfloat16):
        outputs = micro(batch)
    assert (outputs["scores"].logits[-1].float() - exact).abs().max() < 0.1 * exact.abs().max()
    total(outputs).backward()
    assert all(p.grad.isfinite().all() for p in micro.parameters())
    columns = {**batch, "image": batch["image"].contiguous(memory_format=torch.channels_last)}
    assert (micro.to(memory_format=torch.channels_last)(columns)["scores"].logits[-1] - exact).abs().max() < 1e-4
    double = micro.double()(batch)["scores"].logits[-1]
    assert double.dtype == torch.float64 and (double - exact).abs().max() < 1e-4


def test_dropout_and_drop_path_draw_from_the_global_generator(tree, make_config, make_batch):
    model = build_classifier(make_config(size="micro", image_size=32, dropout=0.2, drop_path=0.5), tree, COMPONENTS)
    batch = make_batch(4, 32)

    def forward(seed):
        torch.default_generator.manual_seed(seed)
        return model(batch)["scores"].logits[-1]

    assert torch.equal(forward(1), forward(1)) and not torch.equal(forward(1), forward(2))
    model.eval()
    assert torch.equal(forward(1), forward(2))


def test_no_decay_contains_every_1d_parameter_and_token(micro):
    named, free = dict(micro.named_parameters()), micro.no_decay
    assert free <= set(named) and {"trunk.class_tokens", "trunk.metadata.missing", "norm.weight"} <= free
    assert {n for n, p in named.items() if n not in free and p.dim() < 2} == set()


@pytest.mark.slow
def test_import_loads_no_heavy_packages():
    """Importing the models must not import packages that only other models need; they take seconds to load."""
    heavy = ("timm", "torchvision", "torch._dynamo", "wandb", "pyarrow", "matplotlib")
    code = (
        "import sys, linnaeus.workloads.taxonomy.models.mformer, linnaeus.workloads.taxonomy.models as m\n"
        "import linnaeus.workloads.taxonomy.metrics, linnaeus.workloads.taxonomy.losses\n"
        f"print([n for n in {heavy!r} if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_trunk_and_head_compile_without_graph_breaks(micro, make_batch):
    batch = make_batch(4)
    exact = micro(batch)
    micro.trunk.compile(backend="aot_eager", fullgraph=True)
    micro.head.compile(backend="aot_eager", fullgraph=True)
    outputs = micro(batch)
    assert torch.allclose(outputs["scores"].logits[-1], exact["scores"].logits[-1], atol=1e-5)
    assert not any("_orig_mod" in name for name in micro.state_dict())
    total(outputs).backward()
    assert all(p.grad is not None for p in micro.parameters())


def test_growing_images_read_the_tables_that_a_model_of_their_size_has(tree, make_config, make_batch, monkeypatch):
    growing = build_classifier(make_config(size="micro", image_size=48, start=16), tree, COMPONENTS).eval()
    single = [build_classifier(make_config(size="micro", image_size=side), tree, COMPONENTS).eval() for side in (16, 32, 48)]
    assert growing.state_dict().keys() == single[0].state_dict().keys()
    monkeypatch.setattr("linnaeus.workloads.taxonomy.models.mformer.rotary_table", None)  # tables are kept, not made on the way
    for model, side in zip(single, (16, 32, 48)):
        batch = make_batch(3, side)
        assert torch.equal(growing(batch)["features"], model(batch)["features"])
