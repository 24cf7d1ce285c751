"""A mistake in a package of the user is one line with exit status 2. Each case changes one text of the package in `docs/extending.md`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import main
from linnaeus.config import compose
from linnaeus.config.messages import user_errors
from tests.runs import TINY
from tests.test_extending import forget_parts_after, write_package

TAXONOMY = ["plugins=[mylab]", "data.train_samples=64", "data.validation_samples=16", "data.image_size=16", "model.size=micro"]
TILES = ["plugins=[mylab]", "data=tiles"]
LINES = ["experiment=lines"]
CURVES, ERRORS, POINTS = "mylab.lines.LinesWorkload", "mylab.lines.metrics.Errors", "mylab/lines/data.py"
PART = "linnaeus.workloads.taxonomy"

# file, text in it, the mistake instead; the message (a regular expression) by the words of the command
OPTIMIZER = [
    ("@dataclass(frozen=True)\n", "@dataclass\n", r"mylab/optimizer.py:\d+: the dataclass must be frozen; write @dataclass\(frozen=True\)"),
    ('"signsgd", S', '"adamw", S', "plugins: optimizer=adamw is a name of the taxonomy workload or of the program; register another name"),
    ("return SignSGD(", "return (", "optimizer.name=signsgd: the builder returns a tuple, not a torch.optim.Optimizer"),
    (
        "return SignSGD(param_groups, config.momentum)",
        "return SignSGD",
        "optimizer.name=signsgd: the builder returns the class SignSGD",
    ),
    ("def step(", "def stepp(", r"optimizer.name=signsgd: mylab.optimizer.SignSGD does not define step\(closure=None\)"),
    ("closure=None", "lr", r"optimizer.name=signsgd: mylab.optimizer.SignSGD.step takes the arguments \(lr\); it must take \(\)"),
]
LOSS = [
    ("@dataclass(frozen=True)\n", "", r"mylab.loss.FocalConfig must be a frozen dataclass; write @dataclass\(frozen=True\) above it"),
    ("(LossConfig)", "", f"plugins: loss=focal: mylab.loss.FocalConfig must extend {PART}.loss_config.LossConfig"),
    ("= setting(", "= 2.0  # (", r"FocalConfig.gamma must be defined with setting\(...\)"),
    ("gamma: float", "gamma: tuple[float, float]", r"FocalConfig.gamma has the type tuple\[float, float\]; use str, int, float, "),
    ("tree, counts)", "tree)", r"the builder of loss=focal takes the arguments \(config, tree\); it must take \(config, tree, counts\)"),
    ('"focal"', '"cross_entropy"', "plugins: loss=cross_entropy is a name of the taxonomy workload"),
    ("(nn.Module)", "", "mylab.loss.FocalLoss must extend torch.nn.modules.module.Module"),
    (
        "return [-(",
        "return -log_probs[0]  # [-(",
        r"FocalLoss returns a Tensor; it must return a list of a tensor \[B\] for each of 4 ranks",
    ),
    ("for log_p in log_probs]", "for log_p in log_probs[1:]]", r"FocalLoss returns \[\[3\], \[3\], \[3\]\]; it must return a list"),
    ("return FocalLoss(config.gamma)", "return FocalLoss", "loss.name=focal: the builder returns the class FocalLoss, not"),
    ("return FocalLoss(config.gamma)", "pass", "loss.name=focal: the builder returns None, not a torch.nn.modules.module.Module"),
    (
        "self.gamma = gamma",
        "self.gamma, self.scale = gamma, nn.Linear(1, 1).weight",
        "FocalLoss has the parameter scale; a loss is neither trained",
    ),
    (
        "self.gamma = gamma",
        "self.gamma, self.norm = gamma, nn.BatchNorm1d(1, affine=False)",
        r"FocalLoss has the buffer norm.running_mean; .*register_buffer\(..., persistent=False\)",
    ),
    ("scores, label):", "scores):", r"FocalLoss.forward takes the arguments \(scores\); it must take \(scores, label\)"),
    ("in log_probs]", "in (one.detach() for one in log_probs)]", "FocalLoss returns tensors without a gradient"),
    ("* log_p for", "* (1 / log_p).log() for", r"FocalLoss returns a loss that is not finite"),
]
HEAD = [
    ("def init_weights", "def init_weigths", r"mylab.head.CosineHead.init_weigths is not a member of Head; did you mean init_weights\?"),
    ("def forward", "def forwards", r"mylab/head.py:\d+: CosineHead does not define '?forward'?, which its abstract class requires"),
    ("(Head)", "(nn.Module)", f"mylab.head.CosineHead must extend {PART}.heads.head.Head"),
    (
        "return CosineHead(width, tree, config.scale)",
        "return CosineHead",
        "head.name=cosine: the builder returns the class CosineHead",
    ),
    ("in self.prototypes:", "in self.prototypes[:2]:", "model: head.prototypes.2, head.prototypes.3 is not initialised"),
    ("LinearScores(self.tree, [", "list([", "CosineHead returns a list; it must return a Scores, such as LinearScores"),
    (
        "unbind(1), self.prototypes",
        "unbind(1)[:3], self.prototypes[:3]",
        r"CosineHead returns scores of the shapes \[\[3, .*; they must",
    ),
    ("self.scale * x", "self.scale * x[:1]", r"CosineHead returns scores of the shapes \[\[1, .*\]; they must be \[\[3, "),
    ("for x, w in pairs", "for x, w in ((x.detach(), w.detach()) for x, w in pairs)", "CosineHead returns scores without a gradient"),
    (
        "def forward(self, features)",
        "def forward(self, x, y)",
        r"CosineHead.forward takes the arguments \(x, y\); it must take \(feat",
    ),
]
MODEL = [
    (
        "def init_weights",
        "def init_weigths",
        "SmallConv does not define init_weights, which .*Trunk requires; is init_weigths a misspelling",
    ),
    ("self.width =", "self.widht =", "SmallConv does not define width, which .*classifier.Trunk requires; is widht a misspelling of it?"),
    ("self.no_decay", "self.no_deacy", "SmallConv does not define no_decay, which .*Trunk requires; is no_deacy a misspelling of it?"),
    ("metadata.missing", "metadata.mising", "SmallConv.no_decay names metadata.mising, .*; did you mean metadata.missing?"),
    (".unsqueeze(1)\n\n", "\n\n", r"SmallConv returns the shape \[3, 32\]; it must be \[3, 1 or 4, 32\], that is \[B, 1 or R, width\]"),
    ("self.width = channels", "self.width = 32 * channels", r"SmallConv returns the shape \[3, 1, 32\]; it must be \[3, 1 or 4, 1024\]"),
    ("return SmallConv(config.channels, components, config.meta_width)", "pass", "model.name=smallconv: the builder returns None, not a"),
    ("return features.unsqueeze(1)", "return (features,)", r"SmallConv returns a tuple; it must return a tensor \[B, 1 or R, width\]"),
    ("image, meta, present):", "image):", r"SmallConv.forward takes the arguments \(image\); it must take \(image, meta, present\)"),
    ("            self.metadata.init_weights()", "            pass", "model: trunk.metadata.missing is not initialised"),
]
METRIC = [
    ("def compute", "def compue", "mylab.metric.Top3 does not define compute, which .*MetricPart requires; is compue a misspelling of it?"),
    ("(self, view)", "(self, scores, label)", r"Top3.count takes the arguments \(scores, label\); it must take \(view\)"),
    ('"top3": hits', '"species/top1": hits', "mylab.metric.Top3.compute has the name 'species/top1', which another metric has"),
    ('{"mylab_top3": torch', '{"top1": torch', "mylab.metric.Top3.counts has the name 'top1', which another metric has; choose another"),
    ("torch.int64", "torch.float32", r"mylab.metric.Top3.counts\['mylab_top3'\] is float32; it must be int64 \(for a fraction use two"),
    (" if total else float", " or float", r"mylab/metric.py:\d+: division by zero; compute is called once with totals of 0"),
    ("return Top3(tree, device)", "return Top3", "the metric top3: the builder returns the class Top3, not a "),
    ('return {"top3":', 'return None  # {"', "mylab.metric.Top3.compute returns None; it must return a dict of names and floats"),
    (
        "hits / total if total else",
        "counts['mylab_top3'][0] if True else",
        "mylab.metric.Top3.compute returns a Tensor for 'top3'; it must be a float",
    ),
]
DATA = [
    ("100.0 * (n % 3)", "100.0 * n[:3]", r"Source.metadata.elevation has the shape \(3,\); it must be \(200,\)"),
    ("ids, labels", "ids, labels[:, 0]", r"Source.labels is int64 \(200,\); it must be int64 \(200, 2\)"),
    ("ids, labels", "ids, labels + 9", "Source.labels of genus are 9 to 10; they must be from -1 to 1"),
    ("def read(", "def raed(", "mylab.data.TileReader does not define read, which .*ImageReader requires; is raed a misspelling of it?"),
    ("n % 5 == 0", "n < 0", r"data: the validation set is empty; give it samples, or set schedule.validate=\[\]"),
    ("return Source(", "return None and Source(", "data.name=tiles: the builder returns None, not a linnaeus"),
    ('f"tile{i}" for', 'f"tile{i % 9}" for', "Source.ids has 'tile0' 23 times; the ids must be unique"),
    ("(n % 5 == 0)", "(n % 5)", r"Source.split is 2 in 40 rows; it must be 0 \(training\) or 1 \(validation\)"),
    ("day=unknown", "day=100 + 0 * n", r"Source.metadata.day is 100 in a row; it must be in \[0, 1\), or NaN where it is unknown"),
    ('"latitude": unknown', '"latitude": 500 + 0 * n', r"Source.metadata.latitude is 500 in a row; it must be in \[-90, 90\], or NaN"),
    ("in samples]", "in samples[1:]]", r"TileReader.read returns \d+ images for \d+ samples; it must return one for each"),
    ("np.uint8)", "float)", r"TileReader.read returns float64 \[32, 32, 3\] for an image; it must be an array uint8 \[H, W, 3\]"),
    ("(32, 32, 3)", "(32, 32)", r"TileReader.read returns uint8 \[32, 32\] for an image; it must be an array uint8 \[H, W, 3\]"),
]
WORKLOAD = [
    ("def valid_counts", "def valid_count", r"mylab/lines/__init__.py:\d+: LinesWorkload does not define '?valid_counts'?, which its"),
    ("self.config, self.train_size =", "self.config, _ =", f"{CURVES} does not define train_size, which linnaeus.workloads.base.Workload"),
    ("tasks, fingerprint =", "tasks, fingerprnt =", f"{CURVES} does not define fingerprint, .*; is fingerprnt a misspelling of it?"),
    ("self.train_set, self", "self.trainset, self", f"{CURVES} does not define train_set, .*; is trainset a misspelling of it?"),
    ("def build_workload(config)", "def build_workload()", r"mylab.lines.build_workload takes the arguments \(\); it must take \(config\)"),
    ("def build_workload", "def build", r"workload.name: mylab.lines does not define build_workload\(config\)"),
    (".repeat(len(self.tasks))", ".view(1)", rf"{CURVES}.valid_counts returns the shape \[1\]; it must be \[2\], one value for each of"),
    ("(self, device)", "(self, training, device)", r"metrics takes the arguments \(training, device\); it must take \(device\)"),
    (".sum(0)", ".sum().view(1)", rf"{CURVES}.loss_sums returns the shape \[1\]; it must be \[2\]"),
    *(
        (
            "    def valid_counts",
            f"    {name} = None\n\n    def valid_counts",
            f"{CURVES}.{name} is not a member of Workload; did you mean {meant}?",
        )
        for name, meant in {
            "sample_nmaes": "sample_names",
            "report_metrcs": "report_metrics",
            "trainig_metrics": "training_metrics",
        }.items()
    ),
    ("return LinesWorkload(config)", "pass", "mylab.lines.build_workload returns None, not a linnaeus.workloads.base.Workload"),
    (".sum(0)", ".sum(0).detach()", f"{CURVES}.loss_sums returns a tensor without a gradient; do not detach it"),
    ("return Errors(self.tasks, device)", "pass", f"{CURVES}.metrics returns None, not a linnaeus.metrics.streaming.Metrics"),
]
CONFIG = [
    ("SCHEMAS =", "SCHEMA =", "workload.name: mylab.lines.config does not define SCHEMAS"),
    ('"mae": "min"', '"mae": "down"', "mylab.lines.config.DIRECTIONS: the direction of mae is 'down'; it must be 'min' or 'max'"),
    ("@dataclass(frozen=True)\nclass L", "class L", "mylab.lines.config.LinesConfig must be a frozen dataclass"),
]
METRICS = [
    ("    def sums(", "    def compute_at_edn(", r"mylab/lines/__init__.py:\d+: Errors does not define '?sums'?, which its abstract class"),
    (
        "    def sums(",
        "    compute_at_edn = None\n\n    def sums(",
        f"{ERRORS}.compute_at_edn is not a member of Metrics; did you mean compute_at_end?",
    ),
    (
        "self.tasks, self.width",
        "self.tasks, self.size",
        f"{ERRORS} does not define width, which linnaeus.metrics.streaming.Metrics requires",
    ),
    ("torch.int64", "torch.float64", r"Errors.counts\['close'\] is float64; it must be int64 \(float sums belong to `sums`\)"),
    (
        "mae = sums[:-1] / sums[-1]",
        "mae = 1 / sums[-1].item()",
        r"mylab/lines/metrics.py:\d+: float division by zero; compute is called once",
    ),
    (
        "torch.cat([errors.sum(0), weight.sum().view(1)])",
        "weight.sum()",
        rf"{ERRORS}.sums returns the shape \[\]; it must be \[3\], ",
    ),
    ('{"loss": mae.mean().item()}', "{}", f"{ERRORS}.compute must return 'loss' among its results"),
    ("mae.mean().item()", "mae.mean()", f"{ERRORS}.compute returns a Tensor for 'loss'; it must be a float"),
    ("return results", "return mae", f"{ERRORS}.compute returns a Tensor; it must return a dict of names and floats"),
]
NETWORK = [
    (
        "def shared_parameters",
        "def shared",
        r"mylab/lines/__init__.py:\d+: Curves does not define '?shared_parameters'?, which its abstract",
    ),
    (
        "    def shared",
        "    def flops_per_smaple(self): ...\n\n    def shared",
        "Curves.flops_per_smaple is not a member of Model; did you mean flops_per",
    ),
    (
        "    def shared",
        "    no_decay = {'hiden.weight'}\n\n    def shared",
        "Curves.no_decay names hiden.weight, .*; did you mean hidden.weight?",
    ),
    (
        "self.out = nn",
        "self.module = nn.Linear(1, 1)\n        self.out = nn",
        "Curves has a submodule called module, the name that DDP or torch.compile gives a wrapped model; rename it",
    ),
    ("def forward(self, batch)", "def forward(self, x, y)", r"Curves.forward takes the arguments \(x, y\); it must take \(batch\)"),
]
GROUPS = [
    ("mylab/optimizer.py", [*TAXONOMY, "optimizer=signsgd"], OPTIMIZER),
    ("mylab/loss.py", [*TAXONOMY, "loss=focal"], LOSS),
    ("mylab/head.py", [*TAXONOMY, "head=cosine"], HEAD),
    ("mylab/model.py", [*(word for word in TAXONOMY if "model" not in word), "model=smallconv"], MODEL),
    ("mylab/metric.py", TAXONOMY, METRIC),
    ("mylab/data.py", TILES, DATA),
    ("mylab/lines/__init__.py", LINES, WORKLOAD),
    ("mylab/lines/config.py", LINES, CONFIG),
    ("mylab/lines/metrics.py", LINES, METRICS),
    ("mylab/lines/model.py", LINES, NETWORK),
    (
        "mylab/lines/data.py",
        LINES,
        [
            ("def __len__", "def len", r"mylab/lines/__init__.py:\d+: Points does not define '?__len__'?, which its"),
            (', "sample": sample}', "}", "Points.__getitems__ returns a batch without sample; every batch needs weight and sample"),
        ],
    ),
]
MISTYPED = [("", "", "unknown key optimizer.momentun; did you mean optimizer.momentum?")]
GROUPS.append(("mylab/optimizer.py", [*TAXONOMY, "optimizer=signsgd", "optimizer.momentun=0.1"], MISTYPED))
CASES = [(file, words, *case) for file, words, cases in GROUPS for case in cases]
WRONG_VALUES = [
    (
        "mylab/loss.py",
        [*TAXONOMY, "loss=focal", "loss.gamma=[1.0,-1.0]"],
        "gamma: float",
        "gamma: list[float]",
        r"loss.gamma\[1\] is -1.0; it",
    ),
    (
        "mylab/data.py",
        [*TILES, "data.ranks=[genus]"],
        "",
        "",
        r"data.ranks is \['genus'\], but data=tiles has the ranks \['genus', 'species'\]",
    ),
    (
        *("mylab/data.py", [*TILES, "schedule.partial_combinations=[[SPATIAL]]"], "", ""),
        r"names SPATIAL, .*; remove it, or set schedule.partial_combinations=\[\] schedule.validate_partial_mask_meta=\[\]",
    ),
]


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one folder of config groups for all tests, which Hydra reads and merges once."""
    folder = tmp_path_factory.mktemp("conf")
    write_package(folder)
    return folder / "mylab/conf"


