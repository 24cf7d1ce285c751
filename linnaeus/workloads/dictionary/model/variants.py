"""Define the variants of a sparse dictionary, which differ in the choice of the active features and in the penalty. p: pre-activation.

relu        activity max(p, 0), and a penalty on the sum of activities (L1)  Bricken et al. 2023, "Towards Monosemanticity"
gated       a gate chooses the active features, another map their activity   Rajamanoharan et al. 2024, arXiv 2404.16014
topk        the k largest activities of each sample                          Gao et al. 2024, arXiv 2406.04093
batch_topk  the k n largest of n samples; a threshold in evaluation          Bussmann et al. 2024, arXiv 2412.06410
jumprelu    p above a learned threshold, and a penalty on the number active  Rajamanoharan et al. 2024, arXiv 2407.14435
matryoshka  batch_topk; the first features alone must also reconstruct       Bussmann et al. 2025, arXiv 2503.17547
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from linnaeus.distributed import DistributedContext
from linnaeus.errors import ConfigError
from linnaeus.randomness import INIT, key
from linnaeus.workloads.dictionary.model.config import DictionaryConfig, MatryoshkaConfig, TopKConfig
from linnaeus.workloads.dictionary.model.dictionary_losses import squared_error
from linnaeus.workloads.dictionary.model.largest import largest_of_blocks, largest_of_rows, largest_places
from linnaeus.workloads.dictionary.model.sparse_dictionary import SparseDictionary
from linnaeus.workloads.dictionary.model.sparse_pass import LEAST_FEATURES, Active, active_places, weighted_sum
from linnaeus.workloads.dictionary.model.straight_through import Jump, Step

UNIT = 2.0**-32  # of the integer sums of activities, which are exact in any order, up to activities of 2**31 together
THRESHOLD_SPEED = 3.0  # of the thresholds of JumpReLU, in learning rates per update


class ReLUDictionary(SparseDictionary):
    def activities(self, pre: Tensor) -> Tensor:
        return pre.relu()

    def penalties(self, pre: Tensor, activities: Tensor, scaled: Tensor, decoder: Tensor) -> dict[str, Tensor]:
        return {"sparsity": self.config.sparsity * self.width**0.5 * activities.sum(1)}


class GatedDictionary(SparseDictionary):
    """Dictionary with gates: a feature is active where its pre-activation p is above 0. Its activity is then max(exp(r) (p - c) + m, 0),
    with learned r [F] and m [F], and the encoder bias c [F].

    The condition p > 0 has no gradient, so two losses train p: a penalty on the sum of max(p, 0), and the squared error of a reconstruction
    from max(p, 0). In this reconstruction the decoder and the bias are constants."""

    folds = (*SparseDictionary.folds, "magnitude_bias")

    def __init__(self, config: DictionaryConfig, width: int, features: int) -> None:
        super().__init__(config, width, features)
        self.log_gain = nn.Parameter(torch.empty(features))
        self.magnitude_bias = nn.Parameter(torch.empty(features))

    def init_weights(self) -> None:
        super().init_weights()
        nn.init.zeros_(self.log_gain)
        nn.init.zeros_(self.magnitude_bias)

    def activities(self, pre: Tensor) -> Tensor:
        magnitude = (pre - self.encoder_bias) * self.log_gain.exp() + self.magnitude_bias
        return (pre > 0) * magnitude.relu()

    def penalties(self, pre: Tensor, activities: Tensor, scaled: Tensor, decoder: Tensor) -> dict[str, Tensor]:
        gate = pre.relu()
        found = gate @ decoder.detach() + self.bias.detach()
        return {"sparsity": self.config.sparsity * self.width**0.5 * gate.sum(1), "gate": squared_error(scaled, found)}


class TopKDictionary(SparseDictionary):
    def __init__(self, config: TopKConfig, width: int, features: int) -> None:
        super().__init__(config, width, features)
        self.limited = features >= LEAST_FEATURES * config.k

    def activities(self, pre: Tensor) -> Tensor:
        values, index = pre.relu().topk(int(self.config.k), dim=1, sorted=False)
        return torch.zeros_like(pre).scatter(1, index, values)

    def training_places(self, pre: Tensor, weight: Tensor) -> Active:
        index = largest_of_rows(pre, int(self.config.k))
        places = index + torch.arange(len(pre)).unsqueeze(1) * pre.shape[1]
        return active_places(places[~(pre.gather(1, index) <= 0)], *pre.shape)


class BatchTopKDictionary(SparseDictionary):
    """Dictionary that keeps the k n largest activities of each block of n training samples, and sets the others to 0.

    A micro-batch consists of whole blocks, so the choice does not depend on how a global batch is divided. threshold: moving average of the
    smallest kept activity of a block. In evaluation all activities above `threshold` are kept, independently of other samples."""

    threshold: Tensor
    updates: Tensor
    _smallest: Tensor
    folds = (*SparseDictionary.folds, "threshold")

    def __init__(self, config: DictionaryConfig, width: int, features: int) -> None:
        super().__init__(config, width, features)
        self.limited = features >= LEAST_FEATURES * self.config.k
        self.register_buffer("threshold", torch.zeros(()))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        # Sum and number of the blocks since the last update. The sum is in units of `UNIT`, so that it does not depend on the processes.
        self.register_buffer("_smallest", torch.zeros(2, dtype=torch.int64), persistent=False)

    def activities(self, pre: Tensor) -> Tensor:
        positive = pre.relu()
        return positive * (positive > self.threshold)

    def training_activities(self, pre: Tensor, weight: Tensor) -> Tensor:
        found, smallest = largest_of_blocks(pre.relu(), weight > 0, self.config.k, self.config.block, self._guess(pre))
        self._keep(smallest)
        return found

    def training_places(self, pre: Tensor, weight: Tensor) -> Active:
        places, smallest = largest_places(pre, weight > 0, self.config.k, self.config.block, self._guess(pre))
        self._keep(smallest)
        return active_places(places, *pre.shape)

    def _guess(self, pre: Tensor) -> float:
        """Return an estimate of the smallest kept activity: 0.8 x `threshold` on the CPU. Return 0 on a GPU, where reading the threshold
        would wait for the device.

        pre: pre-activations, of which only the device is used."""
        return 0.8 * float(self.threshold) if pre.device.type == "cpu" else 0.0

    def _keep(self, smallest: Tensor) -> None:
        """Add up the smallest kept activities of blocks, from which `after_update` computes `threshold`. Do nothing in evaluation.

        smallest: [blocks], smallest kept activity of each block; 0 for a block that does not count."""
        if self.training:
            self._smallest += torch.stack([(smallest.detach().double() / UNIT).round().long().sum(), (smallest > 0).sum()])

    @torch.no_grad()
    def after_update(self, skipped: Tensor) -> None:
        super().after_update(skipped)
        total, number = DistributedContext().all_reduce(self._smallest).unbind()
        applied = (skipped == 0) & (number > 0)
        self.updates += applied
        rate = (1 / self.updates.clamp(min=1)).clamp(min=self.config.threshold_rate)  # a mean at first, then a moving average
        smallest = torch.where(applied, total * UNIT / number.clamp(min=1), self.threshold)  # NaN x a rate of 0 would be NaN
        self.threshold.lerp_(smallest.to(self.threshold.dtype), rate.to(self.threshold.dtype))
        self._smallest.zero_()


class MatryoshkaDictionary(BatchTopKDictionary):
    """BatchTopK dictionary whose loss is a sum of squared errors: one of the full reconstruction, and for each width w in `config.widths`
    one of the reconstruction by the first w features alone."""

    def __init__(self, config: MatryoshkaConfig, width: int, features: int) -> None:
        super().__init__(config, width, features)
        self.edges = [0, *config.widths, features]

    def reconstruct(self, activities: Tensor, scaled: Tensor, decoder: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        found, inner = self.bias.to(scaled.dtype).expand_as(scaled), []
        for start, end in pairwise(self.edges):
            found = found + (activities[:, start:end] @ decoder[start:end]).to(scaled.dtype)
            inner.append(squared_error(scaled, found))
        return found, {"reconstruction": inner[-1], "inner": torch.stack(inner).sum(0) - inner[-1]}

    def reconstruct_active(self, active: Active, values: Tensor, scaled: Tensor, decoder: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        found, inner = self.bias.expand_as(scaled), []
        for start, end in pairwise(self.edges):
            inside = (active.feature >= start) & (active.feature < end)
            found = found + weighted_sum(active, values * inside, decoder)
            inner.append(squared_error(scaled, found))
        return found, {"reconstruction": inner[-1], "inner": torch.stack(inner).sum(0) - inner[-1]}


class JumpReLUDictionary(SparseDictionary):
    """Dictionary with a learned threshold for each feature: activities up to the threshold are set to 0. The parameter `slow_threshold` is
    the threshold divided by `THRESHOLD_SPEED`.

    Thresholds must move by several units, but a step of Adam has about the size of the learning rate for any sparsity coefficient. Without
    the division, the final thresholds would depend on the number of updates instead of the coefficient. With log(threshold) as the
    parameter, thresholds hardly move. With activations of width d, an active feature lowers the objective if its activity is above
    sqrt(sparsity x d)."""

    folds = (*SparseDictionary.folds, "slow_threshold")

    def __init__(self, config: DictionaryConfig, width: int, features: int) -> None:
        super().__init__(config, width, features)
        self.slow_threshold = nn.Parameter(torch.empty(features))

    @property
    def threshold(self) -> Tensor:
        return THRESHOLD_SPEED * self.slow_threshold

    def init_weights(self) -> None:
        super().init_weights()
        nn.init.constant_(self.slow_threshold, self.config.threshold / THRESHOLD_SPEED)

    def activities(self, pre: Tensor) -> Tensor:
        found: Tensor = Jump.apply(pre, self.threshold, self.config.bandwidth)
        return found

    def penalties(self, pre: Tensor, activities: Tensor, scaled: Tensor, decoder: Tensor) -> dict[str, Tensor]:
        active = Step.apply(pre, self.threshold, self.config.bandwidth).sum(1)
        return {"sparsity": self.config.sparsity * self.width * active}

    @torch.no_grad()
    def after_update(self, skipped: Tensor) -> None:
        super().after_update(skipped)
        self.slow_threshold.clamp_(min=0)


VARIANTS: dict[str, type[SparseDictionary]] = {
    "relu": ReLUDictionary,
    "gated": GatedDictionary,
    "topk": TopKDictionary,
    "batch_topk": BatchTopKDictionary,
    "jumprelu": JumpReLUDictionary,
    "matryoshka": MatryoshkaDictionary,
}


def build_dictionary(config: DictionaryConfig, width: int, seed: int) -> SparseDictionary:
    """Return a new dictionary on the CPU for activations of `width` dimensions, with weights that are a function of `seed`.

    Raise `ConfigError` for settings that `check_settings` refuses."""
    features = config.features or 8 * width
    check_settings(config, features)
    with torch.device("cpu"):
        model = VARIANTS[config.name](config, width, features)
    torch.default_generator.manual_seed(key(seed, INIT) & 0x7FFFFFFFFFFFFFFF)
    model.init_weights()
    return model


def check_settings(config: DictionaryConfig, features: int) -> None:
    """Raise `ConfigError` if `k` is above `features`, if `k` of topk is not a whole number from 1 on, if `auxiliary_features` is given
    without the auxiliary loss, or if the widths of matryoshka do not ascend or are not below `features`."""
    if config.auxiliary_features is not None and not config.auxiliary:
        raise ConfigError("model.auxiliary_features has no effect with model.auxiliary=0; leave one of them out")
    if isinstance(config, TopKConfig) and config.k > features:
        raise ConfigError(f"model.k is {config.k:g}, but there are {features} features; set model.k to at most that")
    if config.name == "topk" and isinstance(config, TopKConfig) and (config.k < 1 or config.k % 1):
        raise ConfigError(f"model.k is {config.k:g}; model=topk needs a whole number, at least 1 (batch_topk takes any)")
    if isinstance(config, MatryoshkaConfig):
        widths = [*config.widths, features]
        if any(a >= b for a, b in pairwise(widths)):
            raise ConfigError(f"model.widths is {config.widths}; the widths must ascend and be below the {features} features")
