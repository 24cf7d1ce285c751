"""Losses of the taxonomic ranks: weighted sums over labels, which the loop divides by the weights of all labels of the global batch.

A label y of rank r adds, with p the head's probabilities, which losses read through `heads.Scores`:

    cross_entropy         -log p(y); `label_smoothing` of the target is spread evenly over the classes of the rank
    taxonomic_smoothing   -sum_c t(c) log p(c): t is 1 - a on y, and a over the others in proportion to exp(-beta x edges from y to c)
    soft_labels           the same with t(c) in proportion to exp(-beta x height of the lowest common ancestor / the greatest height)
    conditional           -exp(-alpha x ranks above it) log p(y | its nearest known ancestor)
    marginal              -log p(y), for the finest label of a sample only

Each of them may have class weights, which multiply the loss of a label and its count in the denominator, and logit adjustment. A
mixed sample has two labels per rank, `label` with weight `share` and `label2` with weight 1 - `share`, so no target is a [B, C] matrix.
A missing label (-1) adds nothing to loss and denominator, nor does a placeholder (a sample of weight 0). The null class (`head.nulls`) is
never smoothed, and the smoothed target of another label gives it no share.
"""

from linnaeus.workloads.taxonomy.losses.label_counts import LabelCounts, class_weights
from linnaeus.workloads.taxonomy.losses.taxonomy_loss import TaxonomyLoss, rank_loss_sums, valid_counts, weighted_hierarchical_loss

__all__ = ["LabelCounts", "TaxonomyLoss", "class_weights", "rank_loss_sums", "valid_counts", "weighted_hierarchical_loss"]
