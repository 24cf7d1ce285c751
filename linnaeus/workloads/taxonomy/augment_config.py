"""Define the settings of augmentation: crops, mirroring, colours, mixing of pairs, and the views of validation images."""

from dataclasses import dataclass

from linnaeus.config.registry import registered
from linnaeus.config.setting import setting


@dataclass(frozen=True)
class AugmentConfig:
    name: str = setting("name of the augmentation pipeline")
    crop_scale: list[float] = setting("smallest and largest share of the image area in a random crop")
    crop_ratio: list[float] = setting("smallest and largest aspect ratio of a random crop")
    crop_side: float | None = setting(
        "side of square random crops as a share of the short side, in place of crop_scale and crop_ratio; null: use those two",
        above=0,
        high=1,
    )
    horizontal_flip: float = setting("probability of mirroring left-right", low=0, high=1)
    vertical_flip: float = setting("probability of mirroring top-bottom", low=0, high=1)
    brightness: float = setting("largest relative change of brightness", low=0)
    contrast: float = setting("largest relative change of contrast", low=0)
    saturation: float = setting("largest relative change of saturation", low=0)
    hue: float = setting("largest rotation of hue, in turns", low=0, high=0.5)
    policy: str = setting("automatic policy for further operations", choices=("none", "randaugment", "trivialaugment"))
    policy_magnitude: int = setting("strength of RandAugment, 0 to 30", low=0, high=30)
    policy_operations: int = setting("number of operations of RandAugment", low=1)
    erasing: float = setting("probability of erasing a rectangle", low=0, high=1)
    mixup_alpha: float = setting("alpha of the Beta(alpha, alpha) distribution of mixup shares; 0: no mixup", low=0)
    cutmix_alpha: float = setting("alpha of the Beta(alpha, alpha) distribution of cutmix shares; 0: no cutmix", low=0)
    cutmix_share: float = setting("share of mixed pairs that use cutmix if mixup is on, too", low=0, high=1)
    mix_nulls: bool = setting("also mix samples with a null label")
    off_last: str = setting(
        "length of the last part of the run, without augmentation and mixing: training images as in validation; 0%: none", duration="update"
    )
    place: str = setting(
        "where crops, mirroring, colour and erasing are applied: host, device, or auto: the device if it is a GPU and there is no policy; "
        "chosen at the first start and then kept",
        choices=("auto", "host", "device"),
    )
    center_crop: float = setting("side of the central square of a validation image as a share of the short side", above=0, high=1)
    tta: str = setting(
        "views of a validation image whose probabilities are averaged; none: the image alone; flip: the image and its mirror image",
        choices=("none", "flip"),
    )


def choose_place(config: AugmentConfig, device: str) -> tuple[str, str]:
    """Return the value that replaces `augment.place=auto`, "host" or "device", and its reason. device: "cuda" or "cpu"."""
    if registered("augment", config.name) is not None:
        return "host", f"augment={config.name} is of a plugin, which runs on the host"
    if device != "cuda":
        return "host", "the run trains on the CPU"
    if config.policy != "none":
        return "host", f"augment.policy={config.policy} runs on the host only"
    return "device", "the run trains on a GPU"
