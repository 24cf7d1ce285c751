"""Compute the losses of the taxonomic ranks: weighted sums over labels, which the loop divides by the weights of all labels of the global
batch.

With p the head's probabilities, which losses read through `heads.Scores`, a label y of rank r adds:

    cross_entropy         -log p(y); `label_smoothing` of the target is spread evenly over the classes of the rank
    taxonomic_smoothing   -sum_c t(c) log p(c): t is 1 - a on y, and a over the others in proportion to exp(-beta x edges from y to c)
    soft_labels           the same with t(c) in proportion to exp(-beta x height of the lowest common ancestor / the greatest height)
    conditional           -w log p(y | its nearest known ancestor), with w = exp(-alpha x number of ranks coarser than r)
    marginal              -log p(y), for the finest known label of a sample only; one denominator, the sum over all ranks

All losses support class weights and logit adjustment. A class weight multiplies the loss of a label, and the weight of this label in the
denominator. A mixed sample has two labels per rank: `label` with weight `share`, `label2` with weight 1 - `share`. No [B, C] target matrix
is built. A missing label (-1) and a placeholder (a sample of weight 0) add 0 to loss and denominator. The target of a null label
(`head.nulls`) is not smoothed. The smoothed target of any other label is 0 at the null class."""

from linnaeus.workloads.taxonomy.losses.label_counts import LabelCounts, class_weights
from linnaeus.workloads.taxonomy.losses.taxonomy_loss import TaxonomyLoss, rank_loss_sums, valid_counts, weighted_hierarchical_loss

__all__ = ["LabelCounts", "TaxonomyLoss", "class_weights", "rank_loss_sums", "valid_counts", "weighted_hierarchical_loss"]
