"use strict";
/* The curves of one run: a legend that hides curves, a logarithmic scale, and the same as a table. */

const TABLE_ROWS = 100;
const WIDE_PIXELS = 766;
const HINT = "Click: show or hide. Double click, or Shift with click or Enter: only this one.";

/** A chart of series: {name, unit, xs, ys, best, last, within(range)}; `options.smoothing` is 0 to 1. */
class LineChart extends Chart {
  #log = false;
  #showsRanks = false;

  constructor(title, focus, options) {
    const id = `chart-${(LineChart.count = (LineChart.count || 0) + 1)}`;
    // A slider over epochs or steps: arrow keys move it, and its value text is what a reader speaks.
    super(title, focus, { "aria-labelledby": id, "aria-describedby": `${id}-text` });
    this.title.id = id;
    this.options = options;
    this.series = [];
    this.xs = [];
    this.logButton = button("log scale", () => this.#toggleLog(), { className: "toggle log" });
    this.tableButton = button("table", () => this.#toggleTable(), { className: "toggle", "aria-pressed": "false" });
    this.description = element("p", { id: `${id}-text`, className: "unseen" });
    this.legend = new Legend((name) => this.#look(name), () => this.redraw());
    this.table = element("div", { className: "scroll chart-table", hidden: true, tabIndex: 0, role: "region", "aria-label": "The chart as a table" });
    this.rankButton = button("ranks", () => this.#toggleRanks(), { className: "toggle ranks", hidden: true, "aria-pressed": "false", title: "Show the curve of each rank under the mean" });
    this.head.append(this.rankButton, this.logButton, this.tableButton);
    this.area.before(this.description);
    this.card.append(this.legend.list, this.table);
    this.show(title, []);
  }

  /** Show these series on the axis of a focus; what was hidden or set before stays so. */
  show(title, series, focus = this.focus) {
    this.attend(focus);
    const { axis } = focus;
    this.series = series;
    // The width is read before anything is written, so that reading it needs no layout.
    this.width ||= this.area.clientWidth;
    if (this.title.textContent !== title) this.title.textContent = this.title.title = title;
    this.xs = merged(series.map((one) => one.xs));
    this.description.textContent = series.map((one) => describe(one, axis)).join(" ");
    this.area.setAttribute("aria-valuemin", this.xs[0] ?? 0);
    this.area.setAttribute("aria-valuemax", this.xs[this.xs.length - 1] ?? 0);
    this.legend.offer(series.map((one) => one.name));
    this.rankButton.hidden = !series.some((one) => one.ranks?.length > 1);
    this.redraw();
  }

  get #shown() {
    return this.series.filter((one) => this.legend.shows(one.name));
  }

  get places() {
    return this.xs;
  }

  redraw() {
    this.width ||= this.area.clientWidth;
    this.height = this.width > WIDE_PIXELS ? 300 : 240;
    const { range } = this.focus;
    const shown = this.#shown;
    const lines = shown.flatMap((one) => [...this.#ranksOf(one), this.#line(one)]);
    this.#offerLog(lines.some(({ x, y }) => y.some((value, index) => value > 0 && Number.isFinite(value) && (!range || (x[index] >= range[0] && x[index] <= range[1])))));
    const log = this.#log && !this.logButton.disabled;
    this.paint(lines, { log, empty: !shown.length ? "all curves are hidden" : range ? "nothing in this range" : "no finite value" });
    if (!this.table.hidden) this.#fillTable();
  }

  /** The curves of the ranks, in the colour of their mean. */
  #ranksOf({ name, ranks = [] }) {
    return this.#showsRanks ? ranks.map((one) => ({ ...this.#line(one, name), width: 1, alpha: 0.5, best: null })) : [];
  }

  #line(series, colored = series.name) {
    const { xs, ys } = series.within(this.focus.range);
    const { token, dash } = this.#look(colored);
    const weight = this.options.smoothing;
    const best = series.xs.length > 1 ? series.best : null;
    const parts = weight > 0 ? { y: smoothed(xs, ys, weight), raw: ys } : { y: ys };
    return { name: series.name, color: ink.get(token), dash, width: xs.length > this.width / 2 ? 1.2 : 1.9, x: xs, best, ...parts };
  }

  /** Point at the point nearest to x; it may lie just outside of the zoom, and its neighbour inside. */
  follow(x) {
    const { axis, range } = this.focus;
    const inside = (at) => at !== undefined && axis.has(at) && (!range || (at >= range[0] && at <= range[1]));
    const index = nearestIndex(this.xs, x);
    const at = [index, index + 1, index - 1].map((one) => this.xs[one]).find(inside);
    if (at !== undefined) this.focus.point(at, this);
  }

  read(x) {
    const index = nearestIndex(this.xs, x);
    const { px, py } = this.scales;
    const exact = this.series[0]?.unit === "epoch";
    if (index < 0 || (exact ? this.xs[index] !== x : Math.abs(px(this.xs[index]) - px(x)) >= 40)) return null;
    const at = this.xs[index];
    const { axis } = this.focus;
    const where = axis.numbers ? `${axis.head} ${axis.label(at)}` : axis.say(at);
    const [lines, spoken, dots] = [[element("b", { textContent: where })], [where], []];
    for (const { name, value } of this.#readings(at)) {
      const look = this.#look(name);
      lines.push(element("span", {}, swatch(look), element("i", { textContent: name }), formatMetric(value)));
      spoken.push(`${name} ${formatMetric(value)}`);
      if (Number.isFinite(value) && (!this.logs || value > 0)) dots.push([py(value), ink.get(look.token)]);
    }
    return { x: at, lines, spoken: spoken.join(", "), dots };
  }

  /** Values of the shown curves at x; of thinned curves those of the point nearest to it. */
  #readings(x) {
    return this.#shown.flatMap((series) => {
      const { xs, ys } = series.within(this.focus.range);
      const index = nearestIndex(xs, x);
      const close = index >= 0 && (xs[index] === x || (series.unit !== "epoch" && Math.abs(this.scales.px(xs[index]) - this.scales.px(x)) < 8));
      return close ? [{ name: series.name, value: ys[index] }] : [];
    });
  }

