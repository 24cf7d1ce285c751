'use strict';
const root = document.documentElement, tip = document.createElement('div');
root.classList.add('js');
tip.className = 'tip'; tip.hidden = true; tip.setAttribute('role', 'status'); tip.setAttribute('aria-live', 'polite');
document.body.append(tip);

function place(x, y) {
  tip.hidden = false;
  tip.style.left = Math.max(6, Math.min(x + 14, innerWidth - tip.offsetWidth - 8)) + 'px';
  tip.style.top = (y + 18 + tip.offsetHeight > innerHeight ? Math.max(4, y - tip.offsetHeight - 12) : y + 18) + 'px';
}
const hide = () => { tip.hidden = true; };

// Words and marks with an explanation: under the pointer, and with the keyboard focus. A finger leaves the mark at once, so the text stays.
const about = event => event.target.closest && event.target.closest('[data-about]');
function explain(mark, name) {
  tip.textContent = (name ? name + ': ' : '') + mark.dataset.about;
  const box = mark.getBoundingClientRect();
  place(box.left, box.bottom - 12);
}
for (const [enter, leave] of [['pointerover', 'pointerout'], ['focusin', 'focusout']]) {
  document.addEventListener(enter, event => { if (about(event)) explain(about(event)); });
  document.addEventListener(leave, event => { if (about(event) && event.pointerType !== 'touch') hide(); });
}
document.addEventListener('pointerdown', event => { if (!about(event) && !event.target.closest('svg[data-series]')) hide(); });
document.addEventListener('touchmove', hide, {passive: true});
document.addEventListener('keydown', event => { if (event.key === 'Escape') hide(); });

const keys = {ArrowRight: 1, ArrowLeft: -1, PageDown: 20, PageUp: -20, Home: -1e9, End: 1e9};
const moved = (position, by, count) => Math.max(0, Math.min(count - 1, position + by));

// Charts of dots and texts of tokens are one tab stop; arrow keys move from mark to mark.
for (const group of document.querySelectorAll('[data-marks]')) {
  let marks, position = -1;
  const leave = () => { if (marks && position >= 0) marks[position].classList.remove('at'); hide(); };
  group.onblur = leave;
  group.onkeydown = event => {
    if (!keys[event.key]) return;
    event.preventDefault();
    if (!marks) {
      marks = [...group.querySelectorAll('[data-about]')];
      if (group.viewBox) {
        const left = new Map(marks.map(mark => [mark, mark.getBBox().x + mark.getBBox().width / 2]));
        marks.sort((a, b) => left.get(a) - left.get(b));
      }
    }
    leave();
    if (!marks.length) return;
    position = moved(position, keys[event.key], marks.length);
    marks[position].classList.add('at'); marks[position].scrollIntoView({block: 'nearest'});
    explain(marks[position], marks[position].textContent.trim());
  };
}

