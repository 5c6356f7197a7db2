"use strict";
/* A line chart on a canvas: crosshair, zoom, logarithmic scale, and the same as a table. */

const TABLE_ROWS = 100;
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

class LineChart extends Plot {
  #log = false;
  #whole = false;
  #watched = new Set();
  #cursorDrawn = false;
  /** Draw the cursor in the next frame; many moves of a mouse are one. */
  #cursorLater = soon(() => this.#drawCursor());

  constructor(title, focus, options) {
    const id = `chart-${(LineChart.count = (LineChart.count || 0) + 1)}`;
    // A slider over epochs or steps: arrow keys move it, and its value text is what a reader speaks.
    super(title, { role: "slider", "aria-labelledby": id, "aria-describedby": `${id}-text`, "aria-orientation": "horizontal" });
    this.title.id = id;
    this.#attend(focus);
    this.options = options;
    this.series = [];
    this.xs = [];
    /** What the canvas shows, for those who cannot look at it. */
    this.drawn = [];
    this.message = "";
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
    this.legend = new Legend((name) => this.#look(name), () => this.redraw());
    this.table = element("div", { className: "scroll chart-table", hidden: true, tabIndex: 0 });
    this.table.setAttribute("role", "region");
    this.table.setAttribute("aria-label", "The chart as a table");
    this.head.append(this.resetButton, this.outlierButton, this.logButton, this.tableButton);
    this.area.before(this.description);
    this.card.append(this.legend.list, this.table);
    this.#listen();
    this.show(title, []);
  }

  /** Show these series on the axis of a focus; what was hidden or set before stays so. */
  show(title, series, focus = this.focus) {
    this.#attend(focus);
    const { axis } = focus;
    this.series = series.map((one) => axis.of(one));
    // The width is read before anything is written, so that reading it needs no layout.
    this.width ||= this.area.clientWidth;
    if (this.title.textContent !== title) this.title.textContent = this.title.title = title;
    this.xs = merged(this.series.map((one) => one.xs));
    this.description.textContent = this.series.map((one) => describe(one, axis)).join(" ");
    this.area.setAttribute("aria-valuemin", this.xs[0] ?? 0);
    this.area.setAttribute("aria-valuemax", this.xs[this.xs.length - 1] ?? 0);
    this.legend.offer(series.map((one) => one.name));
    this.redraw();
  }

  redraw() {
    this.width ||= this.area.clientWidth;
    if (!this.width) return; // it is folded away, and drawn once it has a width
    this.height = this.width > WIDE_PIXELS ? 300 : 240;
    const context = prepare(this.canvas, this.width, this.height);
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
    this.scales = scaled ? this.#measure(context, limits, log) : null;
    if (this.scales) {
      this.#drawAxes(context);
      for (const one of shown) this.drawn.push(this.#drawCurve(context, one));
    } else {
      this.message = !shown.length ? "all curves are hidden" : range ? "nothing in this range" : "no finite value";
      this.say(context, this.message);
    }
    this.#drawCursor();
    if (!this.table.hidden) this.#fillTable();
  }

  /** Finite values inside the range, as they are and smoothed. */
  #visible({ xs, ys }, range) {
    const { axis } = this.focus;
    const inside = (x) => axis.has(x) && (!range || (x >= range[0] && x <= range[1]));
    return ys.filter((y, index) => Number.isFinite(y) && inside(xs[index]));
  }

  /** What the scale shows, and how many values lie outside of it. */
  #limits(values, log) {
    const { low, high, outside } = robustLimits(log ? values.map(Math.log10) : values);
    const plain = values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
    if (this.#whole || !outside) return { low: plain[0], high: plain[1], outside };
    return { low: log ? 10 ** low : low, high: log ? 10 ** high : high, outside };
  }

  #measure(context, { low, high }, log) {
    const lines = this.height / 48;
    const y = log ? logScale(low, high, lines) : linearScale(low, high, lines);
    const box = this.boxFor(context, y, { bottom: 26, right: 14 });
    const { axis, range } = this.focus;
    const [first, last] = range || [this.xs[0], this.xs[this.xs.length - 1]];
    const start = axis.has(first) ? first : this.xs.find((at) => axis.has(at));
    const x = axis.scale(start, last, (box.right - box.left) / 76);
    return {
      box, x, y, log,
      px: (at) => box.left + x.at(at) * (box.right - box.left),
      // A value off the scale ends just outside of the plot: a canvas draws nothing at 1e300.
      py: (value) => box.bottom - Math.min(2, Math.max(-1, y.at(value))) * (box.bottom - box.top),
    };
  }

