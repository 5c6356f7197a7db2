"use strict";
/* Settings and results of runs: parallel coordinates with one line per run, and any column against any other. */

const MOST_AXES = 8;
const NARROW_AXIS = 88;

class ParallelPanel extends Plot {
  #axes = [];
  #brushes = new Map();
  #drag = null;
  #pointed = null;

  constructor(page) {
    super("Parallel coordinates", { height: 320, role: "group" });
    this.page = page;
    this.picker = new Picker("Axes", () => axisOptions(page.runs), () => this.keys, (axes) => page.choices.set({ axes }));
    this.reset = button("Clear ranges", () => this.#clear(), { hidden: true });
    this.target = selection("Colour by", (target) => page.choices.set({ target }));
    this.head.append(element("div", { className: "tools" }, this.reset, element("label", { className: "labelled" }, "Colour", this.target), this.picker.box));
    place("parallel").append(this.card);
    this.#listen();
  }

  /** The keys of the axes: settings that differ, and then the best values of the first metrics. */
  get keys() {
    const { runs, choices } = this.page;
    const chosen = choices.get("axes");
    if (chosen) return chosen.filter((key) => runs.column(key));
    // Seeds come last: they say least about a result.
    const settings = [...runs.differing].sort((a, b) => isSeed(a) - isSeed(b)).map((name) => `config.${name}`);
    return [...settings.slice(0, MOST_AXES - 2), ...runs.results.slice(0, 2).reverse()];
  }

  /** The runs inside the ranges that were drawn on the axes. */
  get brushed() {
    const { visible } = this.page.runs;
    return this.#brushes.size ? visible.filter((run) => this.#isInside(run)) : visible;
  }

  show() {
    fill(this.target, colorOptions(this.page.runs), this.page.choices.get("target"));
    this.picker.show();
    this.draw();
  }

  point(run) {
    this.#pointed = run;
    this.#drawPointed();
  }

  redraw() {
    if (!this.width) return;
    const context = prepare(this.canvas, this.width, this.height);
    const { runs, choices } = this.page;
    const { visible } = runs;
    // The axes that have room: the last one, usually a result, and as many others as fit.
    const all = this.keys.map((key) => runs.column(key));
    const room = Math.max(2, Math.floor(this.width / NARROW_AXIS));
    const columns = all.length <= room ? all : [...all.slice(0, room - 1), all[all.length - 1]];
    this.reset.hidden = !this.#brushes.size;
    this.#axes = [];
    this.foot.textContent = "";
    this.say(!visible.length ? "no run is visible" : columns.length < 2 ? "choose two or more axes" : "");
    if (this.message) return;
    const [left, right] = [36, this.width - 52];
    this.#axes = columns.map((column, index) => ({ column, x: left + ((right - left) * index) / (columns.length - 1), ...valueScale(column, visible) }));
    this.box = { top: 34, bottom: this.height - 14 };
    this.paint = paintBy(choices.get("target"), runs);
    const brushed = new Set(this.brushed);
    const alpha = Math.max(0.12, Math.min(0.85, 60 / Math.max(1, brushed.size)));
    for (const run of visible) if (!brushed.has(run)) this.#line(context, run, ink.get("line"), 1, 0.5);
    for (const run of brushed) this.#line(context, run, this.paint(run), 1.4, alpha);
    this.#drawAxes(context);
    const hidden = all.length - columns.length;
    const inside = this.#brushes.size ? `${brushed.size} of ${counted(visible.length, "run")} inside the ranges` : `${counted(visible.length, "run")} · drag along an axis to choose a range`;
    this.foot.textContent = `${inside}${hidden ? ` · ${hidden} more on a wider screen` : ""}`;
    this.area.setAttribute("aria-label", `Parallel coordinates of ${counted(visible.length, "run")} over ${columns.map((one) => one.label).join(", ")}`);
    this.#drawPointed();
  }

  #line(context, run, color, width, alpha) {
    Object.assign(context, { strokeStyle: color, lineWidth: width, globalAlpha: alpha });
    context.beginPath();
    let down = false;
    for (const axis of this.#axes) {
      const y = this.#y(axis, run);
      if (y !== null) context[down ? "lineTo" : "moveTo"](axis.x, y);
      down = y !== null;
    }
    context.stroke();
    context.globalAlpha = 1;
  }

