"use strict";
/* Settings and results of runs: parallel coordinates with one line per run, and any column against any other. */

const MOST_AXES = 8;
const NARROW_AXIS = 88;

/** A plot of runs, one of which is pointed at; `told` is the columns that the text box then shows. */
class RunsPlot extends Chart {
  /** What can be pointed at, each with its run. */
  things = [];

  constructor(page, host, title, ...tools) {
    super(title, new Focus(new Axis("value", { title: "" })));
    this.page = page;
    this.height = 320;
    this.head.append(element("div", { className: "tools" }, ...tools));
    place(host).append(this.card);
  }

  read(at, context) {
    const hit = this.nearest(at);
    this.page.highlight(hit?.run ?? null, this);
    if (!hit) return null;
    const { run, line } = hit;
    this.emphasize(context, line);
    const values = this.told.map((column) => [column.label, column.show(column.value(run))]);
    return { x: hit.x, title: "", rows: [[run.title, "", line.color], ...values], dots: [] };
  }
}

class ParallelPanel extends RunsPlot {
  #axes = [];
  #brushes = new Map();

  constructor(page) {
    const picker = new Picker("Axes", () => axisOptions(page.runs), () => this.keys, (axes) => page.choices.set({ axes }));
    super(page, "parallel", "Parallel coordinates", picker.box);
    this.picker = picker;
    this.resetButton.textContent = "Clear ranges";
  }

  /** The keys of the axes: settings that differ, and then the best values of the first metrics. */
  get keys() {
    const { runs, choices } = this.page;
    const chosen = choices.axes;
    if (chosen) return chosen.filter((key) => runs.column(key));
    // Seeds come last: they say least about a result.
    const settings = [...runs.differing].sort((a, b) => isSeed(a) - isSeed(b)).map((name) => `config.${name}`);
    return [...settings.slice(0, MOST_AXES - 2), ...runs.results.slice(0, 2).reverse()];
  }

