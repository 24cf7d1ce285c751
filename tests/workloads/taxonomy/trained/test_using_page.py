"""Run the code and the commands of docs/using.md as printed, on a finished run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

import linnaeus.__main__
from linnaeus.workloads.taxonomy.trained.calibrate import calibration_fit
from linnaeus.workloads.taxonomy.trained.export import export_readme
from tests.workloads.taxonomy.trained.test_predict_command import answers

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "using.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


@pytest.mark.slow
def test_the_page_as_printed(finished, forms, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.set_num_threads", lambda threads: None)  # those of the tests stay
    for folder in ("photos", "more"):
        (tmp_path / folder).mkdir()
        shutil.copy(finished.photograph(1), tmp_path / folder / "1.jpg")
    shutil.copy(finished.photograph(0), "photo.jpg")
    header, *rows = finished.manifest.read_text().splitlines()
    without_date = [index for index, name in enumerate(header.split(",")) if name != "date"]
    lines = [",".join([line.split(",")[i] for i in without_date]) for line in (header, *rows)]
    Path("photos.csv").write_text("\n".join([f"{lines[0]},date", *(f"{line},01/05/2021" for line in lines[1:])]))
    Path("media.csv").write_text("mediaID,deploymentID,timestamp,filePath\nm1,d1,2020-05-30T04:57:37+02:00,photo.jpg\n")
    shutil.copytree(finished.run, tmp_path / "RUN")
    monkeypatch.setattr(calibration_fit, "FEWEST", 6)
    with_groups = [f"{line},{'observation,source' if not i else f'{i // 2},camera'}" for i, line in enumerate((header, *rows))]
    Path("others.csv").write_text("\n".join(with_groups))
    (tmp_path / "FORMS").symlink_to(forms.folder)
    for row in finished.rows():
        (tmp_path / row["path"]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(finished.manifest.parent / row["path"], tmp_path / row["path"])

    names = linnaeus.load_model(finished.bundle).tree.names
    here = {"Aves": names[0][0], "genus:Morus": names[-1][0], "Fagaceae": names[0][0], "Quercus robur L.": f"{names[-1][0]} L."}
    Path("species.csv").write_text("taxonKey,scientificName\n" + "".join(f"1,{name} (Linnaeus)\n" for name in names[-1]))

    Path("regions.csv").write_text("taxon,region\n" + "".join(f"{name},Utrecht\n" for name in names[-1]))

    not_here = ("pip install", "linnaeus serve", "linnaeus export RUN FORMS", "linnaeus calibrate PHOTO_RUN")  # of other tests
    commands = [line for block in blocks("bash") for line in block.splitlines() if not line.startswith(not_here)]
    export = [line for line in commands if line.startswith("linnaeus export")]
    for line in export + [line for line in commands if line not in export]:
        words = [str(next(Path().glob(word))) if "*" in word else word for word in shlex.split(line)]
        words = [here.get(word, word) for word in words]
        if words[-1] == "answers.json":  # this manifest has the dates of the next line
            words = [*words[:-2], "--setting", "data.date_column=null", *words[-2:]]
        assert linnaeus.__main__.main(words[1:]) == 0, line
    assert "photo.jpg  with SPATIAL, TEMPORAL" in capsys.readouterr().out
    assert json.loads(Path("results.json").read_text())["info"]["format_version"] == "1.6"
    assert [row["observationType"] for row in answers(Path("observations.csv"))] == ["animal"]
    assert [row["associatedMedia"] for row in answers(Path("identifications.csv"))] == ["photos/1.jpg"]
    assert {row["kind"] for row in answers(Path("scores/groups.csv"))} == {"all", "order", "metadata", "training photos", "source"}
    differences = {row["metric"]: float(row["difference"]) for row in answers(Path("compared/differences.csv"))}
    assert differences["species/top1"] == 0 and all(abs(value) < 1e-5 for value in differences.values()), "the bundle is that of the run"
    assert len(answers(Path("answers.csv"))) == 2 and Path("answers.json").exists() and Path("answers.parquet").exists()

    assert [(row["photograph"], row["number"]) for row in answers(Path("nearest.csv"))][5:7] == [(rows[1].split(",")[0], n) for n in "12"]
    assert [row["other"] for row in answers(Path("duplicates.csv"))] == ["more/1.jpg"] and len(answers(Path("odd.csv"))) == 2

    code, restricted_code, onnx_code = blocks("python")
    exec(code.replace("RUN or BUNDLE", "BUNDLE"), {})
    name, probability = capsys.readouterr().out.strip().rsplit(" ", 1)
    assert name and 0 < float(probability) <= 1

    for name, own in here.items():
        restricted_code = restricted_code.replace(f'"{name}"', f'"{own}"')
    exec(restricted_code, {"model": linnaeus.load_model("BUNDLE")})
    assert len(capsys.readouterr().out.splitlines()) == 3

    assert onnx_code.strip() == export_readme.ONNX_CODE.replace("FOLDER", "FORMS").replace("{crop}", "1")
    if forms.onnx:
        own_code = re.findall(r"^## Form onnx\n\n```python\n(.*?)^```", (forms.folder / "README.md").read_text(), re.M | re.S)
        exec(own_code[0].replace("FOLDER", "FORMS"), {})
        name, probability = capsys.readouterr().out.strip().rsplit(" ", 1)
        species = linnaeus.load_model("BUNDLE").predict("photo.jpg").path[-1]
        assert name == species.name and float(probability) == pytest.approx(species.probability, abs=2e-3)
