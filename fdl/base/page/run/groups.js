"use strict";
/* Many metrics on one screen: search, and sections by the first part of the name. */

/** Up to this many metrics need no sections and no search. */
const FEW_METRICS = 8;

/** Charts that are open before the reader chooses. */
const FIRST_CHARTS = 4;

/** Metrics in sections: those without a prefix first, by kind if there are many. */
function sectionsOf(all) {
  if (all.length <= FEW_METRICS) return [{ key: "", title: "", series: all }];
  const counts = new Map();
  for (const { name } of all) counts.set(groupOf(name), (counts.get(groupOf(name)) || 0) + 1);
  const prefixOf = ({ name }) => (counts.get(groupOf(name)) > 1 ? groupOf(name) : "");
  const plain = all.filter((one) => !prefixOf(one));
  const kinds = { min: "Losses", unit: "Scores", percent: "Scores" };
  const sections = new Map();
  const add = (key, title, one) => {
    if (!sections.has(key)) sections.set(key, { key, title, series: [] });
    sections.get(key).series.push(one);
  };
  for (const title of ["Losses", "Scores", "Other metrics"]) {
    for (const one of plain) {
      const kind = kinds[kindOf(one)[0]] || "Other metrics";
      if (kind === title) add(plain.length > FEW_METRICS ? ` ${kind}` : " ", plain.length > FEW_METRICS ? kind : "Metrics", one);
    }
  }
  for (const one of all) if (prefixOf(one)) add(prefixOf(one), prefixOf(one), one);
  return [...sections.values()];
}

/** Whether a name has all words of a search. */
function matches(name, search) {
  const text = name.toLowerCase();
  return search.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/** A section that folds: its head is always there, its charts only while it is open. */
class MetricSection {
  #note = element("span", { className: "section-note" });
  /** Whether all charts are shown, not only the first. */
  all = false;
  /** What the reader chose; null until then. */
  chosen = null;

  constructor(title, changed) {
    this.grid = element("div", { className: "charts" });
    this.more = element("button", { type: "button", className: "more", hidden: true });
    this.more.addEventListener("click", () => {
      this.all = true;
      changed();
    });
    const summary = element("summary", {}, element("b", { textContent: title }), this.#note);
    this.part = element("details", { className: "metric-section" }, summary, this.grid, this.more);
    // The toggle event also tells of changes by the script.
    summary.addEventListener("click", (event) => {
      event.preventDefault();
      this.chosen = !this.part.open;
      changed();
    });
  }

  /** Show how many metrics it has, and the newest values of the first while it is closed. */
  head(series, open) {
    const count = `${series.length} ${series.length === 1 ? "metric" : "metrics"}`;
    const values = open ? [] : series.slice(0, 6).map((one) => `${one.name} ${formatMetric(one.last.y)}`);
    const text = [count, ...values].join(" · ");
    if (this.#note.textContent !== text) this.#note.textContent = this.#note.title = text;
    if (this.part.open !== open) this.part.open = open;
  }

  /** Offer the charts that are left out. */
  offer(hidden) {
    this.more.hidden = !hidden;
    this.more.textContent = `Show ${hidden} more ${hidden === 1 ? "chart" : "charts"}`;
  }
}

/** The charts of all metrics of one unit, placed on the page. */
class MetricPanel {
  #charts = new Map();
  #sections = new Map();
  #layout = new Map();
  #search = "";
  #focus = null;
  #plain;
  #changed;

  /** `make(title, focus)` gives a new chart; `changed()` is called when the reader folds or searches. */
  constructor(host, make, changed) {
    this.host = host;
    this.make = make;
    this.#changed = changed;
    this.#plain = element("div", { className: "charts" });
  }

  get charts() {
    return [...this.#charts.values()].filter((chart) => chart.card.isConnected);
  }

  search(text) {
    this.#search = text.trim();
    this.#changed();
  }

  /** Names that the search leaves. */
  shows(name) {
    return !this.#search || matches(name, this.#search);
  }

  /** Show these curves of one unit on the axis of a focus; returns how many the search leaves. */
  show(all, prefix, focus) {
    this.#focus = focus;
    const found = all.filter((one) => this.shows(one.name));
    const sections = this.#search ? sectionsOf(all).map((one) => ({ ...one, series: one.series.filter((each) => this.shows(each.name)) })) : sectionsOf(all);
    const filled = sections.filter((one) => one.series.length);
    const folds = all.length > FEW_METRICS;
    const parts = [];
    let room = FIRST_CHARTS;
    for (const { key, title, series } of filled) {
      const groups = chartGroups(series, this.#memory(`${prefix} ${key}`));
      if (!folds) {
        this.#place(this.#plain, groups, prefix);
        parts.push(this.#plain);
        continue;
      }
      const section = this.#section(key, title);
      const first = !parts.length;
      const open = section.chosen ?? (Boolean(this.#search) || first || groups.length <= room);
      const most = section.all || section.chosen || this.#search ? Infinity : Math.max(FIRST_CHARTS, room);
      room -= groups.length;
      section.head(series, open);
      this.#place(section.grid, open ? groups.slice(0, most) : [], `${prefix} ${key}`);
      section.offer(open ? Math.max(0, groups.length - most) : 0);
      parts.push(section.part);
    }
    arrange(this.host, parts);
    return found.length;
  }

  #memory(key) {
    if (!this.#layout.has(key)) this.#layout.set(key, new Map());
    return this.#layout.get(key);
  }

  #section(key, title) {
    if (!this.#sections.has(key)) this.#sections.set(key, new MetricSection(title, () => this.#changed()));
    return this.#sections.get(key);
  }

  #place(grid, groups, prefix) {
    const charts = groups.map(({ key, title, series }) => {
      const name = `${prefix} ${key}`;
      if (!this.#charts.has(name)) this.#charts.set(name, this.make(title, this.#focus));
      return [this.#charts.get(name), title, series];
    });
    arrange(grid, charts.map(([chart]) => chart.card));
    const { axis } = this.#focus;
    for (const [chart, title, series] of charts) chart.show(title, series.map((one) => axis.of(one)), this.#focus);
  }
}

/** Make these the children of an element; those that are there already are not moved. */
function arrange(host, wanted) {
  for (const child of [...host.children]) if (!wanted.includes(child)) child.remove();
  wanted.forEach((child, index) => {
    if (host.children[index] !== child) host.insertBefore(child, host.children[index] || null);
  });
}
