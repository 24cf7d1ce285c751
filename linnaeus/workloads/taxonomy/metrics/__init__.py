"""Streaming metrics of the taxonomy workload: exact, linear in the taxa, the same in any order and over any processes.

Every count is an integer on the device, fractions among them in fixed point (`counting.py`), so batches may come in any order; only the
losses are float sums, which the caller adds in batch order. Samples are real ones (weight > 0), y the truth, p the prediction
(`Scores.path()`); probabilities are those of a rank's classes given that the label is one of them. A metric without a single
sample is NaN, "not defined". `finest` below: over samples with a label at the finest rank.

    loss, <rank>/loss       mean -log p(y) over the labels of a rank; mean over the ranks that have any (`training.py`)
    <rank>/top1, top5       share of labels that are predicted, that are among the min(5, C) likeliest; ties to the lower index
    <rank>/marginal_top1    the same with the likeliest class of the rank, which need not lie on the predicted path; hierarchical heads
    <rank>/macro_top1       mean over the classes that occur of the share of their samples that is right
    <rank>/many, medium, few    the same over classes of more than 100, 20 to 100, fewer than 20 training labels (`shots.py`)
    <rank>/ece              expected calibration error of the likeliest class in 15 bins (`calibration.py`)
    <rank>/null_recall, null_precision    of the samples without a label there, of those said to have none; heads that learn null labels
    chain                   share right at every rank, of the samples labelled at every rank
    partial_chain           share right at all the ranks they are labelled at, of the samples labelled at any
    inconsistent            share of predictions with a class that is not on the path of the deepest one, holes of that path aside
    hd1, hd5, hd20, severity    height of the lowest common ancestor of y and p, finest (`distance.py`)
    crm_top1, hd1, ...      the same of the decision of least expected height, finest (`decisions.py`)
    depth_precision, ...    what prediction and truth have in common, in ranks and in bits, truth at any rank (`hierarchy.py`)
    aurc                    area under the risk-coverage curve, finest; with answers at coarser ranks: hierarchical_aurc (`selective.py`)
    <name>_low, <name>_high     95 % interval by resampling groups, in the last validations of a run (`bootstrap.py`)

`batch_view.py`: what all of these need of a batch, computed once; `sample_record.py`: what is kept of each sample.
"""

from linnaeus.workloads.taxonomy.metrics.training import TrainingMetrics
from linnaeus.workloads.taxonomy.metrics.validation import TaxonomyMetrics

__all__ = ["TaxonomyMetrics", "TrainingMetrics"]
