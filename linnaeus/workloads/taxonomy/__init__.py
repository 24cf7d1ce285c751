"""The taxonomy workload: hierarchical classification of species from photographs, places and times of observations.

Each package imports only packages above it in this list, and the settings in `config`, `loss_config` and `augment_config`:

arrays         millions of texts, and arrays longer than the memory
tree           the tree of taxa; sums and softmaxes over ranges and siblings
observations   `Source`: labels and metadata of all observations, their encoding for the network, and what they tell of the labels
images         read and decode image files
manifest       data: a table of photographs
sources        data: other formats
store          data: folders for fast training, `linnaeus prepare`
biota          data: organisms that the program generates
augment        random changes of photographs
heads          from a feature vector to scores of taxa
losses         from scores to losses
inputs         batches of photographs, labels and metadata
models         networks
metrics        metrics of training and validation
report         sections and pictures of report.html
doctor         find mistakes in data, `linnaeus doctor`
trained        use trained models: predict, embed, calibrate, evaluate, export
serving        use a trained model over HTTP, `linnaeus serve`

`data_source` builds the `Source` of a configuration. `workload` is what the training loop uses; `automatic` chooses its settings that
are `auto`, and `plugin_checks` checks parts that plugins define."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linnaeus.config.schema import Config
    from linnaeus.reporting.report.html_parts import Section
    from linnaeus.reporting.report.run_files import RunFiles
    from linnaeus.workloads.taxonomy.workload import TaxonomyWorkload


def build_workload(config: Config) -> TaxonomyWorkload:
    """Return the taxonomy workload for a configuration."""
    from linnaeus.workloads.taxonomy.workload import TaxonomyWorkload

    return TaxonomyWorkload(config)


def report_sections(run: RunFiles) -> list[Section]:
    """Return the sections of the taxonomy workload for report.html."""
    from linnaeus.workloads.taxonomy.report.taxonomy_sections import taxonomy_sections

    return taxonomy_sections(run)
