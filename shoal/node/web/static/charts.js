// Charts drawn by hand: SVG lines, and bars made of boxes. Text enters through textContent only.

const SVG = "http://www.w3.org/2000/svg";

/** Makes an element; `text` is never markup. */
export function make(tag, className = "", text = null) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== null) element.textContent = text;
  return element;
}

function draw(parent, tag, attributes, text = null) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  if (text !== null) element.textContent = text;
  parent.append(element);
  return element;
}

/** Replaces what is in `host` by a sentence in a dashed box. */
export function empty(host, text) {
  host.replaceChildren(make("p", "empty", text));
}

/** Round steps (1, 2, 2.5, 5 times a power of ten) that cover lo..hi; whole numbers if asked for. */
function ticks(lo, hi, count, wholeNumbers) {
  const raw = (hi - lo) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  let step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  if (wholeNumbers) step = Math.max(1, Math.ceil(step));
  const found = [];
  for (let i = Math.ceil(lo / step - 1e-9); i * step <= hi + step * 1e-9; i += 1) found.push(i * step);
  return found;
}

function range(values, fromZero) {
  let lo = Math.min(...values);
  let hi = Math.max(...values);
  if (fromZero) lo = Math.min(lo, 0);
  if (hi === lo) return fromZero ? [0, hi || 1] : [lo - 0.5, hi + 0.5];
  const pad = (hi - lo) * 0.06;
  return [fromZero ? lo : lo - pad, hi + pad];
}

/**
 * A line chart that fills `host` and tells values under the pointer.
 *
 * series: [{ name, look, points: [[x, y], ...] }], look is one of "one", "two", "three", and " dashed".
 * options: { x, y: formats; fromZero; wholeX; label: for screen readers }
 */
export function lineChart(host, series, options) {
  const shown = series.filter((s) => s.points.length > 0);
  if (shown.length === 0) return empty(host, options.none ?? "No rounds yet.");
  host.replaceChildren();
  const key = make("div", "key");
  host.append(key);
  const tell = keyTeller(key, shown, options);
  tell(null);
  const width = host.clientWidth || 500;
  const height = Math.max(90, (host.clientHeight || 230) - key.offsetHeight);
  const [left, right, top, bottom] = [54, 10, 10, 26];
  const points = shown.flatMap((s) => s.points);
  const [y0, y1] = range(points.map((p) => p[1]), options.fromZero);
  let [x0, x1] = [Math.min(...points.map((p) => p[0])), Math.max(...points.map((p) => p[0]))];
  if (x0 === x1) [x0, x1] = options.wholeX ? [x0 - 1, x1 + 1] : [0, x1 || 1];
  const px = (x) => left + ((x - x0) / (x1 - x0)) * (width - left - right);
  const py = (y) => height - bottom - ((y - y0) / (y1 - y0)) * (height - top - bottom);
  const svg = draw(host, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": options.label });
  for (const y of ticks(y0, y1, 5, false)) {
    draw(svg, "line", { class: "gridline", x1: left, x2: width - right, y1: py(y), y2: py(y) });
    draw(svg, "text", { x: left - 8, y: py(y) + 4, "text-anchor": "end" }, options.y(y));
  }
  draw(svg, "line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom });
  for (const x of ticks(x0, x1, Math.max(2, Math.floor(width / 110)), options.wholeX)) {
    const anchor = px(x) > width - 34 ? "end" : "middle";
    draw(svg, "text", { x: Math.min(px(x), width - right), y: height - 7, "text-anchor": anchor }, options.x(x));
  }
  for (const s of shown) {
    const path = s.points.map((p) => `${px(p[0]).toFixed(1)},${py(p[1]).toFixed(1)}`).join("L");
    if (s.area) {
      const [first, last] = [s.points[0], s.points[s.points.length - 1]];
      draw(svg, "path", { class: `area ${s.look}`, d: `M${px(first[0])},${py(y0)}L${path}L${px(last[0])},${py(y0)}Z` });
    }
    draw(svg, "path", { class: `s ${s.look}`, d: `M${path}` });
    if (s.points.length <= 40) {
      for (const p of s.points) draw(svg, "circle", { class: `dot ${s.look}`, cx: px(p[0]), cy: py(p[1]), r: 3.2 });
    }
  }
  addPointer(svg, shown, px, tell, { top, bottom: height - bottom });
}

/** Gives the function that writes the values at x, or the newest ones, into the key. */
function keyTeller(key, shown, options) {
  return (x) => {
    key.replaceChildren();
    if (x !== null) key.append(make("span", "", options.where(x)));
    for (const s of shown) {
      const item = make("span", `k ${s.look}`, `${s.name} `);
      const at = x === null ? s.points[s.points.length - 1] : s.points.find((p) => p[0] === x);
      item.append(make("strong", "", at ? options.value(at[1]) : "-"));
      key.append(item);
    }
  };
}

function addPointer(svg, shown, px, tell, box) {
  const cross = draw(svg, "line", { class: "cross", y1: box.top, y2: box.bottom, visibility: "hidden" });
  const xs = [...new Set(shown.flatMap((s) => s.points.map((p) => p[0])))];
  svg.addEventListener("pointermove", (event) => {
    const at = event.clientX - svg.getBoundingClientRect().left;
    const x = xs.reduce((best, one) => (Math.abs(px(one) - at) < Math.abs(px(best) - at) ? one : best));
    cross.setAttribute("x1", String(px(x)));
    cross.setAttribute("x2", String(px(x)));
    cross.setAttribute("visibility", "visible");
    tell(x);
  });
  svg.addEventListener("pointerleave", () => {
    cross.setAttribute("visibility", "hidden");
    tell(null);
  });
}

/**
 * Rows of boxes on one scale from 0 to `end`.
 *
 * rows: [{ name, title, fact, className, segments: [{ from, to, look, title }] }]
 */
export function barRows(host, rows, end) {
  host.replaceChildren(
    ...rows.map((row) => {
      const line = make("div", `row ${row.className ?? ""}`);
      const name = make("span", "name mono", row.name);
      name.title = row.title ?? row.name;
      const track = make("div", "track");
      for (const segment of row.segments) track.append(box(segment, end));
      line.append(name, track, make("span", "fact", row.fact ?? ""));
      return line;
    }),
  );
}

function box(segment, end) {
  const element = make("i", `seg ${segment.look}`);
  const from = Math.min(Math.max(segment.from / end, 0), 0.998);
  const to = Math.min(Math.max(segment.to / end, from), 1);
  element.style.left = `${(100 * from).toFixed(2)}%`;
  element.style.width = `${(100 * (to - from)).toFixed(2)}%`;
  if (segment.title) element.title = segment.title;
  return element;
}

/** A line of marks for the scale of `barRows`. */
export function scaleRow(end, format) {
  const line = make("div", "row");
  const scale = make("div", "scale");
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const mark = make("span", "", format(end * part));
    mark.style.left = `${100 * part}%`;
    scale.append(mark);
  }
  line.append(make("span"), scale, make("span", "fact"));
  return line;
}