  #look(name) {
    const index = this.series.findIndex((one) => one.name === name);
    return { token: `series-${index % 8}`, dash: DASHES[Math.floor(index / 8) % DASHES.length] };
  }

  #offerLog(possible) {
    this.logButton.disabled = !possible;
    this.logButton.title = possible ? "Logarithmic scale; values at or below 0 are left out" : "No value is above 0";
    this.logButton.setAttribute("aria-pressed", String(this.#log && possible));
  }

  #toggleLog() {
    this.#log = !this.#log;
    this.redraw();
  }

  #toggleRanks() {
    this.#showsRanks = !this.#showsRanks;
    this.rankButton.setAttribute("aria-pressed", String(this.#showsRanks));
    this.redraw();
  }

  #toggleTable() {
    this.table.hidden = !this.table.hidden;
    this.tableButton.setAttribute("aria-pressed", String(!this.table.hidden));
    if (!this.table.hidden) this.#fillTable();
  }

  #fillTable() {
    const { axis, range } = this.focus;
    const inside = this.xs.filter((x) => !range || (x >= range[0] && x <= range[1]));
    const every = Math.max(1, Math.ceil(inside.length / TABLE_ROWS));
    const rows = inside.filter((_, index) => index % every === 0 || index === inside.length - 1);
    const shown = this.#shown;
    const cell = (one, x) => {
      const { xs, ys } = one.within(range);
      const index = nearestIndex(xs, x);
      const exact = index >= 0 && (xs[index] === x || one.unit !== "epoch");
      return formatMetric(exact ? ys[index] : undefined);
    };
    const body = rows.map((x) => [axis.label(x), ...shown.map((one) => cell(one, x))]);
    this.table.replaceChildren(numberTable(this.title.textContent, [axis.head, ...shown.map((one) => one.name)], body));
  }
}

/** Which curves of a chart are shown: one button per curve, grouped by the first part of its name. */
class Legend {
  #names = [];
  #buttons = new Map();
  #hidden = new Set();
  #changed;
  #look;

  /** `look(name)` gives {token, dash}; `changed()` is called after the reader has chosen. */
  constructor(look, changed) {
    this.#look = look;
    this.#changed = changed;
    this.list = element("ul", { className: "legend" });
  }

