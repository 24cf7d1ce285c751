"""Test `experiment=photos`: the rules, their order, and runs whose settings were chosen from the data."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import yaml
from PIL import Image
from safetensors.torch import save_file

from linnaeus.config import compose
from linnaeus.config.choices import automatic_keys, with_choices
from linnaeus.config.command_line import parse_command_line
from linnaeus.config.load import compose_tree
from linnaeus.errors import ConfigError
from linnaeus.rundir.repeat import compose_run, run_config
from linnaeus.sweep.request import read_request
from linnaeus.sweep.trial import make_trial
from linnaeus.workloads.taxonomy import automatic, data_source, workload
from linnaeus.workloads.taxonomy.automatic import KEYS, RULES, Facts
from linnaeus.workloads.taxonomy.config import SCHEMAS
from linnaeus.workloads.taxonomy.observations.metadata_signal import Signal

ROOT = Path(__file__).parents[3]
KNOWN = {"SPATIAL": 10_000, "TEMPORAL": 9_999, "ELEVATION": 49}
CPU = Facts(
    rows=2000,
    known=KNOWN,
    side=200,
    device="cpu",
    has_bf16=True,
    pretrained=False,
)
SMALL = ("model.backbone=resnet10t", "trainer.length=1epochs", "trainer.device=cpu", "trainer.threads=1", "logger.report=false")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 48 photographs of 70 x 64 pixels of four species in two genera, two for each observation. Return their manifest."""
    folder = tmp_path_factory.mktemp("photos")
    pixels = np.random.default_rng(0).integers(0, 256, (48, 64, 70, 3), dtype=np.uint8)
    with (folder / "photos.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "genus", "species", "observation_id"])
        for i, image in enumerate(pixels):
            Image.fromarray(image).save(folder / f"{i}.png")
            table.writerow([f"{i}.png", f"G{i // 2 % 2}", f"S{i // 2 % 4}", i // 2])
    return folder / "photos.csv"


def chosen(facts: Facts, **given: Any) -> dict[str, Any]:
    """Return key -> value of all rules. `given`: settings with `__` for the dot."""
    values = {key.replace("__", "."): value for key, value in given.items()}
    for key in KEYS:
        if key not in values:
            values[key] = RULES[key](facts, values)[0]
    return values


def test_every_key_has_a_rule_and_is_automatic_in_the_experiment() -> None:
    assert list(RULES) == list(KEYS)
    assert automatic_keys(compose_tree(["experiment=photos", "data.path=x.csv"])) == list(KEYS)
    assert automatic_keys(compose_tree([])) == []


def test_small_sets_get_larger_images_and_more_epochs() -> None:
    few, many, most = (chosen(dataclasses.replace(CPU, rows=rows)) for rows in (400, 3000, 100_000))
    assert (few["data.image_size"], many["data.image_size"], most["data.image_size"]) == (128, 64, 64)
    epochs = [int(values["trainer.length"].removesuffix("epochs")) for values in (few, many, most)]
    assert epochs[0] > epochs[1] > epochs[2] == 10
    assert few["trainer.global_batch_size"] == 32 and many["trainer.global_batch_size"] == 64


def test_the_device_decides_network_precision_and_size() -> None:
    gpu = chosen(dataclasses.replace(CPU, device="cuda", side=500))
    assert (gpu["model.backbone"], gpu["data.image_size"], gpu["trainer.precision"]) == ("resnet50", 224, "bf16")
    assert chosen(dataclasses.replace(CPU, has_bf16=False))["trainer.precision"] == "float32"
    assert chosen(dataclasses.replace(CPU, has_bf16=False))["trainer.length"] != chosen(CPU)["trainer.length"]


def test_images_are_not_larger_than_the_photographs() -> None:
    assert chosen(dataclasses.replace(CPU, side=50))["data.image_size"] == 32
    assert chosen(dataclasses.replace(CPU, side=100, pretrained=True))["data.image_size"] == 96


def test_components_of_many_photographs_and_with_a_signal_are_read() -> None:
    certain, doubtful = Signal(0.3, 0.05), Signal(0.1, 0.05)
    assert chosen(CPU)["data.components"] == ["SPATIAL"]
    assert chosen(dataclasses.replace(CPU, signals={"TEMPORAL": certain}))["data.components"] == ["SPATIAL", "TEMPORAL"]
    assert chosen(dataclasses.replace(CPU, signals={"TEMPORAL": doubtful}))["data.components"] == ["SPATIAL"]
    assert chosen(dataclasses.replace(CPU, known=dict.fromkeys(KNOWN, 0)))["data.components"] == []
    reasons = [RULES["data.components"](dataclasses.replace(CPU, signals={"TEMPORAL": own}), {})[1] for own in (certain, doubtful)]
    assert reasons[0].endswith("SPATIAL 10,000, TEMPORAL 9,999 (1.35 times), ELEVATION 49") and "(1.11 times, not certain)" in reasons[1]


def test_a_component_is_read_if_near_values_have_like_labels(manifest: Path, tmp_path: Path) -> None:
    """Add places to the photographs: those of each genus are near each other, or those of all observations are shuffled."""
    with manifest.open(newline="") as file:
        rows = [row | {"path": str(manifest.parent / row["path"])} for row in csv.DictReader(file)] * 3
    draw = np.random.default_rng(0)
    for name in ("near", "shuffled"):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, [*rows[0], "latitude", "longitude"])
            table.writeheader()
            for number, row in enumerate(rows):
                centre = 50 + 0.02 * int(row["genus"][1] if name == "near" else draw.integers(2))
                own = {"latitude": centre + draw.normal(0, 0.005), "longitude": 5, "observation_id": f"{number // 2}"}
                table.writerow(row | own)
    found = {}
    for name in ("near", "shuffled"):
        tree, _, _ = with_choices(compose_tree(["experiment=photos", f"data.path={tmp_path / name}.csv", *SMALL]))
        found[name] = list(tree["data"]["components"])
    assert found == {"near": ["SPATIAL"], "shuffled": []}


def test_the_finest_known_label_of_a_photograph_has_most_of_its_weight() -> None:
    config = compose(["experiment=photos", "data.path=x.csv"])
    assert config.loss.coarser_share == 0.4 and config.weighting.weights == {}


def test_the_reason_is_true_of_few_and_of_small_photographs() -> None:
    batch = lambda rows: RULES["trainer.global_batch_size"](dataclasses.replace(CPU, rows=rows), {})
    assert batch(159) == (16, "the smallest that is chosen, for 159 photographs")
    assert batch(160) == (16, "at least 10 updates an epoch of 160 photographs, and at most 64 samples")
    size = lambda side, **facts: RULES["data.image_size"](dataclasses.replace(CPU, side=side, **facts), {})
    assert size(100, pretrained=True) == size(100, device="cuda") == (96, "the photographs are about 100 px")
    assert size(300, device="cuda") == (224, "common for a GPU")
    assert size(300, pretrained=True) == (224, "the size that pretrained weights expect")


@pytest.mark.parametrize(("network", "rate"), [("resnet10t", 1e-3), ("resnet50", 5e-4), ("hf_hub:someone/model", 5e-4)])
def test_pretrained_weights_have_a_lower_rate(network: str, rate: float) -> None:
    given = {"model__backbone": network, "trainer__global_batch_size": 64}
    assert chosen(dataclasses.replace(CPU, pretrained=True), **given)["optimizer.lr"] == rate
    assert chosen(CPU, **given)["optimizer.lr"] == 3e-3


def test_the_rate_is_that_of_the_samples_that_an_update_can_have() -> None:
    rate = lambda batch: RULES["optimizer.lr"](dataclasses.replace(CPU, rows=72), {"trainer.global_batch_size": batch})
    assert rate(512) == rate(72) and "batches of 72" in rate(512)[1]
    assert rate(64)[0] < rate(72)[0]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("optimizer=sgd", "optimizer.lr=auto is for optimizer=adamw; set optimizer.lr to a learning rate for optimizer=sgd"),
        ("optimizer=muon", "optimizer.lr=auto is for optimizer=adamw; .*=muon"),
        ("optimizer.lr_scaling=linear", "optimizer.lr_scaling=linear would scale it again; set optimizer.lr_scaling=none, or optimizer.lr"),
    ],
)
def test_a_learning_rate_is_not_chosen_for_another_optimizer_and_not_scaled_twice(setting: str, message: str, manifest: Path) -> None:
    command = ["experiment=photos", f"data.path={manifest}", setting, *SMALL]
    with pytest.raises(ConfigError, match=message):
        with_choices(compose_tree(command))
    tree, _, _ = with_choices(compose_tree([*command, "optimizer.lr=0.1"]))
    assert tree["optimizer"]["lr"] == 0.1


