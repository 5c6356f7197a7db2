"use strict";
/* The curves of one metric, of many runs or of groups of runs. */

/** Pieces of curves in one chart, together; few runs get more pieces each. */
const PIECES = 240_000;
const [FEWEST_PIECES, MOST_PIECES] = [128, 2048];
/** With more lines than this, the range of each piece would only hide other lines. */
const BANDS_UP_TO = 30;
const RUNS_PER_REQUEST = 100;
/** Of many runs, more may lie far from the others: one that diverged must not flatten the rest. */
const [FAR_SHARE, FAR] = [0.05, 10];

class CurveChart extends Chart {
  #store = new Map();
  #request = null;
  #nearest = null;
  /** What is drawn, for those who cannot look at it. */
  shown = { lines: 0, bands: 0, message: "", complete: false };

  constructor(metric, page) {
    super(metric, page.focus, { "aria-label": `Curves of ${metric}`, height: 280 });
    this.metric = metric;
    this.page = page;
    this.foot = element("p", { className: "plot-foot" });
    this.card.append(this.foot);
    this.head.append(button("CSV", () => this.#saveCsv(), { className: "toggle", title: "Save the drawn points", "aria-label": `Save ${metric} as CSV` }));
    this.resized = () => this.load();
    this.seen = false;
    this.observer = new IntersectionObserver((entries) => {
      this.seen = entries.some((entry) => entry.isIntersecting);
      if (this.seen) this.load();
    }, { rootMargin: "200px" });
    this.observer.observe(this.card);
  }

  close() {
    super.close();
    this.observer.disconnect();
    this.#request?.abort();
  }

  /** Forget the curves of runs that have changed. */
  forget(ids) {
    for (const curves of this.#store.values()) for (const id of ids) curves.delete(id);
  }

  zoomed() {
    this.load();
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

  /** The resolution that is needed now, and the key under which its curves are kept. */
  #wanted() {
    const each = Math.min(MOST_PIECES, Math.max(FEWEST_PIECES, PIECES / Math.max(1, this.#expected), 1));
    const count = Math.min(2 ** Math.floor(Math.log2(each)), 2 ** Math.ceil(Math.log2(Math.max(256, this.width))));
    return { count, key: JSON.stringify([this.page.axis, this.focus.range, count, this.#band]) };
  }

  /** Fetch the curves that are missing, and draw after each part. */
  async load() {
    this.draw();
    if (!this.seen || !this.width) return;
    const { count, key } = this.#wanted();
    if (!this.#store.has(key)) this.#store = new Map([...this.#store].slice(-2)).set(key, new Map());
    const kept = this.#store.get(key);
    const missing = () => this.#runs.map((run) => run.id).filter((id) => !kept.has(id));
    // The loop that is under way for this resolution also fetches the curves of new runs.
    if (this.#request?.key === key || !missing().length) return;
    this.#request?.abort();
    const request = (this.#request = Object.assign(new AbortController(), { key }));
    const { axis, source } = this.page;
    const [{ range }, band] = [this.focus, this.#band];
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
        this.draw();
      }
    }
  }

  /** The curves to draw now; those of another resolution until the right ones have come. */
  #curves() {
    const { key } = this.#wanted();
    const kept = this.#store.get(key) || new Map();
    const older = [...this.#store].reverse().filter(([other]) => other !== key && JSON.parse(other)[0] === this.page.axis);
    const made = [];
    for (const run of this.#runs) {
      const curve = kept.get(run.id) ?? (kept.has(run.id) ? null : older.map(([, curves]) => curves.get(run.id)).find(Boolean));
      if (curve?.x.length) made.push({ run, ...curve });
    }
    return made;
  }

  #linesOf(curves) {
    const { model, choices } = this.page;
    const amount = choices.get("smoothing");
    if (model.groups) {
      const smooth = curves.map((one) => ({ ...one, y: smoothed(one.x, one.mean, amount) }));
      return groupLines(smooth, model.groups, choices.get("band") === "deviation");
    }
    const many = curves.length > MARKED_UP_TO;
    const look = { width: many ? 1 : 1.6, alpha: many ? 0.55 : 1 };
    return curves.map(({ run, x, mean, low, high, gaps }) => {
      const values = amount ? { y: smoothed(x, mean, amount), raw: curves.length <= 8 ? mean : undefined } : { y: mean, low, high };
      return { run, name: run.name, color: model.color(run), x, gaps, ...look, ...values };
    });
  }

  redraw() {
    const { model, choices, axis } = this.page;
    const curves = this.#curves();
    const lines = this.#linesOf(curves);
    const waits = this.seen && this.card.hasAttribute("aria-busy");
    const none = `no values over this ${axis === "step" ? "range of steps" : "axis"}`;
    const empty = waits ? "loading…" : this.#runs.length ? none : "no visible run has this metric";
    this.#nearest = this.pointed = null;
    this.paint(lines, { log: choices.get("logY"), share: FAR_SHARE, far: FAR, empty });
    const drawn = this.scales ? lines : [];
    this.shown = { lines: drawn.length, bands: drawn.filter((one) => one.low).length, message: this.message, complete: Boolean(this.scales), axis };
    const hidden = this.#runs.length - curves.length;
    const spread = choices.get("band") === "deviation" ? "standard deviation" : "range";
    const parts = [model.groups ? `mean and ${spread} of ${counted(lines.length, "group")}` : counted(curves.length, "run")];
    if (hidden > 0) parts.push(`${counted(hidden, "run")} without values on this axis`);
    this.foot.textContent = this.scales ? parts.join(" · ") : "";
  }

  /** Keys go along the points of the line that is pointed at. */
  get places() {
    return [...(this.#nearest?.line ?? this.lines[0])?.x ?? []];
  }

  open() {
    const run = this.#nearest?.line.run;
    if (run) this.page.open(run);
  }

  leave() {
    super.leave();
    this.pointer = null;
    this.page.highlight(null);
  }

  /** Each line with its value at x. */
  #found(x) {
    const { px, py } = this.scales;
    return this.lines.flatMap((line) => {
      const index = nearestIndex(line.x, x);
      const value = line.y[index];
      return Number.isFinite(value) && Math.abs(px(line.x[index]) - px(x)) < 40 ? [{ line, index, value, height: py(value) }] : [];
    });
  }

  /** Go to the next line above or below. */
  turn(step) {
    const found = this.#found(this.focus.x).sort((a, b) => a.height - b.height);
    const now = found.findIndex(({ line }) => line === this.#nearest?.line);
    const next = found[Math.min(found.length - 1, Math.max(0, now + step))];
    if (next) this.pointer = next.height;
  }

  /** Draw the line of a run that another panel points to. */
  point(run) {
    this.pointed = this.lines.find((one) => one.run === run || one.members?.some((member) => member.run === run)) ?? null;
    this.cursorLater();
  }

  read(x, context) {
    if (this.focus.owner !== this) return { x, lines: [], dots: [], spoken: "" };
    const { box } = this.scales;
    const level = this.pointer ?? this.#nearest?.height ?? (box.top + box.bottom) / 2;
    const away = (one) => Math.abs(one.height - level);
    this.#nearest = this.#found(x).reduce((best, one) => (best && away(best) <= away(one) ? best : one), null);
    if (!this.#nearest) return null;
    const { line, index, value, height } = this.#nearest;
    if (this.lines.length > 1) this.emphasize(context, line);
    if (line.run) this.page.highlight(line.run, this);
    return { x: line.x[index], dots: [[height, line.color]], ...this.#about(line, index, value) };
  }

  #about(line, index, value) {
    const { model } = this.page;
    const { axis } = this.focus;
    const where = axis.say(line.x[index]);
    const [word, place_] = [where.split(" ")[0], axis.label(line.x[index])];
    const lines = [reading(line.color, line.name, formatNumber(value), true), fact(word, place_)];
    if (line.low && Number.isFinite(line.low[index]) && line.high[index] > line.low[index]) {
      lines.push(fact("range", `${formatNumber(line.low[index])} to ${formatNumber(line.high[index])}`));
    }
    if (line.members) lines.push(fact("runs", String(line.members.length)));
    else for (const one of model.differing.slice(0, 5)) lines.push(fact(one, formatSetting(line.run.config[one]?.[0])));
    return { lines, spoken: `${where}: ${line.name}, ${this.metric} ${formatNumber(value)}` };
  }

  #saveCsv() {
    const rows = [csvRow([this.page.model.groups ? "group" : "run", this.page.axis, this.metric, "lowest", "highest"])];
    for (const line of this.lines) {
      for (let index = 0; index < line.x.length; index++) {
        rows.push(csvRow([line.name, line.x[index], line.y[index], line.low?.[index], line.high?.[index]]));
      }
    }
    save(`${this.metric.replace(/[^\w.-]+/g, "_")}.csv`, "text/csv", `${rows.join("\n")}\n`);
  }
}
