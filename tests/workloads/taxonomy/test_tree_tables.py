"""Test the tables of a tree on a device against walks over parents, on trees with holes, several roots and leaves at every rank."""

import numpy as np
import pytest
import torch

from linnaeus.workloads.taxonomy.config import HeadConfig
from linnaeus.workloads.taxonomy.heads import build_head
from linnaeus.workloads.taxonomy.heads.layout import path_tables
from linnaeus.workloads.taxonomy.metrics.tree_tables import TreeTables
from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from tests.workloads.taxonomy.trees import chain, common_ancestor, random_tree

CPU = torch.device("cpu")


@pytest.fixture(params=range(4))
def tree(request):
    tree, _ = random_tree(request.param, 5, 60, 0.2, 0.5, 0.2)
    parents = tree.node_parent
    leaves = np.setdiff1d(np.arange(len(parents)), parents)
    assert (parents < 0).sum() > 3 and len(np.unique(tree.node_rank[leaves])) > 2
    assert (tree.node_rank[parents >= 0] - tree.node_rank[parents[parents >= 0]]).max() > 1, "the tree has holes"
    return tree


def test_common_ancestors_and_heights(tree):
    tables, count = TreeTables(tree, CPU), len(tree.node_parent)
    nodes = torch.arange(count + 1)  # the last is the virtual root
    lca, height = tables.lca(nodes[:, None], nodes), tables.height(nodes[:, None], nodes)
    for a in range(count):
        for b in range(count):
            common = common_ancestor(tree, a, b)
            assert lca[a, b] == (common if common >= 0 else count)
            assert height[a, b] == (4 - tree.node_rank[common] if common >= 0 else 5)
    assert (lca[-1] == count).all() and (height[:, -1] == 5).all()
    assert tables.lca(torch.zeros(0, 3, dtype=torch.long), nodes[:1]).shape == (0, 3)


def test_sums_up_the_tree_in_float32(tree):
    torch.manual_seed(0)
    own = (torch.randn(2, 3, len(tree.node_parent)) * 8).exp()  # over many orders of magnitude
    expected = np.zeros(own.shape)
    for node in range(own.shape[-1]):
        for above in chain(tree, node):
            expected[..., above] += own[..., node].double().numpy()
    found = TreeTables(tree, CPU).sums(own)
    np.testing.assert_allclose(found.numpy(), expected, rtol=3e-7)
    assert found.dtype == torch.float32


def test_negative_control_differences_of_prefix_sums_are_inexact():
    """A rare family beside a common one: differences of prefix sums would fail the tolerance above."""
    tree = TaxonomyTree.from_lineages(("family", "species"), np.array([["a", "x"], ["a", "y"], ["b", "z"]]))[0]
    leaves = torch.tensor([0.5, 0.4999, 1e-9])
    assert TreeTables(tree, CPU).sums(torch.cat([torch.zeros(2), leaves]))[1] == leaves[2]
    prefix = torch.cat([torch.zeros(1), leaves.cumsum(0)])
    assert abs((prefix[3] - prefix[2]) / 1e-9 - 1) > 0.1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_results_without_synchronisation():
    tree = random_tree(2, 5, 60, 0.2, 0.5)[0]
    on_cpu, on_gpu = TreeTables(tree, CPU), TreeTables(tree, torch.device("cuda"))
    x = torch.randn(4, len(tree.node_parent))
    a, b = torch.randint(0, x.shape[1] + 1, (2, 50))
    on_device = x.cuda(), a.cuda(), b.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        sums, heights = on_gpu.sums(on_device[0]), on_gpu.height(*on_device[1:])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(sums.cpu(), on_cpu.sums(x), rtol=1e-6, atol=1e-6)
    assert torch.equal(heights.cpu(), on_cpu.height(a, b))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_heads_and_metrics_share_one_path_table(device):
    """It is the largest table of a tree on a device. Tables of a head move with it and are not saved."""
    tree, target = random_tree(0)[0], torch.device(device)
    heads = [build_head(HeadConfig(name, "predict"), 2, tree).to(target) for name in ("conditional", "marginal")]
    found = [TreeTables(tree, target).paths, *(head.layout.path for head in heads)]
    assert all(path is found[0] for path in found) and found[0].device == target
    assert path_tables(random_tree(0)[0], target)[target] is not found[0]
    assert not any(name.startswith("layout") for head in heads for name in head.state_dict())
    if device == "cpu":
        assert found[0].data_ptr() == tree.paths.ctypes.data and (tree.paths[-1] == -1).all()