  #drawAxes(context) {
    const { box, x, y } = this.scales;
    this.ticks = [...y.ticks, ...x.ticks].map(([, label]) => label);
    this.axes(context, box, x, y, this.focus.axis.title);
    strokeLine(context, box.left, box.bottom + 0.5, box.right, box.bottom + 0.5, ink.get("line"));
  }

  #drawCurve(context, series) {
    const { box, px, py, log } = this.scales;
    const { token, dash } = this.#look(series.name);
    const color = ink.get(token);
    const { xs, ys } = series.within(this.focus.range);
    const usable = (value) => Number.isFinite(value) && (!log || value > 0);
    const room = box.right - box.left;
    const { axis } = this.focus;
    const point = (x, value) => (axis.has(x) ? [px(x), usable(value) ? py(value) : null] : [0, null]);
    const runs = (values) => curveRuns(xs.map((x, index) => point(x, values[index])), room);
    const weight = this.options.smoothing;
    const raw = runs(ys);
    const smooth = weight > 0 ? runs(smoothed(ys, weight)) : null;
    const width = xs.length > room / 2 ? 1.2 : 1.9;
    const best = series.best && usable(series.best.y) && axis.has(series.best.x) && series.xs.length > 1 ? series.best : null;
    const broken = xs.filter((x, index) => !Number.isFinite(ys[index]) && axis.has(x));
    let outside = [];
    this.inside(context, box, 6, () => {
      strokeRuns(context, raw, { color, dash, width: smooth ? 1 : width, alpha: smooth ? 0.28 : 1 });
      if (smooth) strokeRuns(context, smooth, { color, dash, width: 1.9 });
      if (best) disc(context, px(best.x), py(best.y), 4, ink.get("card"), color);
      for (const x of broken) strokeLine(context, px(x), box.bottom - 7, px(x), box.bottom, ink.get("bad"), 2);
      outside = this.#drawOutliers(context, color, xs, ys, usable);
    });
    return { name: series.name, raw, smooth, best, broken, outside, points: xs.length };
  }

  /** A triangle at the edge for each value that the scale leaves out; return their x. */
  #drawOutliers(context, color, xs, ys, usable) {
    const { box, px, y } = this.scales;
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

  #drawCursor() {
    const { x } = this.focus;
    const wanted = x !== null || Boolean(this.drag?.moved);
    // An overlay that was empty and stays so is not painted again.
    if (!wanted && !this.#cursorDrawn && this.overlay.style.height === `${this.height}px`) return;
    this.#cursorDrawn = wanted;
    const context = prepare(this.overlay, this.width, this.height);
    if (this.scales) this.drawSelection(context);
    const known = this.scales && x !== null && this.#near(x) !== null;
    this.readout.hidden = !known || this.focus.owner !== this || Boolean(this.drag?.moved);
    this.crosshair = Boolean(known);
    if (!known) return;
    const { box, px, py, log } = this.scales;
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
      if (Number.isFinite(value) && (!log || value > 0)) disc(context, at, py(value), 4, ink.get(look.token), ink.get("card"));
    }
    this.readout.replaceChildren(...rows);
    this.beside(at);
    this.area.setAttribute("aria-valuenow", x);
    const spoken = this.#readings(x).map(({ series, value }) => `${series.name} ${formatMetric(value)}`);
    this.area.setAttribute("aria-valuetext", [where, ...spoken].join(", "));
  }

  /** Values of the shown curves at x; of thinned curves those of the point nearest to it. */
  #readings(x) {
    const found = [];
    for (const series of this.series) {
      if (!this.legend.shows(series.name)) continue;
      const { xs, ys } = series.within(this.focus.range);
      const index = nearestIndex(xs, x);
      const close = index >= 0 && (xs[index] === x || (series.unit !== "epoch" && Math.abs(this.scales.px(xs[index]) - this.scales.px(x)) < 8));
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
    const close = this.series[0].unit !== "epoch" ? Math.abs(this.scales.px(this.xs[index]) - this.scales.px(x)) < 40 : this.xs[index] === x;
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
    this.redraw();
  }

  #toggleLog() {
    this.#log = !this.#log;
    this.redraw();
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
      if (focus === this.focus) what === "zoom" ? this.redraw() : this.#cursorLater();
    });
  }

  #listen() {
    this.letDrag((pixels) => this.#zoomTo(pixels));
    this.area.addEventListener("pointermove", (event) => this.#follow(event));
    this.area.addEventListener("dblclick", () => this.focus.range && this.focus.zoom(null));
    this.area.addEventListener("pointerleave", () => this.drag || this.focus.point(null, null));
    this.area.addEventListener("blur", () => this.focus.point(null, null));
    this.area.addEventListener("keydown", (event) => this.#key(event));
  }

  #follow(event) {
    if (!this.scales) return;
    const { axis, range } = this.focus;
    const at = this.back(this.across(event));
    const inside = (x) => x !== undefined && axis.has(x) && (!range || (x >= range[0] && x <= range[1]));
    const index = nearestIndex(this.xs, at);
    // The nearest point may lie just outside the zoom, and its neighbour inside.
    const x = [index, index + 1, index - 1].map((one) => this.xs[one]).find(inside);
    if (x !== undefined) this.focus.point(x, this);
    if (this.drag?.moved) this.#cursorLater();
  }

  #zoomTo(pixels) {
    const range = pixels.map((pixel) => this.back(pixel));
    if (range[1] > range[0]) this.focus.zoom(range);
  }

  /** Where x lies on the canvas, in pixels from its left. */
  xOf(x) {
    return this.scales.px(x);
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
    if (this.xs.length < 2 || !this.scales) return;
    const whole = [this.xs[0], this.xs[this.xs.length - 1]];
    const { x } = this.scales;
    const [from, to] = this.zoomedBy(factor, around ?? x.back(0.5));
    const next = [Math.max(whole[0], from), Math.min(whole[1], to)];
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
