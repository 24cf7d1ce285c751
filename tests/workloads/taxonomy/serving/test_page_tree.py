"""Test the tree that the page of `linnaeus serve` makes of an answer, by its own script."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from tests.workloads.taxonomy.serving.test_service import PAGE

NAME = "<b> | \\ שלום"


def taxon(*names: str) -> dict:
    return {"name": names[-1], "lineage": "|".join(n.replace("\\", "\\\\").replace("|", "\\|") for n in names), "probability": 0.5}


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_taxa_are_below_their_nearest_coarser_taxon():
    """The model decides neither kingdom nor order; one lineage has a hole, one coarser taxon is missing, the genus contradicts."""
    plants, roses, rose = taxon("Plantae", "A"), taxon("Plantae", "A", "R", NAME), taxon("Plantae", "A", "R", NAME, "Rosa")
    violet, hole, alone = (
        taxon("Plantae", "A", "M", "V", "Viola"),
        taxon("Plantae", "A", "", "", "Hole"),
        taxon("Plantae", "B", "C", "D", "E"),
    )
    ranks = {"class": [plants], "family": [roses], "genus": [violet, rose, hole, alone]}
    answer = {"ranks": ranks, "path": {"class": plants, "family": roses, "genus": violet}}
    functions = re.search(r"^function levels.*?(?=^function listOf)", PAGE, re.M | re.S)[0]
    plain = "const plain = (nodes) => nodes.map((n) => [n.name, n.decided, leadsToDecided(n), plain(n.below)]);"
    script = f"{functions}{plain}console.log(JSON.stringify(plain(treeOf({json.dumps(answer)}))))"
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True, encoding="utf-8")
    roses_below = [NAME, True, True, [["Rosa", False, False, []]]]
    below = [roses_below, ["Viola", True, True, []], ["Hole", False, False, []]]
    assert json.loads(done.stdout) == [["A", True, True, below], ["E", False, False, []]]
