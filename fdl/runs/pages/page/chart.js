"use strict";
/* The curves of one metric, of many runs. */

/** Pieces of curves in one chart, together; few runs get more pieces each. */
const PIECES = 240_000;
const [FEWEST_PIECES, MOST_PIECES] = [128, 2048];
/** With more lines than this, the range of each piece would only hide other lines. */
const BANDS_UP_TO = 30;
const RUNS_PER_REQUEST = 100;
/** Milliseconds of drawing in one frame; the rest follows in the next, so the page stays smooth. */
const FRAME_BUDGET = 10;

class CurveChart extends RunsPlot {
  #store = new Map();
  #lines = [];
  #cursor = null;
  #frame = 0;
  #request = null;
  /** What the canvas shows, for those who cannot look at it. */
  shown = { lines: 0, bands: 0, message: "", complete: false };

  constructor(metric, page) {
    super(metric, { label: `Curves of ${metric}`, height: 280 });
    this.metric = metric;
    this.page = page;
    this.reset = button("Reset zoom", () => page.focus.zoom(null), { hidden: true, className: "small" });
    this.tools.append(this.reset, button("CSV", () => this.#saveCsv(), { className: "small", title: "Save the drawn points", "aria-label": `Save ${metric} as CSV` }));
    this.area.setAttribute("aria-valuemin", "0");
    this.area.setAttribute("aria-valuemax", "100");
    this.area.setAttribute("aria-valuenow", "0");
    this.resized = () => this.load();
    this.#listen();
    this.seen = false;
    this.observer = new IntersectionObserver((entries) => {
      this.seen = entries.some((entry) => entry.isIntersecting);
      if (this.seen) this.load();
    }, { rootMargin: "200px" });
    this.observer.observe(this.card);
  }

  close() {
    this.observer.disconnect();
    this.#request?.abort();
  }

  /** Forget the curves of runs that have changed. */
  forget(ids) {
    for (const curves of this.#store.values()) for (const id of ids) curves.delete(id);
  }

  /** The ends of the axis that is drawn; null without curves. */
  get range() {
    return this.scales && [this.scales.x.low, this.scales.x.high];
  }

  /** Where x lies on the canvas, in pixels from its left. */
  xOf(x) {
    return this.scales.px(x);
  }

  get #runs() {
    return this.page.model.visible.filter((run) => run.curves.includes(this.metric));
  }

  /** How many curves there will be: while runs are being read, all of them count. */
  get #expected() {
    const { isReading, total } = this.page.source;
    return Math.max(this.#runs.length, isReading ? total : 0);
  }

  get #band() {
    return this.#expected <= BANDS_UP_TO && !this.page.model.groups;
  }

  /** The key under which curves of the resolution that is needed now are kept. */
  #key() {
    const each = Math.min(MOST_PIECES, Math.max(FEWEST_PIECES, PIECES / Math.max(1, this.#expected), 1));
    const count = Math.min(2 ** Math.floor(Math.log2(each)), 2 ** Math.ceil(Math.log2(Math.max(256, this.width))));
    const { range } = this.page.focus;
    return { count, key: JSON.stringify([this.page.axis, range, count, this.#band]) };
  }

  /** Fetch the curves that are missing, and draw after each part. */
  async load() {
    this.draw();
    if (!this.seen || !this.width) return;
    const { count, key } = this.#key();
    if (!this.#store.has(key)) this.#store = new Map([...this.#store].slice(-2)).set(key, new Map());
    const kept = this.#store.get(key);
    const missing = () => this.#runs.map((run) => run.id).filter((id) => !kept.has(id));
    // The loop that is under way for this resolution also fetches the curves of new runs.
    if (this.#request?.key === key || !missing().length) return;
    this.#request?.abort();
    const request = (this.#request = Object.assign(new AbortController(), { key }));
    const { axis, focus: { range }, source } = this.page;
    const band = this.#band;
    this.card.setAttribute("aria-busy", "true");
    try {
      for (let ids; !request.signal.aborted && (ids = missing().slice(0, RUNS_PER_REQUEST)).length; ) {
        const found = await source.curves({ metric: this.metric, axis, ids, count, range, band, signal: request.signal });
        for (const id of ids) kept.set(id, found.get(id) || null);
        this.draw();
      }
    } catch (error) {
      if (error.name !== "AbortError") this.page.lost?.(error);
    } finally {
      if (this.#request === request) {
        this.#request = null;
        this.card.removeAttribute("aria-busy");
      }
    }
  }

  /** The curves to draw now; those of another resolution until the right ones have come. */
  #curves() {
    const { key } = this.#key();
    const kept = this.#store.get(key) || new Map();
    const older = [...this.#store].reverse().filter(([other]) => other !== key && JSON.parse(other)[0] === this.page.axis);
    const made = [];
    for (const run of this.#runs) {
      const curve = kept.get(run.id) ?? (kept.has(run.id) ? null : older.map(([, curves]) => curves.get(run.id)).find(Boolean));
      if (curve?.x.length) made.push([run, curve]);
    }
    return made;
  }

  redraw() {
    cancelAnimationFrame(this.#frame);
    const context = this.begin();
    if (!context) return;
    const { model, choices, axis } = this.page;
    this.reset.hidden = !this.page.focus.range;
    const amount = choices.get("smoothing");
    const curves = this.#curves().map(([run, curve]) => ({ run, ...curve, raw: curve.mean, y: smoothed(curve.x, curve.mean, amount) }));
    this.#lines = model.groups ? groupLines(curves, model.groups, choices.get("band") === "deviation") : curves;
    this.shown = { lines: 0, bands: 0, message: "", complete: false, axis };
    this.scales = this.#measure(context);
    if (!this.scales) {
      const waits = this.seen && this.card.hasAttribute("aria-busy");
      this.shown.message = waits ? "loading…" : !this.#runs.length ? "no visible run has this metric" : `no values over this ${axis === "step" ? "range of steps" : "axis"}`;
      this.say(context, this.shown.message);
      this.foot.textContent = "";
      return;
    }
    const { box, x, y } = this.scales;
    this.axes(context, box, x, y, AXIS_TITLES[this.page.axis]);
    this.#paint(context);
    this.#describe(curves.length);
    this.#drawCursor();
  }

  #measure(context) {
    const { axis, choices, focus } = this.page;
    const logY = choices.get("logY");
    let [first, last] = focus.range || [Infinity, -Infinity];
    const values = [];
    const every = Math.max(1, Math.ceil(this.#lines.reduce((sum, one) => sum + one.x.length, 0) / 40_000));
    for (const { x, y, low, high } of this.#lines) {
      if (!focus.range) [first, last] = [Math.min(first, x[0]), Math.max(last, x[x.length - 1])];
      for (let index = 0; index < x.length; index += every) {
        if (focus.range && (x[index] < first || x[index] > last)) continue;
        for (const value of low && !choices.get("smoothing") ? [y[index], low[index], high[index]] : [y[index]]) {
          if (Number.isFinite(value) && (!logY || value > 0)) values.push(value);
        }
      }
    }
    const range = robustRange(logY ? values.map(Math.log) : values);
    if (!range || !(last >= first)) return null;
    const [low, high] = logY ? [Math.exp(range.low), Math.exp(range.high)] : [range.low, range.high];
    const y = logY ? logScale(low, high, this.height / 48) : linearScale(low, high, this.height / 48);
    const box = this.boxFor(context, y);
    const logX = choices.get("logX") && axis !== "wall";
    const x = axisScale(axis, first, last, (box.right - box.left) / 84, logX);
    const unit = box.right - box.left;
    return {
      box, x, y, cut: range.cut,
      px: (at) => box.left + x.at(logX ? Math.max(at, x.low) : at) * unit,
      py: (value) => (logY && value <= 0 ? box.bottom + 1 : box.bottom - y.at(value) * (box.bottom - box.top)),
    };
  }

  /** Draw line after line, as many per frame as the screen has time for. */
  #paint(context) {
    const { box } = this.scales;
    const many = this.#lines.length > 60;
    let next = 0;
    const part = () => {
      const begun = performance.now();
      this.inside(context, box, 2, () => {
        while (next < this.#lines.length && performance.now() - begun < FRAME_BUDGET) {
          this.#paintLine(context, this.#lines[next++], many);
        }
      });
      this.shown.complete = next === this.#lines.length;
      if (!this.shown.complete) this.#frame = requestAnimationFrame(part);
    };
    part();
  }

  #paintLine(context, line, many) {
    const color = line.color || this.page.model.color(line.run);
    if (line.low && (!this.page.choices.get("smoothing") || line.members)) {
      context.globalAlpha = line.members ? 0.16 : 0.2;
      this.#area(context, line, color);
      this.shown.bands++;
    } else if (this.page.choices.get("smoothing") && this.#lines.length <= 8) {
      context.globalAlpha = 0.22;
      this.#stroke(context, line.x, line.raw, color, 1);
    }
    context.globalAlpha = many ? 0.55 : 1;
    this.#stroke(context, line.x, line.y, color, many ? 1 : 1.6);
    context.globalAlpha = 1;
    if (line.gaps?.length && !many) this.#marks(context, line, color);
    this.shown.lines++;
  }

  #stroke(context, x, y, color, width) {
    const { px, py, box } = this.scales;
    Object.assign(context, { strokeStyle: color, lineWidth: width, lineJoin: "bevel" });
    context.beginPath();
    let down = false;
    for (let index = 0; index < x.length; index++) {
      const across = px(x[index]);
      if (across < box.left - 2 && index + 1 < x.length && px(x[index + 1]) < box.left) continue;
      if (Number.isNaN(y[index])) {
        down = false;
        continue;
      }
      // What lies far outside is cut: a canvas draws very long lines slowly.
      const height = Math.min(Math.max(py(y[index]), -1e4), 1e4);
      if (down) context.lineTo(across, height);
      else context.moveTo(across, height);
      down = true;
      if (across > box.right + 2) break;
    }
    context.stroke();
    if (x.length === 1 || this.#isLone(y)) disc(context, px(x[x.length - 1]), py(y[y.length - 1]), 2.5, color);
  }

  #isLone(y) {
    return y.length < 3 && y.some(Number.isNaN);
  }

  #area(context, { x, low, high }, color) {
    const { px, py } = this.scales;
    const limit = (value) => Math.min(Math.max(py(value), -1e4), 1e4);
    context.fillStyle = color;
    context.beginPath();
    for (let start = 0; start < x.length; ) {
      if (Number.isNaN(low[start])) {
        start++;
        continue;
      }
      let end = start;
      while (end < x.length && !Number.isNaN(low[end])) end++;
      for (let index = start; index < end; index++) {
        if (index === start) context.moveTo(px(x[index]), limit(high[index]));
        else context.lineTo(px(x[index]), limit(high[index]));
      }
      for (let index = end - 1; index >= start; index--) context.lineTo(px(x[index]), limit(low[index]));
      start = end;
    }
    context.fill();
  }

  /** A cross at the bottom for each value that is not finite. */
  #marks(context, { gaps }, color) {
    const { px, box } = this.scales;
    for (const at of gaps.slice(0, 200)) {
      const [x, y] = [px(at), box.bottom - 6];
      strokeLine(context, x - 3.5, y - 3.5, x + 3.5, y + 3.5, color, 1.6);
      strokeLine(context, x - 3.5, y + 3.5, x + 3.5, y - 3.5, color, 1.6);
    }
  }

  #describe(count) {
    const { groups } = this.page.model;
    const hidden = this.#runs.length - count;
    const what = groups ? `mean and ${this.page.choices.get("band") === "deviation" ? "standard deviation" : "range"} of ${counted(this.#lines.length, "group")}` : counted(count, "run");
    const parts = [what];
    if (hidden > 0) parts.push(`${counted(hidden, "run")} without values on this axis`);
    if (this.scales.cut) parts.push("outliers are cut off");
    this.foot.textContent = parts.join(" · ");
  }

  #listen() {
    const follow = soon(() => this.#drawCursor());
    this.area.addEventListener("pointermove", (event) => {
      const [x, y] = this.at(event);
      this.#cursor = { x, y };
      follow();
    });
    this.area.addEventListener("pointerleave", () => {
      this.#cursor = null;
      this.page.highlight(null);
      follow();
    });
    this.letDrag((pixels) => this.#zoomTo(pixels), () => this.#openNearest());
    this.area.addEventListener("dblclick", () => this.page.focus.zoom(null));
    this.area.addEventListener("keydown", (event) => this.#key_(event));
    this.area.addEventListener("blur", () => {
      this.#cursor = null;
      follow();
    });
  }

  #openNearest() {
    const run = this.#nearest()?.line.run;
    if (run) this.page.open(run);
  }

  #zoomTo(pixels) {
    const ends = pixels.map((at) => this.back(at));
    this.page.focus.zoom(ends);
    announce(`zoomed to ${positionLabel(this.page.axis, ends[0], 1)} to ${positionLabel(this.page.axis, ends[1], 1)}`);
  }

  /** The x of the cursor, which may lie beside the axes. */
  get #position() {
    const { box } = this.scales;
    return this.back(Math.min(box.right, Math.max(box.left, this.#cursor.x)));
  }

  #key_(event) {
    if (!this.scales) return;
    const { box } = this.scales;
    const width = box.right - box.left;
    const cursor = (this.#cursor ||= { x: box.left + width / 2, y: (box.top + box.bottom) / 2 });
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const turn = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (move) cursor.x = Math.min(box.right, Math.max(box.left, cursor.x + (move * width) / (event.shiftKey ? 10 : 50)));
    else if (turn) this.#step(turn);
    else if (event.key === "Home") cursor.x = box.left;
    else if (event.key === "End") cursor.x = box.right;
    else if (event.key === "+" || event.key === "-") this.#zoomBy(event.key === "+" ? 0.5 : 2);
    else if (event.key === "Escape") this.page.focus.zoom(null);
    else if (event.key === "Enter") this.#openNearest();
    else return;
    event.preventDefault();
    this.#drawCursor();
  }

  #zoomBy(factor) {
    if (factor > 1 && !this.page.focus.range) return;
    this.page.focus.zoom(this.zoomedBy(factor, this.#position));
  }

  /** Move the cursor to the next line above or below. */
  #step(turn) {
    const found = this.#found().sort((a, b) => a.height - b.height);
    const now = found.findIndex(({ line }) => line === this.#nearest()?.line);
    const next = found[Math.min(found.length - 1, Math.max(0, now + turn))];
    if (next) this.#cursor.y = next.height;
  }

  /** Each line with its value at the cursor. */
  #found() {
    const { px, py } = this.scales;
    const at = this.#position;
    const made = [];
    for (const line of this.#lines) {
      const index = nearestIndex(line.x, at);
      const value = line.y[index];
      if (Number.isFinite(value) && Math.abs(px(line.x[index]) - this.#cursor.x) < 40) {
        made.push({ line, index, value, height: py(value) });
      }
    }
    return made;
  }

  #nearest() {
    if (!this.#cursor || !this.scales) return null;
    let best = null;
    for (const one of this.#found()) {
      if (!best || Math.abs(one.height - this.#cursor.y) < Math.abs(best.height - this.#cursor.y)) best = one;
    }
    return best;
  }

  /** Draw the line of a run that another panel points to. */
  point(run) {
    if (!this.#cursor) this.#drawCursor(run);
  }

  #drawCursor(pointed = null) {
    if (!this.scales || !this.width) return;
    const context = prepare(this.overlay, this.width, this.height);
    const { box, px } = this.scales;
    this.drawSelection(context);
    if (pointed) {
      const line = this.#lines.find((one) => one.run === pointed || one.members?.some(({ run }) => run === pointed));
      if (line) this.#emphasize(context, line);
    }
    const nearest = this.#nearest();
    if (!nearest) return this.tell(0, [], "");
    this.#emphasize(context, nearest.line);
    const x = px(nearest.line.x[nearest.index]);
    strokeLine(context, Math.round(x) + 0.5, box.top, Math.round(x) + 0.5, box.bottom, ink.get("soft"));
    disc(context, x, nearest.height, 4.5, this.#colorOf(nearest.line), ink.get("card"));
    this.#tellAbout(nearest, x);
    if (nearest.line.run) this.page.highlight(nearest.line.run, this);
  }

  #colorOf(line) {
    return line.color || this.page.model.color(line.run);
  }

  #emphasize(context, line) {
    this.inside(context, this.scales.box, 2, () => {
      if (this.#lines.length > 1) this.#stroke(context, line.x, line.y, ink.get("card"), 5);
      this.#stroke(context, line.x, line.y, this.#colorOf(line), 2.6);
    });
  }

  #tellAbout({ line, index, value }, x) {
    const { axis, model } = this.page;
    const at = line.x[index];
    const where = `${AXIS_NAMES[axis]} ${positionLabel(axis, at, 60)}`;
    const name = line.name || line.run.name;
    const lines = [reading(this.#colorOf(line), name, formatNumber(value), true), fact(AXIS_NAMES[axis], positionLabel(axis, at, 60))];
    if (line.low && Number.isFinite(line.low[index]) && line.high[index] > line.low[index]) {
      lines.push(fact("range", `${formatNumber(line.low[index])} to ${formatNumber(line.high[index])}`));
    }
    if (line.members) lines.push(fact("runs", String(line.members.length)));
    else for (const one of model.differing.slice(0, 5)) lines.push(fact(one, formatSetting(line.run.config[one]?.[0])));
    this.tell(x, lines, `${where}: ${name}, ${this.metric} ${formatNumber(value)}`);
  }

  #saveCsv() {
    const rows = [csvRow([this.page.model.groups ? "group" : "run", this.page.axis, this.metric, "lowest", "highest"])];
    for (const line of this.#lines) {
      for (let index = 0; index < line.x.length; index++) {
        rows.push(csvRow([line.name || line.run.name, line.x[index], line.y[index], line.low?.[index], line.high?.[index]]));
      }
    }
    save(`${this.metric.replace(/[^\w.-]+/g, "_")}.csv`, "text/csv", `${rows.join("\n")}\n`);
  }
}
