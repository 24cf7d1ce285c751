"""Losses of the taxonomic ranks: sums over labels, to be divided by the labels' weights in the whole global batch.

What a label y of rank r adds, with p the head's probabilities, which the losses read through `heads.Scores` only:

    cross_entropy         -log p(y), `label_smoothing` of the target spread evenly over the classes of the rank
    taxonomic_smoothing   -sum_c t(c) log p(c): 1 - a on y, the share a over the others in proportion to exp(-beta x edges from y to c)
    soft_labels           the same with t(c) in proportion to exp(-beta x height of the lowest common ancestor / the greatest height)
    conditional           -exp(-alpha x height of the rank) log p(y | its nearest known ancestor)
    marginal              -log p(y), of the finest label of a sample alone

Any of them with class weights (`balance.py`), which multiply what a label adds once, and as often what it counts in the denominator, and
with logit adjustment. A mixed sample has two labels per rank, `label` with weight `share` and `label2` with the rest, so that no
target is ever [B, C]. A null label (-1) adds nothing to the loss and nothing to the denominator; nor does a stand-in (weight 0).
The null class (`head.nulls`) is learnt as it is, never smoothed, and no other label gives it any of its target.

`balance.py`: what training labels are like, weights and priors; `labels.py`: which labels count and how much; `shells.py`: smoothed
targets; `training.py`: the loss of a run.
"""

from __future__ import annotations

from linnaeus.workloads.taxonomy.losses.balance import LabelCounts, class_weights
from linnaeus.workloads.taxonomy.losses.labels import rank_loss_sums, valid_counts, weighted_hierarchical_loss
from linnaeus.workloads.taxonomy.losses.training import TaxonomyLoss

__all__ = ["LabelCounts", "TaxonomyLoss", "class_weights", "rank_loss_sums", "valid_counts", "weighted_hierarchical_loss"]
