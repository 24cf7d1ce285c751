"""`linnaeus evaluate` of a language model: the loss of its validation text and of texts, and the likelihood of continuations, as lines and
as JSON; mistakes are one line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import linnaeus
import linnaeus.__main__
from linnaeus.commands import evaluate
from linnaeus.workloads.language.tokenizers import PIECE_SIZE
from linnaeus.workloads.language.trained import continuations, text_scores
from tests.workloads.language.trained.conftest import published_gpt2, validation_text


@pytest.fixture
def scored(capsys: pytest.CaptureFixture):
    def command(*words) -> str:
        assert evaluate.main([str(word) for word in words]) == 0
        return capsys.readouterr().out

    return command


@pytest.fixture
def refused(capsys: pytest.CaptureFixture):
    def command(*words) -> str:
        with pytest.raises(SystemExit) as ended:
            evaluate.main([str(word) for word in words])
        captured = capsys.readouterr()
        line = captured.err.splitlines()[-1]
        assert ended.value.code == 2 and "error: " in line and captured.out == ""
        return line

    return command


def test_texts_have_the_loss_of_the_model_and_together_that_of_all_tokens(run: Path, tmp_path: Path, scored) -> None:
    texts = {"long.txt": validation_text(run), "short.txt": "abc def.\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    paths = [tmp_path / name for name in texts]
    content = json.loads(scored(run, *paths, "--json"))
    model = linnaeus.load_model(run)
    each = [model.score(text) for text in texts.values()]
    assert [{key: value for key, value in row.items() if key != "text"} for row in content["texts"]] == [one._asdict() for one in each]
    tokens = sum(one.tokens for one in each)
    loss = sum(one.loss * one.tokens for one in each) / tokens
    together = content["all"]
    assert together["loss"] == pytest.approx(loss) and together["bits_per_byte"] == pytest.approx(loss / math.log(2))
    assert together["tokens"] == tokens == sum(map(len, texts.values())) - 2 and content["weights"] == model.source
    table = scored(run, *paths).splitlines()
    assert len(table) == 4 and table[1].split()[0] == f"{each[0].loss:.4f}" and table[3].split()[0] == f"{loss:.4f}"
    assert json.loads(scored(run, paths[0], "--json", "--batch-size", "1"))["all"]["loss"] == pytest.approx(each[0].loss, abs=1e-6)


def test_a_text_of_several_pieces_and_another_encoding_is_read_whole(tmp_path: Path, scored) -> None:
    path = published_gpt2(tmp_path)
    text = "the cat sat on the mat.\n" * (PIECE_SIZE // 8)
    (tmp_path / "text.txt").write_bytes(text.encode("utf-16"))
    model = linnaeus.load_model(path)
    model_tokens = text_scores.read_tokens(model, tmp_path / "text.txt", "utf-16")
    assert model_tokens.tolist() == model.encode(text).tolist()
    (tmp_path / "text.txt").write_bytes(text[:500].encode("utf-16"))
    found = json.loads(scored(path, tmp_path / "text.txt", "--encoding", "utf-16", "--json"))
    assert found["all"]["loss"] == model.loss(text[:500])


def test_a_byte_order_mark_is_no_part_of_the_questions(tmp_path: Path) -> None:
    plain, marked = tmp_path / "plain.jsonl", tmp_path / "marked.jsonl"
    plain.write_text('{"context": "abc", "continuations": ["d", "e"]}\n')
    marked.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
    assert continuations.read_questions(marked) == continuations.read_questions(plain)


def test_continuations_are_compared(run: Path, tmp_path: Path, scored, monkeypatch: pytest.MonkeyPatch) -> None:
    model = linnaeus.load_model(run)
    rows = [{"context": "abc", "continuations": ["d", "efg", "zz"]}, {"context": "", "continuations": ["a", "b"]}] * 3
    found = [[model.log_likelihood(row["context"], text) for text in row["continuations"]] for row in rows]
    best = [max(range(len(each)), key=each.__getitem__) for each in found]
    rows[0] = rows[0] | {"answer": best[0]}
    rows[1] = rows[1] | {"answer": 1 - best[1]}
    file = tmp_path / "questions.jsonl"
    file.write_text("\n\n".join(json.dumps(row) for row in rows))
    monkeypatch.setattr(continuations, "TOGETHER", 4)
    lines = [json.loads(line) for line in scored(run, "--continuations", file, "--json").splitlines()]
    assert [line["best"] for line in lines] == best and [line["context"] for line in lines] == [row["context"] for row in rows]
    for line, each in zip(lines, found, strict=True):
        assert [one["log_likelihood"] for one in line["continuations"]] == pytest.approx(each, abs=1e-5)
        per_byte = [value / len(one["text"]) for value, one in zip(each, line["continuations"])]
        assert line["best_per_byte"] == max(range(len(each)), key=per_byte.__getitem__)
    printed = scored(run, "--continuations", file)
    assert "right by log-likelihood: 1 of 2, 50.00 %" in printed and printed.count("*") == len(rows)
    starred = next(line for line in printed.splitlines() if line.startswith("*"))
    assert f"{found[0][best[0]]:.4f}" in starred and repr(rows[0]["continuations"][best[0]]) in starred


LINES = {
    "no JSON": ("to be", "line 2 is 'to be'; it must be like"),
    "no list": ('{"context": "a", "continuations": "b"}', "line 2 is"),
    "empty": ('{"context": "a", "continuations": [""]}', "texts that are not empty"),
    "none": ('{"context": "a", "continuations": []}', "line 2 is"),
    "answer": ('{"context": "a", "continuations": ["b"], "answer": 1}', "line 2: answer is 1; it must be from 0 to 0"),
    "twice": ('{"context": "a", "context": "b", "continuations": ["b"]}', "line 2 is"),
    "boolean": ('{"context": "a", "continuations": ["b"], "answer": false}', "answer is False"),
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_that_is_no_question_is_named(tmp_path: Path, refused, name: str) -> None:
    line, words = LINES[name]
    (tmp_path / "q.jsonl").write_text('{"context": "a", "continuations": ["b"]}\n' + line)
    assert words in refused(tmp_path, "--continuations", tmp_path / "q.jsonl")


def test_mistakes_are_one_line(run: Path, tmp_path: Path, refused) -> None:
    (tmp_path / "latin.txt").write_bytes(b"abc\xe9")
    (tmp_path / "foreign.txt").write_text("abcß")
    (tmp_path / "short.txt").write_text("a")
    (tmp_path / "foreign.jsonl").write_text('{"context": "a", "continuations": ["b"]}\n\n{"context": "a", "continuations": ["ß"]}\n')
    for words, message in (
        ([run, "a.txt", "--continuations", "b"], "give text files or --continuations FILE, not both"),
        ([run, tmp_path / "gone.txt"], "gone.txt cannot be read (No such file or directory)"),
        ([run, tmp_path], "cannot be read (Is a directory)"),
        ([run, tmp_path / "latin.txt"], "latin.txt is not utf-8"),
        ([run, tmp_path / "latin.txt", "--encoding", "nonsense"], "--encoding=nonsense is not a codec"),
        ([run, tmp_path / "short.txt", "--encoding", "base64"], "--encoding=base64 is not a codec"),  # it decodes to bytes
        ([run, tmp_path / "foreign.txt"], "foreign.txt: the character 'ß' is not one of"),
        ([run, tmp_path / "short.txt"], "short.txt: a text of 1 token"),
        ([run, "--continuations", tmp_path / "latin.txt"], "cannot be read (it is not UTF-8)"),
        ([run, "--continuations", tmp_path / "foreign.jsonl"], "--continuations: line 3: the character 'ß'"),
        ([run, tmp_path / "short.txt", "--batch-size", "0"], "--batch-size is 0"),
        ([run, tmp_path / "short.txt", "--device", "tpu:x"], "device is 'tpu:x', which this machine does not have"),
        ([run, tmp_path / "short.txt", "--checkpoint", "7"], "has no checkpoint of step 7"),
        ([tmp_path / "nothing", tmp_path / "short.txt"], "does not exist"),
    ):
        assert message in refused(*words), message


def test_the_loss_of_the_validation_text_is_that_of_its_file(run: Path, tmp_path: Path, scored) -> None:
    own, other, out = tmp_path / "own.txt", tmp_path / "other=1.txt", tmp_path / "out"  # a file, not a setting
    own.write_text(validation_text(run))
    other.write_text("abc def.\n")
    printed = scored(run, own, other, "--json", "--output", out)
    expected = json.loads(printed)
    assert printed == (out / "metrics.json").read_text()
    assert scored(run, own, other, "--output", out) == scored(run, own, other) + f"\n{out / 'metrics.json'}\n"
    assert json.loads((out / "metrics.json").read_text()) == expected
    scored(run, "--output", out)
    found, text = json.loads((out / "metrics.json").read_text())["metrics"], expected["texts"][0]
    assert {name: found[f"val/{name}"] for name in ("loss", "perplexity", "bits_per_byte")} == {
        name: text[name] for name in ("loss", "perplexity", "bits_per_byte")
    }


def test_a_folder_and_a_checkpoint_are_models_too(run: Path, tmp_path: Path, scored) -> None:
    published, text, content = published_gpt2(tmp_path), tmp_path / "text.txt", "abc def.\n"
    text.write_text(content)
    printed = scored(published, text, "--batch-size", "1", "--device", "cpu", "--encoding", "latin-1")
    assert f"{linnaeus.load_model(published).loss(content):12.4f}" in printed
    checkpoint = run / "checkpoints" / "step-00000020"
    found = json.loads(scored(checkpoint, text, "--json"))
    assert found["all"]["loss"] == linnaeus.load_model(run, checkpoint="20").loss(content) and "step-00000020" in found["weights"]


def test_mistakes_of_options_are_one_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    text, published, questions = tmp_path / "a.txt", published_gpt2(tmp_path), ["--continuations", tmp_path / "q.jsonl"]
    text.write_text("abc")
    no_run = "error: RUN: gone does not exist; use the directory of a run, or one of its checkpoints"
    for words, message in (
        (["evaluate", published], f"error: {published} has no validation text; give text files: linnaeus evaluate {published} TEXT"),
        (["evaluate", "gone", text], no_run),
        (["evaluate", run, "a.txt"], "error: TEXT: a.txt cannot be read (No such file or directory); give text files"),
        (["evaluate", run, text, "trainer.device=cpu"], "error: trainer.device=cpu has no effect with a text; leave it out"),
        (["evaluate", run, text, "--by", "source"], "error: --by has no effect with a text; leave it out"),
        (["evaluate", run, text, "--tta", "flip"], "error: --tta has no effect with a text; leave it out"),
        (["evaluate", run, "--encoding", "utf-16"], "error: --encoding has no effect without a text; leave it out"),
        (["evaluate", run, "--json"], "error: --json has no effect without a text; leave it out"),
        (["evaluate", run, "--device", "cpu"], "error: --device has no effect without --manifest; leave it out"),
        (["evaluate", run, *questions, "--manifest", "m.csv"], "error: --manifest has no effect with --continuations; leave it out"),
        (["evaluate", run, *questions, "--output", text], "error: --output has no effect with --continuations; leave it out"),
        (["evaluate", run, *questions, "seed=1"], "error: seed=1 has no effect with --continuations; leave it out"),
        (["evaluate", run, "--manifest", "m.csv", "--json"], "error: --json has no effect with --manifest; leave it out"),
        (["evaluate", run, text, "--output", text], f"error: --output: {text} cannot be written; choose another folder"),
        (["predict", published, "a.jpg"], f"error: {published} is of workload=language; this needs one of workload=taxonomy"),
    ):
        with pytest.raises(SystemExit) as ended:
            linnaeus.__main__.main([str(word) for word in words])
        assert (ended.value.code, capsys.readouterr().err.splitlines()) == (2, [message])


def test_a_long_setting_is_no_text(run: Path, refused) -> None:
    assert "no_key" in refused(run, f"no_key={'x' * 300}")
