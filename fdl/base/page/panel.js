"use strict";
/* The metrics of the page as charts: what shares a chart, sections that fold, a search, and the bar of controls above. */

/** Up to this many metrics need no sections and no search. */
const FEW_METRICS = 8;

/** Charts of a section before the reader asks for all. */
const MOST_CHARTS = 12;
const [MOST_RUNS_NAMED, MOST_GROUPS_NAMED] = [12, 24];

class CurvesPanel {
  #charts = new Map();
  #sections = new Map();
  test = () => true;

  constructor(page) {
    this.page = page;
    const { choices, record } = page;
    this.axis = selection("X axis", (axis) => choices.set({ axis }));
    this.axis.id = "x-axis";
    this.logX = button("log x", () => choices.set({ logX: !choices.logX }), { id: "log-x", className: "toggle" });
    this.smoothing = element("input", { id: "smoothing", type: "range", min: "0", max: "0.99", step: "0.01", value: "0", autocomplete: "off", "aria-label": "Smoothing", oninput: () => choices.set({ smoothing: Number(this.smoothing.value) }) });
    this.amount = element("output");
    this.search = searchField(record ? "Search metrics and media" : "Search metrics", (text) => choices.set({ search: text }), { id: "search" });
    this.found = element("output", { id: "found" });
    this.group = selection("Group runs by", (group) => choices.set({ group }));
    this.band = selection("Band of a group", (band) => choices.set({ band }));
    const labelled = (text, ...controls) => element("label", { className: "labelled" }, text, ...controls);
    const tools = [labelled("Search", this.search, this.found), labelled("X axis", this.axis), this.logX, labelled("Smoothing", this.smoothing, this.amount)];
    place("curve-tools").append(...tools, labelled("Group by", this.group), labelled("Band", this.band));
  }

  /** The charts on the page; those of closed sections keep their state aside. */
  get charts() {
    return [...this.#charts.values()].filter((chart) => chart.card.isConnected);
  }

  chart(metric) {
    return this.charts.find((chart) => chart.metric === metric);
  }

  /** Show what the page knows and the reader has chosen. */
  show() {
    const { page } = this;
    const { choices, focus, runs, record } = page;
    const { smoothing } = choices;
    fill(this.axis, page.axes, focus.axis.kind);
    this.logX.disabled = focus.axis.kind === "wall";
    press(this.logX, focus.axis.log);
    this.logX.title = this.logX.disabled ? "The time of day has no logarithmic scale" : "Logarithmic x axis";
    this.smoothing.value = smoothing;
    write(this.amount, smoothing ? smoothing.toFixed(2) : "off");
    if (document.activeElement !== this.search) this.search.value = choices.search;
    this.test = worded(choices.search);
    const all = record ? record.over(focus.axis.kind) : runs.curveNames.map((name) => ({ name }));
    const left = this.#place(all);
    for (const one of [this.axis.parentNode, this.logX, this.smoothing.parentNode]) one.hidden = !all.length;
    this.search.parentNode.hidden = all.length + (page.media?.panels.length ?? 0) <= FEW_METRICS && !choices.search;
    write(this.found, `${left < all.length ? `${left} of ` : ""}${all.length} metrics`);
    const none = !record ? "No run has measured a metric yet." : record.records.length ? "This run recorded no metrics." : "No epoch has finished yet.";
    write(place("no-metrics"), left ? "" : all.length ? "No metric has these words in its name." : none);
    this.group.parentNode.hidden = !runs;
    this.band.parentNode.hidden = !runs?.groups;
    if (!runs) return;
    fill(this.group, groupings(runs), choices.group);
    fill(this.band, [["range", "range"], ["deviation", "± σ"]], choices.band);
    this.#nameColors();
  }

  /** Place the charts of curves; returns how many curves the search leaves. */
  #place(all) {
    const { record, choices, focus } = this.page;
    const parts = [];
    const placed = new Map();
    let found = 0;
    for (const [key, series] of sectionsOf(all)) {
      const kept = series.filter((one) => this.test(one.name));
      if (!kept.length) continue;
      found += kept.length;
      // Metrics of a run that name the same quantity, such as loss and val_loss, share a chart.
      const groups = [...Map.groupBy(kept, ({ name }) => (record && quantityOf(name)) ?? ` ${name}`)];
      const section = entry(this.#sections, key, () => new MetricSection(key || "Metrics", () => this.show()));
      const alone = all.length <= FEW_METRICS;
      const open = alone || (section.chosen ?? (Boolean(choices.search) || !parts.length));
      const shown = open ? groups.slice(0, section.all ? Infinity : MOST_CHARTS) : [];
      section.head(kept, open, open ? groups.length - shown.length : 0, alone);
      const charts = shown.map(([group, members]) => {
        const id = `${key} ${group}`;
        placed.set(id, [members.length > 1 ? group[0].toUpperCase() + group.slice(1) : members[0].name, members]);
        return entry(this.#charts, id, () => (record ? new LineChart("", focus) : new RunsChart(members[0].name, this.page)));
      });
      arrange(section.grid, charts.map((chart) => chart.card));
      parts.push(alone ? section.grid : section.part);
    }
    arrange(place("charts"), parts);
    for (const [id, chart] of this.#charts) {
      chart.smoothing = choices.smoothing;
      if (placed.has(id)) chart.show(...placed.get(id));
      else if (!record) {
        chart.close(); // those of one run keep what the reader chose
        this.#charts.delete(id);
      }
    }
    return found;
  }

  /** Which colour is which group, or which run if there are few. */
  #nameColors() {
    const { runs, choices } = this.page;
    const { groups } = runs;
    const all = groups ? groups.order : runs.visible;
    const items = (groups ? all.slice(0, MOST_GROUPS_NAMED) : all.length <= MOST_RUNS_NAMED ? all : []).map((one) => {
      const [color, name, members] = groups ? [groups.color(one), groups.name(one), groups.members.get(one)] : [runs.color(one), one.title, [one]];
      // Only these runs; once more, all of them.
      const only = () => choices.set({ hidden: runs.visible.length === members.length ? [] : runs.filtered.filter((run) => !members.includes(run)).map((run) => run.path) });
      const title = groups ? `${name}: draw only these ${counted(members.length, "run")}` : name;
      const pointing = { onpointerenter: () => this.page.highlight(members[0]), onpointerleave: () => this.page.highlight(null) };
      const made = button("", groups ? only : () => this.page.open(one), { title, ...pointing });
      made.append(swatch(color), element("span", { textContent: name }), groups ? element("span", { className: "count", textContent: `×${members.length}` }) : "");
      return element("li", {}, made);
    });
    if (groups && all.length > MOST_GROUPS_NAMED) items.push(element("li", { className: "rest", textContent: `and ${all.length - MOST_GROUPS_NAMED} more groups` }));
    place("legend").replaceChildren(...items);
    place("legend").hidden = !items.length;
  }
}

/** A section that folds: its head is always there, its charts only while it is open. */
class MetricSection {
  #note = element("span", { className: "section-note" });
  grid = element("div", { className: "charts" });
  /** Whether all charts are shown, not only the first. */
  all = false;
  /** What the reader chose; null until then. */
  chosen = null;