def test_a_rule_reads_the_settings_that_are_given(manifest: Path) -> None:
    assert chosen(CPU, trainer__global_batch_size=16)["optimizer.lr"] == chosen(CPU)["optimizer.lr"] / 2
    tree, choices, _ = with_choices(compose_tree(["experiment=photos", f"data.path={manifest}", "trainer.global_batch_size=256", *SMALL]))
    assert {choice.key for choice in choices} == set(KEYS) - {"model.backbone", "trainer.length", "trainer.global_batch_size"}
    assert tree["trainer"]["global_batch_size"] == 256 and tree["trainer"]["length"] == "1epochs"
    assert tree["optimizer"]["lr"] == pytest.approx(0.00237) and tree["data"]["image_size"] == 64  # 40 training photographs


def test_only_the_samples_that_are_trained_on_count(manifest: Path) -> None:
    command = ["experiment=photos", f"data.path={manifest}", "trainer.global_batch_size=256", *SMALL, "trainer.limit_train_samples=10"]
    assert with_choices(compose_tree(command))[0]["optimizer"]["lr"] == pytest.approx(0.003 * (10 / 64) ** 0.5, abs=1e-5)


def test_without_data_the_help_has_the_values_of_keys() -> None:
    config = compose(["experiment=photos", "data.path=x.csv"])
    assert config.data.image_size == KEYS["data.image_size"] and config.trainer.length == KEYS["trainer.length"]