def start(folder: Path, conf: Path, monkeypatch: pytest.MonkeyPatch, file: str, old: str, new: str, words: list[str]) -> None:
    """Write the package of the page with one change to `folder`, and run the first step with it. `conf`: the config groups of the page."""
    assert file.endswith(".py")
    write_package(folder, file, old, new)
    forget_parts_after(monkeypatch)
    for name in [name for name in sys.modules if name.partition(".")[0] == "mylab"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(folder)
    settings = [text for text in TINY if "=" in text and not text.startswith("schedule.")]
    with user_errors(2):
        main.run(compose([*words, *settings, "trainer.length=1steps", "trainer.micro_batch_size=32", "run.name=run"], conf))


@pytest.mark.parametrize(
    "file, words, old, new, message", [*CASES, *WRONG_VALUES], ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_mistake_is_one_line(tmp_path, conf, monkeypatch, capsys, file, words, old, new, message):
    with pytest.raises(SystemExit) as stopped:
        start(tmp_path, conf, monkeypatch, file, old, new, words)
    (line,) = capsys.readouterr().err.splitlines()
    assert stopped.value.code == 2 and re.search(message, line), line


def test_a_component_that_is_always_unknown_is_a_warning(tmp_path, conf, monkeypatch, capsys):
    start(tmp_path, conf, monkeypatch, "mylab/data.py", "elevation=(100.0 * (n % 3)).astype(np.float32)", "elevation=unknown", TILES)
    assert "data.components: no row has ELEVATION: no effect on the model, masked by no validation pass" in "".join(capsys.readouterr())
