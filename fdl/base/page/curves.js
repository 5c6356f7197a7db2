"use strict";
/* Charts of curves, each of a run and a name: legend, log scale; and groups of runs as mean and band. */

const WIDE_PIXELS = 766;
const HINT = "Click: show or hide. Double click, or Shift with click or Enter: only this one.";

/** Pieces of curves in one chart, together; few runs get more pieces each. */
const PIECES = 240_000;
const [FEWEST_PIECES, MOST_PIECES] = [128, 2048];
/** With more lines than this, the range of each piece would only hide other lines. */
const BANDS_UP_TO = 30;
const RUNS_PER_REQUEST = 100;
/** Of many runs, more may lie far from the others: one that diverged must not flatten the rest. */
const [FAR_SHARE, FAR] = [0.05, 10];
const GRID = 240;

/** A chart of curves that are there as series: {name, unit, xs, ys, best, last, ranks, within(range)}. */
class LineChart extends Chart {
  #log = false;
  #showsRanks = false;
  smoothing = 0;
  series = [];
  xs = [];

  constructor(title, focus) {
    const id = `chart-${(LineChart.count = (LineChart.count || 0) + 1)}`;
    // A slider over epochs or steps: arrow keys move it, and its value text is what a reader speaks.
    super(title, focus, { "aria-labelledby": id, "aria-describedby": `${id}-text` });
    this.title.id = id;
    this.logButton = button("log scale", () => this.#toggle(() => (this.#log = !this.#log)), { className: "toggle log" });
    this.rankButton = button("ranks", () => this.#toggle(() => (this.#showsRanks = !this.#showsRanks)), { className: "toggle ranks", hidden: true, title: "Show the curve of each rank under the mean" });
    const csv = button("CSV", () => save(`${this.title.textContent.replace(/[^\w.-]+/g, "_")}.csv`, "text/csv", csvText(this.rows())), { className: "toggle", title: "Save the drawn points" });
    this.description = element("p", { id: `${id}-text`, className: "unseen" });
    this.legend = new Legend((name) => this.look(name), () => this.redraw());
    this.head.append(this.rankButton, this.logButton, csv);
    this.area.before(this.description);
    this.foot.before(this.legend.list);
  }

  /** Show these series; what was hidden or set before stays so. */
  show(title, series) {
    const { axis } = this.focus;
    this.series = series;
    // The width is read before anything is written, so that reading it needs no layout.
    this.width ||= this.area.clientWidth;
    write(this.title, (this.title.title = title));
    this.xs = merged(series.map((one) => one.xs));
    this.description.textContent = series.map((one) => describe(one, axis)).join(" ");
    this.area.setAttribute("aria-valuemin", this.xs[0] ?? 0);
    this.area.setAttribute("aria-valuemax", this.xs[this.xs.length - 1] ?? 0);
    this.legend.offer(series.map((one) => one.name));
    this.rankButton.hidden = !series.some((one) => one.ranks.length > 1);
    this.redraw();
  }

  /** To be called when the theme has changed. */
  repaint() {
    this.show(this.title.textContent, this.series);
  }

  get shown() {
    return this.series.filter((one) => this.legend.shows(one.name));
  }

  get places() {
    return this.xs;
  }

  redraw() {
    this.height = this.width > WIDE_PIXELS ? 300 : 240;
    const { shown } = this;
    const lines = shown.flatMap((one) => [...this.#ranksOf(one), this.#line(one)]);
    this.plot(lines, { ...this.fixed, empty: !shown.length ? "all curves are hidden" : this.focus.range ? "nothing in this range" : "no finite value" });
  }

  /** Draw lines on the scale that the reader chose, and bring the buttons up to date. */
  plot(lines, options) {
    const possible = lines.some(({ x, y }) => y.some((value, index) => value > 0 && Number.isFinite(value) && this.focus.shows(x[index])));
    this.logButton.disabled = !possible;
    this.logButton.title = possible ? "Logarithmic scale; values at or below 0 are left out" : "No value is above 0";
    press(this.logButton, this.#log && possible);
    press(this.rankButton, this.#showsRanks);
    this.paint(lines, { ...options, log: this.#log && possible });
  }

  #toggle(change) {
    change();
    this.redraw();
  }

  /** The curves of the ranks, in the colour of their mean. */
  #ranksOf({ name, ranks }) {
    return this.#showsRanks ? ranks.map((one) => ({ ...this.#line(one, name), width: 1, alpha: 0.5, best: null })) : [];
  }

  #line(series, colored = series.name) {
    const { xs, ys } = series.within(this.focus.range);
    const { color, dash } = this.look(colored);
    const best = series.xs.length > 1 ? series.best : null;
    const parts = this.smoothing > 0 ? { y: smoothed(xs, ys, this.smoothing), raw: ys } : { y: ys };
    return { name: series.name, color, dash, width: xs.length > this.width / 2 ? 1.2 : 1.9, x: xs, best, ...parts };
  }

  /** Point at the point nearest to x; it may lie just outside of the zoom, and its neighbour inside. */
  follow(x) {
    const index = nearestIndex(this.xs, x);
    const at = [index, index + 1, index - 1].map((one) => this.xs[one]).find((one) => one !== undefined && this.focus.shows(one));
    if (at !== undefined) this.focus.point(at, this);
  }

  read(x) {
    const index = nearestIndex(this.xs, x);
    const { px, py } = this.scales;
    const exact = this.series[0]?.unit === "epoch";
    if (index < 0 || (exact ? this.xs[index] !== x : Math.abs(px(this.xs[index]) - px(x)) >= 40)) return null;
    const at = this.xs[index];
    const { axis } = this.focus;
    const said = axis.say(at);
    const where = axis.numbers ? said[0].toUpperCase() + said.slice(1) : said;
    const found = this.readings(at);
    const lines = found.map(({ name, text, color, dash }) => fact(name, text, color, dash.length));
    const dots = found.filter(({ value }) => Number.isFinite(value) && (!this.logs || value > 0)).map(({ value, color }) => [py(value), color]);
    return { x: at, lines: [element("b", { textContent: where }), ...lines], spoken: [where, ...found.map(({ name, text }) => `${name} ${text}`)].join(", "), dots };
  }

  /** Values of the shown curves at x; of thinned curves those of the point nearest to it. */
  readings(x) {
    return this.shown.flatMap((series) => {
      const { xs, ys } = series.within(this.focus.range);
      const index = nearestIndex(xs, x);
      const close = index >= 0 && (xs[index] === x || (series.unit !== "epoch" && Math.abs(this.scales.px(xs[index]) - this.scales.px(x)) < 8));
      const text = close && (series.say ? series.say(xs[index]) : formatMetric(ys[index]));
      return close ? [{ name: series.name, value: ys[index], text, ...this.look(series.name) }] : [];
    });
  }

  look(name) {
    return lookOf(this.series.findIndex((one) => one.name === name));
  }

  /** The drawn points: a row of heads, and a row for each point. */
  rows() {
    const points = this.lines.flatMap((line) => [...line.x.keys()].map((index) => [line.name, line.x[index], (line.raw || line.y)[index], line.low?.[index], line.high?.[index]]));
    return [["curve", this.focus.axis.kind, "value", "lowest", "highest"], ...points];
  }

}

/** The curves of one metric, of many runs or of groups of runs; they are fetched as they are needed. */
class RunsChart extends LineChart {
  #store = new Map();
  #request = null;
  #seen = false;
  /** What is drawn, for those who cannot look at it. */
  drawn = { lines: 0, bands: 0, complete: false };

  constructor(metric, page) {
    super(metric, page.focus);
    Object.assign(this, { metric, page });
    this.legend.list.remove();
    this.resized = () => this.load();
    this.observer = new IntersectionObserver((entries) => {
      this.#seen = entries.some((entry) => entry.isIntersecting);
      if (this.#seen) this.load();
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
    return this.page.runs.visible.filter((run) => run.curves.includes(this.metric));
  }

  /** How many curves there will be: while runs are being read, all of them count. */
  get #expected() {
    const { isReading, total } = this.page.source;
    return Math.max(this.#runs.length, isReading ? total : 0);
  }

  /** The resolution that is needed now, and the key under which its curves are kept. */
  #wanted() {
    const each = Math.min(MOST_PIECES, Math.max(FEWEST_PIECES, PIECES / Math.max(1, this.#expected)));
    const count = Math.min(2 ** Math.floor(Math.log2(each)), 2 ** Math.ceil(Math.log2(Math.max(256, this.width))));
    const band = this.#expected <= BANDS_UP_TO && !this.page.runs.groups;
    const { axis, range } = this.focus;
    return { count, band, range, axis: axis.kind, key: JSON.stringify([axis.kind, range, count, band]) };
  }

  /** Fetch the curves that are missing, and draw after each part. */
  async load() {
    this.draw();
    if (!this.#seen || !this.width) return;
    const { key, ...wanted } = this.#wanted();
    if (!this.#store.has(key)) this.#store = new Map([...this.#store].slice(-2)).set(key, new Map());
    const kept = this.#store.get(key);
    const missing = () => this.#runs.map((run) => run.id).filter((id) => !kept.has(id));
    // The loop that is under way for this resolution also fetches the curves of new runs.
    if (this.#request?.key === key || !missing().length) return;
    this.#request?.abort();
    const request = (this.#request = Object.assign(new AbortController(), { key }));
    this.card.setAttribute("aria-busy", "true");
    try {
      for (let ids; !request.signal.aborted && (ids = missing().slice(0, RUNS_PER_REQUEST)).length; ) {
        const found = await this.page.source.curves({ metric: this.metric, ids, signal: request.signal, ...wanted });
        for (const id of ids) kept.set(id, found.get(id) || null);
        this.draw();
      }
    } catch (error) {
      if (error.name !== "AbortError") this.page.lost(error);
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
    const { key, axis } = this.#wanted();
    const kept = this.#store.get(key) || new Map();
    const older = [...this.#store].reverse().filter(([other]) => other !== key && JSON.parse(other)[0] === axis);
    return this.#runs.flatMap((run) => {
      const curve = kept.get(run.id) ?? (kept.has(run.id) ? null : older.map(([, curves]) => curves.get(run.id)).find(Boolean));
      return curve?.x.length ? [{ run, ...curve }] : [];
    });
  }

  #linesOf(curves) {
    const { runs, choices } = this.page;
    const { smoothing } = this;
    if (runs.groups) {
      const smooth = curves.map((one) => ({ ...one, y: smoothed(one.x, one.mean, smoothing) }));
      return groupLines(smooth, runs.groups, choices.get("band") === "deviation");
    }
    const many = curves.length > MARKED_UP_TO;
    return curves.map(({ run, x, mean, low, high, gaps }) => {
      const values = smoothing ? { y: smoothed(x, mean, smoothing), raw: curves.length <= 8 ? mean : undefined } : { y: mean, low, high };
      return { run, name: run.title, color: runs.color(run), x, gaps, width: many ? 1 : 1.6, alpha: many ? 0.55 : 1, ...values };
    });
  }

  redraw() {
    const { runs, choices } = this.page;
    const curves = this.#curves();
    const lines = this.#linesOf(curves);
    this.height = 280;
    this.pointed = null;
    const none = this.#runs.length ? "no values over this axis" : "no visible run has this metric";
    this.plot(lines, { share: FAR_SHARE, far: FAR, empty: this.#seen && this.card.hasAttribute("aria-busy") ? "loading…" : none });
    this.drawn = { lines: this.scales ? lines.length : 0, bands: this.scales ? lines.filter((one) => one.low).length : 0, complete: Boolean(this.scales), axis: this.focus.axis.kind };
    const hidden = this.#runs.length - curves.length;
    const spread = choices.get("band") === "deviation" ? "standard deviation" : "range";
    const parts = [runs.groups ? `mean and ${spread} of ${counted(lines.length, "group")}` : counted(curves.length, "run")];
    if (hidden > 0) parts.push(`${counted(hidden, "run")} without values on this axis`);
    this.foot.textContent = this.scales ? parts.join(" · ") : "";
  }

  /** Keys go along the points of the line that is pointed at. */
  get places() {
    return [...((this.hit?.line ?? this.lines[0])?.x ?? [])];
  }

  follow(x) {
    this.focus.point(x, this);
  }

  /** Each line with its value at x. */
  found(x) {
    const { px, py } = this.scales;
    return this.lines.flatMap((line) => {
      const index = nearestIndex(line.x, x);
      const value = line.y[index];
      return Number.isFinite(value) && Math.abs(px(line.x[index]) - px(x)) < 40 ? [{ line, run: line.run, x: line.x[index], index, value, height: py(value) }] : [];
    });
  }

  read(x, context) {
    if (this.focus.owner !== this) return { x, lines: [], dots: [], spoken: "" };
    const hit = this.nearest(x);
    if (!hit) return null;
    const { line, index, value, height } = hit;
    if (this.lines.length > 1) this.emphasize(context, line);
    if (line.run) this.page.highlight(line.run, this);
    const where = this.focus.axis.say(hit.x);
    const lines = [element("b", { textContent: where }), fact(line.name, formatNumber(value), line.color)];
    if (line.low && line.high[index] > line.low[index]) lines.push(fact("range", `${formatNumber(line.low[index])} to ${formatNumber(line.high[index])}`));
    if (line.members) lines.push(fact("runs", String(line.members.length)));
    else for (const one of this.page.runs.differing.slice(0, 5)) lines.push(fact(one, formatSetting(line.run.config[one]?.[0])));
    return { x: hit.x, dots: [[height, line.color]], lines, spoken: `${where}: ${line.name}, ${this.metric} ${formatNumber(value)}` };
  }

}

/** For each group, the mean of its runs and their range or deviation, over a common grid. */
function groupLines(curves, groups, deviates) {
  const made = new Map(groups.order.map((key) => [key, []]));
  for (const curve of curves) made.get(groups.of.get(curve.run.id))?.push(curve);
  return [...made].filter(([, members]) => members.length).map(([key, members]) => {
    const grid = gridOf(members);
    const [y, low, high] = [0, 0, 0].map(() => new Float64Array(grid.length).fill(NaN));
    const rows = members.map(({ x, y }) => grid.map((at) => (at < x[0] || at > x[x.length - 1] ? NaN : between(x, y, at))));
    for (let index = 0; index < grid.length; index++) {
      const found = rows.map((row) => row[index]).filter(Number.isFinite);
      if (!found.length) continue;
      const mean = found.reduce((sum, value) => sum + value, 0) / found.length;
      const squares = found.reduce((sum, value) => sum + (value - mean) ** 2, 0);
      const spread = Math.sqrt(squares / Math.max(1, found.length - 1));
      y[index] = mean;
      low[index] = deviates ? mean - spread : Math.min(...found);
      high[index] = deviates ? mean + spread : Math.max(...found);
    }
    return { group: key, name: groups.name(key), color: groups.color(key), members, x: grid, y, low, high };
  });
}

/** Common positions for several curves: their own if they are the same, else an even grid. */
function gridOf(curves) {
  const longest = curves.reduce((best, one) => (one.x.length > best.x.length ? one : best));
  if (longest.x.length <= GRID && curves.every((one) => one.x.every((at, index) => at === longest.x[index]))) return longest.x;
  const first = Math.min(...curves.map((one) => one.x[0]));
  const last = Math.max(...curves.map((one) => one.x[one.x.length - 1]));
  return Float64Array.from({ length: GRID }, (_, index) => first + ((last - first) * index) / (GRID - 1));
}

/** Which curves of a chart are shown: one button per curve. */
class Legend {
  #buttons = new Map();
  #hidden = new Set();
  #changed;
  #look;

  /** `look(name)` gives {color, dash}; `changed()` is called after the reader has chosen. */
  constructor(look, changed) {
    this.#look = look;
    this.#changed = changed;
    this.list = element("ul", { className: "legend" });
  }

  shows(name) {
    return !this.#hidden.has(name);
  }

  /** Offer these curves; what was hidden stays so. Buttons are made anew only if names or colours changed. */
  offer(names, always = false) {
    this.list.hidden = names.length < 2 && !always;
    const looks = JSON.stringify(names.map((name) => [name, this.#look(name)]));
    if (looks === this.looks) return;
    this.looks = looks;
    this.#buttons = new Map(names.map((name) => [name, this.#button(name)]));
    this.list.replaceChildren(...[...this.#buttons.values()].map((made) => element("li", {}, made)));
    this.#mark();
  }

  #button(name) {
    const { color, dash } = this.#look(name);
    const made = button("", (event) => (event.shiftKey ? this.solo(name) : this.toggle(name)), { title: `${name}\n${HINT}` });
    made.append(swatch(color, dash.length), element("span", { textContent: name }));
    // The two clicks of a double click toggle twice, which undoes itself.
    made.addEventListener("dblclick", (event) => event.shiftKey || this.solo(name));
    return made;
  }

  toggle(name) {
    const shown = this.#hidden.delete(name);
    if (!shown) this.#hidden.add(name);
    this.#tell(`${name} ${shown ? "shown" : "hidden"}`);
  }

  /** Show this one alone; doing it again shows all. */
  solo(name) {
    const names = [...this.#buttons.keys()];
    const already = names.every((one) => this.shows(one) === (one === name));
    this.#hidden = new Set(already ? [] : names.filter((one) => one !== name));
    this.#tell(already ? "all curves shown" : `only ${name} shown`);
  }

  #tell(text) {
    this.#mark();
    this.#changed();
    announce(text);
  }

  #mark() {
    for (const [name, made] of this.#buttons) press(made, this.shows(name));
  }
}

/** "encoder.loss" -> "encoder", "train/acc" -> "train", "loss" -> "". */
function groupOf(name) {
  const cut = name.search(/[./]/);
  return cut > 0 ? name.slice(0, cut) : "";
}

/** Rising numbers of all lists, each once; the curves of one run mostly share theirs. */
function merged(lists) {
  const [first = [], ...others] = lists;
  const rising = first.every((x, index) => !index || x > first[index - 1]);
  const same = others.every((one) => one.length === first.length && one.every((x, index) => x === first[index]));
  return rising && same ? first.slice() : [...new Set(lists.flat())].sort((a, b) => a - b);
}

function describe({ name, best, xs, ys, last }, axis) {
  const spot = (x) => (axis.numbers ? `at ${axis.say(x)}` : axis.say(x));
  if (xs.length === 1) return `${name}: ${formatMetric(ys[0])} ${spot(xs[0])}.`;
  return `${name}: from ${formatMetric(ys[0])} ${spot(xs[0])} to ${formatMetric(last.y)} ${spot(last.x)}${best ? `, best ${formatMetric(best.y)} ${spot(best.x)}` : ""}.`;
}
