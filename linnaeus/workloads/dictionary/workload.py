"""The dictionary workload: train sparse dictionaries of the activations of a module of a trained model, or of planted (synthetic)
activations. It implements `workloads.base.Workload`. Each dictionary is a task; `model.frontier` trains several at once.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from linnaeus.checkpoint.format import step_name
from linnaeus.config.schema import Config
from linnaeus.data.samples import Batch
from linnaeus.distributed import DistributedContext
from linnaeus.durations import Duration
from linnaeus.errors import ConfigError, counted
from linnaeus.files import content_digest, read_json, to_json, write_atomic
from linnaeus.schedule import OpsSchedule, micro_batch_size
from linnaeus.workloads.base import Workload
from linnaeus.workloads.dictionary.activation_record import ActivationRecord
from linnaeus.workloads.dictionary.activation_sets import VALIDATION, PlantedActivations, Reader, TrainingActivations
from linnaeus.workloads.dictionary.activation_source import ActivationSource
from linnaeus.workloads.dictionary.computed_activations import ComputedActivations
from linnaeus.workloads.dictionary.config import REPORT, PlantedConfig
from linnaeus.workloads.dictionary.dictionary_metrics import DictionaryMetrics, DictionaryTrainingMetrics, prefix
from linnaeus.workloads.dictionary.dictionary_summary import headline, summary
from linnaeus.workloads.dictionary.model.config import BatchTopKConfig, PenalisedConfig
from linnaeus.workloads.dictionary.model.dictionary_set import DictionarySet, build_dictionary_set, frontier_key, members
from linnaeus.workloads.dictionary.model.variants import check_settings
from linnaeus.workloads.dictionary.planted import PlantedDictionary
from linnaeus.workloads.dictionary.recovery_metrics import RecoveryMetrics
from linnaeus.workloads.dictionary.results_section import FEATURE_SECTIONS
from linnaeus.workloads.dictionary.splicing import Spliced, splice
from linnaeus.workloads.dictionary.stored_activations import store_activations
from linnaeus.workloads.dictionary.trained.trained_dictionary import RECORD
from linnaeus.workloads.opened_run import named_key, open_run

STORES = "activations"  # folder in run.root


class DictionaryWorkload(Workload):
    """Workload that trains sparse dictionaries.

    activations: reader of the activations of the trained model's module; None for data=planted. planted: generator of planted (synthetic)
    activations; None for data=activations."""

    def __init__(self, config: Config) -> None:
        self.config: Any = config
        self.tasks = tuple(members(config.model))
        self._check_settings()
        self.activations: ActivationSource | None = None
        self.planted: PlantedDictionary | None = None
        self.model: DictionarySet | None = None
        self._evaluates = False
        if isinstance(config.data, PlantedConfig):
            self._plant()
        else:
            self._read_run("validation")
        self.notes = (*self.notes, *self._idle_settings())
        self.features: int = config.model.features or 8 * self.width
        for member in members(config.model).values():
            check_settings(member, self.features)
        self.report_metrics = tuple(f"{prefix(name, self.tasks)}{metric}" for name in self.tasks for metric in ("l0", "explained_variance"))

    def _check_settings(self) -> None:
        config, dictionary = self.config, self.config.dictionary
        if config.weighting.name != "fixed" or config.weighting.conflict:
            raise ConfigError("weighting: dictionaries have no common parameters; use weighting=fixed weighting.conflict=[]")
        if config.optimizer.weight_decay:
            raise ConfigError("optimizer.weight_decay has no effect here: it would shrink the activities; set it to 0")
        micro = micro_batch_size(config, DistributedContext().world_size)
        if isinstance(config.model, BatchTopKConfig):
            self.micro_batch_multiple = config.model.block
        if micro % self.micro_batch_multiple:
            raise ConfigError(
                f"model.block={config.model.block} does not divide the micro-batch of {micro} samples; set trainer.micro_batch_size to a "
                "multiple of it, or model.block to a divisor"
            )
        if config.data.max_bad_fraction:
            hint = "dictionary.settings=['data.max_bad_fraction=0.1'] sets it for the run that is read"
            raise ConfigError(f"data.max_bad_fraction has no effect here: activations cannot be unreadable; set it to 0 ({hint})")
        if isinstance(config.data, PlantedConfig):
            given = next((name for name in ("run", "module", "checkpoint", "settings") if getattr(dictionary, name)), None)
            given = "channels" if dictionary.channels != "first" else given
            if given is not None:
                raise ConfigError(f"dictionary.{given} has no effect with data=planted; leave it out, or set data=activations")
            return
        for name, example in (("run", "outputs/biota/1a2b3c"), ("module", "trunk")):
            if getattr(dictionary, name) is None:
                raise ConfigError(f"dictionary.{name} is null; data=activations needs it, as in dictionary.{name}={example}")
        if config.data.folder is not None and not config.data.stored:
            raise ConfigError("data.folder has no effect with data.stored=false; leave one of them out")
        if config.trainer.num_workers and not config.data.stored:
            raise ConfigError("data.stored=false makes activations in the training process; set trainer.num_workers=0, or data.stored=true")

    def _idle_settings(self) -> list[str]:
        """Return a line for each setting that has no effect beside the others. The lines are printed at the start of the run."""
        dictionary, notes = self.config.dictionary, []
        if self.config.model.frontier:
            key = frontier_key(self.config.model)
            notes.append(f"model.frontier: {', '.join(self.tasks)} are trained in one pass; model.{key} is not used")
        if isinstance(self.config.data, PlantedConfig):
            given = {name: getattr(dictionary, name) for name, usual in REPORT.items() if getattr(dictionary, name) != usual}
            reason = "has no effect with data=planted: report.html has no cards of features"
            notes += [f"dictionary.{name}={value} {reason}" for name, value in given.items()]
        return notes

    # -- data ------------------------------------------------------------------------------------------------------------------

    def _plant(self) -> None:
        data, device = self.config.data, DistributedContext().device or torch.device("cpu")
        self.planted = PlantedDictionary(data, data.world, "cpu" if self.config.trainer.num_workers else device)
        self.width, self.train_size = data.width, data.train_samples
        names = (name for name in PlantedConfig.__dataclass_fields__ if name not in ("name", "last_batch", "validation_batch"))
        self.fingerprint = content_digest({"planted": 1, **{name: getattr(data, name) for name in names}})

    def _read_run(self, split: str) -> None:
        """Open the run `dictionary.run` and set `activations`. Raise `ConfigError` if the run or the module cannot be read.

        split: "validation" or "test": the split of the opened run that is used for validation."""
        dictionary, data = self.config.dictionary, self.config.data
        device = DistributedContext().device or torch.device("cpu")
        try:
            run = open_run(Path(dictionary.run), device, self._scratch(), dictionary.checkpoint, dictionary.settings, split)
        except ConfigError as error:
            raise named_key(error, "dictionary.run") from None
        try:
            self.activations = ActivationSource(run, dictionary.module, data.source_batch, data.samples, dictionary.channels)
        except ConfigError as error:
            raise named_key(error, "dictionary.module") from None
        self.width, self.train_size = self.activations.width, int(self.activations.offsets[-1])
        self.fingerprint = self.activations.fingerprint
        each = f"{list(self.activations.shape)} per sample" if len(self.activations.shape) > 1 else f"{self.width} numbers"
        found = f"{counted(self.train_size, 'activation')} of {counted(self.activations.count, 'training sample')}"
        self.notes = (f"{found}: output of {dictionary.module}, {each}; {run.weights.source}",)

    def _scratch(self) -> Path:
        """Return the folder for files that are written while data are read, such as the list of unreadable photographs."""
        return Path(self.config.run.root) / STORES

    def prepare_evaluation(self, run: Path, split: str) -> None:
        self._evaluates = True
        if self.activations is None:
            return super().prepare_evaluation(run, split)
        if split != "validation":
            self._read_run(split)
        record = read_json(run / RECORD) or {}
        if record.get("weights_digest", self.activations.run.weights.digest) != self.activations.run.weights.digest:
            was, now = record.get("weights", "other weights"), self.activations.run.weights.source
            raise ConfigError(f"dictionary.run: the dictionary was trained on {was}, not on {now}; set dictionary.checkpoint=STEP")

    def build_datasets(self, schedule: OpsSchedule, directory: Path) -> None:
        warmup, sizes = None, (schedule.resolved.total_steps, schedule.resolved.steps_per_epoch)
        if isinstance(self.config.model, PenalisedConfig):
            warmup = Duration.parse(self.config.model.sparsity_warmup, "model.sparsity_warmup").to_steps(*sizes)
        if self.activations is None:
            assert self.planted is not None
            self.train_set = PlantedActivations(self.planted, self.train_size, 0, True, False, warmup)
            self.validation_set = PlantedActivations(self.planted, self.config.data.validation_samples, VALIDATION, False, True)
            return
        window = max(1, -(-self.config.data.window * self.activations.blocks // self.train_size))
        self.train_set = TrainingActivations(self._reader(self.activations, window), window, warmup)
        self.validation_set = self.activations.run.workload.validation_set

    def _reader(self, source: ActivationSource, window: int) -> Reader:
        """Return the reader of the training activations. window: number of blocks that are shuffled together.

        With `data.stored` it reads files, which are written here if they do not exist. Without `data.stored`, with plan=true and in an
        evaluation it computes the activations when they are needed."""
        data = self.config.data
        if not data.stored or self.config.plan or self._evaluates:
            return ComputedActivations(source, window)
        folder = Path(data.folder) if data.folder is not None else Path(self.config.run.root) / STORES / source.fingerprint[:16]
        return store_activations(source, folder)

    def check_batch(self, batch: Batch) -> None:
        if self.activations is not None and "activation" not in batch:
            self.activations.run.workload.check_batch(batch)

    def prepare(self, batch: Batch, masked: tuple[str, ...] = ()) -> Batch:
        if self.activations is None or "activation" in batch:
            return batch
        return self.activations.run.workload.prepare(batch)

    # -- model -----------------------------------------------------------------------------------------------------------------

    def build_model(self) -> DictionarySet:
        """Return new dictionaries, with scale and bias fitted to training activations.

        In an evaluation nothing is fitted, because trained weights are loaded afterwards."""
        self.model = build_dictionary_set(self.config.model, self.width, self.config.seed)
        if not self._evaluates:
            assert isinstance(self.train_set, TrainingActivations | PlantedActivations)
            sample = self.train_set.scale_sample().cpu()
            self.model[0].fit_scale(sample)
            for number in range(1, len(self.model)):
                self.model[number].copy_scale(self.model[0])
        return self.model

    def valid_counts(self, batch: Batch) -> Tensor:
        return (batch["weight"] > 0).sum(dtype=torch.float64).repeat(len(self.tasks))

    def loss_sums(self, outputs: Any, batch: Batch) -> Tensor:
        weight = (batch["weight"] > 0).to(outputs[0].reconstruction.dtype)
        return torch.stack([(torch.stack(list(one.losses.values())).sum(0) * weight).sum() for one in outputs])

    def predict(self, model: nn.Module, batch: Batch) -> Spliced:
        assert isinstance(model, DictionarySet)
        if self.activations is not None:
            return splice(self.activations, model, batch)
        place = torch.arange(len(batch["weight"]), device=batch["weight"].device)
        return Spliced(batch["activation"], batch["weight"], place, model(batch), None, None, [])

    # -- results ---------------------------------------------------------------------------------------------------------------

    def metrics(self, device: torch.device) -> DictionaryMetrics:
        features = [self.features] * len(self.tasks)
        if self.planted is not None:
            record = ActivationRecord(self.config.data.validation_samples, self.width, len(self.tasks), device, self.planted.names)
            return RecoveryMetrics(self.tasks, features, device, self.model, self.planted, record)
        assert self.activations is not None
        inner = self.activations.run.workload
        record = ActivationRecord(len(inner.validation_set), self.width, len(self.tasks), device, lambda numbers: list(map(str, numbers)))
        return DictionaryMetrics(self.tasks, features, self.width, device, inner, self.model, record)

    def training_metrics(self, device: torch.device) -> DictionaryTrainingMetrics:
        return DictionaryTrainingMetrics(self.tasks, device)

    def report_rows(self, model: nn.Module, global_step: int) -> Mapping[str, float | int | str]:
        """Return {"dead": share of features, 0 to 1, that were not active in the last `model.dead_after` training activations}.

        With several dictionaries the key is `<name>/dead` for each."""
        assert isinstance(model, DictionarySet)
        shares = [float(model[number].dead.double().mean()) for number in range(len(model))]
        return {f"{prefix(name, self.tasks)}dead": share for name, share in zip(self.tasks, shares, strict=True)}

    def sample_names(self, samples: Sequence[int]) -> list[str]:
        """Return the name of each activation: name of its sample / number of the activation within the sample, from 0; `planted-<number>`
        for planted activations.

        samples: numbers of activations."""
        if self.activations is None:
            return [f"planted-{sample}" for sample in samples]
        owners = self.activations.samples_of(samples)
        names = self.activations.run.workload.sample_names(self.activations.picked[owners].tolist())
        return [f"{name}/{sample - self.activations.offsets[owner]}" for name, sample, owner in zip(names, samples, owners, strict=True)]

    def save_dataset_record(self, directory: Path) -> None:
        """Write dataset.json: run, module and weights that are read, and the numbers of samples and activations. directory: the run
        directory."""
        facts: dict[str, Any] = {"fingerprint": self.fingerprint, "activations": self.train_size, "width": self.width}
        if self.activations is not None:
            run = self.activations.run
            facts |= {
                "run": str(run.path),
                "weights": run.weights.source,
                "weights_digest": run.weights.digest,
                "module": self.activations.name,
                "samples": self.activations.count,
            }
        write_atomic(directory / RECORD, to_json(facts))

    def summary(self, final: Mapping[str, float]) -> list[str]:
        return summary(final, self.tasks)

    def headline(self, final: Mapping[str, float]) -> list[str]:
        return headline(final, self.tasks)

    def save_examples(self, run: Path, step: int, model: nn.Module) -> None:
        """Write the sections about features for report.html: `run`/validation/<step>/feature_sections.json.

        The dictionaries are loaded from the newest checkpoint in `run`, to which the final metrics belong; `model` is not used. Do nothing
        for planted activations, and if `dictionary.report_features` is 0."""
        features, source = self.config.dictionary.report_features, self.activations
        if source is None or not features:
            return
        from linnaeus.workloads.dictionary.reading.dictionary_sections import dictionary_sections
        from linnaeus.workloads.dictionary.trained.load_dictionary import load_dictionaries

        final = (read_json(run / "summary.json") or {}).get("final") or {}
        found = load_dictionaries(run, checkpoint="newest", device=str(source.device))
        samples = self.config.dictionary.report_samples
        sections = dictionary_sections(source.run, source.module, found, run, final, features, samples)
        folder = run / "validation" / step_name(step)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / FEATURE_SECTIONS, to_json({"sections": sections}, None))

    def next_commands(self, run: Path) -> list[str]:
        edit = [] if self.activations is None else [f"linnaeus edit {shlex.quote(str(run))} --feature 0 INPUT"]
        return [*edit, f"linnaeus export {shlex.quote(str(run))} OUT", *super().next_commands(run)]
