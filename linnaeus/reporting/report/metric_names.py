"""Describe metrics: readable names, meanings in one or two sentences, and values as text.

A key is `<pass>/<task>/<metric>`, `<pass>/<metric>`, or `<metric>` alone. A key that ends in `_low` or `_high` is the lower or upper end of
the metric's interval.
"""

import re
from collections.abc import Mapping
from typing import Any

ROUNDING = 1e-9  # smallest difference of two values that is shown
_SHARES = re.compile(
    r"(.*top\d+|macro.*|.*accuracy.*|.*chain.*|.*inconsistent.*|.*fraction.*|.*share.*|many|medium|few|ece|null_\w+|"
    r"(slots|references|of_optimum|margin)_\d+|margin_\d+_error|(weapon|gear)_6|points|recall|(average_)?precision|f1|legal|changed)(_low|_high)?"
)
# All other metrics have no better direction. Severity also falls if a model fails on easy samples. Explained variance and the share of dead
# features of a dictionary are best for features that are always active.
_HIGHER_IS_BETTER = re.compile(
    r"(.*_)?(top\d+|accuracy|chain|many|medium|few|precision|recall|f1|mcc|points|legal|score|sparse_gain|(slots|references|of_optimum|margin)_\d+|"
    r"(weapon|gear)_6)"
)
_LOWER_IS_BETTER = re.compile(
    r"(.*_)?(loss|inconsistent|inconsistent_paths|error|mse|distance|hd\d+|ece|aurc|perplexity|bits_per_byte|changed)"
)
_WORDS = (  # (pattern in the name of a metric, replacement), applied in this order
    (r"^with_meta_(.*)$", r"\1, rows with metadata"),
    (r"^with_([A-Z_]+)_([a-z].*)$", r"\2, rows with \1"),
    (r"^crm_", "least expected height: "),
    (r"\bhd1$", "distance in the tree"),
    (r"\bhd(\d+)$", r"distance in the tree, mean of the first \1"),
    (r"^(.*\b)?severity$", r"\1distance in the tree of the errors"),
    (r"\bmacro_top(\d+)\b", r"macro top-\1 accuracy"),
    (r"\btop(\d+)\b", r"top-\1 accuracy"),
    (r"^hierarchical_aurc$", "risk over coverage, with coarser answers"),
    (r"\baurc$", "risk over coverage"),
    (r"\bece$", "calibration error"),
    (r"^partial_chain$", "all known ranks right"),
    (r"\bchain$", "all ranks right"),
    (r"^loss$", "Loss"),
    (r"^perplexity$", "Perplexity"),
    (r"^many$", "frequent classes"),
    (r"^medium$", "medium classes"),
    (r"^few$", "rare classes"),
    (r"^inconsistent$", "inconsistent paths"),
    (r"^skipped_updates$", "skipped updates"),
    (r"^bits_per_byte$", "bits per byte"),
    (r"^(depth|info)_(precision|recall)$", r"\2 by \1"),
    (r"^(depth|info)_f1$", r"F1 by \1"),
    (r"\binfo$", "information"),
    (r"^precision$", "Precision"),
    (r"^average_precision$", "Average precision"),
    (r"^recall$", "Recall"),
    (r"^f1$", "F1"),
    (r"^slots_(\d+)$", r"right slots, \1 removed"),
    (r"^references_(\d+)$", r"right slots against several references, \1 removed"),
    (r"^weapon_(\d+)$", r"right slots that the weapon decides, \1 removed"),
    (r"^gear_(\d+)$", r"right slots that need the given gear, \1 removed"),
    (r"^of_optimum_(\d+)$", r"share of the optimum, \1 removed"),
    (r"^margin_(\d+)$", r"margin over the best baseline in points, \1 removed"),
    (r"^margin_(\d+)_error$", r"standard error of the margin, \1 removed"),
    (r"^points$", "ability points kept"),
    (r"^legal$", "legal answers"),
    (r"^changed$", "answers that change given gear"),
    (r"^grad_norm$", "gradient norm"),
    (r"^lr$", "learning rate"),
    (r"^l0$", "L0"),
    (r"^nmse$", "normalised squared error"),
    (r"^explained_variance$", "explained variance"),
    (r"^sparse_gain$", "sparse gain"),
    (r"^loss_recovered$", "loss recovered"),
    (r"^(dead|dense)$", r"\1 features"),
    (r"^decoder_cosine(.*)$", r"decoder cosine\1"),
    (r"^mcc$", "MCC"),
)
_MEANINGS = (  # (pattern of the whole name of a metric, its meaning); the first match counts
    (r"with_.*top1", "Share of right predictions among the samples that have the named metadata."),
    (r"crm_.*", "Metric of the prediction with the least expected distance in the tree, instead of the most probable class."),
    (r"marginal_top1", "Share of samples whose most probable class of this rank is right, even if it is not on the predicted path."),
    (r"macro_top1", "Mean over classes of the share of right predictions: rare classes count as much as frequent ones."),
    (r"top1", "Share of samples whose most probable class is right."),
    (r"top(\d+)", r"Share of samples whose right class is among the \1 most probable."),
    (r"many", "Mean accuracy of the classes with more than 100 training labels."),
    (r"medium", "Mean accuracy of the classes with 20 to 100 training labels."),
    (r"few", "Mean accuracy of the classes with fewer than 20 training labels."),
    (r"ece", "Expected calibration error: mean difference between stated confidence and share of right predictions. 0 is best."),
    (r"chain", "Share of samples that are right at every taxonomic rank."),
    (r"partial_chain", "Share of samples that are right at every rank for which they have a label."),
    (r"inconsistent", "Share of predictions whose ranks contradict each other, such as a genus outside the predicted family."),
    (r"hd1", "Mean number of ranks from the prediction up to the lowest taxon that also contains the label. 0: right."),
    (r"hd\d+", "Mean distance in the tree from the label to each of the most probable classes."),
    (r"severity", "Mean distance in the tree of the wrong predictions only. It also falls if predictions for easy samples become wrong."),
    (r"aurc", "Area under the risk-coverage curve: mean error rate of the most confident predictions, over all shares of them. 0 is best."),
    (r"hierarchical_aurc", "Area under the risk-coverage curve if a coarser taxon may be predicted instead of a species. 0 is best."),
    (r"(depth|info)_(precision|recall|f1)", "Overlap of the predicted and the true path in the tree."),
    (
        r"loss",
        "Mean loss. Lower is better. Of a classifier or a language model: mean negative log-probability of the right class, in nats; "
        "a uniform guess among C classes gives ln C.",
    ),
    (r"perplexity", "exp(loss): number of equally probable tokens among which a guess has the same loss."),
    (r"bits_per_byte", "Loss in bits per byte of text, which can be compared between tokenizers."),
    (r"score", "Loss in nats per token without this part of the model, minus the loss with it."),
    (r"null_recall", 'Share of the samples without a label at this rank for which the prediction is "no class".'),
    (r"null_precision", "Share of the samples with a prediction of no class that have no label at this rank."),
    (r"slots_\d+", "Share of the removed slots that are filled as in the data."),
    (r"references_\d+", "Share of the removed slots that are filled as in one of several builds that contain the given gear."),
    (r"weapon_\d+", "Right ones of the slots that the token frequencies of the weapon alone fill rightly."),
    (r"gear_\d+", "Right ones of the slots that need the given gear."),
    (r"l0", "Mean number of active features per activation."),
    (r"explained_variance", "1 - squared error / squared distance from the mean activation. 1 is best."),
    (r"sparse_gain", "Explained variance - active features / width of the activations. At most 0 for a code without sparsity; 1 is best."),
    (r"nmse", "Squared errors of the reconstructions over the squared norms of the activations. 0 is best."),
    (r"cosine", "Mean cosine of activation and reconstruction."),
    (r"loss_recovered", "Loss with the reconstruction in place of the activations, scaled: 0 as with zeros, 1 as with the activations."),
    (r"dead", "Share of features that are never active."),
    (r"dense", "Share of features that are active in more than 10 % of the activations."),
    (r"decoder_cosine.*", "Cosine of a decoder vector and the nearest other one: mean, 90th percentile (p90) and maximum (max)."),
    (r"mcc", "Mean |cosine| between decoder vectors and planted features, matched one to one. 1 is best."),
    (r"uniqueness", "Planted features that are nearest to at least one feature, over the number of features. 1 is best."),
    (r"shrinkage", "Mean |reconstruction| / |activation|. 1: no shrinkage."),
    (r"points", "1 - (sum of the absolute differences of the ability points) / (2 x 57)."),
    (r"grad_norm", "Norm of the gradient before clipping."),
    (r"weight", "Factor of a task's loss in the objective."),
)


