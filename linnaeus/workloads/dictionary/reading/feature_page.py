"""Make HTML of a dictionary's features: a card for each feature, and the table of detectors.

A card has the density, the samples with the largest activities, the effects on the outputs, and the features with the most similar decoder
vectors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
import torch

from linnaeus.data.samples import Batch
from linnaeus.workloads.dictionary.dictionary_metrics import DENSE
from linnaeus.workloads.dictionary.reading.activity import Activity, FeatureTable, Reader, batch_of
from linnaeus.workloads.dictionary.reading.effects import Effect, effects
from linnaeus.workloads.dictionary.reading.feature_classes import Detector

NEAREST = 3  # most similar features on a card
STYLE = """<style>
.features{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,520px),1fr));gap:16px;align-items:start}
.feature{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:14px 16px;min-width:0;scroll-margin-top:12px}
.feature:target{outline:2px solid var(--lead)}
.feature h3{margin:0 0 2px;font-size:16px}.feature .about{color:var(--soft);font-size:12.5px;margin:0 0 10px}
.examples{display:grid;grid-template-columns:repeat(6,1fr);gap:8px;margin:0 0 10px;padding:0;list-style:none}
.examples>li{min-width:0;font-size:12px;color:var(--soft)}.examples.wide{grid-template-columns:minmax(0,1fr);gap:4px}
.examples .photo{position:relative;aspect-ratio:1;border-radius:6px;overflow:hidden;background:var(--rule)}
.examples .photo img{width:100%;height:100%;object-fit:cover;display:block;image-rendering:auto}
.examples .photo .heat{position:absolute;inset:0}.examples .photo:hover .heat,.examples .photo:focus .heat{opacity:0}
.examples span{display:block;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.examples .text{margin:0;padding:5px 9px;border-left:3px solid var(--rule);white-space:pre-wrap;overflow-wrap:anywhere;color:var(--ink);
font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.examples mark{color:inherit;border-radius:3px;background:color-mix(in srgb,var(--s1) calc(15% + 65%*var(--heat,0)),transparent)}
.examples .gear{margin:0;color:var(--ink)}.examples .gear table{width:auto;font-size:12px;margin:2px 0 6px}
.examples .gear td,.examples .gear th{padding:1px 8px 1px 0;text-align:left;border:0}.examples .gear .free{color:var(--soft)}
.examples .gear mark{display:inline-block;padding:0 6px;margin:1px 0}
.effect{display:grid;grid-template-columns:1fr 1fr;gap:2px 18px;font-size:13px;margin:0}
.effect div{display:flex;gap:8px;justify-content:space-between;min-width:0}
.effect .name{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.effect .up{color:var(--good)}.effect .down{color:var(--bad)}.effect b{font-variant-numeric:tabular-nums;white-space:nowrap}
.near{font-size:12.5px;color:var(--soft);margin:8px 0 0}
@media(max-width:520px){.effect{grid-template-columns:1fr}.examples{grid-template-columns:repeat(3,1fr)}}
.few{max-width:560px}
</style>"""


def strongest(table: FeatureTable, count: int) -> list[int]:
    """Return the numbers of at most `count` features, in descending order of energy (mean square of the activity).

    Features that are active in more than 10 % of the places come last, because they are the least specific. Features that are never active
    are left out."""
    order = np.lexsort((-table.energy, table.density > DENSE))
    return order[table.strength[order, 0] > 0][:count].tolist()


def feature_cards(
    reader: Reader, table: FeatureTable, features: Sequence[int], examples: int, best: Mapping[int, Detector], first: str
) -> str:
    """Return the cards of `features` as HTML.

    table: statistics over validation samples. examples: most samples on a card. best: feature -> best detector, for features that are a
    detector. first: prefix of the HTML ids of the cards."""
    decoder = torch.nn.functional.normalize(reader.trained.dictionary.decoder.detach(), dim=1)
    nearest = (decoder[list(features)] @ decoder.T).topk(min(NEAREST + 1, len(decoder)), dim=1)
    cards = []
    for row, feature in enumerate(features):
        near = [(int(i), float(c)) for c, i in zip(nearest.values[row], nearest.indices[row], strict=True) if int(i) != feature][:NEAREST]
        samples = [int(s) for s, strength in zip(table.sample[feature], table.strength[feature], strict=True) if strength > 0][:examples]
        host = batch_of(reader.run.workload.validation_set, samples)
        found = reader.read(host)
        parts = [
            f'<h3>Feature {feature}</h3><p class="about">{escape(_about(table, feature, best.get(feature)))}</p>',
            _examples(reader, host, found, feature),
            _effect(effects(reader, host, found, feature)),
            f'<p class="near">most similar: {", ".join(_link(i, cosine, features, first) for i, cosine in near)}</p>' if near else "",
        ]
        cards.append(f'<article class="feature" id="{first}{feature}">{"".join(parts)}</article>')
    return f'<div class="features">{"".join(cards)}</div>'


def _about(table: FeatureTable, feature: int, best: Detector | None) -> str:
    share = f"active in {100 * table.density[feature]:.3g} % of the places, at most {table.strength[feature, 0]:.3g}"
    place = "" if best is None or best.place is None else f" at place {best.place}"
    return share + ("" if best is None else f"; {best.group} {best.name}: F1 {best.f1:.2f}{place}")


def _examples(reader: Reader, host: Batch, found: Activity, feature: int) -> str:
    view = reader.run.workload.sample_view()
    strength = found.activities[:, :, feature].float().cpu().numpy()
    items = []
    for row in range(len(strength)):
        heat = strength[row].reshape(found.places) / max(float(strength[row].max()), 1e-30) if found.places else None
        items.append(f"<li>{view.html(host, row, heat)}</li>")
    wide = "" if "image" in host else " wide"
    return f'<ul class="examples{wide}">{"".join(items)}</ul>'


def _effect(found: Sequence[Effect]) -> str:
    """Return two columns of outputs as HTML: outputs that the feature raises on the left, outputs that it lowers on the right, the largest
    changes first. If `found` is empty, return a sentence that says so.

    found: effects in descending order of the change."""
    if not found:
        return '<p class="near">no output changes by more than 0.01 percentage points without the feature</p>'
    columns = [[one for one in found if one.change > 0], [one for one in found if one.change < 0][::-1]]
    cells = []
    for i in range(max(map(len, columns))):
        for column, class_ in zip(columns, ("up", "down"), strict=True):
            if i < len(column):
                one = column[i]
                title = escape(f"{one.group} {one.output}")
                change = f"{100 * one.change:+.1f}" if abs(one.change) >= 0.0005 else f"{100 * one.change:+.2f}"
                name = f'<span class="name" title="{title}">{escape(one.output)}</span>'
                cells.append(f'<div>{name}<b class="{class_}">{change} pp</b></div>')
            else:
                cells.append("<div></div>")
    return f'<div class="effect">{"".join(cells)}</div>'


def _link(feature: int, cosine: float, shown: Sequence[int], first: str) -> str:
    name = f'<a href="#{first}{feature}">{feature}</a>' if feature in shown else str(feature)
    return f"{name} (cosine {cosine:.2f})"


def detector_table(found: Sequence[Detector], shown: Sequence[int], first: str, most: int = 40) -> str:
    """Return an HTML table of the first `most` detectors in `found`. A feature with a card is a link to it.

    shown: features that have a card. first: prefix of the HTML ids of the cards."""
    rows = []
    for one in found[:most]:
        feature = f'<a href="#{first}{one.feature}">{one.feature}</a>' if one.feature in shown else str(one.feature)
        numbers = "".join(f"<td>{'–' if math.isnan(value) else f'{value:.3f}'}</td>" for value in (one.precision, one.recall, one.f1))
        rows.append(
            f"<tr><td>{escape(one.name)}</td><td>{escape(one.group)}</td><td>{feature}</td><td>{one.validation_rows}</td>{numbers}</tr>"
        )
    head = "".join(f"<th>{name}</th>" for name in ("taxon", "rank", "feature", "rows", "precision", "recall", "F1"))
    return f'<div class="card"><table><tr>{head}</tr>{"".join(rows)}</table></div>'
