"""Names of other training programs are answered with ours, in one line, and what the line names works."""

import re

import pytest

from linnaeus.config import compose
from linnaeus.config.foreign_names import FOREIGN_NAMES, foreign_hint
from linnaeus.config.help import describe

ASKED = {
    "epochs=10": "unknown key epochs; use trainer.length=10epochs",
    "trainer.max_epochs=10": "unknown key trainer.max_epochs; use trainer.length=10epochs",
    "+epochs=10": "unknown key epochs; use trainer.length=10epochs",
    "batch_size=8": "unknown key batch_size; use trainer.global_batch_size=64",
    "gpus=2": "use launch=torchrun launch.processes=2",
    "devices=2": "use launch=torchrun launch.processes=2",
    "num_workers=4": "use trainer.num_workers=4",
    "ckpt_path=x.pt": "use run.init_from=RUN",
    "scheduler=cosine": "use lr_scheduler=cosine",
    "train=false": "use plan=true",
    "optimizer.learning_rate=0.1": "use optimizer.lr=1e-3",
    "n_layer=2": "use model.layers=6 with workload=language",
    "lr=0.1": "use optimizer.lr=1e-3",
    "amp=true": "use trainer.precision=bf16",
    "wandb=true": "use logger.wandb=online",
    "logger.wandb=true": "logger.wandb is true; it must be one of disabled, offline, online",
    "logger.wandb=null": "logger.wandb is null; it must be one of disabled, offline, online",
    "trainer.precision=16": "trainer.precision is 16; it must be one of ",
}


@pytest.mark.parametrize("typed", ASKED)
def test_the_answer_is_one_line(typed, start, tmp_path):
    status, out, err = start(typed)
    assert (status, out, err.count("\n")) == (2, "", 1) and ASKED[typed] in err, err
    assert not list(tmp_path.iterdir())


def test_an_option_of_another_program(start):
    status, _, err = start("--batch-size", "8", root=False)
    assert status == 2 and err == f"error: there is not an option --batch-size; {foreign_hint('batch_size')}\n"


@pytest.mark.parametrize("ours", sorted(set(FOREIGN_NAMES.values())))
def test_the_settings_in_an_answer_compose(ours):
    settings = [text.rstrip(";,") for text in re.findall(r"(?<![-\w])\b[a-z_.]+=[^ ,;]+", re.sub(r"--\S+", "", ours))]
    assert settings or "RUN" in ours
    compose(settings)


def test_our_own_keys_are_not_among_them():
    assert not {key for key, *_ in describe(compose())} & set(FOREIGN_NAMES)
