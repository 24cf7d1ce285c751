"""Test tree operations against walks over parents, on trees with holes, several roots and leaves at every rank."""

import warnings

import numpy as np
import pytest
import torch

from linnaeus.workloads.taxonomy.config import HeadConfig
from linnaeus.workloads.taxonomy.heads import build_head
from linnaeus.workloads.taxonomy.metrics.tree_tables import TreeTables
from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from linnaeus.workloads.taxonomy.tree_operations import TreeOperations, path_table

RANKS = ("phylum", "order", "family", "genus", "species")


def random_tree(seed, rows=60, nulls=0.2):
    rng = np.random.default_rng(seed)
    names = rng.integers(0, [3, 3, 3, 4, 5], (rows, 5)).astype(str)
    names[rng.random((rows, 5)) < nulls] = ""
    names[np.arange(5) > rng.integers(1, 7, (rows, 1))] = ""  # lineages end at any rank
    return TaxonomyTree.from_lineages(RANKS, names)[0]


def chain(tree, node):
    """Return the node and its ancestors, upwards."""
    found = []
    while node >= 0:
        found.append(node)
        node = int(tree.node_parent[node])
    return found


def below(tree):
    """Return the nodes at or below each node."""
    found = [[] for _ in tree.node_parent]
    for node in range(len(found)):
        for above in chain(tree, node):
            found[above].append(node)
    return found


@pytest.fixture(params=range(4))
def tree(request):
    tree = random_tree(request.param)
    parents = tree.node_parent
    leaves = np.setdiff1d(np.arange(len(parents)), parents)
    assert (parents < 0).sum() > 3 and len(np.unique(tree.node_rank[leaves])) > 2
    assert (tree.node_rank[parents >= 0] - tree.node_rank[parents[parents >= 0]]).max() > 1, "the tree has holes"
    return tree


def test_common_ancestors_and_distances(tree):
    operations = TreeOperations(tree)
    count = len(tree.node_parent)
    nodes = torch.arange(-1, count)
    lca, distance = operations.lca(nodes[:, None], nodes), operations.distance(nodes[:, None], nodes)
    depth, height = operations.depth(nodes), operations.height(nodes)
    for i, a in enumerate(nodes.tolist()):
        above = chain(tree, a)
        assert depth[i] == (tree.node_rank[a] + 1 if a >= 0 else 0) and height[i] == 5 - depth[i]
        for j, b in enumerate(nodes.tolist()):
            common = next((n for n in above if n in chain(tree, b)), -1)
            top = tree.node_rank[common] if common >= 0 else -1
            assert lca[i, j] == common
            assert distance[i, j] == sum(tree.node_rank[n] - top if n >= 0 else -1 - top for n in (a, b))
    assert operations.lca(torch.zeros(0, 3, dtype=torch.long), nodes[:1]).shape == (0, 3)


def test_ancestors_at_a_rank(tree):
    operations = TreeOperations(tree)
    nodes = torch.arange(len(tree.node_parent))
    for rank in range(5):
        for node, found in enumerate(operations.ancestor(nodes.view(1, -1), rank)[0].tolist()):
            assert found == next((n for n in chain(tree, node) if tree.node_rank[n] == rank), -1)


def test_sums_up_the_tree_in_float32(tree):
    torch.manual_seed(0)
    own = (torch.randn(2, 3, len(tree.node_parent)) * 8).exp()  # over many orders of magnitude
    found = TreeOperations(tree).sums(own)
    expected = np.stack([own.double().numpy()[..., nodes].sum(-1) for nodes in below(tree)], -1)
    np.testing.assert_allclose(found.numpy(), expected, rtol=3e-7)
    assert found.dtype == torch.float32


def test_negative_control_differences_of_prefix_sums_are_inexact():
    """A rare family beside a common one: differences of prefix sums would fail the tolerance above."""
    tree = TaxonomyTree.from_lineages(("family", "species"), np.array([["a", "x"], ["a", "y"], ["b", "z"]]))[0]
    leaves = torch.tensor([0.5, 0.4999, 1e-9])
    assert TreeOperations(tree).sums(torch.cat([torch.zeros(2), leaves]))[1] == leaves[2]
    prefix = torch.cat([torch.zeros(1), leaves.cumsum(0)])
    assert abs((prefix[3] - prefix[2]) / 1e-9 - 1) > 0.1


def test_gradients_of_sums():
    operations = TreeOperations(random_tree(1, rows=12))
    own = torch.randn(2, operations.path.shape[0] - 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(operations.sums, (own,))


def test_a_tree_of_one_rank_and_an_empty_one():
    flat = TreeOperations(TaxonomyTree.from_lineages(("species",), np.array([["a"], ["b"]]))[0])
    x = torch.tensor([[1.0, 2.0]])
    assert torch.equal(flat.sums(x), x) and flat.lca(torch.tensor(0), torch.tensor(1)) == -1
    empty = TreeOperations(TaxonomyTree.from_lineages(RANKS, np.empty((0, 5), dtype=str))[0])
    assert empty.sums(torch.zeros(3, 0)).shape == (3, 0) and empty.lca(torch.tensor([-1]), torch.tensor([-1])).tolist() == [-1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_results_without_synchronisation():
    tree = random_tree(2)
    on_cpu = TreeOperations(tree)
    on_gpu = TreeOperations(tree).cuda()
    x = torch.randn(4, len(tree.node_parent))
    a, b = torch.randint(-1, x.shape[1], (2, 50))
    on_device = x.cuda(), a.cuda(), b.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = on_gpu.sums(on_device[0])
        nodes = [on_gpu.lca(*on_device[1:]), on_gpu.distance(*on_device[1:]), on_gpu.ancestor(on_device[1], 1)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(found.cpu(), on_cpu.sums(x), rtol=1e-6, atol=1e-6)
    for expected, tensor in zip([on_cpu.lca(a, b), on_cpu.distance(a, b), on_cpu.ancestor(a, 1)], nodes, strict=True):
        assert torch.equal(tensor.cpu(), expected)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_heads_and_metrics_share_one_path_table(device):
    """It is the largest table of a tree on a device."""
    tree, target = random_tree(0), torch.device(device)
    tables = TreeTables(tree, target)
    layouts = [build_head(HeadConfig(name, "predict"), 2, tree).to(target).layout for name in ("conditional", "marginal")]
    found = [tables.paths, tables.operations.path, *(layout.path for layout in layouts)]
    assert all(path is found[0] for path in found) and found[0].device == target
    assert found[0].shape == (len(tree.node_parent) + 1, 5) and path_table(random_tree(0), target) is not found[0]
    if device == "cpu":
        assert found[0].data_ptr() == tree.path_rows.ctypes.data == tree.paths.ctypes.data
        assert (tree.path_rows[-1] == -1).all()


def test_tables_move_with_the_module_and_are_not_saved():
    operations = TreeOperations(random_tree(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not operations.state_dict() and operations.to("meta").path.device.type == "meta"
