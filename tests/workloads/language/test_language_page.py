"""Run the commands of docs/language.md, with a small text, a small model and few updates."""

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import main
from linnaeus.commands import evaluate
from linnaeus.config.load import compose
from linnaeus.workloads import export_cli
from linnaeus.workloads.language import generate_cli
from linnaeus.workloads.language.tokenizers import train_bpe
from linnaeus.workloads.language.trained import load_model
from tests import runs
from tests.workloads.language import test_pretrained

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "language.md").read_text()
TEXT = "To be, or not to be: that is the question. Whether 'tis nobler in the mind to suffer\n" * 40
CHANGED = ["model.size=gpt_nano", "model.layers=1", "data.block=16", "data.validation_batch=2048", "trainer.global_batch_size=4"]
CHANGED += ["trainer.micro_batch_size=4", "trainer.length=6steps", "trainer.precision=float32", "trainer.compile=false"]
CHANGED += ["lr_scheduler.warmup=2steps", "schedule.validate=[100%]", "schedule.checkpoint=[100%]", "run.name=run"]
SMALL = dict(text.split("=", 1) for text in [*runs.TINY, *CHANGED])


def lines(command: str) -> list[str]:
    return [found[1].split(" #")[0].strip() for found in re.finditer(rf"^{re.escape(command)}(?: (.*))?$", PAGE, re.M)]


TRAINING = [line for command in ("python main.py", "torchrun --nproc-per-node=8 main.py") for line in lines(command)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """FOLDER in the page, and the root of the runs."""
    root = tmp_path_factory.mktemp("page")
    for name in ("tinyshakespeare.txt", "other.txt", "notes.md", "basics/a", "introspection/b", "structures/c", "systems/d"):
        (root / name).parent.mkdir(exist_ok=True)
        for part in ("", "2") if "/" in name else ("",):
            (root / f"{name}{part}").write_text(f"{TEXT}{name}{part}\n" if "/" in name else TEXT)
    for place in (root, root / "openwebtext"):
        place.mkdir(exist_ok=True)
        for name in ("train.bin", "val.bin"):
            (np.arange(400) * 7 % 31).astype("<u2").tofile(place / name)
    yield root
    shutil.rmtree(root)


def small(line: str, root: Path, **more: str) -> list[str]:
    """Return the overrides of a command, updated with `SMALL` and `more`, groups first."""
    line = line.replace("FOLDER", str(root)).replace("RUN", str(root / "first" / "run"))
    given = dict(text.split("=", 1) for text in shlex.split(line))
    merged = given | SMALL | {"run.root": str(root)} | {key.replace("__", "."): value for key, value in more.items()}
    groups = [key for key in merged if "." not in key]
    return [f"{key}={merged[key]}" for key in (*groups, *(key for key in merged if key not in groups))]


def special(line: str, root: Path) -> dict[str, str]:
    """Return overrides for tests without a network and with little text: vocabulary, GPT-2's tokenizer and weights."""
    more = {}
    if "data.tokenizer=bpe" in line:
        more["data__vocabulary"] = "270"
    if "data.tokenizer=gpt2" in line:
        pytest.importorskip("tokenizers")
        (root / "gpt2.json").write_text(json.dumps(train_bpe([TEXT], 270).to_dict() | {"kind": "gpt2"}))
        more["data__tokenizer_file"] = str(root / "gpt2.json")
    if "run.init_from=FOLDER/gpt2" in line:
        weights = test_pretrained.published(positions=64, tokens=270)
        more |= {"run__init_from": str(test_pretrained.publish(root, weights, activation_function="gelu_new"))}
        more |= {"model__layers": "2", "model__heads": "3", "model__width": "12"}
    return more


@pytest.fixture(scope="module")
def first(folder: Path) -> Path:
    """RUN in the page: the run of its second command."""
    assert len(TRAINING) > 10, "the commands of the page are found"
    line = next(line for line in TRAINING if "shakespeare_char_cpu" in line)
    assert main.run(compose(small(line, folder, run__experiment="first"))) == 0
    return folder / "first" / "run"


@pytest.mark.parametrize("number", [pytest.param(n, marks=pytest.mark.slow if n > 3 else ()) for n in range(len(TRAINING))])
def test_a_command_trains(number: int, folder: Path, first: Path) -> None:
    line = TRAINING[number]
    config = compose(small(line, folder, run__experiment=f"run{number}", **special(line, folder)))
    assert main.run(config) == 0
    run = folder / f"run{number}" / "run"
    assert ((run / "checkpoints" / "step-00000006").is_dir(), (run / "schedule.txt").is_file()) == (not config.plan, True)


def test_the_generate_command_prints_text(first: Path, capsys: pytest.CaptureFixture) -> None:
    (line,) = lines("linnaeus generate")
    words = shlex.split(line.replace("outputs/shakespeare_char_cpu/RUN", str(first)))
    assert generate_cli.main(words) == 0
    parts = capsys.readouterr().out.split(generate_cli.SEPARATOR + "\n")[1:]
    assert len(parts) == 3 and len(set(parts)) == 3
    assert all(part.startswith("To be") and len(part) == len("To be") + 300 + 1 and set(part) <= set(TEXT) for part in parts)


def test_the_evaluate_commands_and_the_code_agree(folder: Path, first: Path, capsys: pytest.CaptureFixture, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "questions.jsonl").write_text(re.search(r"`(\{\"context.*\})`", PAGE)[1])
    outputs = []
    pytest.importorskip("tokenizers")
    (export,) = lines("linnaeus export")
    assert export_cli.main(shlex.split(export.replace("outputs/shakespeare_char_cpu/RUN", str(first)))) == 0
    capsys.readouterr()
    for line in lines("linnaeus evaluate"):
        assert evaluate.main(shlex.split(line.replace("outputs/shakespeare_char_cpu/RUN", str(first)))) == 0
        outputs.append(capsys.readouterr().out)
    own, table, content, questions, exported = outputs
    loss = json.loads(content)["all"]["loss"]
    assert f"{loss:.4f}" in table and exported == table and loss == load_model(first).loss(TEXT)
    assert "val " in own
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    exec(code.replace("outputs/shakespeare_char_cpu/RUN", str(first)), {})
    assert f"{float(capsys.readouterr().out.split()[-1]):.4f}" in questions
