"""Every command that README, the pages of docs/ and the experiment files show is composed and checked as its own start would check it; and
the names that they map exist. Tests that run them: test_*_page.py, test_dictionary_commands.py, tests/test_extending.py, tests/sweep."""

import functools
import importlib
import importlib.util
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from PIL import Image
from torch.distributed.run import parse_args

import linnaeus.__main__
import main
from linnaeus.commands import COMMANDS, evaluate, report
from linnaeus.config import compose, typed_config
from linnaeus.config.command_line import parse_command_line
from linnaeus.config.environment import saved_tree
from linnaeus.config.load import compose_tree
from linnaeus.reporting.targets import replay_rows
from linnaeus.rundir.identity import update_hash
from linnaeus.rundir.repeat import compose_run, run_config
from linnaeus.schedule import accumulation_steps
from linnaeus.sweep.request import read_request
from linnaeus.sweep.trial import make_trial
from linnaeus.workloads import export_cli
from linnaeus.workloads.dictionary import edit_cli
from linnaeus.workloads.language import generate_cli
from linnaeus.workloads.loadout import complete_cli
from linnaeus.workloads.taxonomy.biota import __main__ as biota
from linnaeus.workloads.taxonomy.doctor import doctor_cli
from linnaeus.workloads.taxonomy.manifest.source_options import source_config
from linnaeus.workloads.taxonomy.serving import serve_cli
from linnaeus.workloads.taxonomy.store import prepare_store
from linnaeus.workloads.taxonomy.trained.calibrate import calibrate_cli
from linnaeus.workloads.taxonomy.trained.embed import embed_cli, nearest_cli
from linnaeus.workloads.taxonomy.trained.predict import predict_cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "conf" / "experiment").glob("*.yaml"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
INDENTED = re.compile(r"^ {4,}(?=python|torchrun|linnaeus)(.*)$", re.M)
INLINE = re.compile(r"`((?:python|torchrun|linnaeus|make|pip) [^`]+)`")
COMMENT = re.compile(r"^# ((?:python|torchrun|linnaeus) .*)$", re.M)
FIRST_WORDS = ("python", "torchrun", "linnaeus", "make", "pip")
PATTERN = re.compile(r"KEY=VALUE|<Tab>|\.\.\.")  # a form of commands, not a command
PLACES = {"PATH/": "", "$SLURM_NNODES": "2", "$SLURM_NODEID": "0", "$SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"}


def lines_of(page: Path) -> list[str]:
    """Return the command lines of a page: in blocks, in `...`, and after # in an experiment file."""
    text = page.read_text()
    if page.suffix == ".yaml":
        return COMMENT.findall(text)
    found = INLINE.findall(text) + INDENTED.findall(text)
    for block in (content for language, content in BLOCK.findall(text) if language in ("", "bash")):
        block = re.sub(r"\\\n\s*", "", block)
        found += re.findall(r"exec (python -m linnaeus.launch.torchrun .*?)'$", block, re.M)
        found += [line.strip() for line in block.splitlines()]
    return [line for line in found if line.startswith(FIRST_WORDS) and not PATTERN.search(line)]


COMMANDS_OF_PAGES = sorted({(page.name, line) for page in PAGES for line in lines_of(page)})


@pytest.fixture
def saved_run(tmp_path, monkeypatch):
    """A folder in which outputs/biota/mine and outputs/photos/first are directories of runs, and photos/manifest.csv lists photographs."""
    monkeypatch.chdir(tmp_path)
    write_photographs(tmp_path / "photos")
    for run in (tmp_path / "outputs" / "biota" / "mine", tmp_path / "outputs" / "photos" / "first"):
        run.mkdir(parents=True)
        (run / "config.yaml").write_text(saved_config())
    page = (ROOT / "docs" / "experiments.md").read_text()
    for name, text in re.findall(r"`(settings/[\w/]+\.yaml)`:\n\n```yaml\n(.*?)```", page, re.S):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)


def write_photographs(folder):
    folder.mkdir()
    names = [f"{i}.png" for i in range(20)]
    (folder / "manifest.csv").write_text("\n".join(["path,species", *(f"{name},s{i % 2}" for i, name in enumerate(names))]))
    for name in names:
        Image.new("RGB", (24, 24)).save(folder / name)


