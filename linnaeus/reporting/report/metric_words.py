"""Words for metrics: a readable name, one line of meaning, and the value as text. A key is `<pass>/<task>/<metric>`, `<pass>/<metric>`, or
the last part alone."""

import re
from collections.abc import Mapping
from typing import Any

_SHARES = re.compile(
    r"(.*top\d+|macro.*|.*accuracy.*|.*chain.*|.*inconsistent.*|.*fraction.*|.*share.*|many|medium|few|ece|null_\w+|"
    r"slots_\d|of_optimum_\d|recall|precision|f1|legal|changed)(_low|_high)?"
)
# Other metrics are not rated. Severity also falls if a model fails on easy samples; explained variance and the share of dead features of a
# dictionary are best if every feature is always active.
_HIGHER_IS_BETTER = re.compile(
    r"(.*_)?(top\d+|accuracy|chain|many|medium|few|precision|recall|f1|mcc|points|legal|score|(slots|references|of_optimum|margin)_\d+|"
    r"(weapon|gear)_6)"
)
_LOWER_IS_BETTER = re.compile(
    r"(.*_)?(loss|inconsistent|inconsistent_paths|error|mse|distance|hd\d+|ece|aurc|perplexity|bits_per_byte|changed)"
)
_WORDS = (  # pattern of a metric -> words, in this order
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
)
_MEANINGS = (  # pattern of a metric -> its meaning
    (r"with_.*top1", "Share of right answers, counting only samples that have the named metadata."),
    (r"crm_.*", "The same for the answer with the least expected distance in the tree, instead of the most probable answer."),
    (r"marginal_top1", "Share of samples whose most probable class of this rank is right, even if it is not on the predicted path."),
    (r"macro_top1", "Mean over classes of the share of right answers: rare classes count as much as frequent ones."),
    (r"top1", "Share of samples whose first answer is right."),
    (r"top(\d+)", r"Share of samples whose right class is among the \1 most probable."),
    (r"many", "Mean accuracy of the classes with more than 100 training labels."),
    (r"medium", "Mean accuracy of the classes with 20 to 100 training labels."),
    (r"few", "Mean accuracy of the classes with fewer than 20 training labels."),
    (r"ece", "Expected calibration error: how far stated confidence and share of right answers differ, on average. 0 is best."),
    (r"chain", "Share of samples that are right at every taxonomic rank."),
    (r"partial_chain", "Share of samples that are right at every rank for which they have a label."),
    (r"inconsistent", "Share of answers whose ranks contradict each other, such as a genus outside the predicted family."),
    (r"hd1", "Mean number of ranks between the answer and the lowest taxon that contains answer and label. 0 is a right answer."),
    (r"hd\d+", "The same distance, averaged over the most probable classes."),
    (r"severity", "Mean distance in the tree of the wrong answers alone. Not rated: it also falls if easy samples are answered wrongly."),
    (r"aurc", "Mean error rate when answers are given in order of confidence. 0 is best."),
    (r"hierarchical_aurc", "The same when a coarser taxon may be answered instead of a species. 0 is best."),
    (r"(depth|info)_(precision|recall|f1)", "Agreement of the predicted and the true path in the tree."),
    (r"loss", "Mean negative log-probability of the right answer, in nats. Lower is better; a uniform guess among C gives ln C."),
    (r"perplexity", "exp(loss): the number of equally probable tokens that would be as hard to guess."),
    (r"bits_per_byte", "Loss in bits per byte of text, which can be compared between tokenizers."),
    (r"score", "Loss in nats per token without this part of the model, minus the loss with it."),
    (r"null_recall", "Share of samples without a label at this rank that are answered with no class."),
    (r"null_precision", "Share of the answers of no class that have no label at this rank."),
    (r"grad_norm", "Norm of the gradient before clipping."),
    (r"weight", "Factor of a task's loss in the objective."),
)


def last_part(key: str) -> str:
    """Return the name of a metric without its pass, its task and the end of an interval."""
    return re.sub(r"_(low|high)$", "", key.rpartition("/")[2])


def is_share(key: str) -> bool:
    """Return True if a metric is a fraction from 0 to 1, which is shown in per cent."""
    return bool(_SHARES.fullmatch(key.rpartition("/")[2]))


def direction(key: str) -> int:
    """Return 1 if a higher value of a metric is better, -1 if a lower one is, 0 if it is not rated."""
    metric = last_part(key)
    return 1 if _HIGHER_IS_BETTER.fullmatch(metric) else -1 if _LOWER_IS_BETTER.fullmatch(metric) else 0


def show_value(key: str, value: float | None) -> str:
    """Return the value of a metric as text: per cent for a fraction, an en dash for None (undefined)."""
    if value is None:
        return "–"
    return f"{100 * value:.1f} %" if is_share(key) and -1 <= value <= 1 else f"{value:.4g}"


def show_difference(key: str, value: float) -> str:
    """Return the difference of two values of a metric as text, with its sign; of fractions in percentage points."""
    return f"{100 * value:+.1f}" if is_share(key) else f"{value:+.3g}"


def metric_name(metric: str) -> str:
    """Return words for the name of a metric: `Least expected height: distance in the tree` for `crm_hd1`."""
    stem, _, bound = metric.rpartition("_")
    name, ends = (stem, f", {bound} end of 95 %") if bound in ("low", "high") else (metric, "")
    text = name
    for pattern, words in _WORDS:
        text = re.sub(pattern, words, text)
    if text != name:  # any other name is the workload's own and is not changed
        text = text[:1].upper() + text[1:]
    return text.replace("_", " ") + ends


def meaning(metric: str) -> str:
    """Return a sentence with the meaning of a metric; "" if it is not known."""
    name = last_part(metric)
    for pattern, words in _MEANINGS:
        if match := re.fullmatch(pattern, name):
            return match.expand(words)
    return ""


def passes_and_tasks(final: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the names of the validation passes, the normal one first, and the names of the tasks, both in the order of the keys of
    `final`."""
    keys = [parts for key in final if len(parts := key.split("/")) in (2, 3) and parts[0].startswith("val")]
    passes = dict.fromkeys(parts[0] for parts in keys)
    return sorted(passes, key=lambda name: "_mask_" in name), list(dict.fromkeys(parts[1] for parts in keys if len(parts) == 3))


def column_name(name: str) -> str:
    """Return the column heading of a validation pass: `without spatial` for `val_mask_SPATIAL`."""
    base, masked, components = name.partition("_mask_")
    weights = " (EMA)" if base.startswith("val_ema") else ""
    return (f"without {'metadata' if components == 'meta' else components.replace('_', ' + ').lower()}" if masked else "normal") + weights
