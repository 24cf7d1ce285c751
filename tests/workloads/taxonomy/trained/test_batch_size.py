"""A batch has the size of the option, of an interrupted command, 32 on the CPU, or the fastest on a GPU."""

import pytest
import torch

from linnaeus import load_model
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.trained.batches import batch_size as module
from linnaeus.workloads.taxonomy.trained.batches.batch_size import batch_size, fastest, photographs_per_second
from linnaeus.workloads.taxonomy.trained.batches.journal import Journal


def rates(**of_size):
    return lambda size: of_size.get(f"n{size}")


@pytest.mark.parametrize(
    ("rate", "size"),
    [
        (rates(n32=100, n64=190, n128=300, n256=310), 128),  # 256 gains 3 %
        (rates(n32=100, n64=104), 32),
        (rates(n32=100, n64=110), 64),  # 128 does not fit
        (rates(n8=10, n16=None), 8),
        (rates(n1=1), 1),
        (lambda size: size, 1024),
    ],
)
def test_a_batch_grows_while_the_rate_does_and_the_memory_allows(rate, size):
    assert fastest(rate) == size


def test_a_photograph_that_does_not_fit_is_one_line():
    with pytest.raises(ConfigError, match="one photograph does not fit"):
        fastest(lambda size: None)


def test_the_option_comes_before_the_journal_and_the_journal_before_the_device(finished, tmp_path, monkeypatch, capsys):
    model, out = load_model(finished.bundle), tmp_path / "answers.json"
    assert batch_size(model, None, out) == 32 and batch_size(model, None) == 32
    with Journal(out, {"command": "predict"}, 48):
        pass
    assert batch_size(model, None, out) == 48 and batch_size(model, 7, out) == 7
    (tmp_path / "answers.json.journal").write_bytes(b'{"results of": {"batch": "x"}}\n')
    assert batch_size(model, None, out) == 32
    monkeypatch.setattr(model, "device", torch.device("cuda"))
    monkeypatch.setattr(module, "photographs_per_second", lambda model, size: min(size, 64))
    assert batch_size(model, 7) == 7 and capsys.readouterr().out == ""
    assert batch_size(model, None) == 64 and capsys.readouterr().out == "batches of 64, the fastest on cuda\n"


def test_the_rate_is_that_of_whole_predictions_and_none_without_memory(finished, monkeypatch):
    model, seen = load_model(finished.bundle), []
    scored = model.scored

    def watched(images, meta, present):
        seen.append((len(images), meta.shape, present.shape))
        return scored(images, meta, present)

    monkeypatch.setattr(model, "scored", watched)
    assert photographs_per_second(model, 3) > 0
    assert [size for size, *_ in seen] == [3, 3] and seen[0][2] == (3, len(model.components))

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(model, "scored", full)
    assert photographs_per_second(model, 3) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_size_is_found_on_a_gpu(finished):
    assert batch_size(load_model(finished.bundle, device="cuda"), None) in (32, 64, 128, 256, 512, 1024)
