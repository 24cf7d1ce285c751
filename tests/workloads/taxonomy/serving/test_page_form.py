"""Test the fields and the button "Clear" of the page of `linnaeus serve`: its script runs in node, with elements that record changes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from tests.workloads.taxonomy.serving.test_service import PAGE

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")

ELEMENTS = """
let sent = [];
const nothing = () => {}, elements = {}, shown = {};
const made = () => ({
  value: "", children: [], listeners: {}, style: {}, classList: {add: nothing, remove: nothing, toggle: nothing},
  firstElementChild: {setAttribute: nothing}, firstChild: {style: {}},
  setAttribute(name, value) { this[name] = value; }, replaceChildren(...children) { this.children = children; },
  addEventListener(name, listener) { this.listeners[name] = listener; },
  closest(kind) { return (this.above ??= {})[kind] ??= {hidden: false}; },
  append: nothing, toggleAttribute: nothing, reset: nothing, scrollIntoView: nothing, decode: () => decoded,
});
let decode, decoded = new Promise((resolve) => { decode = resolve; });
globalThis.document = {getElementById: (id) => elements[id] ??= made(), createElement: made, addEventListener: nothing};
globalThis.matchMedia = () => ({matches: false});
globalThis.URL = {createObjectURL: () => "blob:", revokeObjectURL: nothing};
const taxon = {name: "Rosa", lineage: "Rosa", probability: 0.5};
const answer = {path: {genus: taxon}, ranks: {genus: [taxon]}, metadata: [], calibrated: false};
const model = {limits: {bytes: 1e6}, taxa_of_rank: {genus: 1}, components: ["TEMPORAL"], untrained: ["hour"], checklists: [], regions: []};
globalThis.fetch = async (path, asked) => {
  if (asked) sent = [...asked.body.keys()];
  return {ok: true, json: async () => path === "model" ? model : answer};
};
"""


def run(scenario: str) -> dict:
    """Return what a scenario writes to `shown`, after the script of the page."""
    script = re.search(r"<script>(.*)</script>", PAGE, re.S)[1]
    code = f"{ELEMENTS}\nconst choose = (() => {{{script}\nreturn choose;}})();\n"
    code += "const click = (id) => elements[id].listeners.click(), wait = () => new Promise((resolve) => setTimeout(resolve, 20));\n"
    code += f"(async () => {{ await wait(); {scenario}; console.log(JSON.stringify(shown)); }})();"
    done = subprocess.run(["node", "-e", code], capture_output=True, text=True, check=False, encoding="utf-8")
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_the_map_shows_the_world_again():
    shown = run("click('closer'); shown.close = elements.map.viewBox; click('forget'); shown.cleared = elements.map.viewBox")
    assert shown == {"close": "-90 -45 180 90", "cleared": "-180 -90 360 180"}


@pytest.mark.parametrize("clear, answers", [("", 1), ("click('forget');", 0)])
def test_an_answer_that_waits_for_the_preview_is_not_shown_afterwards(clear: str, answers: int):
    photograph = "{name: 'a.jpg', size: 1}"
    shown = run(f"choose({photograph}); await wait(); {clear} decode(); await wait(); shown.answers = elements.answers.children.length")
    assert shown == {"answers": answers}


def test_a_field_of_metadata_that_the_model_does_not_read_is_hidden_and_not_sent():
    """The model reads the date; no training photograph had an hour."""
    given = "document.getElementById('date').value = '2026-05-01'; document.getElementById('time').value = '16:10';"
    hidden = "shown.hidden = ['time', 'date', 'uncertainty'].filter((id) => elements[id].closest('label').hidden)"
    shown = run(f"{given} choose({{name: 'a.jpg', size: 1}}); await wait(); {hidden}; shown.sent = sent")
    assert shown["hidden"] == ["time"] and "date" in shown["sent"] and "time" not in shown["sent"]