  constructor(title, changed) {
    this.more = button("", () => {
      this.all = true;
      changed();
    }, { className: "more", hidden: true });
    // The toggle event also tells of changes by the script.
    const click = (event) => {
      event.preventDefault();
      this.chosen = !this.part.open;
      changed();
    };
    const summary = element("summary", { onclick: click }, element("b", { textContent: title }), this.#note);
    this.part = element("details", { className: "metric-section" }, summary, this.grid, this.more);
  }

  /** Show how many metrics it has, the newest values of the first while it is closed, and how many charts are left out; alone it is only its charts. */
  head(series, open, hidden, alone) {
    if (!alone && this.grid.parentNode !== this.part) this.part.insertBefore(this.grid, this.more);
    const values = open ? [] : series.filter((one) => one.last).slice(0, 6).map((one) => `${one.name} ${formatMetric(one.last.y)}`);
    write(this.#note, (this.#note.title = [counted(series.length, "metric"), ...values].join(" · ")));
    this.part.open = open;
    this.more.hidden = !hidden;
    this.more.textContent = `Show ${hidden} more ${hidden === 1 ? "chart" : "charts"}`;
  }
}

/** What runs can be grouped by. */
function groupings(runs) {
  const seeds = runs.differing.some(isSeed) ? [[ALL_BUT_SEED, "all but the seed"]] : [];
  const differing = runs.differing.map((name) => [`config.${name}`, name]);
  const same = runs.settings.filter((one) => !runs.differing.includes(one.name)).map((one) => [one.key, one.name]);
  return [["", "nothing"], ...seeds, ...differing, ["state", "state"], ["tags", "tags"], ...same];
}

/** Metrics in sections by the first part of their name; those without one, or alone with it, come first. */
function sectionsOf(all) {
  if (all.length <= FEW_METRICS) return new Map([["", all]]);
  // "encoder.loss" -> "encoder", "train/acc" -> "train", "loss" -> "".
  const prefix = ({ name }) => /^([^./]+)[./]/.exec(name)?.[1] ?? "";
  const groups = Map.groupBy(all, prefix);
  const parts = Map.groupBy(all, (one) => (groups.get(prefix(one)).length > 1 ? prefix(one) : ""));
  return new Map([["", []], ...parts]);
}