@pytest.mark.parametrize("key", ["optimizer.weight_decay", "trainer.max_grad_norm"])
def test_a_key_without_a_rule_cannot_be_automatic(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} is 'auto'; it must be a number"):
        compose(["experiment=photos", "data.path=x.csv", f"{key}=auto"])


def test_a_run_saves_the_chosen_values_and_reads_the_data_once(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reads = []
    read = data_source.manifest.build_source
    monkeypatch.setattr(data_source.manifest, "build_source", lambda *args: reads.append(1) or read(*args))
    command = ["experiment=photos", f"data.path={manifest}", f"run.root={tmp_path}", "data.image_size=auto", *SMALL]
    first = start(command, capsys)
    (path,) = (tmp_path / "photos").iterdir()
    saved = yaml.safe_load((path / "config.yaml").read_text())
    assert len(reads) == 1
    assert saved["data"]["image_size"] == 64 and saved["trainer"]["global_batch_size"] == 16
    assert "data.image_size=64 (auto): " in first and "observation_id as group" in first
    assert "is finished" in start(command, capsys)
    assert [run.name for run in (tmp_path / "photos").iterdir()] == [path.name]


def test_negative_control_another_value_is_another_run(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["experiment=photos", f"data.path={manifest}", f"run.root={tmp_path}", "plan=true", *SMALL]
    start(command, capsys)
    monkeypatch.setitem(automatic.RULES, "optimizer.lr", lambda facts, given: (0.001, "changed"))
    assert "optimizer.lr=0.001 (auto): changed" in start(command, capsys)
    assert len(list((tmp_path / "photos").iterdir())) == 2


def start(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run `main.py` with a command line in this process. Return its output."""
    import main
    from linnaeus.config.shared import shared_config

    assert main.run(shared_config(lambda: compose_run(command))) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_the_trial_of_a_sweep_is_in_the_directory_of_its_run(manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["experiment=photos", f"data.path={manifest}", f"run.root={tmp_path}", *SMALL]
    request = read_request(parse_command_line(["-m", *command, "seed=3,4"]))
    trial = make_trial(request, 1, {"seed": "3"})
    start([*command, "seed=3"], capsys)
    assert trial.directory.name in [run.name for run in (tmp_path / "photos").iterdir()]
    assert trial.is_finished()


def test_a_job_of_slurm_needs_the_name_of_its_device(manifest: Path) -> None:
    command = ["experiment=photos", f"data.path={manifest}", "launch=slurm"]
    with pytest.raises(ConfigError, match=r"^trainer\.device is auto, and model\.backbone depends on the device: with launch=slurm, set"):
        run_config(command)
    config = run_config([*command, "trainer.device=cuda"])
    assert (config.model.backbone, config.trainer.precision) == ("resnet50", "bf16")


def test_the_trials_of_a_sweep_read_the_data_once(manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    read = data_source.manifest.build_source
    monkeypatch.setattr(automatic, "_facts", {})
    monkeypatch.setattr(data_source.manifest, "build_source", lambda *args: reads.append(1) or read(*args))
    for seed in range(3):
        run_config(["experiment=photos", f"data.path={manifest}", f"seed={seed}"])
    run_config(["experiment=photos", f"data.path={manifest}", "data.split_seed=1"])
    assert len(reads) == 2


@pytest.mark.parametrize("words", [(), ("trainer.length=5epochs", "data.image_size=64"), ("optimizer=sgd", "optimizer.lr=0.1")])
def test_photographs_of_the_user_are_trained_by_the_experiment(manifest: Path, words: tuple[str, ...]) -> None:
    given = ["data=manifest", f"data.path={manifest}", *words]
    assert compose_run(given) == compose_tree([*given, "experiment=photos"])


@pytest.mark.slow
def test_the_log_has_the_experiment_that_was_added_and_an_error_is_one_line(manifest: Path, tmp_path: Path) -> None:
    command = [sys.executable, "main.py", "data=manifest", f"run.root={tmp_path}", "plan=true", "trainer.device=cpu"]
    done = subprocess.run([*command, f"data.path={manifest}"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "experiment=photos (auto): settings for photographs of your own, data=manifest; " in done.stdout
    done = subprocess.run([*command, "data.path=absent.csv"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2 and done.stdout == "" and re.fullmatch(r"error: data\.path: 'absent\.csv' .*\n", done.stderr)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("data=manifest", "experiment=none"),
        ("data=manifest", "model.dropout=0.1"),
        ("data=manifest", "model=timm"),
        ("data=manifest", "head=conditional"),
        ("data=manifest", "loss.label_smoothing=0"),
        ("experiment=plants480",),
        ("workload=language", "data=text"),
    ],
)
def test_no_experiment_is_added(words: tuple[str, ...]) -> None:
    given = [*words, *["data.path=x.csv"] * bool(words)]
    assert compose_run(given) == compose_tree(given)


@pytest.mark.parametrize("name", [name for name in SCHEMAS["data"] if name != "biota"])
def test_every_source_of_photographs_can_be_read_by_the_experiment(name: str) -> None:
    tree = compose_run([f"data={name}", "data.path=x"])
    assert tree["data"]["name"] == name and tree["run"]["experiment"] == "photos"
    assert automatic_keys(tree) == list(KEYS)


def test_a_run_with_the_settings_of_the_demo_names_the_experiment(manifest: Path) -> None:
    of_demo = [f"data.path={manifest}", "data=manifest"]
    hint = lambda *words: "experiment=photos" in " ".join(automatic.notes_of_defaults(compose([*of_demo, *words])))
    assert hint() and hint("trainer.length=5epochs")
    assert not hint("experiment=photos") and not hint("run.experiment=mine") and not hint("model=timm")
    assert not automatic.notes_of_defaults(compose([]))
    assert set(automatic.notes_of_defaults(compose(of_demo))) <= set(workload.TaxonomyWorkload(compose(of_demo)).notes)


def write_weights(folder: Path, name: str, config: dict[str, Any] | None = None, network: str = "resnet10t") -> Path:
    """Write random weights of a network to a file `name` in a folder, with a config.json beside it if it is given. Return the file."""
    folder.mkdir(exist_ok=True)
    save_file(timm.create_model(network).state_dict(), folder / name)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder / name


@pytest.mark.parametrize(
    ("name", "config", "network"),
    [
        ("resnet10t.c3_in1k.safetensors", None, "resnet10t.c3_in1k"),
        ("resnet10t.mine.safetensors", None, "resnet10t"),
        ("resnet10t_176_c3-f3215ab1.safetensors", None, "resnet10t"),
        ("resnet50_gn_a1h2-8fe6c4d0.safetensors", None, "resnet50_gn"),
        ("model.safetensors", {"architecture": "resnet10t", "pretrained_cfg": {"tag": "c3_in1k"}}, "resnet10t.c3_in1k"),
        ("model.safetensors", {"architecture": "resnet10t"}, "resnet10t"),
        ("resnet18.safetensors", {"architectures": ["of another program"]}, "resnet18"),
    ],
)
def test_the_network_of_a_file_is_known_by_its_names(tmp_path: Path, name: str, config: dict[str, Any] | None, network: str) -> None:
    weights = str(write_weights(tmp_path, name, config))
    assert automatic.choose_backbone(dataclasses.replace(CPU, pretrained=True, weights=weights), {})[0] == network


def test_pretrained_weights_of_a_file_train_with_rates_by_layer(manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = write_weights(tmp_path / "weights", "vit_tiny_patch16_224.augreg_in21k.safetensors", network="vit_tiny_patch16_224")
    command = ["experiment=photos", f"data.path={manifest}", f"model.pretrained_file={weights}", f"run.root={tmp_path}", "plan=true"]
    output = start([*command, *SMALL[1:]], capsys)
    for line in (  # the number of loaded weights depends on timm
        "model.backbone=vit_tiny_patch16_224.augreg_in21k (auto): the network of model.pretrained_file",
        "optimizer.layer_decay=0.77 (auto): pretrained weights: the first of 13 layers learns at 1/30 of the rate of the head",
        f"pretrained weights from {weights}: ",
        " loaded, 0 missing, 0 left over",
    ):
        assert line in output
    config = run_config(command)
    assert config.optimizer.layer_decay == 0.77 and config.optimizer.lr == 0.00025


@pytest.mark.parametrize(("name", "message"), [("absent.pth", "does not exist"), ("weights.pth", "does not name a network of timm")])
def test_a_file_of_an_unknown_network_is_one_line(manifest: Path, tmp_path: Path, name: str, message: str) -> None:
    write_weights(tmp_path, "weights.pth")
    command = ["experiment=photos", f"data.path={manifest}", f"model.pretrained_file={tmp_path / name}", f"run.root={tmp_path}"]
    with pytest.raises(ConfigError, match=message) as caught:
        run_config(command)
    assert "\n" not in str(caught.value)
    if name == "weights.pth":
        assert run_config([*command, "model.backbone=resnet10t"]).model.backbone == "resnet10t"


def test_rates_by_layer_depend_on_the_depth() -> None:
    pretrained = dataclasses.replace(CPU, pretrained=True)
    decays = {name: automatic.choose_layer_decay(pretrained, {"model.backbone": name})[0] for name in ("resnet10t", "resnet50")}
    assert decays["resnet10t"] is None and 1 / 35 < decays["resnet50"] ** 17 < 1 / 25
    assert automatic.choose_layer_decay(pretrained, {"model.backbone": "hf_hub:someone/model"})[0] is None
    assert automatic.choose_layer_decay(CPU, {"model.backbone": "resnet10t"})[0] is None
