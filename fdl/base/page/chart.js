"use strict";
/* Curves over an axis that several charts share, drawn by uPlot: linked zoom and cursor, keys, and values off the scale. */

const DASHES = [[], [7, 4], [2, 4]];

/** A shorter way with the button down is a click. */
const DRAG_PIXELS = 5;

/** Values that count for a scale; of more, every n-th does. */
const MOST_SCALED = 40_000;

/** With more curves than this, values off the scale and gaps have no marks of their own. */
const MARKED_UP_TO = 60;

/** Where the reader looks, shared by all charts of one axis: the place pointed at, and the zoom. */
class Focus {
  charts = new Set();
  x = null;
  owner = null;
  range = null;

  /** `zoomed(range)` is called after the reader has zoomed. */
  constructor(axis, zoomed = () => {}) {
    Object.assign(this, { axis, zoomed });
  }

  point(x, owner) {
    if (x === this.x && owner === this.owner) return;
    [this.x, this.owner] = [x, owner];
    for (const chart of this.charts) chart.cursorLater();
  }

  zoom(range) {
    if (range && !(range[1] > range[0])) return;
    this.range = range;
    for (const chart of this.charts) chart.changedView();
    this.zoomed(range);
    const { axis } = this;
    const [from, to] = range && axis.numbers ? [Math.ceil(range[0]), Math.floor(range[1])] : range || [];
    announce(range ? `zoomed to ${axis.label(from)} to ${axis.label(to)}` : "whole range");
  }

  /** Whether x has a place on the axis and lies in the zoom. */
  shows(x) {
    return this.axis.has(x) && (!this.range || (x >= this.range[0] && x <= this.range[1]));
  }
}

/** How the curve of this number looks among those of its chart. */
function lookOf(index) {
  return { color: `series-${index % FEW_COLORS}`, dash: DASHES[Math.floor(index / FEW_COLORS) % DASHES.length] };
}

/** A line of the text box: a colour if it has one, a name, a value. */
function fact(name, value, color = null, dashed = false) {
  return element("span", {}, color && swatch(color, dashed), element("i", { textContent: name }), value);
}

function swatch(color, dashed = false) {
  const made = element("span", { className: "swatch" });
  made.style.borderTopColor = css(color);
  made.style.borderTopStyle = dashed ? "dashed" : "solid";
  return made;
}

/**
 * A chart of lines: its card, what uPlot draws, a layer for the cursor, the text box beside it, and
 * what stands below. A class that extends it has `redraw`, which calls `paint`, and
 * `read(x, context)`, which marks what is there and returns {x, title, rows, dots}: a row of the
 * text box is what `fact` takes. If it likes, it has `places`, the x that arrow keys reach instead
 * of those of the line that is pointed at, and `decorate(context)`, which draws over the curves.
 * One with many things, of which one is pointed at, has `found(x, level)`: the things near a place,
 * each {line, x, height, run}; without a level keys have gone there.
 */
class Chart {
  #plot = null;
  #shape = "";
  #whole = false;
  height = 260;
  width = 0;
  scales = null;
  lines = [];
  bounds = null;
  ticks = [];
  /** What the reader drags with the left button: {from, to, moved, pans}, two places in pixels. */
  drag = null;
  /** The height of the pointer; null for keys. */
  pointer = null;
  /** What is pointed at, of what `found` gave; and the run that another panel points to. */
  hit = null;
  pointed = null;
  draw = soon(() => this.redraw());
  /** Draw the cursor in the next frame; many moves of a mouse are one. */
  cursorLater = soon(() => this.drawCursor());

