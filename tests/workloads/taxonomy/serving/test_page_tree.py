"""Test what the page of `linnaeus serve` makes of an answer, by its own script: the tree, the headline, and the words for a heat map."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from linnaeus.workloads.taxonomy.augment.geometry import central_squares
from linnaeus.workloads.taxonomy.images.decoding import limited_size
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


def run(functions: str, expression: str):
    """Return the value of an expression. Elements are lists of their class and their content."""
    made = "const element = (kind, {class: name = kind} = {}, ...inside) => [name, ...inside.filter((one) => one !== '')];"
    script = f"{made}{functions};console.log(JSON.stringify({expression}))"
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True, encoding="utf-8")
    return json.loads(done.stdout)


def functions_between(first: str, last: str) -> str:
    return re.search(rf"^function {first}.*?(?=^function {last})", PAGE, re.M | re.S)[0]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_an_answer_stands_out_and_an_uncertain_taxon_is_called_so():
    family, rose = taxon("Plantae", "Rosaceae"), taxon("Plantae", "Rosaceae", NAME)
    plain = {"path": {"family": family, "genus": rose}, "ranks": {"family": [family], "genus": [rose]}, "calibrated": False}
    answered = plain | {"calibrated": True, "precision": 0.95, "answer": {"rank": "family", **family}}
    uncertain = answered | {"answer": None, "possible_taxa": {"genus": 2}}
    functions = functions_between("percent", "levels") + functions_between("headline", "whereOf")
    outside = uncertain | {"outside": True, "familiarity": 0.0008}
    cases = json.dumps([plain, answered, uncertain, plain | {"path": {}}, outside])
    frames = run(functions, f"{cases}.map((answer) => [headline(answer), spoken(answer)].map((one) => one.flat(9)))")
    (first, spoken), (second, said), (third, told), (_, none), (strange, warned) = frames
    assert first[0] == third[0] == "headline uncertain" and second[0] == "headline"
    assert NAME in first and "Not calibrated" in first[-1] and "not calibrated" in spoken[0]
    assert "Answer, with a stated precision of 95\u00a0%" in second and "Rosaceae" in second and NAME not in second
    assert said == ["family ", "bdi", "Rosaceae", " with a stated precision of 95 %, probability 50.0\u00a0%."]
    assert (
        "No answer: no taxon has the stated precision of 95\u00a0%." in third and "among all taxa" in third[-1] and "no answer" in told[0]
    )
    assert none == ["no taxon."]
    assert "Probably none of the taxa of the model: it hesitates between about 1,250 taxa per rank." in strange
    assert "none of" not in str(third)
    assert strange[0] == "headline uncertain" and NAME in strange and "Most probable, but perhaps not on the photograph:" in strange
    assert warned[0] == "probably none of the taxa of the model; most probable: genus "
    tree = functions_between("levels", "listOf")
    chosen = run(tree, f"treeOf({json.dumps(answered)}).map((node) => [node.name, node.chosen, node.below[0].chosen])")
    assert chosen == [["Rosaceae", True, False]]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize(
    ("hot", "words"),
    {(0, 8): "on the upper right", (4, 4): "in the middle", (8, 4): "in the lower part", (4, 0): "on the left", None: "nowhere"}.items(),
)
def test_the_place_of_a_heat_map_in_words(hot, words):
    values = [[float((i, j) == hot) for j in range(9)] for i in range(9)]
    assert run(functions_between("whereOf", "pictureOf"), f"whereOf({json.dumps(values)})") == words


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize("size", [(4000, 3000), (300, 500), (64, 64)])
def test_the_heat_map_lies_on_the_square_that_the_network_reads(size):
    """Compare to one pixel of the photograph as it is decoded."""
    width, height = size
    shown = run(
        "const drawn = [], context = {drawImage: (...values) => drawn.push(values.slice(1)), fillRect() {}, putImageData() {}, "
        "createImageData: () => ({data: {set() {}}})};"
        "const canvas = {getContext: () => context}, model = {center_crop: 0.9, image_size: 64};"
        f"const $ = () => ({{naturalWidth: {width}, naturalHeight: {height}}});"
        + functions_between("pictureOf", "heatMap").replace("element(", "(() => canvas)("),
        "(pictureOf([[0, 1], [0, 0]]), drawn[0])",
    )
    decoded = limited_size(width, height, 2 * 64)
    (left, top, right, bottom), scale = central_squares(np.array([decoded[::-1]]), 0.9)[0], min(size) / min(decoded)
    np.testing.assert_allclose(shown[:4], scale * np.array([left, top, right - left, bottom - top]), atol=1.01 * scale)
