"""Compute the streaming metrics of the taxonomy workload: exact, linear in the taxa, and independent of batch order and number of
processes.

Every count is an integer on the device, and fractions are counted in fixed point, so batches may come in any order. Only the losses are
float sums, which the caller adds in batch order. Only real samples (weight > 0) are counted. y is the truth, p the prediction
(`Scores.path()`). Probabilities are conditional: they sum to 1 over a rank's classes. A metric without samples is NaN. "finest" below
means: over samples with a label at the finest rank.

    loss, <rank>/loss       mean -log p(y) over the labels of a rank; mean over the ranks that have labels (`training_metrics.py`)
    <rank>/top1, top5       share of labels that are predicted, or among the min(5, C) most probable; ties to the lower index
    <rank>/marginal_top1    share of labels that are the most probable class of the rank, on the predicted path or not; hierarchical heads
    <rank>/macro_top1       mean of the share right of each class that occurs, each class with the same weight (`accuracy.py`)
    <rank>/with_<components>_top1    top1 over the samples that have the metadata which the pass masks (`sample_record.py`)
    <rank>/many, medium, few    macro_top1 over classes of more than 100, 20 to 100, fewer than 20 training labels
    <rank>/ece              expected calibration error of the most probable class in 15 bins (`confidence.py`)
    <rank>/null_recall, null_precision    recall and precision of the null class, against samples with a missing label; for heads with it
    chain                   share right at every rank, of the samples labelled at every rank
    partial_chain           share right at all ranks with a label, of the samples with at least one label
    inconsistent            share of predictions with a class that is not on the path of the deepest class, holes of the path excepted
    hd1, hd5, hd20, severity    height of the lowest common ancestor of y and p, finest (`tree_distance.py`)
    crm_top1, crm_hd1, ...  top1, hd1, ... for the decision of least expected height, finest (`batch_view.py`)
    depth_precision, ...    hierarchical precision, recall and F1, in ranks and in bits, truth at any rank (`tree_distance.py`)
    aurc, hierarchical_aurc    area under the risk-coverage curve, finest; with answers at coarser ranks (`confidence.py`)
    <name>_low, <name>_high     95 % interval by resampling groups, in the last validations of a run (`sample_record.py`)
"""

from linnaeus.workloads.taxonomy.metrics.taxonomy_metrics import TaxonomyMetrics
from linnaeus.workloads.taxonomy.metrics.training_metrics import TaxonomyTrainingMetrics

__all__ = ["TaxonomyMetrics", "TaxonomyTrainingMetrics"]