def last_part(key: str) -> str:
    """Return the last part of a key, which names the metric, without a final `_low` or `_high`."""
    return re.sub(r"_(low|high)$", "", key.rpartition("/")[2])


def is_share(key: str) -> bool:
    """Return True if the metric `key` (last part of the name only) is a fraction from 0 to 1, which is shown in per cent."""
    return bool(_SHARES.fullmatch(key.rpartition("/")[2]))


def direction(key: str) -> int:
    """Return 1 if a higher value of the metric `key` is better, -1 if a lower value is better, 0 if neither is or the metric is unknown."""
    metric = last_part(key)
    return 1 if _HIGHER_IS_BETTER.fullmatch(metric) else -1 if _LOWER_IS_BETTER.fullmatch(metric) else 0


def show_value(key: str, value: float | None) -> str:
    """Return a value of the metric `key` as text; an en dash for None (undefined). A fraction is shown in per cent, unless its absolute
    value is above 1. `margin_K`, a difference of two fractions, is shown in percentage points with its sign."""
    if value is None:
        return "–"
    if re.fullmatch(r"margin_\d+", last_part(key)):
        return show_difference(key, value)
    return f"{100 * value:.1f} %" if is_share(key) and -1 <= value <= 1 else f"{value:.4g}"


def show_difference(key: str, value: float) -> str:
    """Return a difference of two values of the metric `key` as text with its sign; for a fraction in percentage points, without a unit.

    A difference below `ROUNDING` is shown as +0: sums in another order differ by that much."""
    value = value if abs(value) >= ROUNDING else 0.0
    return f"{100 * value:+.1f}" if is_share(key) else f"{value:+.3g}"