  constructor(title, focus, attributes = {}) {
    this.title = element("h3", { textContent: title, title });
    this.canvas = element("div", { "aria-hidden": "true" });
    this.overlay = element("canvas", { className: "overlay", "aria-hidden": "true", hidden: true });
    this.readout = element("div", { className: "readout", hidden: true, "aria-hidden": "true" });
    this.note = element("p", { className: "plot-note" });
    const spoken = { role: "slider", "aria-orientation": "horizontal", "aria-valuenow": 0 };
    this.area = element("div", { className: "plot", tabIndex: 0, ...spoken, ...attributes }, this.canvas, this.overlay, this.readout, this.note);
    this.area.plot = this;
    this.focus = focus;
    focus.charts.add(this);
    this.resetButton = button("reset zoom", () => this.reset(), { className: "toggle", hidden: true });
    // Offered where the scale leaves out values that lie far from all others.
    this.outlierButton = button("", () => this.toggle(() => (this.#whole = !this.#whole)), { className: "toggle outliers", hidden: true });
    this.head = element("div", { className: "chart-head" }, this.title, this.resetButton, this.outlierButton);
    this.foot = element("p", { className: "plot-foot" });
    this.card = element("article", { className: "card chart" }, this.head, this.area, this.foot);
    // Drawing changes the height, which the observer must not see as a change of its own making.
    new ResizeObserver(() => {
      const width = this.area.clientWidth;
      if (width === this.width) return;
      this.width = width;
      this.changedView();
    }).observe(this.area);
    this.#listen();
  }

  /** Draw at once in the width that there is now. */
  fit() {
    this.width = this.area.clientWidth;
    this.redraw();
  }

  /** Show the text box beside x, on the side that has more room and inside of the plot, and speak the same. */
  #tell(x, title, rows) {
    if (!rows.length) return;
    this.readout.hidden = false;
    this.readout.replaceChildren(element("b", { textContent: title }), ...rows.map((row) => fact(...row)));
    const room = Math.max(0, this.width - this.readout.offsetWidth);
    const left = x > this.width / 2 ? x - 14 - this.readout.offsetWidth : x + 14;
    this.readout.style.left = `${Math.min(Math.max(left, 0), room)}px`;
    this.area.setAttribute("aria-valuetext", [title, ...rows.map(([name, value]) => `${name} ${value}`.trim())].filter(Boolean).join(", "));
  }

  /** Let the reader change how it is drawn. */
  toggle(change) {
    change();
    this.redraw();
  }

  /** The width or the zoom has changed. */
  changedView() {
    this.draw();
  }

  /**
   * Draw lines: {name, color, x, y} and if they have them dash, width, alpha, low and high of a
   * band, `raw` values behind smooth ones, `best` {x, y}, `stepped` for a line that jumps, and `gaps`,
   * the x of values that are not finite.
   *
   * `log` is for the y axis, `share` and `far` for robustLimits; `empty` says why nothing can be
   * drawn. `bounds` {low, high, first, last} and `yTicks` replace what follows from the values.
   */
  paint(lines, { log = false, share, far, empty, bounds = null, yTicks = null }) {
    if (!this.width) return; // it is folded away, and drawn once it has a width
    const { axis, range } = this.focus;
    Object.assign(this, { lines: axis.log ? lines.map(aboveZero) : lines, bounds, logs: log });
    this.resetButton.hidden = !range;
    const limits = bounds ? { outside: 0, ...bounds } : this.#limits(share, far);
    if (bounds && range) [limits.first, limits.last] = range;
    const outside = limits?.outside || 0;
    this.outlierButton.hidden = !outside;
    this.outlierButton.textContent = `${outside} off scale`;
    this.outlierButton.title = `${outside} ${outside === 1 ? "value lies" : "values lie"} far from all others. Press to show the whole range.`;
    press(this.outlierButton, this.#whole);
    this.note.textContent = limits ? "" : empty;
    this.canvas.style.height = `${this.height}px`;
    if (limits) this.#draw(limits, yTicks);
    else {
      this.#plot?.destroy();
      this.#plot = this.scales = null;
      this.ticks = [];
    }
    this.drawCursor();
  }

  /** What both axes show, and how many values lie outside of it; null if there is nothing. */
  #limits(share, far) {
    const { lines, logs: log, focus } = this;
    const values = [];
    const every = Math.max(1, Math.ceil(lines.reduce((sum, one) => sum + one.x.length, 0) / MOST_SCALED));
    for (const { x, y, raw, low, high } of lines) {
      for (let index = 0; index < x.length; index += every) {
        if (!focus.shows(x[index])) continue;
        for (const column of low ? [y, low, high] : [raw || y]) {
          const value = column[index];
          if (Number.isFinite(value) && (!log || value > 0)) values.push(log ? Math.log10(value) : value);
        }
      }
    }
    const [first, last] = focus.range || this.ends;
    if (!values.length || !(last >= first)) return null;
    const robust = robustLimits(values, share, far);
    if (this.#whole) for (const value of values) [robust.low, robust.high] = [Math.min(robust.low, value), Math.max(robust.high, value)];
    const [low, high] = log ? [10 ** robust.low, 10 ** robust.high] : [robust.low, robust.high];
    return { low, high, first, last, outside: robust.outside };
  }

  #draw({ low, high, first, last }, yTicks) {
    const { lines, logs: log } = this;
    const { axis } = this.focus;
    const now = this.focus.owner === this ? this.focus.x : first;
    for (const [name, at] of Object.entries({ min: first, max: last, now })) this.area.setAttribute(`aria-value${name}`, at);
    const y = yTicks ? { low, high, ticks: yTicks } : roomyScale(low, high, this.height / 48, log);
    // One place alone lies in the middle.
    const x = first < last ? [first, last] : axis.log ? [first / 2, first * 2] : [first - 1, first + 1];
    const wanted = Math.max(1, (this.width - 60) / (axis.numbers ? 76 : 84));
    this.marks = [new Map(axis.ticks(first, last, wanted)), new Map(y.ticks)];
    this.ticks = this.marks.flatMap((one) => [...one.values()]);
    // A value far off the scale ends just outside of the plot: a canvas draws nothing at 1e300.
    const [bottom, top] = log ? [y.low ** 2 / y.high, y.high ** 2 / y.low] : [2 * y.low - y.high, 2 * y.high - y.low];
    const near = (value) => (!Number.isFinite(value) || (log && value <= 0) ? null : Math.min(top, Math.max(bottom, value)));
    // The library needs a line, also where everything is drawn by `decorate`.
    const parts = (lines.length ? lines : [{ color: "card", x, y: [NaN, NaN] }]).flatMap((line) => [...(line.low ? ["low"] : []), ...(line.raw ? ["raw"] : []), "y"].map((part) => [line, part]));
    const data = parts.map(([line, part]) => [line.x, ...(part === "low" ? [line.low, line.high] : [line[part]]).map((column) => Array.from(column, near))]);
    const shape = JSON.stringify([log, axis.log, axis.title, this.height, parts.map(([{ width, dash, alpha }, part]) => [part, width, dash, alpha])]);
    this.painted = parts;
    if (!this.#plot || shape !== this.#shape) this.#make(parts, data, x, y, log);
    else {
      const plot = this.#plot;
      plot.batch(() => {
        if (plot.width !== this.width) plot.setSize({ width: this.width, height: this.height });
        plot.setData([null, ...data], false);
        plot.setScale("x", { min: x[0], max: x[1] });
        plot.setScale("y", { min: y.low, max: y.high });
        plot.redraw(false, true); // also where only labels have changed, or what `decorate` draws
      });
    }
    this.#shape = shape;
  }

  #make(parts, data, x, y, log) {
    this.#plot?.destroy();
    const { axis } = this.focus;
    const ticksOf = (index) => ({
      splits: () => [...this.marks[index].keys()],
      values: (_, splits) => splits.map((at) => this.marks[index].get(at) ?? ""),
      filter: (_, splits) => splits,
      stroke: () => ink.get("soft"),
      font: ink.font,
      ticks: { show: false },
      gap: 7,
    });
    const width = (_, labels) => {
      const context = this.overlay.getContext("2d");
      context.font = ink.font;
      return 12 + Math.max(16, ...(labels || []).map((text) => context.measureText(text).width));
    };
    const scale = ([min, max], logs) => ({ time: false, auto: false, range: () => [min, max], distr: logs ? 3 : 1 });
    this.#plot = new uPlot(
      {
        mode: 2,
        width: this.width,
        height: this.height,
        padding: [10, 16, 0, 0],
        legend: { show: false },
        cursor: { show: false },
        scales: { x: scale(x, axis.log), y: scale([y.low, y.high], log) },
        axes: [
          { ...ticksOf(0), size: 22, grid: { show: false }, border: { show: true, stroke: () => ink.get("line"), width: 1 }, label: axis.title, labelSize: 16, labelFont: ink.font, labelGap: 0 },
          { ...ticksOf(1), size: width, grid: { stroke: () => ink.get("grid"), width: 1 } },
        ],
        series: [null, ...parts.map(([line, part], index) => this.#seriesOf(line, part, index))],
        hooks: { draw: [(plot) => this.#drawMarks(plot)] },
      },
      [null, ...data],
      this.canvas,
    );
    this.#plot.batch(() => {}); // draws now, and not after this script
  }

  #seriesOf({ width = 1.9, dash, alpha = 1, stepped = false }, part, index) {
    const color = () => ink.get(this.painted[index][0].color);
    const common = { facets: [{ scale: "x", auto: false }, { scale: "y", auto: false }], points: { show: false } };
    if (part === "low") return { ...common, paths: bandPath, width: 0, fill: color, alpha: 0.18 };
    const paths = stepped ? uPlot.paths.stepped({ align: -1 }) : undefined;
    return { ...common, paths, stroke: color, dash, width: part === "raw" ? 1 : width, alpha: part === "raw" ? 0.28 : alpha };
  }

  /** Where everything lies now, in pixels of the page. */
  #measure() {
    const plot = this.#plot;
    const [left, top, width, height] = ["left", "top", "width", "height"].map((name) => plot.bbox[name] / devicePixelRatio);
    const bound = (pixel) => Math.min(2 * height, Math.max(-height, pixel));
    this.scales = {
      box: { left, top, right: left + width, bottom: top + height },
      px: (x) => left + plot.valToPos(x, "x"),
      py: (value) => top + bound(plot.valToPos(value, "y")),
      back: (pixel) => plot.posToVal(pixel - left, "x"),
    };
  }

  /** Best values, lone points, gaps, and a triangle at the edge for each value that the scale leaves out. */
  #drawMarks(plot) {
    const { ctx: context } = plot;
    this.#measure();
    context.save();
    context.scale(devicePixelRatio, devicePixelRatio);
    context.font = ink.font;
    for (const line of this.lines) this.#markLine(context, line);
    if (this.decorate) inside(context, this.scales.box, () => this.decorate(context), 6);
    context.restore();
  }

  #markLine(context, line) {
    const { box, px, py } = this.scales;
    const { x, color, best } = line;
    const y = line.raw || line.y;
    const few = this.lines.length <= MARKED_UP_TO;
    const shown = (value) => Number.isFinite(value) && (!this.logs || value > 0);
    const within = (at) => px(at) >= box.left - 1 && px(at) <= box.right + 1;
    for (let index = 0; index < (few ? x.length : Math.min(2, x.length)); index++) {
      if (!within(x[index])) continue;
      const [across, value] = [px(x[index]), y[index]];
      if (shown(value)) {
        const height = py(value);
        if (!shown(y[index - 1]) && !shown(y[index + 1])) disc(context, across, Math.min(box.bottom, Math.max(box.top, height)), 3, color);
        if (few && height < box.top - 1) label(context, "▲", across, box.top, color, "center", "top");
        if (few && height > box.bottom + 1) label(context, "▼", across, box.bottom, color, "center", "bottom");
      } else if (few && !Number.isFinite(value)) {
        strokeLine(context, across, box.bottom - 7, across, box.bottom, this.lines.length > 8 ? color : "bad", 2);
      }
    }
    if (few) for (const at of (line.gaps || []).filter(within).slice(0, 200)) strokeLine(context, px(at), box.bottom - 7, px(at), box.bottom, color, 2);
    if (best && within(best.x) && shown(best.y)) disc(context, px(best.x), py(best.y), 4, "card", color);
  }

  drawCursor() {
    const { x, owner } = this.focus;
    this.crosshair = false;
    this.readout.hidden = true;
    this.overlay.hidden = !this.scales;
    if (!this.scales) return;
    const context = prepare(this.overlay, this.width, this.height);
    const { box, px } = this.scales;
    if (this.drag?.moved && !this.drag.pans) this.drawDrag(context, this.drag);
    const isPointed = (run) => run?.id === this.pointed?.id;
    const line = this.pointed && (this.things ?? this.lines).find(({ run, members }) => isPointed(run) || members?.some((one) => isPointed(one.run)));
    if (line) this.emphasize(context, line);
    if (x === null || !this.focus.shows(x)) return;
    const found = this.read(x, context);
    if (!found) return;
    this.crosshair = true;
    context.setLineDash([3, 3]);
    strokeLine(context, px(found.x), box.top, px(found.x), box.bottom, "soft");
    context.setLineDash([]);
    for (const [y, color] of found.dots) disc(context, px(found.x), y, 4, color, "card");
    if (owner !== this) return;
    this.#tell(px(found.x), found.title, this.drag?.moved ? [] : found.rows);
    this.area.setAttribute("aria-valuenow", x);
  }

  /** The way of a line over the plot. */
  pathOf(line) {
    const { px, py } = this.scales;
    const path = new Path2D();
    let down = false;
    line.x.forEach((x, index) => {
      const value = line.y[index];
      const known = Number.isFinite(value) && (!this.logs || value > 0);
      if (known) path[down ? "lineTo" : "moveTo"](px(x), py(value));
      down = known;
    });
    return path;
  }

  /** Draw one line again, above all others. */
  emphasize(context, line) {
    const path = this.pathOf(line);
    inside(context, this.scales.box, () => {
      for (const [color, width] of [["card", 5], [line.color, 2.6]]) {
        Object.assign(context, { strokeStyle: ink.get(color), lineWidth: width, lineJoin: "round" });
        context.stroke(path);
      }
    }, 2);
  }

  /** The ends of the axis that is drawn; null without curves. */
  get range() {
    return this.scales && [this.#plot.scales.x.min, this.#plot.scales.x.max];
  }

  #listen() {
    const { area } = this;
    // Where a pointer is: across inside of the plot, and how far down.
    const at = (event) => {
      const frame = area.getBoundingClientRect();
      const { left, right } = this.scales.box;
      return [Math.min(right, Math.max(left, event.clientX - frame.left)), event.clientY - frame.top];
    };
    area.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !this.scales) return;
      // With Shift, the picture moves with the pointer.
      this.drag = { from: at(event), to: at(event), moved: false, pans: event.shiftKey };
      area.setPointerCapture(event.pointerId);
    });
    area.addEventListener("pointermove", (event) => {
      if (!this.scales) return;
      const [x, y] = at(event);
      if (this.drag) {
        const { from, to, pans } = this.drag;
        this.drag.moved ||= Math.hypot(x - from[0], y - from[1]) > DRAG_PIXELS;
        if (pans) this.pan((to[0] - x) / (this.scales.box.right - this.scales.box.left));
        this.drag.to = [x, y];
      }
      this.pointer = y;
      this.follow(this.scales.back(x));
      this.cursorLater();
    });
    area.addEventListener("pointerup", () => {
      const { drag } = this;
      this.drag = null;
      if (!drag || !this.scales) return;
      if (!drag.moved) this.open(drag);
      else if (!drag.pans) this.dragged(drag);
    });
    area.addEventListener("pointercancel", () => (this.drag = null));
    area.addEventListener("dblclick", () => this.focus.range && this.reset());
    area.addEventListener("pointerleave", () => this.drag || this.leave());
    area.addEventListener("blur", () => this.leave());
    area.addEventListener("keydown", (event) => this.#key(event));
    area.addEventListener("wheel", (event) => {
      // A wheel alone scrolls the page, as everywhere.
      if (!this.scales || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      this.#zoomBy(1.0015 ** event.deltaY, this.scales.back(at(event)[0]));
    }, { passive: false });
  }

  /** Mark what is dragged over. */
  drawDrag(context, { from: [from], to: [to] }) {
    const { top, bottom } = this.scales.box;
    wash(context, "accent", from, top, to, bottom);
  }

  /** Take what was dragged over, with the zoom. */
  dragged({ from: [from], to: [to] }) {
    this.focus.zoom([from, to].sort((a, b) => a - b).map((pixel) => this.scales.back(pixel)));
  }

  /** Point at a place. */
  follow(x) {
    this.focus.point(x, this);
  }

  leave() {
    this.pointer = null;
    this.area.removeAttribute("aria-valuetext");
    this.focus.point(null, null);
    this.page?.highlight(null);
  }

  reset() {
    this.focus.zoom(null);
  }

  /** Open the run that is pointed at. */
  open() {
    if (this.hit?.run) this.page.open(this.hit.run);
  }

  /** Another panel points to a run. */
  point(run) {
    this.pointed = run;
    this.cursorLater();
  }

  /** What was found nearest to the pointer; keys stay at their line. */
  nearest(x) {
    const { px } = this.scales;
    const found = this.found(x, this.pointer).filter(({ height }) => Number.isFinite(height));
    const same = this.pointer === null ? found.filter(({ line }) => line === this.hit?.line) : [];
    const level = this.pointer ?? this.hit?.height ?? 0;
    const away = (one) => Math.hypot(px(one.x) - px(x), one.height - level);
    return (this.hit = (same.length ? same : found).reduce((best, one) => (best && away(best) <= away(one) ? best : one), null));
  }

  /** Go to what is above or below. */
  #turn(step) {
    const found = this.found(this.focus.x, null).filter(({ height }) => Number.isFinite(height)).sort((a, b) => a.height - b.height);
    const now = found.findIndex(({ line }) => line === this.hit?.line);
    this.hit = found[Math.min(found.length - 1, Math.max(0, now + step))] ?? null;
  }

  #key(event) {
    const { range } = this.focus;
    if (!this.scales || event.ctrlKey || event.metaKey || event.altKey) return;
    const places = this.places ?? [...((this.hit?.line ?? this.lines[0])?.x ?? [])];
    const reached = places.filter((x) => this.focus.shows(x));
    const last = reached.length - 1;
    const pointed = this.focus.owner === this && this.focus.x !== null;
    const here = pointed ? nearestIndex(reached, this.focus.x) : -1;
    const page = Math.max(1, Math.round(last / 10));
    const turns = { ArrowUp: -1, ArrowDown: 1 };
    const moves = {
      ArrowRight: here + 1, ArrowUp: here + 1, ArrowLeft: here < 0 ? last : here - 1, ArrowDown: here - 1,
      PageUp: here + page, PageDown: here - page, Home: 0, End: last,
    };
    this.pointer = null;
    if (event.key === "Escape") {
      this.leave();
      if (!this.resetButton.hidden) this.reset();
    } else if (event.key === "0" && range) this.reset();
    else if (event.shiftKey && ["ArrowLeft", "ArrowRight"].includes(event.key)) this.pan(event.key === "ArrowLeft" ? -0.2 : 0.2);
    else if ("+-=".includes(event.key)) this.#zoomBy(event.key === "-" ? 2 : 0.5, pointed ? this.focus.x : undefined);
    else if (event.key === "Enter" && this.hit?.run) this.open();
    else if (event.key in turns && this.found && pointed) this.#turn(turns[event.key]);
    else if (event.key in moves && last >= 0) this.focus.point(reached[Math.min(last, Math.max(0, moves[event.key]))], this);
    else return;
    event.preventDefault();
    this.cursorLater();
  }

  /** The ends of the whole axis. */
  get ends() {
    if (this.bounds) return [this.bounds.first, this.bounds.last];
    const known = this.lines.filter(({ x }) => x.length);
    return [Math.min(...known.map(({ x }) => x[0])), Math.max(...known.map(({ x }) => x[x.length - 1]))];
  }

  /** Zoom by a factor around a place, or around the middle. */
  #zoomBy(factor, around) {
    const { box, px, back } = this.scales;
    const middle = around === undefined ? (box.left + box.right) / 2 : px(around);
    const [first, last] = this.ends;
    const [from, to] = [box.left, box.right].map((edge) => back(middle + (edge - middle) * factor));
    if (from <= first && to >= last) this.focus.zoom(null);
    else this.focus.zoom(this.focus.range ? [from, to] : [Math.max(first, from), Math.min(last, to)]);
  }

  /** Move the zoom along the axis by a part of it, no further than its ends. */
  pan(part) {
    const { range } = this.focus;
    if (!range) return;
    const [first, last] = this.ends;
    const wanted = part * (range[1] - range[0]);
    const step = part < 0 ? Math.max(wanted, Math.min(0, first - range[0])) : Math.min(wanted, Math.max(0, last - range[1]));
    if (step) this.focus.zoom([range[0] + step, range[1] + step]);
  }
}

/** The area between the lowest and the highest values. */
function bandPath(plot, index) {
  const [x, low, high] = plot.data[index];
  const fill = new Path2D();
  const corner = (at, value) => [plot.valToPos(at, "x", true), plot.valToPos(value, "y", true)];
  for (let start = 0; start < x.length; start++) {
    if (low[start] === null || high[start] === null) continue;
    let end = start;
    while (end < x.length && low[end] !== null && high[end] !== null) end++;
    fill.moveTo(...corner(x[start], high[start]));
    for (let one = start + 1; one < end; one++) fill.lineTo(...corner(x[one], high[one]));
    for (let one = end - 1; one >= start; one--) fill.lineTo(...corner(x[one], low[one]));
    fill.closePath();
    start = end;
  }
  return { stroke: null, fill, flags: 0 };
}

/** A line without its points at or below zero, for which a logarithmic axis has no place. */
function aboveZero(line) {
  const start = line.x.findIndex((x) => x > 0);
  const columns = ["x", "y", "raw", "low", "high"].filter((name) => line[name]);
  return start === 0 ? line : { ...line, ...Object.fromEntries(columns.map((name) => [name, start < 0 ? [] : line[name].slice(start)])) };
}
