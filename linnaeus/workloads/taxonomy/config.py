"""Define the configuration groups of the taxonomy workload: data, model and head; `loss_config.py` and
`augment_config.py` define loss and augment.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from linnaeus.config.schema import DataConfig
from linnaeus.config.setting import setting
from linnaeus.workloads.taxonomy.augment_config import AugmentConfig
from linnaeus.workloads.taxonomy.loss_config import (
    ConditionalConfig,
    CrossEntropyConfig,
    MarginalConfig,
    SoftLabelsConfig,
    TaxonomicSmoothingConfig,
)

# metric, by the last part of its name -> min if smaller is better, max if larger
DIRECTIONS = {
    **dict.fromkeys(("inconsistent", "severity", "hd1", "hd5", "hd20", "ece", "aurc"), "min"),
    **dict.fromkeys(("top1", "top5", "chain", "partial_chain", "many", "medium", "few", "precision", "recall", "f1"), "max"),
}


@dataclass(frozen=True)
class TaxonomyDataConfig(DataConfig):
    ranks: list[str] | None = setting("taxonomic ranks to predict, coarse to fine; null: every rank with more than one class")
    components: list[str] = setting("metadata components that the model reads: SPATIAL, TEMPORAL, ELEVATION")
    image_size: int = setting("side of the square input image, in pixels", low=8, high=8192)
    sampling: str = setting(
        "draws of a class with n samples in an epoch of unchanged length, proportional to n, to the root of n, or equal for all classes",
        choices=("natural", "square_root", "class_balanced"),
    )
    sampling_rank: str | None = setting("taxonomic rank whose classes are balanced by `sampling`; null: the finest")


@dataclass(frozen=True)
class BiotaConfig(TaxonomyDataConfig):
    train_samples: int = setting("number of generated individuals for training", low=2)
    validation_samples: int = setting("number of further individuals for validation", low=1)
    world: int = setting("seed of the generated world; each world has different organisms", low=0)


@dataclass(frozen=True)
class RecordsConfig(TaxonomyDataConfig):
    USUAL_FRACTION: ClassVar[float] = 0.2  # validation_fraction for null
    order: str = setting(
        "order of an epoch; shuffle: any; blocks: windows of blocks of neighbouring records, for data larger than memory",
        choices=("shuffle", "blocks"),
    )
    block_records: int = setting("neighbouring records in a block, for order=blocks", low=1)
    window_blocks: int = setting("blocks in a window, for order=blocks; memory should hold block_records x window_blocks records", low=1)
    path: str = setting("CSV or Parquet manifest")
    split_column: str | None = setting(
        "column with train, val and test (not used) in every row; auto: found by its name; null: split at random"
    )
    split_file: str | None = setting(
        "CSV with the columns photograph (or another id of the source) and split, in place of a split column; null: none"
    )
    weight_column: str | None = setting("column with the weight of each row in the training loss, relative to the mean; null: equal")
    group_column: str | None = setting(
        "column (observation, observer, site) whose equal values are kept in one split; auto: one of observations, by name; null: none"
    )
    validation_fraction: float | None = setting(
        "share of the rows for validation, if the rows are split at random; null: 0.2, or one of data.folds", low=0, high=1
    )
    folds: int | None = setting("number of parts for cross-validation; training and validation rows are divided; null: none", low=2)
    fold: int | None = setting("the fold that validates, from 1 to data.folds; the others are trained on", low=1)
    split_seed: int = setting("seed of the random split and of the folds", low=0)
    max_image_pixels: int = setting("photographs with more pixels than this are rejected as decompression bombs", low=1)

    @property
    def validation_share(self) -> float:
        """Return the share of the rows that are for validation if rows are split at random; not used with folds."""
        return self.USUAL_FRACTION if self.validation_fraction is None else self.validation_fraction


@dataclass(frozen=True)
class ManifestConfig(RecordsConfig):
    root: str | None = setting(
        "folder that the image paths are relative to; null: the folder of the manifest; webdataset:PATH or hugging_face:PATH: the "
        "photographs are those of this source"
    )
    image_column: str = setting("column with the image path; auto: found by its name")
    rank_columns: dict[str, str] = setting("column of each taxonomic rank, coarse to fine; empty: all columns named like a known rank")
    taxonomy: str | None = setting("CSV or Parquet table of taxa (id, parent or ancestry, rank, name), if labels are ids; null: names")
    taxon_column: str | None = setting("column with the id in data.taxonomy of the taxon of each row, at any rank; null: none")
    latitude_column: str | None = setting("column with decimal degrees north; auto: found by its name; null: none")
    longitude_column: str | None = setting("column with decimal degrees east; auto: found by its name; null: none")
    uncertainty_column: str | None = setting("column with the uncertainty of the coordinates in metres; auto: by its name; null: none")
    keep_zero_coordinates: bool = setting("keep coordinates of exactly (0, 0); false: they are missing, as in most exports")
    date_column: str | None = setting("column with the date; auto: found by its name; null: none")
    date_format: str | None = setting("strptime format of the dates, such as %d/%m/%Y; null: ISO 8601")
    time_column: str | None = setting("column with the local time; auto: found by its name; null: none")
    elevation_column: str | None = setting("column with metres above the sea; auto: found by its name; null: none")
    split_dates: dict[str, str] = setting(
        "first day of the validation and of the test rows, in place of a split column, such as {test: 2024-01-01}; empty: none"
    )
    elevation_missing: float | None = setting("elevation value that marks a missing elevation, such as 0.0 in some exports; null: none")


@dataclass(frozen=True)
class StoreConfig(RecordsConfig):
    path: str = setting("folder that `linnaeus prepare` has written")
    split_column: str | None = setting("auto: the split of the store, if it has one; null: split at random")
    weight_column: str | None = setting("auto: the weights of the store, if it has them; null: equal weights")
    group_column: str | None = setting(
        "column whose equal values are kept in one split; auto: data.group_column of `linnaeus prepare`; null: none"
    )


@dataclass(frozen=True, kw_only=True)
class ImageFolderConfig(ManifestConfig):
    path: str = setting("folder that contains the folders of taxa, or train/ and val/ with them")
    levels: list[str] | None = setting("rank of each level of folders, coarse to fine; null: from the names of a single level")


@dataclass(frozen=True, kw_only=True)
class InatCompetitionConfig(ManifestConfig):
    path: str = setting("training file (train.json, train2018.json), or its folder; the other files are found beside it")


@dataclass(frozen=True, kw_only=True)
class LabelsH5Config(ManifestConfig):
    USUAL_FRACTION = 0.1  # as in the original
    path: str = setting("labels.h5 of the original linnaeus")
    images: str | None = setting("images.h5 with the photographs of the rows; null: files in data.root")
    validation_fraction: float | None = setting(
        "share of the rows for validation; null: 0.1, as in the original, or one of data.folds", low=0, high=1
    )
    filters: list[str] = setting(
        "rows that are left out: out_of_region, no_spatial, no_temporal, no_elevation, null_label (at any rank), null_below a known rank"
    )


@dataclass(frozen=True, kw_only=True)
class WebdatasetConfig(ManifestConfig):
    path: str = setting("tar file, folder of tar files, or pattern such as train-{000..147}.tar")


@dataclass(frozen=True, kw_only=True)
class CamtrapConfig(ManifestConfig):
    path: str = setting("Camera Trap Data Package: its folder, zip archive or datapackage.json")
    observation_level: str = setting(
        "labels from observations of the photograph, of the event, or of the event where a photograph has none (media, event, auto)",
        choices=("auto", "media", "event"),
    )
    observation_types: list[str] = setting(
        "types of observations that are used; those other than animal are classes at every rank",
        choices=("animal", "human", "vehicle", "blank"),
    )
    photo_names: str | None = setting(
        "name of a file: path or last part (name) of its URL, mediaID or fileName (id); url: read by URL; null: what finds the most files",
        choices=("path", "name", "id", "url"),
    )
    group_column: str | None = setting("column whose equal values are kept in one split; auto: eventID, the events; null: none")
    min_probability: float | None = setting("least probability of machine classifications that are used; null: any", low=0, high=1)


@dataclass(frozen=True, kw_only=True)
class HuggingFaceConfig(ManifestConfig):
    path: str = setting("folder that save_to_disk of datasets wrote, or folder of Parquet shards")


@dataclass(frozen=True, kw_only=True)
class DarwinCoreConfig(ManifestConfig):
    path: str = setting("Darwin Core Archive: a zip or tar file, a folder, or its table of occurrences alone")
    root: str | None = setting("folder that contains the files of the photographs; null: the folder of the archive")
    photo_names: str | None = setting(
        "name of a file: path or last part (name) of its URL, or id of the record; url: read by URL; null: what finds the most files",
        choices=("path", "name", "id", "url"),
    )
    group_column: str | None = setting(
        "column whose equal values are kept in one split; auto: occurrenceID, or eventID of an Event core; null: none"
    )


@dataclass(frozen=True, kw_only=True)
class InatOpenDataConfig(ManifestConfig):
    path: str = setting("folder with the tables photos, observations and taxa (.csv.gz), and by default the photographs")
    photo_size: str = setting(
        "size of the photographs, PHOTO_SIZE.jpg in the folder of each",
        choices=("original", "large", "medium", "small", "thumb", "square"),
    )
    group_column: str | None = setting("column whose equal values are kept in one split; auto: observation_uuid; null: none")
    research_grade: bool = setting("use only the observations of research grade")


@dataclass(frozen=True)
class ModelConfig:
    name: str = setting("name of the network")
    dropout: float = setting("dropout probability, of the features before the head and in the residual branches", low=0, high=1)
    drop_path: float = setting("stochastic depth of the last block; grows linearly with depth from 0", low=0, high=1)
    meta_width: int = setting("width of the hidden layer of the metadata encoders", low=1, high=65536)


@dataclass(frozen=True)
class MformerConfig(ModelConfig):
    size: str = setting("size of the network", choices=("micro", "nano", "tiny", "small", "base", "large"))


@dataclass(frozen=True)
class TimmConfig(ModelConfig):
    backbone: str = setting("name of a timm model")
    pretrained: bool = setting("start from the pretrained weights of timm, which are downloaded once")
    pretrained_file: str | None = setting("start from weights of timm in this file (.safetensors, .pth, .bin), without their classifier")
    fusion: str = setting(
        "joint: images and metadata train the backbone; separate: images alone train it, metadata are learnt on top of its features",
        choices=("joint", "separate"),
        default="joint",
    )


@dataclass(frozen=True)
class HeadConfig:
    name: str = setting("name of the head: the map from features to probabilities of taxa")
    nulls: str = setting(
        "ignore: null labels are not trained on; phase_in, predict: each rank gets a class for them, by schedule.null_mask_prob or always",
        choices=("ignore", "phase_in", "predict"),
    )
    _: KW_ONLY  # so that classes based on this one can have required fields
    reduce_precision: str = setting(
        "format in which processes exchange the gradients of the head: full, that of the gradients; bf16, half as many bytes as float32",
        choices=("full", "bf16"),
        default="full",
    )


@dataclass(frozen=True)
class SoftmaxHeadConfig(HeadConfig):
    sharded: bool = setting(
        "divide the classes over the processes: each trains its rows of the weights, and features are exchanged, not gradients",
        default=False,
    )


@dataclass(frozen=True)
class HierarchicalSoftmaxConfig(HeadConfig):
    routing: str = setting("routing by all probabilities, by the best taxon, or by a Gumbel draw", choices=("soft", "hard", "gumbel"))
    temperature: float = setting("temperature of the routing distribution; smaller is sharper", above=0)


SCHEMAS: dict[str, dict[str, type]] = {
    "data": {
        "biota": BiotaConfig,
        "manifest": ManifestConfig,
        "store": StoreConfig,
        "image_folder": ImageFolderConfig,
        "inat_competition": InatCompetitionConfig,
        "labels_h5": LabelsH5Config,
        "webdataset": WebdatasetConfig,
        "camtrap_dp": CamtrapConfig,
        "hugging_face": HuggingFaceConfig,
        "darwin_core": DarwinCoreConfig,
        "inat_open_data": InatOpenDataConfig,
    },
    "model": {"mformer": MformerConfig, "timm": TimmConfig},
    "head": {
        "linear": SoftmaxHeadConfig,
        "conditional": SoftmaxHeadConfig,
        "hierarchical_softmax": HierarchicalSoftmaxConfig,
        "marginal": SoftmaxHeadConfig,
    },
    "loss": {
        "cross_entropy": CrossEntropyConfig,
        "taxonomic_smoothing": TaxonomicSmoothingConfig,
        "soft_labels": SoftLabelsConfig,
        "conditional": ConditionalConfig,
        "marginal": MarginalConfig,
    },
    "augment": {"none": AugmentConfig, "standard": AugmentConfig},
}

OF_MODEL = ("model", "head", "loss")  # groups whose settings in conf/experiment/photos.yaml depend on each other


def choose_experiment(given: Mapping[str, str]) -> tuple[str, str] | None:
    """Return `photos` and the reason for it if a command line names photographs of the user and sets nothing of `OF_MODEL`; else None.

    given: {key or group: text after the `=`}, see `linnaeus.config.load.chosen_experiment`."""
    data = given.get("data", "")
    schema = SCHEMAS["data"].get(data)
    if schema is None or not issubclass(schema, RecordsConfig) or any(key.partition(".")[0] in OF_MODEL for key in given):
        return None
    return "photos", f"settings for photographs of your own, data={data}; experiment=none has the settings of the demo"
