"""Test the dataset by position (law 1): samples do not depend on batches; pairs, null labels, placeholders, bad photographs."""

import dataclasses
import hashlib
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from linnaeus.config.schema_schedule import ImageSizeConfig, RampConfig
from linnaeus.data.order import epoch_order
from linnaeus.data.samples import SampleIndex
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.inputs.image_dataset import TaxonomyDataset, epoch_weights, mixing_groups
from linnaeus.workloads.taxonomy.inputs.preparation import STD, BatchPreparation
from linnaeus.workloads.taxonomy.observations import Metadata, Source, UndecodableImage
from linnaeus.workloads.taxonomy.observations.components import column_slices
from tests.workloads.taxonomy.augment.test_augmentation import NONE, STANDARD

COMPONENTS = ["SPATIAL", "TEMPORAL", "ELEVATION"]
GENUS = [{"from": "0%", "level": "genus"}]
N, SIZE = 96, 16


class Reader:
    """A reader of photographs of several sizes, determined by their number. Those in `broken` cannot be decoded."""

    def __init__(self, broken=()):
        self.broken, self.read_samples = frozenset(broken), []

    def read(self, samples):
        self.read_samples += samples.tolist()
        for s in samples.tolist():
            if s in self.broken:
                raise UndecodableImage(s, "not an image")
        shapes = [((18, 24), (SIZE, SIZE), (30, 20))[s % 3] for s in samples.tolist()]
        return [np.random.default_rng(s).integers(0, 256, (*shape, 3), dtype=np.uint8) for s, shape in zip(samples.tolist(), shapes)]


class Ramps:
    """A schedule with probabilities that rise with the step and a mixing level that changes at epoch 1."""

    get_meta_mask_prob = staticmethod(lambda step: min(1.0, step / 60))
    get_partial_meta_mask_prob = staticmethod(lambda step: min(1.0, step / 40))
    get_mixup_prob = staticmethod(lambda step: min(1.0, 0.2 + step / 30))
    get_mixup_group_level = staticmethod(lambda epoch: "genus" if epoch < 1 else "species")


class Certain(Ramps):
    get_mixup_prob = staticmethod(lambda step: 1.0)


