"""`Description`: the configuration of a trained classifier, from which its network is built and its input is prepared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from linnaeus.config.registry import import_plugins
from linnaeus.config.schema import Config
from linnaeus.config.typed_config import typed_group
from linnaeus.errors import ConfigError, one_line
from linnaeus.schedule.image_sizes import image_sizes
from linnaeus.workloads.taxonomy.config import HeadConfig, ModelConfig, RecordsConfig, TimmConfig
from linnaeus.workloads.taxonomy.inputs.preparation import MEAN, STD
from linnaeus.workloads.taxonomy.observations.components import column_slices

MAX_PIXELS = 100_000_000  # largest photograph, where the data of the run have no key `max_image_pixels`
VIEWS = ("none", "flip")  # of augment.tta
MAX_SIDE = 8192  # pixels, the upper limit of data.image_size


@dataclass(frozen=True)
class Description:
    """Configuration of a trained classifier's network and input, without weights and tree."""

    model: ModelConfig
    head: HeadConfig
    image_sizes: tuple[int, ...]  # sides of the training images in pixels; predictions use the last one
    components: tuple[str, ...]  # metadata components, in the order of the network's input
    tta: str  # augment.tta: test-time augmentation, "none" or "flip"
    max_image_pixels: int  # photographs with more pixels are refused
    plugins: tuple[str, ...] = ()  # packages that define parts of the model
    center_crop: float = 1.0  # augment.center_crop: side of the central square that the network reads / short side of the photograph
    untrained: tuple[str, ...] = ()  # components, and quantities of `PARTS`, that no training photograph had: they are not read

    @property
    def read(self) -> tuple[str, ...]:
        """Return the metadata components that predictions read."""
        return tuple(name for name in self.components if name not in self.untrained)

    @classmethod
    def of_run(cls, config: Config, untrained: tuple[str, ...] = ()) -> Description:
        """Return the description of the model that a run with this configuration trains. `untrained`: as in the class."""
        limit = config.data.max_image_pixels if isinstance(config.data, RecordsConfig) else MAX_PIXELS
        components, plugins = tuple(config.data.components), tuple(config.plugins)
        augment = config.augment
        return cls(config.model, config.head, image_sizes(config), components, augment.tta, limit, plugins, augment.center_crop, untrained)

    def plain(self) -> dict[str, Any]:
        """Return the description as a dict for JSON, which `from_plain` reads."""
        return asdict(self) | {"mean": MEAN, "std": STD}

    @classmethod
    def from_plain(cls, content: Mapping[str, Any], allowed: Sequence[str] = ()) -> Description:
        """Return the description from the dict that `plain` returned. `allowed`: packages that the model may import
        (`Description.plugins`).

        Raise `ConfigError` for damaged or impossible content, and for a package that is not in `allowed`, since an import runs its code."""
        try:
            plugins, components = tuple(map(str, content["plugins"])), tuple(map(str, content["components"]))
            if unknown := [name for name in plugins if name not in allowed]:
                allow = f"--plugins {unknown[0]}, in Python plugins=[{unknown[0]!r}]"
                raise ConfigError(f"the model needs the package {unknown[0]}; if you trust it, allow it with {allow}")
            import_plugins(plugins)
            model, head = (typed_group(group, content[group], "taxonomy") for group in ("model", "head"))
            sizes = tuple(int(side) for side in content["image_sizes"])
            column_slices(components)
            untrained = tuple(map(str, content.get("untrained", ())))  # not in bundles of earlier programs
            crop = float(content.get("center_crop", 1.0))  # not in bundles of version 1
            if not 0 < crop <= 1:
                raise ConfigError(f"center_crop is {crop}; it must be above 0 and at most 1")
            if not sizes or not 1 <= min(sizes) <= max(sizes) <= MAX_SIDE or content["tta"] not in VIEWS:
                raise ConfigError(f"image_sizes is {list(sizes)} and tta is {content['tta']!r}, which no model has")
            if (tuple(content["mean"]), tuple(content["std"])) != (MEAN, STD):
                raise ConfigError("mean and std are not those of this program")
            if isinstance(model, TimmConfig) and ("/" in model.backbone or ":" in model.backbone):
                raise ConfigError(f"model.backbone is {model.backbone}, whose description is on a server; it is not downloaded")
            return cls(model, head, sizes, components, content["tta"], int(content["max_image_pixels"]), plugins, crop, untrained)
        except ConfigError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"the description of the model is damaged ({one_line(error)})") from None
