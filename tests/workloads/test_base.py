"""Test the contract of a workload and its model: a misspelt optional member is an error, because the loop would not find it."""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from linnaeus import workloads
from linnaeus.config.contracts import check_members
from linnaeus.data.loader import DevicePrefetcher, build_loaders
from linnaeus.data.workers import WorkerPool
from linnaeus.errors import ConfigError
from linnaeus.workloads.base import Model, Workload
from linnaeus.workloads.model_building import build_model
from tests import fork_server, runs


class Small(Workload):
    """A workload with the members that do not have a default."""

    tasks, train_size, fingerprint, train_set, validation_set = ("y",), 8, "small", None, None

    def build_datasets(self, schedule: Any, directory: Any) -> None: ...

    def build_model(self) -> Any: ...

    def valid_counts(self, batch: Any) -> Any: ...

    def loss_sums(self, outputs: Any, batch: Any) -> Any: ...

    def metrics(self, device: torch.device) -> Any: ...


class Net(Model):
    def shared_parameters(self) -> list[nn.Parameter]:
        return []


def extended(base: type, **members: Any) -> Any:
    """Return an instance of a subclass of `base` with these members."""
    return type("Own", (base,), members)()


@pytest.mark.parametrize(
    "base, member, meant",
    [
        (Small, "report_metric", "report_metrics"),
        (Small, "unit", "units"),
        (Small, "component", "components"),
        (Small, "pair_samples", "pairs_samples"),
        (Small, "totalloss", "total_loss"),
        (Small, "report_row", "report_rows"),
        (Net, "trunk_parameter", "trunk_parameters"),
        (Net, "no_decays", "no_decay"),
        (Net, "flops_per_samples", "flops_per_sample"),
    ],
)
def test_a_misspelt_member_is_an_error(base: type, member: str, meant: str) -> None:
    contract = base.__base__
    with pytest.raises(ConfigError, match=re.escape(f"Own.{member} is not a member of {contract.__name__}; did you mean {meant}?")):
        check_members(extended(base, **{member: ("tokens", 8)}), contract)


def test_attributes_of_the_instance_and_of_a_subclass_of_a_subclass_are_checked_too() -> None:
    workload = Small()
    workload.unit = ("tokens", 8)  # type: ignore[attr-defined]
    for misspelt in (workload, extended(type("Base", (Small,), {"units": ("tokens", 8)}), unit=("words", 8))):
        with pytest.raises(ConfigError, match=r"did you mean units\?"):
            check_members(misspelt, Workload)


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"report_metrics": ("r2",), "units": ("tokens", 8), "summary": lambda self, final: []},
        {"vocabulary": 7, "config": None, "quarantine": None, "_unit": 3},
        {"task": "y"},  # resembles a member without a default, which cannot be forgotten without an error
    ],
)
def test_other_members_are_allowed(members: dict[str, Any]) -> None:
    workload = extended(Small, **members)
    assert check_members(workload, Workload) is workload
    network = extended(Net, trunk_parameters=lambda self: [], encode=lambda self, batch: batch, width=8)
    network.trunk = nn.Linear(2, 2)
    assert check_members(network, Model) is network


def test_other_classes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Linear must extend linnaeus\.workloads\.base\.Model"):
        check_members(nn.Linear(2, 2), Model)
    with pytest.raises(ConfigError, match=r"object must extend linnaeus\.workloads\.base\.Workload"):
        check_members(object(), Workload)


class Refused(Dataset):
    """Data of which every batch is a mistake of the user."""

    def __getitems__(self, indices: Any) -> Any:
        raise ConfigError("data: no")


def read_refused(workers: int) -> None:
    data: Any = Refused()
    pool = WorkerPool([data], workers) if workers else None
    next(iter(DevicePrefetcher(build_loaders(data, [[0]], pool, 2), torch.device("cpu"))))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_mistake_in_a_loader_worker_is_one_line(workers: int) -> None:
    """Start the loader in a process of one thread: a worker that is forked while another thread loads a library ends with status 127."""
    code = f"""
from tests.workloads.test_base import ConfigError, read_refused
try:
    read_refused({workers})
except ConfigError as error:
    print(error)
"""
    done = fork_server.run([sys.executable, "-c", code], cwd=runs.ROOT)
    assert done.stdout.strip() == "data: no" and done.returncode == 0, done.stderr


class Drawn(Net):
    """A network that draws its weights from torch's default generator; `forgotten` has none."""

    def __init__(self, forgotten: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.new = nn.Parameter(torch.empty(4))
        if not forgotten:
            nn.init.normal_(self.new)

    def forward(self, batch: Any) -> Any: ...


def test_weights_are_a_function_of_the_seed(tmp_path: Any) -> None:
    workload = extended(Small, build_model=lambda self: Drawn())

    def weights(seed: int) -> list[float]:
        torch.rand(seed + 1)
        model = build_model(runs.configuration("vectors", tmp_path, f"seed={seed}"), workload, torch.device("cpu"))
        return [value for parameter in model.parameters() for value in parameter.flatten().tolist()]

    torch.manual_seed(1)
    first = weights(3)
    torch.manual_seed(2)
    assert weights(3) == first != weights(4)


@pytest.mark.parametrize("filled", [True, False])  # False: in a run with trainer.deterministic
def test_a_parameter_that_is_not_initialised_is_refused(filled: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", filled)
    workload = extended(Small, build_model=lambda self: Drawn(forgotten=True))
    with pytest.raises(ConfigError, match="model: new is not initialised"):
        build_model(runs.configuration("vectors", tmp_path), workload, torch.device("cpu"))
    assert torch.get_deterministic_debug_mode() == 0
    assert torch.utils.deterministic.fill_uninitialized_memory is filled


def test_build_workload_checks_the_members(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = runs.configuration("vectors", tmp_path)
    module = ModuleType("misspelt")
    monkeypatch.setitem(sys.modules, "misspelt", module)
    monkeypatch.setattr(workloads, "workload_module", lambda name: "misspelt")
    monkeypatch.setattr(module, "build_workload", lambda config: extended(Small, report_metric=("r2",)), raising=False)
    with pytest.raises(ConfigError, match=r"did you mean report_metrics\?"):
        workloads.build_workload(config)


def test_the_command_after_a_run_evaluates_it() -> None:
    assert Small.next_commands(Small.__new__(Small), Path("outputs/biota/mine")) == ["linnaeus evaluate outputs/biota/mine"]
    assert Small.next_commands(Small.__new__(Small), Path("my runs/a")) == ["linnaeus evaluate 'my runs/a'"]
