"use strict";
/* Parallel coordinates: one axis per setting or metric, one line per run. */

const MOST_AXES = 8;
const NARROW_AXIS = 88;

class ParallelPanel extends RunsPlot {
  #axes = [];
  #brushes = new Map();
  #drag = null;
  #pointed = null;

  constructor(page) {
    super("Parallel coordinates", { label: "Parallel coordinates of the visible runs", height: 320, role: "group" });
    this.page = page;
    this.picker = new Picker("Axes", () => axisOptions(page.model), () => this.keys, (axes) => page.choices.set({ axes }));
    this.reset = button("Clear ranges", () => this.#clear(), { hidden: true, className: "small" });
    this.target = selection("Colour by", (target) => page.choices.set({ target }));
    this.tools.append(this.reset, element("label", { className: "labelled" }, "Colour", this.target), this.picker.box);
    place("parallel").append(this.card);
    this.#listen();
  }

  /** The keys of the axes: settings that differ, and then the best values of the first metrics. */
  get keys() {
    const { model, choices } = this.page;
    const chosen = choices.get("axes");
    if (chosen) return chosen.filter((key) => model.column(key));
    const metrics = model.curveNames.map((name) => `best:${name}`).filter((key) => model.column(key));
    // Seeds come last: they say least about a result.
    const names = [...model.differing].sort((a, b) => isSeed(a) - isSeed(b));
    const settings = names.map((name) => `config.${name}`);
    return [...settings.slice(0, MOST_AXES - 2), ...metrics.slice(0, 2).reverse()];
  }

  /** The runs inside the ranges that were drawn on the axes. */
  get brushed() {
    return this.#brushes.size ? this.page.model.visible.filter((run) => this.#isInside(run)) : null;
  }

  show() {
    const { model, choices } = this.page;
    fill(this.target, colorOptions(model), choices.get("target"));
    this.picker.show();
    this.draw();
  }

  point(run) {
    this.#pointed = run;
    this.#drawPointed();
  }

  redraw() {
    const context = this.begin();
    if (!context) return;
    const { model, choices } = this.page;
    const runs = model.visible;
    const columns = this.#fitting(this.keys.map((key) => model.column(key)));
    this.reset.hidden = !this.#brushes.size;
    if (columns.length < 2 || !runs.length) {
      this.#axes = [];
      this.say(context, runs.length ? "choose two or more axes" : "no run is visible");
      this.foot.textContent = "";
      return;
    }
    const [left, right] = [36, this.width - 52];
    this.#axes = columns.map((column, index) => ({
      column,
      x: left + ((right - left) * index) / (columns.length - 1),
      ...valueScale(column, runs),
    }));
    this.box = { top: 34, bottom: this.height - 14 };
    this.paint = paintBy(choices.get("target"), model);
    const inside = new Set(this.brushed ?? runs);
    const alpha = Math.max(0.12, Math.min(0.85, 60 / Math.max(1, inside.size)));
    for (const run of runs) if (!inside.has(run)) this.#line(context, run, ink.get("line"), 1, 0.5);
    for (const run of runs) if (inside.has(run)) this.#line(context, run, this.paint(run), 1.4, alpha);
    this.#drawAxes(context);
    const hidden = this.keys.length - columns.length;
    this.foot.textContent = [
      this.#brushes.size ? `${inside.size} of ${counted(runs.length, "run")} inside the ranges` : `${counted(runs.length, "run")} · drag along an axis to choose a range`,
      ...(hidden > 0 ? [`${counted(hidden, "more axis").replace("axiss", "axes")} on a wider screen`] : []),
    ].join(" · ");
    this.area.setAttribute("aria-label", `Parallel coordinates of ${counted(runs.length, "run")} over ${columns.map((one) => one.label).join(", ")}`);
    this.#drawPointed();
  }

  /** The axes that have room: the last one, usually a result, and as many others as fit. */
  #fitting(columns) {
    const room = Math.max(2, Math.floor(this.width / NARROW_AXIS));
    return columns.length <= room ? columns : [...columns.slice(0, room - 1), columns[columns.length - 1]];
  }

  #line(context, run, color, width, alpha) {
    Object.assign(context, { strokeStyle: color, lineWidth: width, globalAlpha: alpha });
    context.beginPath();
    let down = false;
    for (const axis of this.#axes) {
      const y = this.#y(axis, run);
      if (y === null) {
        down = false;
        continue;
      }
      if (down) context.lineTo(axis.x, y);
      else context.moveTo(axis.x, y);
      down = true;
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
      strokeLine(context, axis.x, top, axis.x, bottom, ink.get("soft"), 1);
      Object.assign(context, { textBaseline: "middle", textAlign: index ? "center" : "left", fillStyle: ink.get("text") });
      if (index === this.#axes.length - 1) context.textAlign = "right";
      const at = index === 0 ? 6 : index === this.#axes.length - 1 ? this.width - 6 : axis.x;
      context.fillText(fitted(context, axis.column.label, room), at, 14);
      Object.assign(context, { textAlign: "left" });
      for (const [part, label] of axis.ticks) {
        const y = bottom - part * (bottom - top);
        const text = fitted(context, label, index === this.#axes.length - 1 ? 44 : room - 8);
        Object.assign(context, { strokeStyle: ink.get("card"), lineWidth: 3, fillStyle: ink.get("soft"), lineJoin: "round" });
        context.strokeText(text, axis.x + 6, y);
        context.fillText(text, axis.x + 6, y);
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
    if (!this.#pointed || !this.page.model.visible.includes(this.#pointed)) return this.tell(0, [], "");
    this.#line(context, this.#pointed, ink.get("card"), 6, 1);
    this.#line(context, this.#pointed, this.paint(this.#pointed), 3, 1);
  }

  #isInside(run) {
    for (const axis of this.#axes) {
      const brush = this.#brushes.get(axis.column.key);
      if (!brush) continue;
      const part = axis.at(axis.column.value(run));
      if (part === null || part < Math.min(...brush) || part > Math.max(...brush)) return false;
    }
    return true;
  }

  #clear() {
    this.#brushes.clear();
    this.draw();
    announce("all ranges are cleared");
  }

  #listen() {
    this.area.addEventListener("pointerdown", (event) => {
      const [x, y] = this.at(event);
      const axis = this.#axes.find((one) => Math.abs(one.x - x) < 16);
      if (!axis || event.button !== 0) return;
      this.#drag = { axis, from: this.#part(y) };
      this.area.setPointerCapture(event.pointerId);
    });
    this.area.addEventListener("pointermove", (event) => {
      const [x, y] = this.at(event);
      if (!this.#drag) return this.#pointAt(x, y);
      this.#brushes.set(this.#drag.axis.column.key, [this.#drag.from, this.#part(y)]);
      this.draw();
    });
    this.area.addEventListener("pointerup", (event) => {
      if (!this.#drag) return;
      const [, y] = this.at(event);
      if (Math.abs(this.#part(y) - this.#drag.from) < 0.01) this.#brushes.delete(this.#drag.axis.column.key);
      this.#drag = null;
      this.draw();
      announce(`${(this.brushed ?? this.page.model.visible).length} runs are inside the ranges`);
    });
    this.area.addEventListener("pointerleave", () => this.page.highlight(null));
    this.area.addEventListener("click", (event) => {
      const run = this.#pointed;
      if (run && !this.#axes.some((one) => Math.abs(one.x - this.at(event)[0]) < 16)) this.page.open(run);
    });
    this.area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.#clear();
      const turn = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1 }[event.key];
      if (event.key === "Enter" && this.#pointed) this.page.open(this.#pointed);
      if (!turn) return;
      event.preventDefault();
      const runs = this.page.model.visible;
      const now = runs.indexOf(this.#pointed);
      const run = runs[(now + turn + runs.length) % runs.length];
      this.page.highlight(run);
      announce(`${run.name}: ${this.#axes.map((axis) => `${axis.column.label} ${shownCell(axis.column, run)}`).join(", ")}`);
    });
  }

  #part(y) {
    const { top, bottom } = this.box;
    return Math.min(1, Math.max(0, (bottom - y) / (bottom - top)));
  }

  /** Highlight the run whose line passes nearest to the pointer. */
  #pointAt(x, y) {
    const index = this.#axes.findIndex((axis, place) => this.#axes[place + 1] && x >= axis.x && x <= this.#axes[place + 1].x);
    if (index < 0) return;
    const [left, right] = [this.#axes[index], this.#axes[index + 1]];
    const part = (x - left.x) / (right.x - left.x);
    let [best, distance] = [null, 12];
    for (const run of this.brushed ?? this.page.model.visible) {
      const [a, b] = [this.#y(left, run), this.#y(right, run)];
      if (a === null || b === null) continue;
      const away = Math.abs(a + part * (b - a) - y);
      if (away < distance) [best, distance] = [run, away];
    }
    this.page.highlight(best);
    if (best) this.tell(x, [reading(this.paint(best), best.name, "", true), ...this.#axes.map((axis) => fact(axis.column.label, shownCell(axis.column, best)))], best.name);
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
    const at = (value) => {
      if (typeof value !== "number" || !Number.isFinite(value) || (isLog && value <= 0)) return null;
      return Math.min(1, Math.max(0, scale.at(value)));
    };
    const ticks = low === high ? [[0.5, shownValue(column, low)]] : scale.ticks.map(([value, label]) => [scale.at(value), label]);
    return { at, ticks, isLog, scale };
  }
  const names = [...new Set(values.map(String))].sort(byValue);
  const places = new Map(names.map((name, index) => [name, names.length > 1 ? index / (names.length - 1) : 0.5]));
  const every = Math.ceil(names.length / 12);
  return {
    at: (value) => (value === undefined || value === null ? null : places.get(String(value)) ?? null),
    ticks: names.filter((_, index) => index % every === 0).map((name) => [places.get(name), name]),
  };
}

function shownValue(column, value) {
  return column.key === "seconds" ? formatDuration(value) : column.kind === "metric" ? formatNumber(value) : formatSetting(value);
}

/** A function from a run to its colour: that of the run or group, or a ramp over a column. */
function paintBy(key, model) {
  // Dozens of colours tell nothing apart; the result does.
  const isMany = key === "auto" && !model.groups && model.visible.length > FEW_COLORS;
  const result = isMany ? model.curveNames.map((name) => `best:${name}`).find((one) => model.column(one)) : key;
  const column = model.column(result);
  if (!column) return (run) => model.color(run);
  const { at } = valueScale(column, model.visible);
  return (run) => {
    const part = at(column.value(run));
    if (part === null) return ink.get("line");
    const light = ink.dark ? 0.55 + 0.33 * part : 0.72 - 0.34 * part;
    return ink.get(`oklch(${light.toFixed(3)} 0.15 ${(265 - 220 * part).toFixed(1)})`);
  };
}

function axisOptions(model) {
  return [...model.columns.values()].filter((one) => one.kind !== "fact" || one.numeric || one.key === "state").map((one) => [one.key, one.label]);
}

function colorOptions(model) {
  const numeric = [...model.columns.values()].filter((one) => one.numeric);
  return [["auto", "automatic"], ["run", "run or group"], ...numeric.map((one) => [one.key, one.label])];
}
