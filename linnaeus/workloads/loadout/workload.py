"""The loadout workload: complete a build from a weapon and part of its gear. It implements `workloads.base.Workload` with one task,
`tokens`.
"""

import functools
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linnaeus.checkpoint.initial_weights import InitialWeights
from linnaeus.checkpoint.weight_matching import matches_prefix
from linnaeus.config.schema import Config
from linnaeus.data.samples import Batch
from linnaeus.errors import ConfigError, list_some
from linnaeus.files import content_digest, to_json, write_atomic
from linnaeus.schedule import OpsSchedule
from linnaeus.workloads.base import Model, Workload
from linnaeus.workloads.loadout.builds.build_table import SIDES, Builds
from linnaeus.workloads.loadout.builds.partial_builds import TrainingBuilds, ValidationBuilds
from linnaeus.workloads.loadout.builds.sources import read_builds
from linnaeus.workloads.loadout.evaluation.baselines import Baselines
from linnaeus.workloads.loadout.evaluation.completion_metrics import CompletionMetrics, token_losses
from linnaeus.workloads.loadout.game.token_code import CODES, PAD
from linnaeus.workloads.loadout.game.weapons import weapons_from
from linnaeus.workloads.loadout.model.set_transformer import build_set_transformer
from linnaeus.workloads.loadout.report.build_view import BuildView
from linnaeus.workloads.loadout.report.result_tables import headline, result_tables
from linnaeus.workloads.run_weights import folder_of, read_run_file

WEAPONS = "weapons.json"
NAMED = 5  # weapons without training builds in the log


class LoadoutWorkload(Workload):
    """Builds, partial builds, model and metrics of the loadout task for one configuration."""

    tasks = ("tokens",)

    def __init__(self, config: Config) -> None:
        self.config, data = config, config.data
        self.code = CODES[data.code]()
        self.split = read_builds(config)
        self.classes = content_digest({"weapons": self.split.weapons.keys})
        self.fingerprint, self.notes = self.split.fingerprint, (*self.split.notes, *self._note_of_unseen())
        self.train_size = len(self.split.train) * (data.subsets + data.empty)
        self.report_metrics = ("slots_6", "slots_1")
        self.validation_set: ValidationBuilds = ValidationBuilds(self.split.validation, self.code)

    def _unseen(self) -> list[str]:
        """Return the keys of the weapons without a training build. Their embeddings keep their initial values."""
        seen = set(self.split.train.weapon.tolist())
        return [key for number, key in enumerate(self.split.weapons.keys) if number not in seen]

    def _note_of_unseen(self) -> list[str]:
        unseen, total = self._unseen(), len(self.split.weapons)
        return [f"{len(unseen)} of {total} weapons have no training build: {list_some(unseen, NAMED)}"] if unseen else []

    def build_datasets(self, schedule: OpsSchedule, directory: Path) -> None:
        data = self.config.data
        self.train_set = TrainingBuilds(
            self.split.train, self.code, self.config.seed, data.subsets, data.empty, data.removal, data.visible_targets
        )

    def build_model(self) -> Model:
        return build_set_transformer(self.config.model, self.config.seed, self.code, len(self.split.weapons))

    def adapt_initial_weights(self, weights: InitialWeights, model: Any) -> InitialWeights:
        """Return `weights`. Raise `ConfigError` if the weapons of their run, which are numbered, are as many others and would be loaded."""
        run = folder_of(weights, WEAPONS)
        if run is None or matches_prefix(self.config.run.init_skip, "weapon.weight"):
            return weights
        trained, own = read_run_file(run / WEAPONS, weapons_from).keys, self.split.weapons.keys
        if len(trained) == len(own) and trained != own:
            raise ConfigError(
                f"run.init_from: {run} was trained on other weapons, such as {min({*trained} - {*own})}; use its data.weapons, or leave "
                "out their weights: run.init_skip=[weapon]"
            )
        return weights

    def real_positions(self, batch: Batch) -> Tensor:
        return batch["tokens"].sort(1).values != PAD  # the network sorts the tokens

    def valid_counts(self, batch: Batch) -> Tensor:
        return batch["scored"].sum(dtype=torch.float64).view(1)

    def loss_sums(self, outputs: Any, batch: Batch) -> Tensor:
        return token_losses(outputs, batch).sum().view(1)

    def metrics(self, device: torch.device) -> CompletionMetrics:
        return CompletionMetrics(self.code, self.split, self.validation_set, self.baselines, device)

    @functools.cached_property
    def baselines(self) -> Baselines:
        """Return the baselines, fitted to the training builds. They are computed at the first use."""
        return Baselines(self.split.train, len(self.split.weapons))

    def sample_names(self, samples: Sequence[int]) -> list[str]:
        """Return the names of training samples, such as build-17/3: the number of the build / the number of its partial build in an
        epoch."""
        per_build = self.config.data.subsets + self.config.data.empty
        return [f"build-{sample // per_build}/{sample % per_build}" for sample in samples]

    def sample_view(self) -> BuildView:
        return BuildView(self.code, self.split.weapons, lambda sample: self.validation_set.names([sample])[0])

    def save_dataset_record(self, directory: Path) -> None:
        """Write dataset.json with the sizes and hashes of the split and the weapons without training builds, and weapons.json.
        `linnaeus complete` reads both."""
        sides = {side: len(getattr(self.split, side)) for side in SIDES}
        facts = {"builds": sides, "fingerprint": self.fingerprint, "code": self.config.data.code, "notes": list(self.notes)}
        facts |= {"unseen_weapons": self._unseen()}
        write_atomic(directory / "dataset.json", to_json(facts))
        write_atomic(directory / WEAPONS, to_json(self.split.weapons.to_dict(), None))

    def prepare_evaluation(self, run: Path, split: str) -> None:
        rows: Builds = getattr(self.split, split, self.split.validation)
        if split == "validation" or not len(rows):
            return super().prepare_evaluation(run, split)
        self.validation_set = ValidationBuilds(rows, self.code)

    def summary(self, final: Mapping[str, float]) -> list[str]:
        return "\n\n".join("\n".join(lines) for lines in result_tables(final).values()).split("\n") if final else []

    def headline(self, final: Mapping[str, float]) -> list[str]:
        return headline(final)

    def next_commands(self, run: Path) -> list[str]:
        example = "--weapon splattershot --have 'swim_speed_up: main sub'"
        return [f"linnaeus complete {shlex.quote(str(run))} {example}", *super().next_commands(run)]