  shows(name) {
    return !this.#hidden.has(name);
  }

  /** Offer these curves; what was hidden stays so. Buttons are made anew only if names changed. */
  offer(names) {
    this.list.hidden = names.length < 2;
    if (names.length === this.#names.length && names.every((name, index) => name === this.#names[index])) return;
    this.#names = names;
    this.#buttons.clear();
    const groups = new Map();
    for (const name of names) {
      const group = groupOf(name);
      groups.set(group, [...(groups.get(group) || []), name]);
    }
    const items = [];
    for (const [group, members] of groups) {
      if (group && groups.size > 1 && members.length > 1) {
        items.push(this.#item(members, { className: "group", title: `All of ${group}\n${HINT}` }, `${group}.*`));
      }
      for (const name of members) items.push(this.#item([name], { title: `${name}\n${HINT}` }, swatch(this.#look(name)), element("span", { textContent: name })));
    }
    this.list.replaceChildren(...items);
    this.#mark();
  }

  #item(names, properties, ...content) {
    const made = button("", (event) => (event.shiftKey ? this.solo(names) : this.toggle(names)), properties);
    made.append(...content);
    // The two clicks of a double click toggle twice, which undoes itself.
    made.addEventListener("dblclick", (event) => event.shiftKey || this.solo(names));
    this.#buttons.set(names, made);
    return element("li", {}, made);
  }

  toggle(names) {
    const show = names.every((name) => this.#hidden.has(name));
    for (const name of names) this.#hidden[show ? "delete" : "add"](name);
    this.#mark();
    this.#changed();
    announce(`${names.join(", ")} ${show ? "shown" : "hidden"}`);
  }

  /** Show these alone; doing it again shows all. */
  solo(names) {
    const shown = this.#names.filter((name) => this.shows(name));
    const already = shown.length === names.length && shown.every((name) => names.includes(name));
    this.#hidden = new Set(already ? [] : this.#names.filter((name) => !names.includes(name)));
    this.#mark();
    this.#changed();
    announce(already ? "all curves shown" : `only ${names.join(", ")} shown`);
  }

  #mark() {
    for (const [names, made] of this.#buttons) made.setAttribute("aria-pressed", String(names.some((name) => this.shows(name))));
  }
}

/** "encoder.loss" -> "encoder", "train/acc" -> "train", "loss" -> "". */
function groupOf(name) {
  const cut = name.search(/[./]/);
  return cut > 0 ? name.slice(0, cut) : "";
}

function swatch({ token, dash }) {
  const made = element("span", { className: "swatch" });
  made.style.borderTopColor = `var(--${token})`;
  made.style.borderTopStyle = dash.length ? "dashed" : "solid";
  return made;
}

/** Rising numbers of all lists, each once; the curves of one run mostly share theirs. */
function merged(lists) {
  const [first = [], ...others] = lists;
  const rising = first.every((x, index) => !index || x > first[index - 1]);
  const same = others.every((one) => one.length === first.length && one.every((x, index) => x === first[index]));
  return rising && same ? first.slice() : [...new Set(lists.flat())].sort((a, b) => a - b);
}

function describe(series, axis) {
  const { name, best, xs, ys, last } = series;
  const spot = (x) => (axis.numbers ? `at ${axis.say(x)}` : axis.say(x));
  const top = best ? `, best ${formatMetric(best.y)} ${spot(best.x)}` : "";
  if (xs.length === 1) return `${name}: ${formatMetric(ys[0])} ${spot(xs[0])}.`;
  return `${name}: from ${formatMetric(ys[0])} ${spot(xs[0])} to ${formatMetric(last.y)} ${spot(last.x)}${top}.`;
}

/** A table of numbers; its first column names the rows. */
function numberTable(title, heads, rows) {
  const head = element("tr", {}, ...heads.map((text) => element("th", { textContent: text, scope: "col" })));
  const body = rows.map(([name, ...cells]) =>
    element("tr", {}, element("th", { textContent: name, scope: "row" }), ...cells.map((text) => element("td", { textContent: text }))),
  );
  const caption = element("caption", { className: "unseen", textContent: title });
  return element("table", { className: "numbers" }, caption, element("thead", {}, head), element("tbody", {}, ...body));
}