// Charts: the values of the nearest step under the pointer; arrow keys move from step to step.
function scaled([low, high, start, end, log], value) {
  const f = log ? Math.log : v => v;
  return start + (f(value) - f(low)) / (f(high) - f(low)) * (end - start);
}
function nearest(points, step) {
  let low = 0, high = points.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (points[middle][0] < step) low = middle; else high = middle; }
  return Math.abs(points[low][0] - step) <= Math.abs(points[high][0] - step) ? points[low] : points[high];
}
for (const svg of document.querySelectorAll('svg[data-series]')) {
  let series, cursor, steps, position = -1;
  const x = JSON.parse(svg.dataset.x), y = JSON.parse(svg.dataset.y), share = svg.dataset.share === '1';
  const show = v => share ? (100 * v).toFixed(1) + ' %' : String(+v.toPrecision(4));
  const prepare = () => {
    if (series) return;
    series = JSON.parse(svg.dataset.series);
    steps = [...new Set(series.flatMap(s => s.p.map(p => p[0])))].sort((a, b) => a - b);
    cursor = document.createElementNS('http://www.w3.org/2000/svg', 'line');
    cursor.setAttribute('class', 'cursor'); svg.append(cursor);
  };
  const move = step => {
    const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
    const found = series.map(s => [s, nearest(s.p, step)]);
    const at = found.reduce((a, b) => Math.abs(b[1][0] - step) < Math.abs(a[1][0] - step) ? b : a)[1][0], px = scaled(x, at);
    for (const [k, v] of [['x1', px], ['x2', px], ['y1', y[3]], ['y2', y[2]]]) cursor.setAttribute(k, v);
    cursor.style.display = ''; tip.replaceChildren('step ' + at.toLocaleString('en-US'));
    for (const [s, p] of found) {
      if (Math.abs(scaled(x, p[0]) - px) > 12) continue;
      const row = document.createElement('div'), dot = document.createElement('i');
      dot.className = 'b' + s.c; row.append(dot, s.name + '  ' + show(p[1])); tip.append(row);
    }
    place(box.left + px * scale, box.top + 30);
  };
  const leave = () => { if (cursor) cursor.style.display = 'none'; hide(); };
  svg.onpointermove = svg.onpointerdown = event => {
    prepare();
    const box = svg.getBoundingClientRect(), px = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
    move(x[0] + (px - x[2]) / (x[3] - x[2]) * (x[1] - x[0]));
  };
  svg.onpointerleave = event => { if (event.pointerType !== 'touch') leave(); };
  svg.onblur = leave;
  svg.onkeydown = event => {
    if (!keys[event.key]) return;
    prepare(); event.preventDefault();
    position = moved(position, keys[event.key], steps.length); move(steps[position]);
  };
}

// Tables: a button in each heading sorts by its column.
for (const table of document.querySelectorAll('table.sortable')) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement('button');
    button.type = 'button'; button.append(...head.childNodes); head.append(button);
    if (!button.textContent.trim()) button.setAttribute('aria-label', 'sort by name');
    const word = button.querySelector('[data-about]');
    if (word) { button.dataset.about = word.dataset.about; word.replaceWith(word.textContent); }
    button.onclick = () => {
      const value = row => row.cells[column].dataset.v;
      const filled = [...body.rows].map(value).filter(v => v !== undefined);
      const numbers = filled.every(v => v !== '' && !isNaN(v)), first = numbers ? 'descending' : 'ascending';
      const order = head.getAttribute('aria-sort') === first ? (numbers ? 'ascending' : 'descending') : first;
      const sign = order === 'ascending' ? 1 : -1;
      heads.forEach(h => h.removeAttribute('aria-sort')); head.setAttribute('aria-sort', order);
      const rows = [...body.rows].sort((a, b) => {
        const p = value(a), q = value(b);
        if (p === undefined || q === undefined) return (p === undefined) - (q === undefined);
        return sign * (numbers ? p - q : p.localeCompare(q));
      });
      const shown = rows.length - body.querySelectorAll('.rest').length;
      rows.forEach((row, i) => row.classList.toggle('rest', i >= shown));
      body.append(...rows);
    };
  });
}
for (const button of document.querySelectorAll('button.more')) {
  button.onclick = () => { button.previousElementSibling.classList.add('all'); button.remove(); };
}

const theme = document.querySelector('.theme');
if (theme) theme.onclick = () => {
  const dark = getComputedStyle(root).colorScheme === 'dark' || (root.style.colorScheme === '' && matchMedia('(prefers-color-scheme: dark)').matches);
  root.style.colorScheme = dark ? 'light' : 'dark';
};
const opened = [], printed = 'details:not([open]):not(.tree details), .tree > details:not([open]), .tree > details > details:not([open])';
addEventListener('beforeprint', () => document.querySelectorAll(printed).forEach(d => { d.open = true; opened.push(d); }));
addEventListener('afterprint', () => opened.splice(0).forEach(d => { d.open = false; }));
