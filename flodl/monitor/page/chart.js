"use strict";
/* A line chart over epochs, and the small curves of tiles. */

const SVG = document.getElementById("mark").namespaceURI;
const DASHES = ["", "7 4", "2 4"];

function svgElement(tag, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** The epoch pointed at, shared by all charts so that their crosshairs move together. */
class Cursor {
  #listeners = [];
  epoch = null;
  owner = null;

  watch(listener) {
    this.#listeners.push(listener);
  }

  move(epoch, owner) {
    if (epoch === this.epoch && owner === this.owner) return;
    [this.epoch, this.owner] = [epoch, owner];
    for (const listener of this.#listeners) listener();
  }
}

class LineChart {
  #hidden = new Set();
  #log = false;
  #scales = null;
  #epochs = [];

  constructor(title, cursor) {
    this.cursor = cursor;
    this.series = [];
    const id = `chart-${(LineChart.count = (LineChart.count || 0) + 1)}`;
    this.title = element("h3", { id });
    this.logButton = element("button", { type: "button", className: "toggle", textContent: "log scale" });
    this.logButton.addEventListener("click", () => this.#toggleLog());
    this.description = element("p", { id: `${id}-text`, className: "unseen" });
    this.svg = svgElement("svg", { "aria-hidden": "true", height: 250 });
    this.readout = element("div", { className: "readout", hidden: true });
    this.readout.setAttribute("aria-hidden", "true");
    // A slider over the epochs: arrow keys move it, and its value text is what a reader speaks.
    this.plot = element("div", { className: "plot", tabIndex: 0 }, this.svg, this.readout);
    for (const [name, value] of [
      ["role", "slider"],
      ["aria-labelledby", id],
      ["aria-describedby", `${id}-text`],
      ["aria-orientation", "horizontal"],
    ]) this.plot.setAttribute(name, value);
    this.legend = element("ul", { className: "legend" });
    const head = element("div", { className: "chart-head" }, this.title, this.logButton);
    this.card = element("article", { className: "card chart" }, head, this.description, this.plot, this.legend);
    this.#listen();
    this.show(title, []);
  }

  /** Show these series; what was hidden or set before stays so. */
  show(title, series) {
    this.series = series;
    this.title.textContent = title;
    this.#epochs = [...new Set(series.flatMap((one) => one.points.map((point) => point.epoch)))];
    this.#epochs.sort((a, b) => a - b);
    this.description.textContent = series.map(describe).join(" ");
    const known = this.#epochs.length;
    this.plot.setAttribute("aria-valuemin", known ? this.#epochs[0] : 0);
    this.plot.setAttribute("aria-valuemax", known ? this.#epochs[known - 1] : 0);
    this.#drawLegend();
    this.draw();
  }

  draw() {
    this.width = this.plot.clientWidth;
    const width = Math.max(200, this.width || 600);
    const height = this.card.parentElement && this.card.offsetWidth > 800 ? 300 : 240;
    const shown = this.series.filter((one) => !this.#hidden.has(one.name));
    const values = shown.flatMap((one) => one.points.map((point) => point.value)).filter((v) => v !== null);
    this.#offerLog(values);
    const log = this.#log && !this.logButton.disabled;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("height", height);
    this.svg.replaceChildren();
    const usable = log ? values.filter((value) => value > 0) : values;
    this.#scales = this.#epochs.length && usable.length ? this.#measure(usable, log, width, height) : null;
    if (!this.#scales) {
      const text = shown.length ? "no finite value" : "all curves are hidden";
      this.svg.append(svgElement("text", { x: width / 2, y: height / 2, class: "empty" }, text));
    } else {
      this.#drawAxes();
      for (const one of shown) this.#drawCurve(one);
      this.marks = svgElement("g");
      this.svg.append(this.marks);
    }
    this.#drawCursor();
  }

  #measure(values, log, width, height) {
    let [low, high] = [Infinity, -Infinity];
    for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
    const lines = height / 48;
    const y = log ? logScale(low, high, lines) : linearScale(low, high, lines);
    const left = 14 + 6.6 * Math.max(...y.ticks.map(([, label]) => label.length));
    const box = { left, right: width - 14, top: 10, bottom: height - 26 };
    const x = epochScale(this.#epochs[0], this.#epochs[this.#epochs.length - 1], (box.right - left) / 76);
    return {
      box, x, y, log,
      px: (epoch) => left + x.at(epoch) * (box.right - left),
      py: (value) => box.bottom - y.at(value) * (box.bottom - box.top),
    };
  }

  #drawAxes() {
    const { box, x, y, px, py } = this.#scales;
    const grid = svgElement("g", { class: "grid" });
    for (const [at, label] of y.ticks) {
      const line = Math.round(py(at)) + 0.5;
      grid.append(svgElement("line", { x1: box.left, x2: box.right, y1: line, y2: line }));
      grid.append(svgElement("text", { x: box.left - 8, y: line + 4, "text-anchor": "end" }, label));
    }
    for (const [at, label] of x.ticks) {
      grid.append(svgElement("text", { x: px(at), y: box.bottom + 18, "text-anchor": "middle" }, label));
    }
    const floor = box.bottom + 0.5;
    grid.append(svgElement("line", { class: "axis", x1: box.left, x2: box.right, y1: floor, y2: floor }));
    this.svg.append(grid);
  }

  #drawCurve(series) {
    const { box, px, py, log } = this.#scales;
    const look = this.#look(series);
    const usable = (value) => value !== null && (!log || value > 0);
    const points = series.points.map(({ epoch, value }) => [px(epoch), usable(value) ? py(value) : null]);
    const group = svgElement("g", { style: `stroke:${look.color}` });
    if (points.length > (box.right - box.left) / 2) group.classList.add("dense");
    for (const run of curveRuns(points, box.right - box.left)) {
      if (run.length === 1) {
        group.append(svgElement("circle", { cx: run[0][0], cy: run[0][1], r: 3, style: `fill:${look.color}` }));
      } else {
        group.append(svgElement("path", { class: "curve", d: pathOf(run), "stroke-dasharray": look.dash }));
      }
    }
    if (series.best && usable(series.best.value) && series.points.length > 1) {
      const at = { cx: px(series.best.epoch), cy: py(series.best.value) };
      group.append(svgElement("circle", { class: "best", r: 4, ...at }));
    }
    for (const { epoch, value } of series.points) {
      if (value !== null) continue;
      const at = px(epoch);
      group.append(svgElement("line", { class: "broken", x1: at, x2: at, y1: box.bottom - 7, y2: box.bottom }));
    }
    this.svg.append(group);
  }

  #drawCursor() {
    const epoch = this.cursor.epoch;
    this.marks?.replaceChildren();
    const known = this.#scales && epoch !== null && this.#epochs.includes(epoch);
    this.readout.hidden = !known || this.cursor.owner !== this;
    if (!known) return;
    const { box, px, py, log } = this.#scales;
    const at = px(epoch);
    this.marks.append(svgElement("line", { class: "cursor", x1: at, x2: at, y1: box.top, y2: box.bottom }));
    const rows = [element("b", { textContent: `Epoch ${epoch}` })];
    for (const one of this.series) {
      const value = one.at(epoch);
      if (this.#hidden.has(one.name) || value === undefined) continue;
      const look = this.#look(one);
      rows.push(element("span", {}, look.swatch(), element("i", { textContent: one.name }), formatMetric(value)));
      if (value !== null && (!log || value > 0)) {
        this.marks.append(svgElement("circle", { class: "point", cx: at, cy: py(value), r: 4, style: `fill:${look.color}` }));
      }
    }
    this.readout.replaceChildren(...rows);
    const leftHalf = at < (box.left + box.right) / 2;
    this.readout.style.left = leftHalf ? `${at + 14}px` : "auto";
    this.readout.style.right = leftHalf ? "auto" : `${this.plot.clientWidth - at + 14}px`;
    this.plot.setAttribute("aria-valuenow", epoch);
    this.plot.setAttribute("aria-valuetext", this.#spoken(epoch));
  }

  #spoken(epoch) {
    const shown = this.series.filter((one) => !this.#hidden.has(one.name) && one.at(epoch) !== undefined);
    return [`Epoch ${epoch}`, ...shown.map((one) => `${one.name} ${formatMetric(one.at(epoch))}`)].join(", ");
  }

  #drawLegend() {
    this.legend.hidden = this.series.length < 2;
    this.legend.replaceChildren(
      ...this.series.map((one) => {
        const label = element("span", { textContent: one.name });
        const button = element("button", { type: "button", title: one.name }, this.#look(one).swatch(), label);
        button.setAttribute("aria-pressed", String(!this.#hidden.has(one.name)));
        button.addEventListener("click", () => {
          if (!this.#hidden.delete(one.name)) this.#hidden.add(one.name);
          button.setAttribute("aria-pressed", String(!this.#hidden.has(one.name)));
          this.draw();
        });
        return element("li", {}, button);
      }),
    );
  }

  #look(series) {
    const place = this.series.indexOf(series);
    const color = `var(--series-${place % 8})`;
    const dash = DASHES[Math.floor(place / 8) % DASHES.length];
    const border = dash ? "dashed" : "solid";
    const style = `border-top-color:${color};border-top-style:${border}`;
    const swatch = () => {
      const made = element("span", { className: "swatch" });
      made.style.cssText = style;
      return made;
    };
    return { color, dash, swatch };
  }

  #offerLog(values) {
    const possible = values.some((value) => value > 0);
    this.logButton.disabled = !possible;
    this.logButton.title = possible ? "Logarithmic scale; values at or below 0 are left out" : "No value is above 0";
    this.logButton.setAttribute("aria-pressed", String(this.#log && possible));
  }

  #toggleLog() {
    this.#log = !this.#log;
    this.draw();
  }

  #listen() {
    this.cursor.watch(() => this.#drawCursor());
    this.plot.addEventListener("pointermove", (event) => {
      if (!this.#scales) return;
      const x = event.clientX - this.plot.getBoundingClientRect().left;
      const far = (epoch) => Math.abs(this.#scales.px(epoch) - x);
      this.cursor.move(this.#epochs.reduce((near, epoch) => (far(epoch) < far(near) ? epoch : near)), this);
    });
    this.plot.addEventListener("pointerleave", () => this.cursor.move(null, null));
    this.plot.addEventListener("blur", () => this.cursor.move(null, null));
    this.plot.addEventListener("keydown", (event) => {
      const last = this.#epochs.length - 1;
      const here = this.cursor.owner === this ? this.#epochs.indexOf(this.cursor.epoch) : -1;
      const page = Math.max(1, Math.round(last / 10));
      const moves = {
        ArrowRight: here + 1, ArrowUp: here + 1, ArrowLeft: here < 0 ? last : here - 1, ArrowDown: here - 1,
        PageUp: here + page, PageDown: here - page, Home: 0, End: last,
      };
      if (event.key === "Escape") this.cursor.move(null, null);
      if (!(event.key in moves) || last < 0) return;
      event.preventDefault();
      this.cursor.move(this.#epochs[Math.min(last, Math.max(0, moves[event.key]))], this);
    });
    // Drawing changes the height, which the observer must not see as a change of its own making.
    new ResizeObserver(() => {
      if (this.plot.clientWidth !== this.width) requestAnimationFrame(() => this.draw());
    }).observe(this.plot);
  }
}

function describe(series) {
  const [first, last] = [series.points[0], series.last];
  const best = series.best ? `, best ${formatMetric(series.best.value)} at epoch ${series.best.epoch}` : "";
  if (first === last) return `${series.name}: ${formatMetric(first.value)} at epoch ${first.epoch}.`;
  return `${series.name}: from ${formatMetric(first.value)} at epoch ${first.epoch} to ${formatMetric(last.value)} at epoch ${last.epoch}${best}.`;
}

/** A small curve without axes; `range` fixes what its bottom and top mean. */
function sparkline(values, { width, height, range = null, area = false }) {
  const svg = svgElement("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const finite = values.filter((value) => value !== null && value !== undefined);
  if (!finite.length) return svg;
  const [low, high] = range || finite.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
  const x = (index) => (values.length > 1 ? (index / (values.length - 1)) * width : width);
  const y = (value) => (high > low ? height - 1 - ((value - low) / (high - low)) * (height - 2) : height / 2);
  const points = values.map((value, index) => [x(index), value === null || value === undefined ? null : y(value)]);
  for (const run of curveRuns(points, width)) {
    const line = run.length > 1 ? run : [[0, run[0][1]], [width, run[0][1]]].slice(values.length > 1 ? 1 : 0);
    if (area && line.length > 1) {
      const [start, end] = [line[0][0], line[line.length - 1][0]];
      svg.append(svgElement("path", { class: "area", d: `${pathOf(line)}L${end} ${height}L${start} ${height}Z` }));
    }
    svg.append(svgElement("path", { d: pathOf(line) }));
  }
  return svg;
}
