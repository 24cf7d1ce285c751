"""Make the HTML document of report.html, with its style sheet and the script that shows values under the mouse pointer. The page makes no
network request."""

from html import escape

# The browser enforces this policy: the page loads nothing from anywhere, whatever a section of a workload contains.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; font-src data:"

STYLE = """
:root{--paper:#f6f5f1;--card:#fff;--ink:#22281f;--soft:#6a7166;--rule:#e2e1da;--lead:#2f6b46;--good:#2f6b46;--bad:#a8442e;
--s0:#2f6b46;--s1:#c9772b;--s2:#3b74a8;--s3:#8a5a9e;--s4:#b3402f;--s5:#6f8f2d;--s6:#2b8f8a;--s7:#8d7355}
@media(prefers-color-scheme:dark){:root{--paper:#161a16;--card:#1e231f;--ink:#e6e8e1;--soft:#9aa295;--rule:#333a33;--lead:#7fc79a;
--good:#7fc79a;--bad:#ea8f78;--s0:#7fc79a;--s1:#e8a45c;--s2:#7db2e0;--s3:#c39ad6;--s4:#ea8f78;--s5:#b3cf72;--s6:#6fcac4;--s7:#c7ac8c}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
main{max-width:1180px;margin:0 auto;padding:40px 28px 72px}
h1{font:600 30px/1.2 Georgia,"Times New Roman",serif;margin:0 0 6px}
h2{font:600 20px/1.3 Georgia,"Times New Roman",serif;margin:44px 0 14px}
h3{font-size:14px;margin:22px 0 8px}
.sub{color:var(--soft);font-size:13.5px}.sub code{font-size:12.5px}
.status{display:inline-block;padding:1px 10px;margin-right:10px;border-radius:99px;color:#fff;background:var(--soft);font-size:12.5px}
.status.finished,.status.stopped_early{background:#2f6b46}.status.failed{background:#a8442e}.status.running{background:#3b74a8}
.status.error{background:#a8442e}.status.warning{background:#8a6414}
.status.note{background:#3b74a8;color:#fff;margin-left:0}
.hero{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:14px;margin-top:26px}
.hero div,figure,.card{background:var(--card);border:1px solid var(--rule);border-radius:10px}
.hero div{padding:16px 18px}.hero b{display:block;font:600 29px/1.15 Georgia,serif;color:var(--lead);font-variant-numeric:tabular-nums}
.hero span{font-size:13px}.hero small{display:block;color:var(--soft);font-size:12px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:16px}
figure{margin:0;padding:14px 14px 8px;position:relative}
figcaption{font-weight:600;font-size:14px}.note{font-weight:400;color:var(--soft);margin-left:8px;font-size:12.5px}
.legend{min-height:20px;font-size:12.5px;color:var(--soft)}.key{margin-right:14px;white-space:nowrap}
.key i{display:inline-block;width:14px;height:3px;border-radius:2px;margin-right:5px;vertical-align:middle}
svg{width:100%;height:auto;display:block}
figure .grid{stroke:var(--rule);stroke-width:1}figure .axis{fill:var(--soft);font-size:11px;font-variant-numeric:tabular-nums}
figure .curve{stroke-width:1.9;stroke-linecap:round}figure .faint{stroke-width:1;opacity:.35}
.cursor{stroke:var(--soft);stroke-width:1;stroke-dasharray:3 3}
.tip{position:absolute;pointer-events:none;background:var(--card);border:1px solid var(--rule);border-radius:6px;padding:5px 9px;
font-size:12px;line-height:1.45;box-shadow:0 2px 10px #0002;white-space:nowrap;z-index:2}
.tip i{display:inline-block;width:8px;height:8px;border-radius:50%;margin-right:6px}
.card{padding:6px 18px;overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:14px}
th,td{padding:7px 12px;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
tr:last-child td{border-bottom:0}th{font-weight:600;color:var(--soft);font-size:12.5px}
th:first-child,td:first-child{text-align:left;padding-left:0}
.delta{color:var(--soft);font-size:12px;margin-left:6px}.delta.bad{color:var(--bad)}.delta.good{color:var(--good)}
details{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:10px 18px;margin-top:12px}
summary{cursor:pointer;font-weight:600;font-size:14px}
pre{overflow-x:auto;font-size:12.5px;line-height:1.45;margin:12px 0 4px}
.picture{background:#fff;border:1px solid var(--rule);border-radius:10px;padding:14px;overflow-x:auto}
.empty{color:var(--soft)}a{color:var(--lead)}
th.words,td.words{text-align:left;white-space:normal}
.gallery{display:grid;grid-template-columns:repeat(auto-fill,minmax(176px,1fr));gap:12px;align-items:start}
.gallery figure{padding:8px;overflow-wrap:anywhere}.gallery .note{display:block;margin:0}.gallery img{border-radius:6px}
.gallery .none{padding:40px 8px;text-align:center;color:var(--soft);border:1px dashed var(--rule);border-radius:6px}
img{max-width:100%}
@media(prefers-color-scheme:dark){.picture{border-color:#ccc;filter:invert(.9) hue-rotate(180deg)}}
@media(max-width:700px){td:first-child{white-space:normal;min-width:9em}}
@media print{body{background:#fff}figure,.hero div,.card{break-inside:avoid}}
"""
STYLE += "".join(f".s{i}{{stroke:var(--s{i})}}.dot.s{i},.b{i}{{fill:var(--s{i});background:var(--s{i})}}" for i in range(8))

SCRIPT = """
for (const svg of document.querySelectorAll('svg[data-series]')) {
  const series = JSON.parse(svg.dataset.series), figure = svg.closest('figure');
  const tip = document.createElement('div'); tip.className = 'tip'; tip.hidden = true; figure.append(tip);
  const cursor = document.createElementNS('http://www.w3.org/2000/svg', 'line');
  cursor.setAttribute('class', 'cursor'); svg.append(cursor);
  const hide = () => { tip.hidden = true; cursor.style.display = 'none'; };
  const near = (points, x) => points.reduce((a, b) => Math.abs(b[1] - x) < Math.abs(a[1] - x) ? b : a);
  hide(); svg.onpointerleave = hide;
  svg.onpointermove = event => {
    const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * scale, found = series.map(s => [s, near(s.p, x)]);
    const at = found.reduce((a, b) => Math.abs(b[1][1] - x) < Math.abs(a[1][1] - x) ? b : a)[1];
    for (const [k, v] of [['x1', at[1]], ['x2', at[1]], ['y1', 12], ['y2', svg.viewBox.baseVal.height - 34]]) cursor.setAttribute(k, v);
    cursor.style.display = ''; tip.replaceChildren('step ' + at[0].toLocaleString('en-US'));
    for (const [s, p] of found) {
      if (Math.abs(p[1] - at[1]) > 12) continue;
      const row = document.createElement('div'), dot = document.createElement('i');
      dot.className = 'b' + s.c; row.append(dot, s.name + '  ' + p[2]); tip.append(row);
    }
    tip.hidden = false;
    const left = at[1] / scale + box.left - figure.getBoundingClientRect().left;
    tip.style.left = Math.min(left + 14, figure.clientWidth - tip.offsetWidth - 6) + 'px'; tip.style.top = '58px';
  };
}
"""


def page(title: str, body: str) -> str:
    """Return an HTML document with the given title and the HTML `body`, which is inserted without escaping."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><main>\n{body}\n</main><script>{SCRIPT}</script></body></html>\n"
    )
