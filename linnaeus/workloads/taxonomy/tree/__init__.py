"""Represent the tree of taxa, and compute sums and softmaxes over its ranges and groups of siblings in linear time."""

from linnaeus.workloads.taxonomy.tree.taxonomy_tree import TaxonomyTree

__all__ = ["TaxonomyTree"]