class Growing(Certain):
    get_image_size = staticmethod(lambda step: (8, 12, 16)[min(step // 2, 2)])


def make_source(broken=(), nulls=True):
    rng = np.random.default_rng(0)
    species = rng.integers(0, 12, N)
    labels = np.stack([species // 6, species // 3, species], axis=1)
    if nulls:
        labels[rng.random(N) < 0.15, 2] = -1
    values = {name: rng.random(N).astype(np.float32) for name in ("latitude", "longitude", "uncertainty", "day", "hour", "elevation")}
    values["latitude"][::4] = np.nan
    values["elevation"][::3] = np.nan
    tree = SimpleNamespace(ranks=("family", "genus", "species"), sizes=(3, 6, 12))
    ids = np.array([f"o{i}" for i in range(N)])
    return Source(tree, ids, labels, Metadata(**values), np.zeros(N, np.int8), Reader(broken), "abc")


def make_config(mixup_prob=1.0, levels=GENUS, seed=7, sampling="natural", sampling_rank=None, start=None, **augment):
    ramp = lambda p: RampConfig(p, p, "0%", "100%")
    return SimpleNamespace(
        seed=seed,
        head=SimpleNamespace(nulls="ignore"),
        data=SimpleNamespace(components=COMPONENTS, image_size=SIZE, sampling=sampling, sampling_rank=sampling_rank),
        augment=dataclasses.replace(STANDARD, **{"erasing": 0.3, "vertical_flip": 0.2} | augment),
        schedule=SimpleNamespace(
            meta_mask_prob=ramp(0.5),
            partial_meta_mask_prob=ramp(0.5),
            partial_mask_whitelist=[],
            partial_mask_weights=[],
            null_mask_prob=ramp(1.0),
            mixup_prob=ramp(mixup_prob),
            mixup_group_level=levels,
            image_size=ImageSizeConfig(start, 4, "0%", "80%"),
        ),
    )


def dataset(config=None, schedule=None, training=True, source=None, **kwargs):
    return TaxonomyDataset(source or make_source(), np.arange(N), config or make_config(), schedule or Ramps(), training, **kwargs)


def indices(data, epoch, global_batch_size=16, seed=7):
    order = epoch_order(seed, epoch, len(data), data.groups(Ramps().get_mixup_group_level(epoch)))
    steps = -(-len(data) // global_batch_size)
    return [SampleIndex(epoch, p, int(s), epoch * steps + p // global_batch_size) for p, s in enumerate(order)]


def row_hashes(data, micro, epochs=3, **kwargs):
    """Return one hash per position over all entries of the batch."""
    out = []
    for epoch in range(epochs):
        index = indices(data, epoch, **kwargs)
        for i in range(0, len(index), micro):
            batch = data.__getitems__(index[i : i + micro])
            for row in range(len(index[i : i + micro])):
                digest = hashlib.sha256()
                for name in sorted(batch):
                    digest.update(name.encode() + batch[name][row].numpy().tobytes())
                out.append(digest.hexdigest())
    return out


def test_samples_do_not_depend_on_the_batch_size():
    whole = row_hashes(dataset(), 2)
    assert len(set(whole)) == 3 * N
    for micro in (4, 8, 16):
        assert row_hashes(dataset(), micro) == whole
    assert row_hashes(pickle.loads(pickle.dumps(dataset())), 8) == whole  # as in a spawned worker


def test_augmentation_and_mixing_depend_on_the_epoch_and_masks_on_the_step():
    class Constant(Ramps):
        get_meta_mask_prob = get_partial_meta_mask_prob = get_mixup_prob = staticmethod(lambda step: 0.5)

    data = dataset(schedule=Constant())
    index = indices(data, 0)[:16]
    base = data.__getitems__(index)

    def changed(**new):
        batch = data.__getitems__([i._replace(**{key: getattr(i, key) + step for key, step in new.items()}) for i in index])
        return {name for name in ("image", "mask", "share") if not torch.equal(base[name], batch[name])}

    assert changed() == set()
    assert changed(epoch=1) == {"image", "share"} and changed(global_step=1) == {"mask"}
    assert changed(position=16) == {"image", "mask", "share"}
    assert row_hashes(dataset(make_config(seed=8)), 8, 1) != row_hashes(dataset(), 8, 1)


def test_entries_of_a_training_batch():
    batch = dataset().__getitems__(indices(dataset(), 0)[:8])
    assert {k: (v.dtype, tuple(v.shape)) for k, v in batch.items()} == {
        "image": (torch.uint8, (8, 3, SIZE, SIZE)),
        "label": (torch.int64, (8, 3)),
        "label2": (torch.int64, (8, 3)),
        "meta": (torch.float32, (8, 20)),
        "present": (torch.bool, (8, 3)),
        "pick": (torch.bool, (8, 3)),
        "mask": (torch.bool, (8, 3)),
        "weight": (torch.float32, (8,)),
        "share": (torch.float32, (8,)),
        "sample": (torch.int64, (8,)),
        "bad": (torch.int64, (8,)),
        "box": (torch.int64, (8, 4)),
    }
    assert batch["image"].is_contiguous() and (batch["bad"] == -1).all() and (batch["weight"] == 1).all()
    assert torch.isfinite(batch["meta"]).all()


def test_validation_batches_have_fewer_entries_and_no_augmentation():
    validation = dataset(training=False)
    batch = validation.__getitems__([SampleIndex(0, i, i, 0) for i in range(6)])
    assert set(batch) == {"image", "label", "meta", "present", "weight", "sample", "bad"}
    again = validation.__getitems__([SampleIndex(5, 40 + i, i, 99) for i in range(6)])
    assert all(torch.equal(batch[k], again[k]) for k in batch)
    assert torch.equal(batch["image"][1].permute(1, 2, 0), torch.from_numpy(Reader().read(np.array([1]))[0]))  # already 16 x 16
    assert "share" not in dataset(make_config(mixup_prob=0.0)).__getitems__([SampleIndex(0, 0, 0, 0)])


def test_the_last_part_of_a_run_is_not_augmented():
    class Ending(Ramps):
        get_augmentation = staticmethod(lambda step: step < 3)

    data = dataset(make_config(off_last="50%"), Ending())
    index = indices(data, 0)
    number = index[48].global_step
    assert number == 3
    before, at_end = data.__getitems__(index[32:48]), data.__getitems__(index[48:64])
    assert torch.equal(before["image"], dataset(schedule=Ending()).__getitems__(index[32:48])["image"])
    plain = dataset(training=False).__getitems__(index[48:64])["image"]
    assert torch.equal(at_end["image"], plain)
    assert not torch.equal(dataset(schedule=Ending()).__getitems__(index[48:64])["image"], plain)


def test_images_grow_with_the_step():
    """Compare each batch with that of a dataset of its size: augmentation, mixing and masks do not depend on earlier sizes."""
    data = pickle.loads(pickle.dumps(dataset(make_config(start=8), Growing())))  # as in a worker
    for batch in (indices(data, 0)[i : i + 16] for i in range(0, N, 16)):
        side = Growing.get_image_size(batch[0].global_step)
        config = make_config()
        config.data.image_size = side
        found, expected = data.__getitems__(batch), dataset(config, Certain()).__getitems__(batch)
        assert found["image"].shape[2:] == (side, side) and all(torch.equal(found[name], expected[name]) for name in expected)
    broken = dataset(make_config(start=8), Growing(), source=make_source(broken=[int(indices(data, 0)[0].sample)]))
    assert broken.__getitems__(indices(data, 0)[:4])["image"].shape == (4, 3, 8, 8)
    assert dataset(make_config(start=8), Growing(), training=False).__getitems__([SampleIndex(0, 0, 0, 0)])["image"].shape[2:] == (
        SIZE,
        SIZE,
    )


def test_batches_for_the_device_have_the_same_samples():
    source = make_source(broken=[int(indices(dataset(), 0)[5].sample)])
    index = indices(dataset(), 0)[:16]
    host, device = (dataset(make_config(place=on), Certain(), source=source).__getitems__(index) for on in ("host", "device"))
    assert all(torch.equal(host[name], device[name]) for name in host if name != "image") and (host["bad"] >= 0).sum() == 1
    prepare = BatchPreparation(COMPONENTS, column_slices(COMPONENTS))
    images = [prepare(batch)["image"] for batch in (host, device)]
    assert (images[0] - images[1]).abs().max() < 4 / 255 / min(STD) and (images[0] - images[1]).abs().mean() < 1e-3
    assert not set(prepare(device)) - set(prepare(host)), "the parameters are not passed on to the model"
    unread = dataset(make_config(place="device"), Certain(), source=make_source(broken=range(N))).__getitems__(index)
    black = prepare(unread)["image"]
    assert black.shape == (16, 3, SIZE, SIZE) and torch.equal(black, black[:1, :, :1, :1].expand_as(black))


def test_an_end_of_augmentation_without_effect_is_an_error():
    neutral = {
        name: getattr(NONE, name) for name in ("crop_scale", "crop_ratio", "horizontal_flip", "brightness", "contrast", "saturation")
    }
    neutral |= {"erasing": 0.0, "vertical_flip": 0.0, "off_last": "10%"}
    with pytest.raises(ConfigError, match=r"augment.off_last=10% has no effect, since nothing is augmented or mixed; set it to 0%"):
        dataset(make_config(mixup_prob=0.0, **neutral))
    assert dataset(make_config(mixup_prob=0.5, **neutral)).transforms[SIZE].at_end is not None
    assert dataset(make_config(mixup_prob=0.0, **neutral | {"hue": 0.1})).transforms[SIZE].at_end is not None
    assert dataset(make_config(mixup_prob=0.0, **neutral | {"crop_scale": [0.5, 1.0]})).transforms[SIZE].at_end is not None
    assert dataset(make_config(mixup_prob=0.0, **neutral), training=False).transforms[SIZE].at_end is None


def test_mixing_of_null_labels_without_mixing_is_noted():
    note = "augment.mix_nulls has no effect: schedule.mixup_prob is 0"
    for mixup_prob, mix_nulls in ((0.0, True), (1.0, True), (0.0, False)):
        data = dataset(make_config(mixup_prob, mix_nulls=mix_nulls))
        assert (note in data.notes) == (mix_nulls and not mixup_prob)


@pytest.mark.parametrize("mix_nulls", [False, True])
def test_pairs_are_of_one_group_and_have_both_labels(mix_nulls):
    data = dataset(make_config(mix_nulls=mix_nulls), Certain())
    groups, mixed_nulls = data.groups("genus"), 0
    for i in range(0, N, 16):
        index = indices(data, 0)[i : i + 16]
        batch = data.__getitems__(index)
        group = groups[batch["sample"].numpy()]
        for row in range(16):
            mixed = group[row] >= 0 and group[row] == group[row ^ 1]
            assert (batch["share"][row] < 1).item() == mixed
            expected = batch["label"][row ^ 1] if mixed else batch["label"][row]
            assert torch.equal(batch["label2"][row], expected)
            mixed_nulls += mixed and (batch["label"][row] < 0).any().item()
    assert (mixed_nulls > 0) == mix_nulls


def test_mixing_groups_of_a_level():
    labels = np.array([[0, 0, 0], [0, 0, -1], [0, 1, 2], [0, -1, -1], [-1, -1, -1], [0, 0, -1], [0, -1, -1], [0, 0, 0]])
    assert mixing_groups(labels, 2, False).tolist() == [0, -1, 2, -1, -1, -1, -1, 0]
    assert mixing_groups(labels, 1, False).tolist() == [0, -1, 1, -1, -1, -1, -1, 0]
    with_nulls = mixing_groups(labels, 2, True)
    assert with_nulls[1] == with_nulls[5] and with_nulls[3] == with_nulls[6] and with_nulls[4] == -1 and with_nulls[0] == with_nulls[7]
    assert len({*with_nulls[[0, 1, 2, 3, 4]].tolist()}) == 5
    data = dataset()
    assert data.groups(None) is None and len(data.groups("species")) == N


def test_incomplete_slots_are_not_mixed():
    data = dataset(schedule=Certain())
    index = indices(data, 0)
    assert (data.__getitems__(index[1:9])["share"] == 1).all()  # an odd start splits every slot
    assert (data.__getitems__(index[:1])["share"] == 1).all()
    assert (data.__getitems__(index[:16])["share"] < 1).any()
    half_placeholders = [i._replace(real=k % 2 == 0) for k, i in enumerate(index[:16])]
    assert (data.__getitems__(half_placeholders)["share"] == 1).all()


def test_undecodable_photographs_are_reported_and_affect_only_their_pair():
    index = indices(dataset(), 0)[:16]
    broken = [index[2].sample, index[9].sample]
    whole, damaged = dataset(schedule=Certain()), dataset(schedule=Certain(), source=make_source(broken))
    good, bad = whole.__getitems__(index), damaged.__getitems__(index)
    assert bad["bad"].tolist() == [broken[0] if i == 2 else broken[1] if i == 9 else -1 for i in range(16)]
    assert bad["weight"].tolist() == [0.0 if i in (2, 9) else 1.0 for i in range(16)]
    assert (bad["label"][[2, 9]] == -1).all() and (bad["image"][[2, 9]] == 0).all()
    assert (bad["share"][[2, 3, 8, 9]] == 1).all() and torch.equal(bad["label2"][3], bad["label"][3])
    rest = [i for i in range(16) if i not in (2, 3, 8, 9)]
    assert all(torch.equal(good[k][rest], bad[k][rest]) for k in good)
    known = dataset(schedule=Certain(), source=make_source(broken), quarantined=broken)
    skipped = known.__getitems__(index)
    assert all(torch.equal(skipped[k], bad[k]) for k in bad) and not set(known.images.read_samples) & set(broken)


def test_placeholders_and_a_batch_of_undecodable_photographs_have_weight_0():
    data = dataset(source=make_source(broken=range(N)))
    batch = data.__getitems__(indices(data, 0)[:4])
    assert (batch["weight"] == 0).all() and batch["image"].shape == (4, 3, SIZE, SIZE)
    for source in (make_source(), make_source(broken=range(N))):
        batch = dataset(source=source).__getitems__([SampleIndex(0, 0, 3, 0, False)])
        assert batch["weight"].tolist() == [0.0] and (batch["label"] == -1).all() and batch["bad"].tolist() == [-1]


def test_rows_determine_observations():
    source, rows = make_source(), np.arange(5, 60, 2)
    data = TaxonomyDataset(source, rows, make_config(), Ramps(), False)
    batch = data.__getitems__([SampleIndex(0, 0, 4, 0)])
    assert len(data) == len(rows) and batch["label"][0].tolist() == source.labels[13].tolist()


@pytest.mark.parametrize(
    "keys, words",
    [
        ({"mixup_alpha": 0.0, "cutmix_alpha": 0.0}, "augment.mixup_alpha"),
        ({"levels": []}, "mixup_group_level is empty"),
        ({"levels": [{"from": "0%", "level": "tribe"}]}, r"schedule\.mixup_group_level: 'tribe' is not a taxonomic rank"),
        ({"sampling_rank": "genus"}, "sampling_rank=genus has no effect"),
        ({"sampling": "square_root", "sampling_rank": "tribe"}, "'tribe' is not a taxonomic rank"),
    ],
)
def test_contradicting_settings_are_errors(keys, words):
    with pytest.raises(ConfigError, match=words):
        dataset(make_config(**keys))
    if "sampling_rank" not in keys:
        assert dataset(make_config(mixup_prob=0.0, **keys)).transforms[SIZE].mixing is None


def long_tailed():
    """Return a source whose family 0 has species of 40, 1 and 1 rows and family 1 one species of 50; four rows have no species."""
    source = make_source(nulls=False)
    species = np.repeat([0, 1, 2, 3, -1], [40, 1, 1, 50, 4])
    coarse = np.where(species == 3, 1, 0)
    return dataclasses.replace(source, labels=np.stack([coarse, coarse, species], axis=1))


def test_a_sample_drawn_twice_is_not_mixed_with_itself():
    data = dataset(make_config(sampling="class_balanced"), Certain(), source=long_tailed())
    assert len(data.notes) and "class_balanced sampling of species: an epoch of 96 contains" in data.notes[-1]
    order = epoch_order(7, 0, N, data.groups("species"), data.resampling())
    assert np.bincount(order, minlength=N)[40] >= 22, "the only sample of its class"
    mixed = unmixed = 0
    for i in range(0, N, 16):
        batch = data.__getitems__([SampleIndex(0, p, int(order[p]), 0) for p in range(i, i + 16)])
        sample, share = batch["sample"].numpy().reshape(-1, 2), batch["share"].numpy().reshape(-1, 2)
        twice = sample[:, 0] == sample[:, 1]
        assert (share[twice] == 1).all()
        mixed, unmixed = mixed + (share < 1).sum(), unmixed + twice.sum()
    assert mixed > 20 and unmixed > 5


def test_validation_is_neither_resampled_nor_weighted():
    source = dataclasses.replace(long_tailed(), weight=np.linspace(0, 2, N, dtype=np.float32))
    data = dataset(make_config(sampling="class_balanced"), training=False, source=source)
    assert data.resampling() is None and data.notes == ()
    assert data.__getitems__([SampleIndex(0, i, i, 0) for i in range(4)])["weight"].tolist() == [1.0] * 4


def test_sampling_rank_selects_the_balanced_classes():
    order = epoch_order(
        7, 0, N, None, dataset(make_config(sampling="class_balanced", sampling_rank="family"), source=long_tailed()).resampling()
    )
    assert np.bincount(long_tailed().labels[order, 0]).tolist() == [48, 48]


def test_each_label_of_a_pair_has_the_weight_of_its_sample():
    weight = np.random.default_rng(1).uniform(0, 2, N).astype(np.float32)
    weight[::5] = 0
    plain = dataset(schedule=Certain())
    weighted = dataset(schedule=Certain(), source=dataclasses.replace(make_source(), weight=weight))
    prepare = BatchPreparation(COMPONENTS, column_slices(COMPONENTS))
    for i in range(0, N, 16):
        index = indices(plain, 0)[i : i + 16]
        a, b = plain.__getitems__(index), weighted.__getitems__(index)
        own, other = weight[a["sample"]], weight[a["sample"].view(-1, 2).flip(1).reshape(-1)]
        assert torch.allclose(b["weight"] * b["share"], a["share"] * torch.from_numpy(own))
        assert torch.allclose(b["weight"] * (1 - b["share"]), (1 - a["share"]) * torch.from_numpy(other), atol=1e-7)
        one, two = prepare(a), prepare(b)
        assert torch.equal(one["image"], two["image"]), "weights do not change the mixing of images"
        assert torch.equal(two["share"], b["share"]) and "blend" not in two
        assert all(torch.equal(a[name], b[name]) for name in a if name not in ("share", "weight"))
    assert (a["share"] < 1).any()


def test_unmixed_samples_have_their_weight_and_placeholders_0():
    weight = np.linspace(0.5, 2, N, dtype=np.float32)
    data = dataset(make_config(mixup_prob=0.0), source=dataclasses.replace(make_source(broken=[2]), weight=weight))
    batch = data.__getitems__([SampleIndex(0, i, i, 0, i != 3) for i in range(5)])
    assert batch["weight"].tolist() == [weight[0], weight[1], 0.0, 0.0, weight[4]] and "blend" not in batch


def test_epoch_weights_are_draws_times_weight():
    source, rows = long_tailed(), np.arange(N)
    assert epoch_weights(make_config(), source, rows) is None
    draws = epoch_weights(make_config(sampling="class_balanced"), source, rows)
    assert draws[:40].sum() == pytest.approx(23) and draws[40] == pytest.approx(23) and draws[-4:].tolist() == [1.0] * 4
    weight = np.linspace(0, 2, N, dtype=np.float32)
    assert epoch_weights(make_config(sampling="class_balanced"), dataclasses.replace(source, weight=weight), rows) == pytest.approx(
        draws * weight
    )
