"use strict";
/* Charts of curves, each of a run and a name: legend, log scale; and groups of runs as mean and band. */

const WIDE_PIXELS = 766;
const HINT = "Click: show or hide. Double click, or Shift with click or Enter: only this one.";

/** Pieces of curves in one chart, together; few runs get more pieces each. */
const PIECES = 240_000;
const [FEWEST_PIECES, MOST_PIECES] = [128, 2048];
/** With more lines than this, the range of each piece would only hide other lines. */
const BANDS_UP_TO = 30;
/** Pixels from the window within which the curves of a chart are fetched. */
const NEAR = 200;
/** The first request is small, so that the first curves come soon. */
const [FIRST_RUNS, RUNS_PER_REQUEST] = [10, 100];
/** Of many runs, more may lie far from the others: one that diverged must not flatten the rest. */
const [FAR_SHARE, FAR] = [0.05, 10];
const GRID = 240;

/** A chart of curves that are there as series: {name, xs, ys, best, last, ranks, within(range)}, and `say(x)` if their values have texts. */
class LineChart extends Chart {
  #log = false;
  #showsRanks = false;
  smoothing = 0;
  /** Pixels within which a point is pointed at. */
  reach = 8;
  series = [];
  xs = [];

  constructor(title, focus) {
    const id = `chart-${(LineChart.count = (LineChart.count || 0) + 1)}`;
    // A slider over epochs or steps: arrow keys move it, and its value text is what a reader speaks.
    super(title, focus, { "aria-labelledby": id, "aria-describedby": `${id}-text` });
    this.title.id = id;
    this.logButton = button("log scale", () => this.toggle(() => (this.#log = !this.#log)), { className: "toggle log" });
    this.rankButton = button("ranks", () => this.toggle(() => (this.#showsRanks = !this.#showsRanks)), { className: "toggle ranks", hidden: true, title: "Show the curve of each rank under the mean" });
    const csv = button("CSV", () => save(`${this.title.textContent.replace(/[^\w.-]+/g, "_")}.csv`, "text/csv", csvText(this.rows())), { className: "toggle", title: "Save the drawn points" });
    this.description = element("p", { id: `${id}-text`, className: "unseen" });
    this.legend = new Legend(() => this.redraw());
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
    this.xs = this.places = merged(series.map((one) => one.xs));
    this.description.textContent = series.map((one) => describe(one, axis)).join(" ");
    this.legend.offer(series.map(({ name }, index) => ({ name, ...lookOf(index) })));
    this.rankButton.hidden = !series.some((one) => one.ranks.length > 1);
    this.redraw();
  }

  redraw() {
    this.height = this.width > WIDE_PIXELS ? 300 : 240;
    const lines = this.series.flatMap((one, index) => (this.legend.hidden.has(one.name) ? [] : this.#linesOf(one, lookOf(index))));
    this.plot(lines, { ...this.fixed, empty: !lines.length ? "all curves are hidden" : this.focus.range ? "nothing in this range" : "no finite value" });
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

  /** The curve of a series, and those of its ranks under it if the reader wants them. */
  #linesOf(series, look) {
    const { xs, ys } = series.within(this.focus.range);
    const best = series.xs.length > 1 ? series.best : null;
    const parts = this.smoothing > 0 ? { y: smoothed(xs, ys, this.smoothing), raw: ys } : { y: ys };
    const line = { name: series.name, say: series.say, ...look, width: xs.length > this.width / 2 ? 1.2 : 1.9, x: xs, best, ...parts };
    const ranks = this.#showsRanks ? series.ranks.flatMap((one) => this.#linesOf(one, look)) : [];
    return [...ranks.map((one) => ({ ...one, isRank: true, width: 1, alpha: 0.5, best: null })), line];
  }

  /** Point at the point nearest to x; it may lie just outside of the zoom, and its neighbour inside. */
  follow(x) {
    const index = nearestIndex(this.xs, x);
    const at = [index, index + 1, index - 1].map((one) => this.xs[one]).find((one) => one !== undefined && this.focus.shows(one));
    this.focus.point(at ?? x, this);
  }

  /** Each line with its value at x; of thinned curves that of the point nearest to it. */
  found(x) {
    const { px, py } = this.scales;
    return this.lines.flatMap((line) => {
      const index = nearestIndex(line.x, x);
      const value = line.y[index];
      return index >= 0 && Math.abs(px(line.x[index]) - px(x)) < this.reach ? [{ line, run: line.run, x: line.x[index], index, value, height: py(value) }] : [];
    });
  }

  read(x) {
    const at = this.xs[nearestIndex(this.xs, x)];
    const { px, py } = this.scales;
    if (at === undefined || Math.abs(px(at) - px(x)) >= 40) return null;
    const { axis } = this.focus;
    const said = axis.say(at);
    const found = this.found(at).filter(({ line }) => !line.isRank).map(({ line, index }) => [line, (line.raw || line.y)[index]]);
    return {
      x: at,
      title: axis.numbers ? said[0].toUpperCase() + said.slice(1) : said,
      rows: found.map(([line, value]) => [line.name, line.say?.(at) ?? formatMetric(value), line.color, line.dash.length]),
      dots: found.filter(([, value]) => Number.isFinite(value) && (!this.logs || value > 0)).map(([line, value]) => [py(value), line.color]),
    };
  }

  /** The drawn points: a row of heads, and a row for each point. */
  rows() {
    const points = this.lines.flatMap((line) => [...line.x.keys()].map((index) => [line.name, line.x[index], (line.raw || line.y)[index], line.low?.[index], line.high?.[index]]));
    return [["curve", this.focus.axis.kind, "value", "lowest", "highest"], ...points];
  }
}

/** The curves of one metric, of many runs or of groups of runs; they are fetched as they are needed. */
class RunsChart extends LineChart {
  reach = 40;
  /** By run: {key, axis, curve}, the curve fetched last and for what it was; one that is not up to date has no key. */
  #kept = new Map();
  /** The request that is under way: the resolution that it is for, and the runs that it asks for and that have not changed since. */
  #request = null;
  /** Why curves did not come. */
  problem = "";
  /** What is drawn, for those who cannot look at it. */
  drawn = { lines: 0, bands: 0 };

  constructor(metric, page) {
    super(metric, page.focus);
    Object.assign(this, { metric, page });
    this.legend.list.remove();
    this.observer = new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && this.show(), { rootMargin: `${NEAR}px` });
    this.observer.observe(this.card);
  }

  /** To be called when the chart leaves the page for good. */
  close() {
    this.focus.charts.delete(this);
    this.observer.disconnect();
    this.#request?.abort();
    this.#request = null;
  }

  /** Ask again for the curves of runs that have changed; the old ones are drawn until then. */
  forget(ids) {
    for (const id of ids) {
      if (this.#kept.has(id)) this.#kept.get(id).key = null;
      this.#request?.asked.delete(id);
    }
  }

  changedView() {
    this.show();
  }

  get #runs() {
    return this.page.runs.visible.filter((run) => run.curves.includes(this.metric));
  }

  /** How many curves there will be: while runs are being read, all of them count. */
  get #expected() {
    const { isReading, total } = this.page.source;
    return Math.max(this.#runs.length, isReading ? total : 0);
  }

  /** The resolution that is needed now, and the key that tells it from others. */
  #wanted() {
    const each = Math.min(MOST_PIECES, Math.max(FEWEST_PIECES, PIECES / Math.max(1, this.#expected)));
    const count = Math.min(2 ** Math.floor(Math.log2(each)), 2 ** Math.ceil(Math.log2(Math.max(256, this.width))));
    const band = this.#expected <= BANDS_UP_TO && !this.page.runs.groups;
    const { axis, range } = this.focus;
    return { count, band, range, axis: axis.kind, key: JSON.stringify([axis.kind, range, count, band]) };
  }

  /** The visible runs whose curves are not there in this resolution. */
  #missing(key) {
    return this.#runs.map((run) => run.id).filter((id) => this.#kept.get(id)?.key !== key);
  }

  /** Whether all curves are drawn in the resolution that is needed now, and no run is still to come. */
  get complete() {
    const { key } = this.#wanted();
    const isAll = !this.page.source.isReading && !this.#missing(key).length;
    return Boolean(this.scales) && this.drawn.key === key && isAll && !this.#request;
  }

  /** Fetch the curves that are missing, and draw after each part. */
  async show() {
    this.draw();
    this.width ||= this.area.clientWidth;
    const { top, bottom } = this.card.getBoundingClientRect();
    if (!this.width || bottom < -NEAR || top > innerHeight + NEAR) return;
    const { key, ...wanted } = this.#wanted();
    const missing = () => this.#missing(key);
    // The loop that is under way for this resolution also fetches the curves of new runs.
    if (this.#request?.key === key) return;
    // An answer for another resolution would replace the curves that are wanted now.
    this.#request?.abort();
    if (!missing().length) {
      if (this.#request) this.#settle();
      return;
    }
    const request = (this.#request = Object.assign(new AbortController(), { key }));
    this.card.setAttribute("aria-busy", "true");
    this.problem = "";
    try {
      for (let ids; (ids = missing().slice(0, this.#kept.size ? RUNS_PER_REQUEST : FIRST_RUNS)).length; ) {
        request.asked = new Set(ids);
        const found = await this.page.source.curves({ metric: this.metric, ids, signal: request.signal, ...wanted });
        request.signal.throwIfAborted();
        for (const id of ids) this.#kept.set(id, { key: request.asked.has(id) ? key : null, axis: wanted.axis, curve: found.get(id) ?? { x: [] } });
        this.draw();
      }
    } catch (error) {
      if (this.#request === request) this.problem = error.message;
    } finally {
      if (this.#request === request) this.#settle();
    }
  }

  /** Nothing is under way any more. */
  #settle() {
    this.#request = null;
    this.card.removeAttribute("aria-busy");
    this.redraw(); // at once: who waits for a chart that is not busy sees all of its curves
  }

  /** The curve of a run over the axis of now; that of another resolution until the right one has come. */
  #fetched(run) {
    const { axis, curve } = this.#kept.get(run.id) ?? {};
    return axis === this.focus.axis.kind ? curve : null;
  }

  #drawnAs(curves) {
    const { runs, choices } = this.page;
    const { smoothing } = this;
    if (runs.groups) {
      const smooth = curves.map((one) => ({ ...one, y: smoothed(one.x, one.mean, smoothing) }));
      return groupLines(smooth, runs.groups, choices.band === "deviation");
    }
    const many = curves.length > MARKED_UP_TO;
    return curves.map(({ run, x, mean, low, high, gaps }) => {
      const values = smoothing ? { y: smoothed(x, mean, smoothing), raw: curves.length <= 8 ? mean : undefined } : { y: mean, low, high };
      return { run, name: run.title, color: runs.color(run), x, gaps, width: many ? 1 : 1.6, alpha: many ? 0.55 : 1, ...values };
    });
  }

  redraw() {
    const { runs, choices } = this.page;
    const curves = this.#runs.flatMap((run) => (this.#fetched(run)?.x.length ? [{ run, ...this.#fetched(run) }] : []));
    const lines = this.#drawnAs(curves);
    this.height = 280;
    const absent = this.#runs.filter((run) => this.#fetched(run)?.x.length === 0).length;
    const rest = this.#runs.length - curves.length - absent;
    const toCome = this.#request ? "loading…" : this.problem ? `not loaded: ${this.problem}` : "not loaded yet: scroll here, then print";
    const none = this.#runs.length ? "no values over this axis" : "no visible run has this metric";
    this.plot(lines, { share: FAR_SHARE, far: FAR, empty: rest ? toCome : none });
    this.drawn = { lines: this.scales ? lines.length : 0, bands: this.scales ? lines.filter((one) => one.low).length : 0, axis: this.focus.axis.kind, key: this.#wanted().key };
    const spread = choices.band === "deviation" ? "standard deviation" : "range";
    const parts = [runs.groups ? `mean and ${spread} of ${counted(lines.length, "group")}` : counted(curves.length, "run")];
    if (absent) parts.push(`${counted(absent, "run")} without values on this axis`);
    if (rest) parts.push(`${counted(rest, "run")} ${toCome}`);
    this.foot.textContent = this.scales ? parts.join(" · ") : "";
  }

  read(x, context) {
    if (this.focus.owner !== this) return { x, title: "", rows: [], dots: [] };
    const hit = this.nearest(x);
    if (!hit) return null;
    const { line, index, value, height } = hit;
    if (this.lines.length > 1) this.emphasize(context, line);
    if (line.run) this.page.highlight(line.run, this);
    const rows = [[line.name, "", line.color], [this.metric, formatNumber(value)]];
    if (line.low && line.high[index] > line.low[index]) rows.push(["range", `${formatNumber(line.low[index])} to ${formatNumber(line.high[index])}`]);
    if (line.members) rows.push(["runs", String(line.members.length)]);
    else rows.push(...this.page.runs.differing.slice(0, 5).map((one) => [one, formatSetting(line.run.config[one]?.[0])]));
    return { x: hit.x, title: this.focus.axis.say(hit.x), rows, dots: [[height, line.color]] };
  }
}

/** For each group, the mean of its runs and their range or deviation, over a common grid. */
function groupLines(curves, groups, deviates) {
  const made = new Map(groups.order.map((key) => [key, []]));
  for (const curve of curves) made.get(groups.of.get(curve.run.id))?.push(curve);
  return [...made].filter(([, members]) => members.length).map(([key, members]) => {
    const grid = gridOf(members);
    const found = Array.from(grid, (at) => {
      const values = members.filter(({ x }) => at >= x[0] && at <= x[x.length - 1]).map(({ x, y }) => between(x, y, at)).filter(Number.isFinite);
      if (!values.length) return [NaN, NaN, NaN];
      const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
      const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
      const spread = Math.sqrt(squares / Math.max(1, values.length - 1));
      return deviates ? [mean, mean - spread, mean + spread] : [mean, Math.min(...values), Math.max(...values)];
    });
    const [y, low, high] = [0, 1, 2].map((part) => found.map((one) => one[part]));
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
  hidden = new Set();
  list = element("ul", { className: "legend" });

  /** `changed()` is called after the reader has chosen. */
  constructor(changed) {
    this.changed = changed;
  }

  /** Offer curves, each {name, color, dash}; what was hidden stays so. Buttons are made anew only if names or colours changed. */
  offer(curves, always = false) {
    this.list.hidden = curves.length < 2 && !always;
    const looks = JSON.stringify(curves.map(({ name, color, dash }) => [name, color, dash]));
    if (looks === this.looks) return;
    this.looks = looks;
    this.#buttons = new Map(curves.map((one) => [one.name, this.#button(one)]));
    this.list.replaceChildren(...[...this.#buttons.values()].map((made) => element("li", {}, made)));
  }

  #button({ name, color, dash }) {
    const click = (event) => (event.shiftKey ? this.solo(name) : this.toggle(name));
    // The two clicks of a double click toggle twice, which undoes itself.
    const made = button("", click, { title: `${name}\n${HINT}`, ondblclick: (event) => event.shiftKey || this.solo(name) });
    press(made, !this.hidden.has(name));
    made.append(swatch(color, dash.length), element("span", { textContent: name }));
    return made;
  }

  toggle(name) {
    const shown = this.hidden.delete(name);
    if (!shown) this.hidden.add(name);
    this.#tell(`${name} ${shown ? "shown" : "hidden"}`);
  }

  /** Show this one alone; doing it again shows all. */
  solo(name) {
    const names = [...this.#buttons.keys()];
    const already = names.every((one) => this.hidden.has(one) !== (one === name));
    this.hidden = new Set(already ? [] : names.filter((one) => one !== name));
    this.#tell(already ? "all curves shown" : `only ${name} shown`);
  }

  #tell(text) {
    for (const [name, made] of this.#buttons) press(made, !this.hidden.has(name));
    this.changed();
    announce(text);
  }
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
