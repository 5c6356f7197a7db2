"use strict";
/* A line chart on a canvas: crosshair, zoom, logarithmic scale, and the same as a table. */

const TABLE_ROWS = 100;
const DRAG_PIXELS = 6;
const WIDE_PIXELS = 766;

/** Where the reader looks, shared by all charts of one unit: the place pointed at, and the zoom. */
class Focus {
  #listeners = [];
  x = null;
  owner = null;
  range = null;

  constructor(axis) {
    this.axis = axis;
  }

  watch(listener) {
    this.#listeners.push(listener);
  }

  point(x, owner) {
    if (x === this.x && owner === this.owner) return;
    [this.x, this.owner] = [x, owner];
    for (const listener of this.#listeners) listener("point");
  }

  zoom(range) {
    this.range = range;
    for (const listener of this.#listeners) listener("zoom");
    const { axis } = this;
    const [from, to] = range && axis.numbers ? [Math.ceil(range[0]), Math.floor(range[1])] : range || [];
    announce(range ? `zoomed to ${axis.label(from)} to ${axis.label(to)}` : "whole range");
  }
}

class LineChart {
  #log = false;
  #whole = false;
  #watched = new Set();
  #scales = null;
  #drag = null;
  #cursorFramed = false;
  #cursorDrawn = false;

  constructor(title, focus, options) {
    this.#attend(focus);
    this.options = options;
    this.series = [];
    this.xs = [];
    /** What the canvas shows, for those who cannot look at it. */
    this.drawn = [];
    const id = `chart-${(LineChart.count = (LineChart.count || 0) + 1)}`;
    this.title = element("h3", { id });
    const toggle = (text, act) => {
      const button = element("button", { type: "button", className: "toggle", textContent: text });
      button.addEventListener("click", act);
      return button;
    };
    this.resetButton = toggle("reset zoom", () => this.focus.zoom(null));
    this.logButton = toggle("log scale", () => this.#toggleLog());
    this.logButton.classList.add("log");
    // Offered where the scale leaves out values that lie far from all others.
    this.outlierButton = toggle("", () => this.#toggleOutliers());
    this.outlierButton.classList.add("outliers");
    this.outlierButton.hidden = true;
    this.tableButton = toggle("table", () => this.#toggleTable());
    this.tableButton.setAttribute("aria-pressed", "false");
    this.resetButton.hidden = true;
    this.description = element("p", { id: `${id}-text`, className: "unseen" });
    this.canvas = element("canvas", {}, "");
    this.overlay = element("canvas", { className: "overlay" });
    this.readout = element("div", { className: "readout", hidden: true });
    for (const one of [this.canvas, this.overlay, this.readout]) one.setAttribute("aria-hidden", "true");
    // A slider over epochs or steps: arrow keys move it, and its value text is what a reader speaks.
    this.plot = element("div", { className: "plot", tabIndex: 0 }, this.canvas, this.overlay, this.readout);
    for (const [name, value] of [
      ["role", "slider"],
      ["aria-labelledby", id],
      ["aria-describedby", `${id}-text`],
      ["aria-orientation", "horizontal"],
    ]) this.plot.setAttribute(name, value);
    this.legend = new Legend((name) => this.#look(name), () => this.draw());
    this.table = element("div", { className: "scroll chart-table", hidden: true, tabIndex: 0 });
    this.table.setAttribute("role", "region");
    this.table.setAttribute("aria-label", "The chart as a table");
    const head = element("div", { className: "chart-head" }, this.title, this.resetButton, this.outlierButton, this.logButton, this.tableButton);
    this.card = element("article", { className: "card chart" }, head, this.description, this.plot, this.legend.list, this.table);
    this.#listen();
    this.show(title, []);
  }

  /** Show these series on the axis of a focus; what was hidden or set before stays so. */
  show(title, series, focus = this.focus) {
    this.#attend(focus);
    const { axis } = focus;
    this.series = series.map((one) => axis.of(one));
    // The width is read before anything is written, so that reading it needs no layout.
    this.width ||= this.plot.clientWidth;
    if (this.title.textContent !== title) this.title.textContent = title;
    this.xs = merged(this.series.map((one) => one.xs));
    this.description.textContent = this.series.map((one) => describe(one, axis)).join(" ");
    this.plot.setAttribute("aria-valuemin", this.xs[0] ?? 0);
    this.plot.setAttribute("aria-valuemax", this.xs[this.xs.length - 1] ?? 0);
    this.legend.offer(series.map((one) => one.name));
    this.draw();
  }

  draw() {
    this.width ||= this.plot.clientWidth;
    const width = Math.max(200, this.width || 600);
    const height = this.width > WIDE_PIXELS ? 300 : 240;
    const context = prepare(this.canvas, width, height);
    const { axis, range } = this.focus;
    const shown = this.series.filter((one) => this.legend.shows(one.name));
    const values = shown.flatMap((one) => this.#visible(one.within(range), range));
    this.resetButton.hidden = !range;
    this.#offerLog(values);
    const log = this.#log && !this.logButton.disabled;
    const usable = log ? values.filter((value) => value > 0) : values;
    this.drawn = [];
    this.message = "";
    const scaled = usable.length > 0 && this.xs.some((x) => axis.has(x));
    const limits = scaled ? this.#limits(usable, log) : null;
    this.#offerOutliers(limits);
    this.#scales = scaled ? this.#measure(limits, log, width, height) : null;
    if (this.#scales) {
      this.#drawAxes(context);
      for (const one of shown) this.drawn.push(this.#drawCurve(context, one));
    } else {
      this.message = !shown.length ? "all curves are hidden" : range ? "nothing in this range" : "no finite value";
      Object.assign(context, { fillStyle: ink.get("soft"), textAlign: "center" });
      context.fillText(this.message, width / 2, height / 2);
    }
    this.#drawCursor();
    if (!this.table.hidden) this.#fillTable();
  }

  /** Finite values inside the range, as they are and smoothed. */
  #visible({ xs, ys }, range) {
    const { axis } = this.focus;
    const inside = (x) => axis.has(x) && (!range || (x >= range[0] && x <= range[1]));
    return ys.filter((y, index) => y !== null && inside(xs[index]));
  }

  /** What the scale shows, and how many values lie outside of it. */
  #limits(values, log) {
    const { low, high, outside } = robustLimits(log ? values.map(Math.log10) : values);
    const plain = values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
    if (this.#whole || !outside) return { low: plain[0], high: plain[1], outside };
    return { low: log ? 10 ** low : low, high: log ? 10 ** high : high, outside };
  }

  #measure({ low, high }, log, width, height) {
    const lines = height / 48;
    const y = log ? logScale(low, high, lines) : linearScale(low, high, lines);
    const left = 14 + 6.6 * Math.max(...y.ticks.map(([, label]) => label.length));
    const box = { left, right: width - 14, top: 10, bottom: height - 26, width, height };
    const { axis, range } = this.focus;
    const [first, last] = range || [this.xs[0], this.xs[this.xs.length - 1]];
    const start = axis.has(first) ? first : this.xs.find((at) => axis.has(at));
    const x = axis.scale(start, last, (box.right - left) / 76);
    return {
      box, x, y, log,
      px: (at) => left + x.at(at) * (box.right - left),
      // A value off the scale ends just outside of the plot: a canvas draws nothing at 1e300.
      py: (value) => box.bottom - Math.min(2, Math.max(-1, y.at(value))) * (box.bottom - box.top),
      back: (pixel) => x.back((pixel - left) / (box.right - left)),
    };
  }

  #drawAxes(context) {
    const { box, x, y, px, py } = this.#scales;
    this.ticks = [...y.ticks, ...x.ticks].map(([, label]) => label);
    context.fillStyle = ink.get("soft");
    context.lineWidth = 1;
    context.textAlign = "right";
    for (const [at, label] of y.ticks) {
      const line = Math.round(py(at)) + 0.5;
      strokeLine(context, box.left, line, box.right, line, ink.get("grid"));
      context.fillText(label, box.left - 8, line + 4);
    }
    context.textAlign = "left";
    context.fillText(this.focus.axis.title, 0, box.bottom + 18);
    context.textAlign = "center";
    let end = context.measureText(this.focus.axis.title).width;
    for (const [at, label] of x.ticks) {
      const half = context.measureText(label).width / 2;
      const middle = Math.min(px(at), box.width - half);
      if (middle - half < end + 6) continue;
      end = middle + half;
      context.fillText(label, middle, box.bottom + 18);
    }
    strokeLine(context, box.left, box.bottom + 0.5, box.right, box.bottom + 0.5, ink.get("line"));
  }

  #drawCurve(context, series) {
    const { box, px, py, log } = this.#scales;
    const { token, dash } = this.#look(series.name);
    const color = ink.get(token);
    const { xs, ys } = series.within(this.focus.range);
    const usable = (value) => value !== null && (!log || value > 0);
    const room = box.right - box.left;
    const { axis } = this.focus;
    const point = (x, value) => (axis.has(x) ? [px(x), usable(value) ? py(value) : null] : [0, null]);
    const runs = (values) => curveRuns(xs.map((x, index) => point(x, values[index])), room);
    const weight = this.options.smoothing;
    const raw = runs(ys);
    const smooth = weight > 0 ? runs(smoothed(ys, weight)) : null;
    const width = xs.length > room / 2 ? 1.2 : 1.9;
    context.save();
    context.beginPath();
    context.rect(box.left - 6, box.top - 6, room + 12, box.bottom - box.top + 12);
    context.clip();
    strokeRuns(context, raw, { color, dash, width: smooth ? 1 : width, alpha: smooth ? 0.28 : 1 });
    if (smooth) strokeRuns(context, smooth, { color, dash, width: 1.9 });
    const best = series.best && usable(series.best.y) && axis.has(series.best.x) && series.xs.length > 1 ? series.best : null;
    if (best) disc(context, px(best.x), py(best.y), 4, ink.get("card"), color);
    const broken = xs.filter((x, index) => ys[index] === null && axis.has(x));
    context.lineWidth = 2;
    for (const x of broken) strokeLine(context, px(x), box.bottom - 7, px(x), box.bottom, ink.get("bad"));
    const outside = this.#drawOutliers(context, color, xs, ys, usable);
    context.restore();
    return { name: series.name, raw, smooth, best, broken, outside, points: xs.length };
  }

  /** A triangle at the edge for each value that the scale leaves out; return their x. */
  #drawOutliers(context, color, xs, ys, usable) {
    const { box, px, y } = this.#scales;
    const far = [];
    context.fillStyle = color;
    ys.forEach((value, index) => {
      const at = usable(value) ? y.at(value) : 0;
      if ((at <= 1.001 && at >= -0.001) || !this.focus.axis.has(xs[index])) return;
      far.push(xs[index]);
      const [x, edge, tip] = [px(xs[index]), at > 1 ? box.top + 4 : box.bottom - 4, at > 1 ? -8 : 8];
      context.beginPath();
      context.moveTo(x - 5, edge);
      context.lineTo(x + 5, edge);
      context.lineTo(x, edge + tip);
      context.fill();
    });
    return far;
  }

  /** Draw the cursor in the next frame; many moves of a mouse are one. */
  #cursorLater() {
    if (this.#cursorFramed) return;
    this.#cursorFramed = true;
    requestAnimationFrame(() => {
      this.#cursorFramed = false;
      this.#drawCursor();
    });
  }

  #drawCursor() {
    const { x } = this.focus;
    const size = this.#scales ? this.#scales.box : { width: this.width, height: 240 };
    const wanted = x !== null || Boolean(this.#drag?.moved);
    // An overlay that was empty and stays so is not painted again.
    if (!wanted && !this.#cursorDrawn && this.overlay.style.height === `${size.height}px`) return;
    this.#cursorDrawn = wanted;
    const context = prepare(this.overlay, size.width, size.height);
    if (this.#drag?.moved) this.#drawSelection(context);
    const known = this.#scales && x !== null && this.#near(x) !== null;
    this.readout.hidden = !known || this.focus.owner !== this || Boolean(this.#drag?.moved);
    this.crosshair = Boolean(known);
    if (!known) return;
    const { box, px, py, log } = this.#scales;
    const at = px(x);
    context.setLineDash([3, 3]);
    strokeLine(context, at, box.top, at, box.bottom, ink.get("soft"));
    context.setLineDash([]);
    const { axis } = this.focus;
    const where = axis.numbers ? `${axis.head} ${x}` : axis.say(x);
    const rows = [element("b", { textContent: axis.numbers ? `${axis.head} ${axis.label(x)}` : where })];
    for (const { series, value } of this.#readings(x)) {
      const look = this.#look(series.name);
      rows.push(element("span", {}, swatch(look), element("i", { textContent: series.name }), formatMetric(value)));
      if (value !== null && (!log || value > 0)) disc(context, at, py(value), 4, ink.get(look.token), ink.get("card"));
    }
    this.readout.replaceChildren(...rows);
    const leftHalf = at < (box.left + box.right) / 2;
    this.readout.style.left = leftHalf ? `${at + 14}px` : "auto";
    this.readout.style.right = leftHalf ? "auto" : `${this.width - at + 14}px`;
    this.plot.setAttribute("aria-valuenow", x);
    const spoken = this.#readings(x).map(({ series, value }) => `${series.name} ${formatMetric(value)}`);
    this.plot.setAttribute("aria-valuetext", [where, ...spoken].join(", "));
  }

  #drawSelection(context) {
    const { box } = this.#scales;
    const [from, to] = [this.#drag.from, this.#drag.to].sort((a, b) => a - b);
    context.globalAlpha = 0.16;
    context.fillStyle = ink.get("accent");
    context.fillRect(from, box.top, to - from, box.bottom - box.top);
    context.globalAlpha = 1;
  }

  /** Values of the shown curves at x; of thinned curves those of the point nearest to it. */
  #readings(x) {
    const found = [];
    for (const series of this.series) {
      if (!this.legend.shows(series.name)) continue;
      const { xs, ys } = series.within(this.focus.range);
      const index = nearestIndex(xs, x);
      const close = index >= 0 && (xs[index] === x || (series.unit !== "epoch" && Math.abs(this.#scales.px(xs[index]) - this.#scales.px(x)) < 8));
      if (close) found.push({ series, value: ys[index] });
    }
    return found;
  }

  /** The x of a point at or next to `x` within the zoom. */
  #near(x) {
    const { axis, range } = this.focus;
    if (!axis.has(x) || (range && (x < range[0] || x > range[1]))) return null;
    const index = nearestIndex(this.xs, x);
    if (index < 0) return null;
    const close = this.series[0].unit !== "epoch" ? Math.abs(this.#scales.px(this.xs[index]) - this.#scales.px(x)) < 40 : this.xs[index] === x;
    return close ? this.xs[index] : null;
  }

  #look(name) {
    const index = this.series.findIndex((one) => one.name === name);
    return { token: `series-${index % 8}`, dash: DASHES[Math.floor(index / 8) % DASHES.length] };
  }

  #offerLog(values) {
    const possible = values.some((value) => value > 0);
    this.logButton.disabled = !possible;
    this.logButton.title = possible ? "Logarithmic scale; values at or below 0 are left out" : "No value is above 0";
    this.logButton.setAttribute("aria-pressed", String(this.#log && possible));
  }

  #offerOutliers(limits) {
    const count = limits?.outside || 0;
    this.outlierButton.hidden = !count;
    this.outlierButton.setAttribute("aria-pressed", String(this.#whole));
    const text = `${count} off scale`;
    if (this.outlierButton.textContent !== text) this.outlierButton.textContent = text;
    this.outlierButton.title = `${count} ${count === 1 ? "value lies" : "values lie"} far from all others. Press to show the whole range.`;
  }

  #toggleOutliers() {
    this.#whole = !this.#whole;
    this.draw();
  }

  #toggleLog() {
    this.#log = !this.#log;
    this.draw();
  }

  #toggleTable() {
    this.table.hidden = !this.table.hidden;
    this.tableButton.setAttribute("aria-pressed", String(!this.table.hidden));
    if (!this.table.hidden) this.#fillTable();
  }

  #fillTable() {
    const { range } = this.focus;
    const inside = this.xs.filter((x) => !range || (x >= range[0] && x <= range[1]));
    const every = Math.max(1, Math.ceil(inside.length / TABLE_ROWS));
    const rows = inside.filter((_, index) => index % every === 0 || index === inside.length - 1);
    const shown = this.series.filter((one) => this.legend.shows(one.name));
    const { axis } = this.focus;
    const heads = [axis.head, ...shown.map((one) => one.name)].map((text) => element("th", { textContent: text, scope: "col" }));
    const cells = (one, x) => {
      const { xs, ys } = one.within(range);
      const index = nearestIndex(xs, x);
      const exact = index >= 0 && (xs[index] === x || one.unit !== "epoch");
      return element("td", { textContent: formatMetric(exact ? ys[index] : undefined) });
    };
    const body = rows.map((x) => element("tr", {}, element("th", { textContent: axis.label(x), scope: "row" }), ...shown.map((one) => cells(one, x))));
    const caption = element("caption", { className: "unseen", textContent: this.title.textContent });
    this.table.replaceChildren(element("table", { className: "numbers" }, caption, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...body)));
  }

  #attend(focus) {
    this.focus = focus;
    if (this.#watched.has(focus)) return;
    this.#watched.add(focus);
    focus.watch((what) => {
      if (focus === this.focus) what === "zoom" ? this.draw() : this.#cursorLater();
    });
  }

  #listen() {
    this.plot.addEventListener("pointermove", (event) => this.#follow(event));
    this.plot.addEventListener("pointerdown", (event) => this.#press(event));
    this.plot.addEventListener("pointerup", (event) => this.#release(event));
    this.plot.addEventListener("pointercancel", () => (this.#drag = null));
    this.plot.addEventListener("dblclick", () => this.focus.range && this.focus.zoom(null));
    this.plot.addEventListener("pointerleave", () => this.#drag || this.focus.point(null, null));
    this.plot.addEventListener("blur", () => this.focus.point(null, null));
    this.plot.addEventListener("keydown", (event) => this.#key(event));
    // Drawing changes the height, which the observer must not see as a change of its own making.
    new ResizeObserver(() => {
      if (this.plot.clientWidth === this.width) return;
      this.width = this.plot.clientWidth;
      requestAnimationFrame(() => this.draw());
    }).observe(this.plot);
  }

  #at(event) {
    const { box } = this.#scales;
    return Math.min(box.right, Math.max(box.left, event.clientX - this.plot.getBoundingClientRect().left));
  }

  #follow(event) {
    if (!this.#scales) return;
    const pixel = this.#at(event);
    if (this.#drag) {
      this.#drag.to = pixel;
      this.#drag.moved ||= Math.abs(pixel - this.#drag.from) > DRAG_PIXELS;
    }
    const { range } = this.focus;
    const at = this.#scales.back(pixel);
    const { axis } = this.focus;
    const inside = (x) => x !== undefined && axis.has(x) && (!range || (x >= range[0] && x <= range[1]));
    const index = nearestIndex(this.xs, at);
    // The nearest point may lie just outside the zoom, and its neighbour inside.
    const x = [index, index + 1, index - 1].map((one) => this.xs[one]).find(inside);
    if (x !== undefined) this.focus.point(x, this);
    if (this.#drag?.moved) this.#cursorLater();
  }

  #press(event) {
    if (!this.#scales || event.button !== 0) return;
    const pixel = this.#at(event);
    this.#drag = { from: pixel, to: pixel, moved: false };
    this.plot.setPointerCapture(event.pointerId);
  }

  #release() {
    const drag = this.#drag;
    this.#drag = null;
    if (!drag?.moved || !this.#scales) return;
    const range = [drag.from, drag.to].map((pixel) => this.#scales.back(pixel)).sort((a, b) => a - b);
    if (range[1] > range[0]) this.focus.zoom(range);
  }

  /** Where x lies on the canvas, in pixels from its left. */
  xOf(x) {
    return this.#scales.px(x);
  }

  #key(event) {
    const { axis, range } = this.focus;
    const inside = this.xs.filter((x) => axis.has(x) && (!range || (x >= range[0] && x <= range[1])));
    const last = inside.length - 1;
    const here = this.focus.owner === this ? inside.indexOf(this.focus.x) : -1;
    const page = Math.max(1, Math.round(last / 10));
    const moves = {
      ArrowRight: here + 1, ArrowUp: here + 1, ArrowLeft: here < 0 ? last : here - 1, ArrowDown: here - 1,
      PageUp: here + page, PageDown: here - page, Home: 0, End: last,
    };
    if (event.key === "Escape") this.focus.point(null, null);
    else if (event.key === "0" && range) this.focus.zoom(null);
    else if ("+-=".includes(event.key)) this.#scaleBy(event.key === "-" ? 2 : 0.5, inside[here]);
    else if (event.key in moves && last >= 0) this.focus.point(inside[Math.min(last, Math.max(0, moves[event.key]))], this);
    else return;
    event.preventDefault();
  }

  /** Zoom by a factor around a place, or around the middle. */
  #scaleBy(factor, around) {
    if (this.xs.length < 2 || !this.#scales) return;
    const whole = [this.xs[0], this.xs[this.xs.length - 1]];
    const { x } = this.#scales;
    const center = around === undefined ? 0.5 : x.at(around);
    const next = [Math.max(whole[0], x.back(center - center * factor)), Math.min(whole[1], x.back(center + (1 - center) * factor))];
    this.focus.zoom(next[0] <= whole[0] && next[1] >= whole[1] ? null : next);
  }
}

/** Rising numbers of all lists, each once; the curves of one run mostly share theirs. */
function merged(lists) {
  const [first = [], ...others] = lists;
  const rising = first.every((x, index) => !index || x > first[index - 1]);
  const same = others.every((one) => one.length === first.length && one.every((x, index) => x === first[index]));
  return rising && same ? first.slice() : [...new Set(lists.flat())].sort((a, b) => a - b);
}

function describe(series, axis) {
  const { name, best } = series;
  const [first, last] = [{ x: series.xs[0], y: series.ys[0] }, series.last];
  const top = best ? `, best ${formatMetric(best.y)} ${spot(axis, best.x)}` : "";
  if (series.xs.length === 1) return `${name}: ${formatMetric(first.y)} ${spot(axis, first.x)}.`;
  return `${name}: from ${formatMetric(first.y)} ${spot(axis, first.x)} to ${formatMetric(last.y)} ${spot(axis, last.x)}${top}.`;
}

function spot(axis, x) {
  return axis.numbers ? `at ${axis.say(x)}` : axis.say(x);
}