  /** The runs inside the ranges that were drawn on the axes. */
  get brushed() {
    return this.page.runs.visible.filter((run) => this.#axes.every(({ column, at }) => {
      const [low, high] = this.#brushes.get(column.key) ?? [-Infinity, Infinity];
      const part = at(column.value(run));
      return !this.#brushes.has(column.key) || (part !== null && part >= low && part <= high);
    }));
  }

  show() {
    this.picker.show();
    this.draw();
  }

  redraw() {
    const { runs } = this.page;
    const { visible } = runs;
    // The axes that have room: the last one, usually a result, and as many others as fit.
    const all = this.keys.map((key) => runs.column(key));
    const room = Math.max(2, Math.floor(this.width / NARROW_AXIS));
    const columns = all.toSpliced(room - 1, Math.max(0, all.length - room));
    this.#axes = columns.map((column) => ({ column, ...valueScale(column, visible) }));
    [this.told, this.places] = [columns, [...columns.keys()]];
    const color = paintBy(this.page);
    const brushed = new Set(this.brushed);
    const within = { width: 1.4, alpha: Math.max(0.12, Math.min(0.85, 60 / Math.max(1, brushed.size))) };
    this.things = visible.map((run) => {
      const isInside = brushed.has(run);
      const y = this.#axes.map(({ column, at }) => at(column.value(run)));
      return { run, isInside, x: [...columns.keys()], y, color: isInside ? color(run) : "line", ...(isInside ? within : { width: 1, alpha: 0.5 }) };
    });
    this.things.sort((a, b) => a.isInside - b.isInside);
    const bounds = visible.length && columns.length > 1 ? { low: -0.03, high: 1.12, first: -0.05, last: columns.length - 0.6 } : null;
    this.focus.axis.named = [];
    this.paint([], { bounds, yTicks: [], empty: visible.length ? "choose two or more axes" : "no run is visible" });
    this.resetButton.hidden = !this.#brushes.size && !this.focus.range;
    const hidden = all.length - columns.length;
    const inside = this.#brushes.size ? `${brushed.size} of ${counted(visible.length, "run")} inside the ranges` : `${counted(visible.length, "run")} · drag along an axis to choose a range`;
    this.foot.textContent = bounds ? `${inside}${hidden ? ` · ${hidden} more on a wider screen` : ""}` : "";
    this.area.setAttribute("aria-label", `Parallel coordinates of ${counted(visible.length, "run")} over ${columns.map((one) => one.label).join(", ")}`);
  }

  decorate(context) {
    const { px, py, box } = this.scales;
    const room = px(1) - px(0) - 14;
    for (const line of this.things) {
      Object.assign(context, { strokeStyle: ink.get(line.color), lineWidth: line.width, globalAlpha: line.alpha });
      context.stroke(this.pathOf(line));
    }
    context.globalAlpha = 1;
    for (const [index, { column, ticks }] of this.#axes.entries()) {
      const [x, last] = [px(index), index === this.#axes.length - 1];
      strokeLine(context, x, py(1), x, py(0), "soft");
      label(context, fitted(context, column.label, room), !index ? box.left : last ? box.right : x, py(1) - 16, "text", !index ? "left" : last ? "right" : "center");
      for (const [part, tick] of ticks) {
        const text = fitted(context, tick, last ? box.right - x - 6 : room - 8);
        Object.assign(context, { strokeStyle: ink.get("card"), lineWidth: 3, lineJoin: "round", textAlign: "left", textBaseline: "middle" });
        context.strokeText(text, x + 6, py(part));
        label(context, text, x + 6, py(part));
      }
      const brush = this.#brushes.get(column.key);
      if (brush) wash(context, "accent", x - 7, py(brush[1]), x + 7, py(brush[0]), 0.25);
    }
  }

  /** The axis at a place of a drag. */
  #axisAt([x]) {
    return this.#axes.findIndex((_, index) => Math.abs(this.scales.px(index) - x) < 16);
  }

  drawDrag(context, { from, to }) {
    const x = this.scales.px(this.#axisAt(from));
    if (this.#axisAt(from) >= 0) wash(context, "accent", x - 7, from[1], x + 7, to[1], 0.25);
  }

  dragged({ from, to }) {
    const axis = this.#axes[this.#axisAt(from)];
    if (!axis) return;
    const part = ([, y]) => (this.scales.py(0) - y) / (this.scales.py(0) - this.scales.py(1));
    this.#brushes.set(axis.column.key, [from, to].map(part).sort((a, b) => a - b));
    this.draw();
    announce(`${this.brushed.length} runs are inside the ranges`);
  }

  /** A click on an axis removes its range; one beside it opens the run. */
  open(drag = null) {
    const axis = drag && this.#axes[this.#axisAt(drag.from)];
    if (axis && this.#brushes.delete(axis.column.key)) this.draw();
    else if (!axis) super.open();
  }

  reset() {
    this.#brushes.clear();
    super.reset();
  }

  /** The lines at a place on or between the axes. */
  found(x, level) {
    const at = Math.min(this.#axes.length - 1, Math.max(0, x));
    const left = Math.floor(at);
    return this.things.flatMap((line) => {
      const [a, b] = [line.y[left], at > left ? line.y[left + 1] : 0];
      const height = this.scales.py(a + (at - left) * (b - a));
      const near = level === null || Math.abs(height - level) < 16;
      return line.isInside && a !== null && b !== null && near ? [{ line, run: line.run, x: at, height }] : [];
    });
  }

}

/** A scatter plot: one point per run. */
class ScatterPanel extends RunsPlot {
  constructor(page) {
    const choosers = ["scatterX", "scatterY"].map((name) => selection(name === "scatterX" ? "Horizontal axis" : "Vertical axis", (value) => page.choices.set({ [name]: value })));
    super(page, "scatter", "Scatter", ...choosers.map((chooser, index) => element("label", { className: "labelled" }, "xy"[index], chooser)));
    [this.across, this.up] = choosers;
  }

  /** The columns of both axes; unless chosen, the first setting that differs and the first metric. */
  get columns() {
    const { runs, choices } = this.page;
    const differing = runs.settings.filter((one) => runs.differing.includes(one.name) && !isSeed(one.name));
    const setting = (differing.find((one) => one.numeric) || differing[0])?.key;
    return [runs.column(choices.scatterX) || runs.column(setting ?? "epochs"), runs.column(choices.scatterY) || runs.column(runs.results[0] ?? "seconds")];
  }

  show() {
    this.columns.forEach((column, index) => fill([this.across, this.up][index], axisOptions(this.page.runs), column.key));
    this.draw();
  }

  redraw() {
    const { runs } = this.page;
    const [x, y] = this.columns;
    const [across, up] = [x, y].map((column) => valueScale(column, runs.visible));
    const color = paintBy(this.page);
    this.things = runs.visible.map((run) => ({ run, x: across.at(x.value(run)), y: up.at(y.value(run)), color: color(run) })).filter((one) => one.x !== null && one.y !== null);
    this.places = [...new Set(this.things.map((one) => one.x))].sort((a, b) => a - b);
    this.told = [...new Set([x, y, ...runs.differing.slice(0, 4).map((name) => runs.column(`config.${name}`))])];
    Object.assign(this.focus.axis, { title: x.label, named: across.ticks });
    const missing = runs.visible.length - this.things.length;
    this.title.textContent = `${y.label} against ${x.label}`;
    this.foot.textContent = `${counted(this.things.length, "run")}${missing ? ` · ${missing} without both values` : ""}`;
    this.area.setAttribute("aria-label", `Scatter plot of ${y.label} against ${x.label}, ${counted(this.things.length, "run")}`);
    this.paint([], { bounds: this.things.length ? { low: -0.04, high: 1.04, first: -0.03, last: 1.03 } : null, yTicks: up.ticks, empty: "no run has both values" });
  }

  decorate(context) {
    const { px, py } = this.scales;
    context.globalAlpha = this.things.length > 60 ? 0.7 : 0.9;
    for (const { x, y, color } of this.things) disc(context, px(x), py(y), this.things.length > 200 ? 3 : 4.5, color);
    context.globalAlpha = 1;
  }

  emphasize(context, { x, y, color }) {
    disc(context, this.scales.px(x), this.scales.py(y), 6.5, color, "text");
  }

  /** The points near a pointer; keys go from place to place, and up and down between the points there. */
  found(x, level) {
    const { px, py } = this.scales;
    const near = (one) => (level === null ? one.x === x : Math.hypot(px(one.x) - px(x), py(one.y) - level) < 24);
    return this.things.filter(near).map((line) => ({ line, run: line.run, x: line.x, height: py(line.y) }));
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
    const size = isLog ? Math.log : Number;
    const part = (value) => (low === high ? 0.5 : (size(value) - size(low)) / (size(high) - size(low)));
    const axis = column.key === "seconds" ? new Axis("time", { log: isLog }) : new Axis("value", { log: isLog });
    const at = (value) => (typeof value !== "number" || !Number.isFinite(value) || (isLog && value <= 0) ? null : Math.min(1, Math.max(0, part(value))));
    return { at, ticks: low === high ? [[0.5, column.show(low)]] : axis.ticks(low, high, 5).map(([value, text]) => [part(value), text]) };
  }
  const names = [...new Set(values.map(String))].sort(byValue);
  const places = new Map(names.map((name, index) => [name, names.length > 1 ? index / (names.length - 1) : 0.5]));
  const every = Math.ceil(names.length / 12);
  return { at: (value) => places.get(String(value)) ?? null, ticks: names.filter((_, index) => index % every === 0).map((name) => [places.get(name), name]) };
}

/** A function from a run to its colour: that of the run or group, or a ramp over a column. */
function paintBy({ runs, choices }) {
  const key = choices.color;
  // Dozens of colours tell nothing apart; the result does.
  const isMany = key === "auto" && !runs.groups && runs.visible.length > FEW_COLORS;
  const column = runs.column(isMany ? runs.results[0] : key);
  if (!column) return (run) => runs.color(run);
  const { at } = valueScale(column, runs.visible);
  return (run) => {
    const place = at(column.value(run));
    return place === null ? "line" : shade(0.72 - 0.34 * place, 0.55 + 0.33 * place, 265 - 220 * place);
  };
}

function axisOptions(runs) {
  return [...runs.columns.values()].filter((one) => one.kind !== "fact" || one.numeric || one.key === "state").map((one) => [one.key, one.label]);
}

function colorOptions(runs) {
  const numeric = [...runs.columns.values()].filter((one) => one.numeric);
  return [["auto", "automatic"], ["run", "run or group"], ...numeric.map((one) => [one.key, one.label])];
}
