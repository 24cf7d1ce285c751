"""Open a run of any workload, to evaluate its model or to read its activations.

`linnaeus evaluate` and the dictionary workload use it. The data that the configuration of the run describes are read again, so they must
not have been deleted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from linnaeus.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from linnaeus.checkpoint.initial_weights import InitialWeights
    from linnaeus.config.schema import Config
    from linnaeus.workloads.base import Model, Workload

FIXED = ("trainer.compile=false", "profile=null", "schedule.image_size.start=null")  # keys that only training reads


class OpenedRun(NamedTuple):
    """A run with its datasets built and the weights of a checkpoint loaded. `model` is in evaluation mode: call it in inference mode.
    `settings` are KEY=VALUE that replaced settings of the run.

    Its parameters require gradients as in training, because `torch.matmul` sums in another order if a weight does not: the validation loss
    would differ from that of the run in the last bits."""

    path: Path
    config: Config
    workload: Workload
    model: Model
    weights: InitialWeights
    settings: tuple[str, ...]

    def autocast(self) -> Any:
        """Return a context manager for the forward pass, with the precision of the run."""
        import torch

        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.config.trainer.precision)
        device = next(self.model.parameters()).device.type
        return torch.autocast(device, dtype, enabled=dtype is not None)


def open_run(
    run: Path, device: torch.device, scratch: Path, checkpoint: str | None = None, settings: Sequence[str] = (), split: str = "validation"
) -> OpenedRun:
    """Return the run in or around the directory `run`, with its model on `device`.

    scratch: folder for files that the datasets write, such as a list of unreadable photographs. checkpoint: "best", "newest" or a step;
    None: the best checkpoint, or the newest if the run was not validated. settings: KEY=VALUE that replace settings of the run, such as
    data.path=FOLDER. split: "validation" or "test", the rows of the validation set. Raise `ConfigError` for a path that is not a run, and
    for data, settings or a checkpoint that do not agree with the run."""
    from linnaeus import workloads
    from linnaeus.schedule import OpsSchedule, resolve_all_schedule_params, training_length
    from linnaeus.workloads.model_building import build_model
    from linnaeus.workloads.run_weights import chosen_weights, find_run

    path = find_run(run)
    config = saved_configuration(path, [*FIXED, *settings])
    weights = chosen_weights(path if run == path or checkpoint is not None else run, checkpoint)
    workload = workloads.build_workload(config)
    workload.prepare_evaluation(path, split)
    length = training_length(config, workload.train_size)
    sizes = (length.total_steps, length.steps_per_epoch)
    resolved = resolve_all_schedule_params(config, *sizes, workload.components, len(workload.tasks), workload.schedule_probabilities)
    workload.build_datasets(OpsSchedule(resolved), scratch)
    model = build_model(config, workload, device)
    load_run_weights(weights, workload, model)
    return OpenedRun(path, config, workload, model.eval(), weights, tuple(settings))


def saved_configuration(run: Path, settings: Sequence[str] = ()) -> Config:
    """Return the typed configuration of the run directory `run`, changed by `settings` KEY=VALUE. Raise `ConfigError` if the configuration
    cannot be read or a setting is invalid."""
    from linnaeus.config.typed_config import typed_config
    from linnaeus.rundir.repeat import read_saved, with_values
    from linnaeus.rundir.saved_config import fill_defaults

    tree = fill_defaults(read_saved(run / "config.yaml"))[0]
    return typed_config(with_values(tree, settings, None) if settings else tree)


def load_run_weights(weights: InitialWeights, workload: Workload, model: Model) -> None:
    """Load the weights of a run into its model. Raise `ConfigError` if the names or shapes of the weights are not the ones of the model."""
    from linnaeus.checkpoint.weight_matching import load_matched, match_weights

    weights = workload.adapt_initial_weights(weights, model)
    load_matched(weights, match_weights(weights, model), model)


def named_key(error: ConfigError, key: str) -> ConfigError:
    """Return a copy of an error of `open_run` whose text begins with `key`, the configuration key or argument that contains the wrong
    path."""
    return ConfigError(f"{key}: {str(error).removeprefix('RUN: ').removeprefix('run.from: ')}")