@functools.cache
def saved_config() -> str:
    return OmegaConf.to_yaml(OmegaConf.create(compose_tree(["run.name=mine"])))


@pytest.mark.parametrize(("page", "line"), COMMANDS_OF_PAGES)
def test_a_command_of_a_page_is_accepted(page, line, saved_run):
    if "mylab" in line:
        assert page == "extending.md"  # run by tests/test_extending.py
        return
    for name, value in PLACES.items():
        line = line.replace(name, value)
    check(shlex.split(line, comments=True))


def check(words: list[str]) -> None:
    """Raise an error if a command line would be refused before its training starts."""
    match words:
        case ["make", target, *_]:
            assert f"\n{target}:" in (ROOT / "Makefile").read_text()
        case ["pip", "install", *_, what]:
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            assert what in (".", *(f"linnaeus[{name}]" for name in extras)), "in a folder without the repository, too"
        case ["python", "-m", module]:
            assert importlib.util.find_spec(module) is not None
        case ["torchrun", *rest] | ["python", "-m", "linnaeus.launch.torchrun", *rest]:
            options = parse_args(rest)
            assert options.training_script == "main.py"
            check_settings(options.training_script_args, int(options.nnodes.split(":")[-1]) * int(options.nproc_per_node))
        case ["python", "-m", module, *_]:
            assert importlib.util.find_spec(module) is not None
        case ["linnaeus", "generate", *rest]:
            generate_cli._parse(rest)
        case ["linnaeus", "complete"]:
            pass  # the name of the command, in a sentence
        case ["linnaeus", "complete", *rest]:
            complete_cli._parse(rest)
        case ["linnaeus", "edit"]:
            pass  # the name of the command, in a sentence
        case ["linnaeus", "edit", *rest]:
            edit_cli._parse(rest)
        case ["linnaeus", "biota", *rest]:
            biota._arguments(rest)
        case ["linnaeus", "evaluate", *rest]:
            evaluate.parse(rest)
        case ["linnaeus", "prepare" | "doctor" | "predict" | "export" | "calibrate" | "embed" | "nearest"]:
            pass  # the name of the command, in a sentence
        case ["linnaeus", "predict", *rest]:
            predict_cli._parse(rest)
        case ["linnaeus", "embed", *rest]:
            embed_cli._parse(rest)
        case ["linnaeus", "nearest", *rest]:
            nearest_cli._parse(rest)
        case ["linnaeus", "calibrate", *rest]:
            calibrate_cli._parse(rest)
        case ["linnaeus", "export", *rest]:
            export_cli._parse(rest)
        case ["linnaeus", "serve", *rest]:
            serve_cli._parse(rest)
        case ["linnaeus", "prepare", *rest]:
            source_config(prepare_store.parse(rest))
        case ["linnaeus", "doctor", *rest]:
            source_config(doctor_cli.parse(rest))
        case ["linnaeus", "replay" | "report"]:
            pass  # the name of the command, in a sentence
        case ["linnaeus", "replay", *rest]:
            replay_rows.parse(rest)
        case ["linnaeus", "report", *rest]:
            assert report.parse(rest).runs
        case ["linnaeus", "evaluate", *runs]:
            assert runs
        case ["linnaeus", "--help-keys"]:
            assert "--help-keys" in linnaeus.__main__.USAGE
        case ["linnaeus", name, *_] if name not in COMMANDS and name.isidentifier():
            raise AssertionError(f"linnaeus {name} does not exist")
        case ["python", "main.py", *rest] | ["linnaeus", *rest]:
            check_settings(rest, 1)
        case _:
            raise AssertionError(f"this test does not cover {words[:3]}")


def check_settings(arguments: list[str], processes: int) -> None:
    """Compose a run, or the first and the last trial of a sweep, and divide its batch among the processes."""
    options = parse_command_line(arguments)
    if options.prints:
        compose_run(options.overrides, options.config_dir, missing_ok=True)
        return
    config = None if options.multirun else typed_config(compose_run(options.overrides, options.config_dir))
    if config is None or config.launch.name != "process":
        request = read_request(options)
        for last in (0, -1) if options.multirun else (0,):
            values = {parameter.key: parameter.values_to_check()[last] for parameter in request.parameters}
            make_trial(request, int(options.multirun), values, check_directory=False)
        return
    accumulation_steps(config, processes)