  #y(axis, run) {
    const part = axis.at(axis.column.value(run));
    return part === null ? null : this.box.bottom - part * (this.box.bottom - this.box.top);
  }

  #drawAxes(context) {
    const { top, bottom } = this.box;
    const room = this.#axes[1].x - this.#axes[0].x - 14;
    for (const [index, axis] of this.#axes.entries()) {
      const last = index === this.#axes.length - 1;
      strokeLine(context, axis.x, top, axis.x, bottom, ink.get("soft"), 1);
      label(context, fitted(context, axis.column.label, room), !index ? 6 : last ? this.width - 6 : axis.x, 14, "text", !index ? "left" : last ? "right" : "center");
      for (const [part, tick] of axis.ticks) {
        const [text, y] = [fitted(context, tick, last ? 44 : room - 8), bottom - part * (bottom - top)];
        Object.assign(context, { strokeStyle: ink.get("card"), lineWidth: 3, lineJoin: "round", textAlign: "left", textBaseline: "middle" });
        context.strokeText(text, axis.x + 6, y);
        label(context, text, axis.x + 6, y);
      }
      const brush = this.#brushes.get(axis.column.key);
      if (!brush) continue;
      const [low, high] = brush.map((part) => bottom - part * (bottom - top));
      Object.assign(context, { fillStyle: ink.get("accent"), globalAlpha: 0.25 });
      context.fillRect(axis.x - 7, Math.min(low, high), 14, Math.abs(high - low));
      context.globalAlpha = 1;
    }
  }

  #drawPointed() {
    if (!this.width || !this.#axes.length) return;
    const context = prepare(this.overlay, this.width, this.height);
    const run = this.#pointed;
    if (!run || !this.page.runs.visible.includes(run)) return this.tell(0, [], "");
    this.#line(context, run, ink.get("card"), 6, 1);
    this.#line(context, run, this.paint(run), 3, 1);
  }

  #isInside(run) {
    return this.#axes.every((axis) => {
      const brush = this.#brushes.get(axis.column.key);
      const part = brush && axis.at(axis.column.value(run));
      return !brush || (part !== null && part >= Math.min(...brush) && part <= Math.max(...brush));
    });
  }

  #clear() {
    this.#brushes.clear();
    this.draw();
    announce("all ranges are cleared");
  }

  #listen() {
    const near = (x) => this.#axes.find((one) => Math.abs(one.x - x) < 16);
    const part = (y) => Math.min(1, Math.max(0, (this.box.bottom - y) / (this.box.bottom - this.box.top)));
    this.area.addEventListener("pointerdown", (event) => {
      const [x, y] = this.at(event);
      const axis = near(x);
      if (!axis || event.button !== 0) return;
      this.#drag = { key: axis.column.key, from: part(y) };
      this.area.setPointerCapture(event.pointerId);
    });
    this.area.addEventListener("pointermove", (event) => {
      const [x, y] = this.at(event);
      if (!this.#drag) return this.#pointAt(x, y);
      this.#brushes.set(this.#drag.key, [this.#drag.from, part(y)]);
      this.draw();
    });
    this.area.addEventListener("pointerup", (event) => {
      if (!this.#drag) return;
      if (Math.abs(part(this.at(event)[1]) - this.#drag.from) < 0.01) this.#brushes.delete(this.#drag.key);
      this.#drag = null;
      this.draw();
      announce(`${this.brushed.length} runs are inside the ranges`);
    });
    this.area.addEventListener("pointerleave", () => this.page.highlight(null));
    this.area.addEventListener("click", (event) => this.#pointed && !near(this.at(event)[0]) && this.page.open(this.#pointed));
    this.area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.#clear();
      if (event.key === "Enter" && this.#pointed) this.page.open(this.#pointed);
      const turn = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1 }[event.key];
      const { visible } = this.page.runs;
      if (!turn || !visible.length) return;
      event.preventDefault();
      const run = visible[(visible.indexOf(this.#pointed) + turn + visible.length) % visible.length];
      this.page.highlight(run);
      announce(`${run.title}: ${this.#axes.map((axis) => `${axis.column.label} ${shownCell(axis.column, run)}`).join(", ")}`);
    });
  }

  /** Highlight the run whose line passes nearest to the pointer. */
  #pointAt(x, y) {
    const index = this.#axes.findIndex((axis, at) => this.#axes[at + 1] && x >= axis.x && x <= this.#axes[at + 1].x);
    if (index < 0) return;
    const [left, right] = [this.#axes[index], this.#axes[index + 1]];
    const part = (x - left.x) / (right.x - left.x);
    let [best, distance] = [null, 12];
    for (const run of this.brushed) {
      const [a, b] = [this.#y(left, run), this.#y(right, run)];
      const away = a === null || b === null ? Infinity : Math.abs(a + part * (b - a) - y);
      if (away < distance) [best, distance] = [run, away];
    }
    this.page.highlight(best);
    if (best) this.tell(x, [reading(this.paint(best), best.title, ""), ...this.#axes.map((axis) => fact(axis.column.label, shownCell(axis.column, best)))], best.title);
  }
}

/** A scatter plot: one point per run. */
class ScatterPanel extends Chart {
  #points = [];

  constructor(page) {
    super("Scatter", new Focus(new PartAxis()), { height: 320, "aria-label": "Scatter plot" });
    this.page = page;
    const chooser = (name, text, spoken) => {
      this[name] = selection(spoken, (value) => page.choices.set({ [name]: value }));
      return element("label", { className: "labelled" }, text, this[name]);
    };
    this.head.append(element("div", { className: "tools" }, chooser("scatterX", "x", "Horizontal axis"), chooser("scatterY", "y", "Vertical axis"), chooser("scatterColor", "Colour", "Colour of the points")));
    place("scatter").append(this.card);
  }

  /** The columns of both axes; unless chosen, the first setting that differs and the first metric. */
  get columns() {
    const { runs, choices } = this.page;
    const differing = runs.settings.filter((one) => runs.differing.includes(one.name) && !isSeed(one.name));
    const setting = (differing.find((one) => one.numeric) || differing[0])?.key;
    return [runs.column(choices.get("scatterX")) || runs.column(setting ?? "epochs"), runs.column(choices.get("scatterY")) || runs.column(runs.results[0] ?? "seconds")];
  }

  show() {
    const { runs, choices } = this.page;
    const [x, y] = this.columns;
    fill(this.scatterX, axisOptions(runs), x.key);
    fill(this.scatterY, axisOptions(runs), y.key);
    fill(this.scatterColor, colorOptions(runs), choices.get("scatterColor"));
    this.draw();
  }

  redraw() {
    const { runs, choices } = this.page;
    const [x, y] = this.columns;
    const [across, up] = [x, y].map((column) => valueScale(column, runs.visible));
    this.color = paintBy(choices.get("scatterColor"), runs);
    this.#points = runs.visible.map((run) => ({ run, x: across.at(x.value(run)), y: up.at(y.value(run)) })).filter((one) => one.x !== null && one.y !== null);
    this.#points.sort((a, b) => a.x - b.x || a.y - b.y);
    Object.assign(this.focus.axis, { name: x.label, named: across.ticks });
    const missing = runs.visible.length - this.#points.length;
    this.title.textContent = `${y.label} against ${x.label}`;
    this.foot.textContent = `${counted(this.#points.length, "run")}${missing ? ` · ${missing} without both values` : ""}`;
    this.area.setAttribute("aria-label", `Scatter plot of ${y.label} against ${x.label}, ${counted(this.#points.length, "run")}`);
    this.paint([], { bounds: this.#points.length ? { low: -0.04, high: 1.04, first: -0.03, last: 1.03 } : null, yTicks: up.ticks, empty: "no run has both values" });
  }

  get ends() {
    return [-0.03, 1.03];
  }

  decorate(context) {
    const { px, py } = this.scales;
    context.globalAlpha = this.#points.length > 60 ? 0.7 : 0.9;
    for (const one of this.#points) disc(context, px(one.x), py(one.y), this.#points.length > 200 ? 3 : 4.5, this.color(one.run));
    context.globalAlpha = 1;
  }

  /** Another panel points to a run. */
  point(run) {
    this.pointed = this.#points.find((one) => one.run === run) ?? null;
    this.cursorLater();
  }

  emphasize(context, { run, x, y }) {
    disc(context, this.scales.px(x), this.scales.py(y), 6.5, this.color(run), ink.get("text"));
  }

  get places() {
    return [...new Set(this.#points.map((one) => one.x))];
  }

  /** Go to the next run. */
  turn(step) {
    const next = this.#points[Math.min(this.#points.length - 1, Math.max(0, this.#points.indexOf(this.pointed) + step))];
    this.pointer = this.scales.py(next.y);
    this.focus.point(next.x, this);
  }

  open() {
    if (this.pointed) this.page.open(this.pointed.run);
  }

  leave() {
    super.leave();
    this.page.highlight(null);
  }

  read(x) {
    const { px, py } = this.scales;
    const exact = this.#points.filter((one) => one.x === x); // where keys have gone
    let [best, distance] = [null, exact.length ? Infinity : 24];
    for (const one of exact.length ? exact : this.#points) {
      const away = Math.hypot(px(one.x) - px(x), py(one.y) - (this.pointer ?? py(one.y)));
      if (away < distance) [best, distance] = [one, away];
    }
    this.page.highlight(best?.run ?? null, this);
    this.pointed = best;
    if (!best) return null;
    const { runs } = this.page;
    const columns = [...new Set([...this.columns, ...runs.differing.slice(0, 4).map((name) => runs.column(`config.${name}`))])];
    const [a, b] = this.columns;
    const lines = [reading(this.color(best.run), best.run.title, ""), ...columns.map((column) => fact(column.label, shownCell(column, best.run)))];
    return { x: best.x, lines, dots: [[py(best.y), this.color(best.run)]], spoken: `${best.run.title}: ${a.label} ${shownCell(a, best.run)}, ${b.label} ${shownCell(b, best.run)}` };
  }
}

/** From values of a column to the range 0 to 1, with ticks; numbers that span decades logarithmically. */
function valueScale(column, runs) {
  const isNumber = (value) => column.kind !== "metric" || typeof value === "number"; // else it is not finite
  const values = runs.map((run) => column.value(run)).filter((value) => value !== undefined && value !== null && isNumber(value));
  if (column.numeric && values.every((value) => typeof value === "number")) {
    if (!values.length) return { at: () => null, ticks: [] };
    const { low, high } = robustLimits(values, FAR_SHARE, FAR);
    const isLog = low > 0 && high / low >= 30;
    const scale = (isLog ? logScale : linearScale)(low, high, 5, true);
    if (column.key === "seconds" && low < high) scale.ticks = new Axis("time").space(isLog).ticks(low, high, 5);
    const at = (value) => (typeof value !== "number" || !Number.isFinite(value) || (isLog && value <= 0) ? null : Math.min(1, Math.max(0, scale.at(value))));
    return { at, ticks: low === high ? [[0.5, shownValue(column, low)]] : scale.ticks.map(([value, text]) => [scale.at(value), text]) };
  }
  const names = [...new Set(values.map(String))].sort(byValue);
  const places = new Map(names.map((name, index) => [name, names.length > 1 ? index / (names.length - 1) : 0.5]));
  const every = Math.ceil(names.length / 12);
  return { at: (value) => places.get(String(value)) ?? null, ticks: names.filter((_, index) => index % every === 0).map((name) => [places.get(name), name]) };
}

/** A function from a run to its colour: that of the run or group, or a ramp over a column. */
function paintBy(key, runs) {
  // Dozens of colours tell nothing apart; the result does.
  const isMany = key === "auto" && !runs.groups && runs.visible.length > FEW_COLORS;
  const column = runs.column(isMany ? runs.results[0] : key);
  if (!column) return (run) => runs.color(run);
  const { at } = valueScale(column, runs.visible);
  return (run) => {
    const part = at(column.value(run));
    if (part === null) return ink.get("line");
    const light = ink.dark ? 0.55 + 0.33 * part : 0.72 - 0.34 * part;
    return ink.get(`oklch(${light.toFixed(3)} 0.15 ${(265 - 220 * part).toFixed(1)})`);
  };
}

function axisOptions(runs) {
  return [...runs.columns.values()].filter((one) => one.kind !== "fact" || one.numeric || one.key === "state").map((one) => [one.key, one.label]);
}

function colorOptions(runs) {
  const numeric = [...runs.columns.values()].filter((one) => one.numeric);
  return [["auto", "automatic"], ["run", "run or group"], ...numeric.map((one) => [one.key, one.label])];
}