def metric_name(metric: str) -> str:
    """Return the readable name of a metric, such as `Least expected height: distance in the tree` for `crm_hd1`.

    For an unknown metric, return the key with spaces instead of underscores. metric: key without pass and task."""
    stem, _, bound = metric.rpartition("_")
    name, ends = (stem, f", {bound} end of 95 %") if bound in ("low", "high") else (metric, "")
    text = name
    for pattern, words in _WORDS:
        text = re.sub(pattern, words, text)
    if text != name:  # without a match, the name is that of the workload and is not changed
        text = text[:1].upper() + text[1:]
    return text.replace("_", " ") + ends


def meaning(metric: str) -> str:
    """Return the meaning of a metric in one or two sentences; "" if it is not known. metric: key, with or without pass and task."""
    name = last_part(metric)
    for pattern, words in _MEANINGS:
        if match := re.fullmatch(pattern, name):
            return match.expand(words)
    return ""


def passes_and_tasks(final: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return (names of the validation passes, names of the tasks) that occur in the keys of `final`, in the order of their first
    appearance.

    Passes with masked metadata come last."""
    keys = [parts for key in final if len(parts := key.split("/")) in (2, 3) and parts[0].startswith("val")]
    passes = dict.fromkeys(parts[0] for parts in keys)
    return sorted(passes, key=lambda name: "_mask_" in name), list(dict.fromkeys(parts[1] for parts in keys if len(parts) == 3))


def column_name(name: str) -> str:
    """Return the column heading of a validation pass: `without spatial` for `val_mask_SPATIAL`."""
    base, masked, components = name.partition("_mask_")
    weights = " (EMA)" if base.startswith("val_ema") else ""
    return (f"without {'metadata' if components == 'meta' else components.replace('_', ' + ').lower()}" if masked else "normal") + weights