def test_the_table_of_the_reader_is_planned_and_trained_by_the_commands_as_printed(tmp_path, monkeypatch, capsys):
    """Write the three rows of README, repeated; the first training of README in a few updates."""
    page = (ROOT / "README.md").read_text()
    header, *rows = re.search(r"```csv\n(.*?)```", page, re.S)[1].splitlines()
    monkeypatch.chdir(tmp_path)
    names = [f"IMG_{i:04}.jpg" for i in range(1, 31)]
    Path("photos.csv").write_text("\n".join([header, *(",".join([name, rows[i % 3].partition(",")[2]]) for i, name in enumerate(names))]))
    for i, name in enumerate(names):
        Image.new("RGB", (24, 24), (8 * i, 90, 255 - 8 * i)).save(name)
    planned, trained = re.findall(r"^python main.py (experiment=photos data.path=photos.csv (?:plan=true|run.name=first))$", page, re.M)
    small = "trainer.threads=1 trainer.device=cpu data.image_size=16 trainer.length=2steps lr_scheduler.warmup=0steps logger.report=false"
    for line in (planned, f"{trained} {small}"):
        monkeypatch.setattr("sys.argv", ["main.py", *line.split()])
        assert main.main() == 0, capsys.readouterr().err
        if line == planned:
            out = capsys.readouterr().out
            assert all(f"{column}" in out for column in header.split(",")) and "24 training and 6 validation rows" in out, out
    assert Path("outputs/photos/first/summary.json").is_file()


def test_the_commands_of_the_pages_are_found():
    pages = {page for page, _ in COMMANDS_OF_PAGES}
    assert pages >= {"README.md", "clusters.md", "guide.md", "language.md", "sweeps.md", "taxonomy.md", "testing.md", "plants480.yaml"}
    assert len(COMMANDS_OF_PAGES) > 60
    assert any("--node-rank" in line for _, line in COMMANDS_OF_PAGES) and any("--nnodes=$SLURM" in line for _, line in COMMANDS_OF_PAGES)


def test_both_container_recipes_copy_all_that_the_installation_reads():
    page = (ROOT / "docs" / "clusters.md").read_text()
    docker, apptainer = re.search(r"```dockerfile\n(.*?)```", page, re.S)[1], re.search(r"```text\n(Bootstrap.*?)```", page, re.S)[1]
    copied = {word for line in re.findall(r"^COPY (.*) \S+$", docker, re.M) for word in line.split()}
    files = re.search(r"%files\n(.*?)\n\n", apptainer, re.S)[1].splitlines()
    assert copied == {word for line in files for word in line.split()[:-1]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {"pyproject.toml", "constraints.txt", project["readme"], *project["license-files"], "linnaeus"}
    links = {link.resolve().name for link in (ROOT / "linnaeus").iterdir() if link.is_symlink()}
    assert copied == needed | links and all((ROOT / name).exists() for name in copied)
    assert f'ENTRYPOINT ["{next(iter(project["scripts"]))}"]' in docker


def test_the_readme_names_the_folder_of_the_demo():
    shown = set(re.findall(r"outputs/biota/([0-9a-f]{10})", (ROOT / "README.md").read_text()))
    assert shown == {update_hash(saved_tree(run_config([])))}


def test_both_make_targets_are_named_first():
    text = (ROOT / "README.md").read_text()
    assert text.index("make demo") < text.index("make test") < 1000
    makefile = (ROOT / "Makefile").read_text()
    assert "\ndemo:" in makefile and "\ntest:" in makefile


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(linnaeus(?:\.\w+)+)`", (ROOT / "docs" / "names.md").read_text()))))
def test_a_name_of_ours_in_the_table_is_there(name):
    if name in (
        "linnaeus.utils.distributed",
        "linnaeus.utils.training_progress",
        "linnaeus.ops_schedule.training_progress",
        "linnaeus.ops_schedule",
    ):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)
        return
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


@pytest.mark.parametrize(
    "key", sorted(set(re.findall(r"`((?:trainer|schedule|augment|run|debug|head)\.[a-z_.0-9]+)", (ROOT / "docs" / "names.md").read_text())))
)
def test_a_key_in_the_table_is_there(key):
    value = compose()
    for part in key.split("."):
        value = getattr(value, part)
