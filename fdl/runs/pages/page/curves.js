"use strict";
/* The panel of curves: which metrics, over what, how smooth, and in which groups. */

const AXES = [["step", "Step"], ["epoch", "Epoch"], ["time", "Time"], ["wall", "Clock"]];
const FIRST_CHARTS = 4;
const [MOST_RUNS_NAMED, MOST_GROUPS_NAMED] = [12, 24];

class CurvesPanel {
  constructor(page) {
    this.page = page;
    this.charts = new Map();
    const { choices } = page;
    this.axis = choice("Curves over", AXES, "", (axis) => {
      page.focus.zoom(null);
      choices.set({ axis });
    });
    this.smoothing = element("input", { type: "range", min: "0", max: "0.99", step: "0.01", autocomplete: "off", "aria-label": "Smoothing" });
    this.smoothing.addEventListener("input", () => choices.set({ smoothing: Number(this.smoothing.value) }));
    this.amount = element("output", {});
    this.logY = button("Log y", () => choices.set({ logY: !choices.get("logY") }), { className: "toggle" });
    this.logX = button("Log x", () => choices.set({ logX: !choices.get("logX") }), { className: "toggle" });
    this.group = selection("Group runs by", (group) => choices.set({ group }));
    this.band = choice("Band of a group", [["range", "Range"], ["deviation", "± σ"]], "range", (band) => choices.set({ band }));
    this.picker = new Picker("Metrics", () => page.model.curveNames.map((name) => [name, name]), () => this.metrics, (metrics) => choices.set({ metrics }));
    place("curve-tools").append(
      this.picker.box,
      this.axis,
      element("label", { className: "labelled" }, "Smoothing", this.smoothing, this.amount),
      this.logY,
      this.logX,
      element("label", { className: "labelled" }, "Group by", this.group),
      this.band,
    );
  }

  /** The metrics that have a chart. */
  get metrics() {
    const chosen = this.page.choices.get("metrics");
    const known = this.page.model.curveNames;
    return chosen ? chosen.filter((name) => known.includes(name)) : known.slice(0, FIRST_CHARTS);
  }

  /** Show what the model and the choices say now. */
  show() {
    const { choices, model } = this.page;
    const smoothing = choices.get("smoothing");
    press(this.axis, this.page.axis);
    this.smoothing.value = smoothing;
    this.amount.textContent = smoothing ? smoothing.toFixed(2) : "off";
    this.logY.setAttribute("aria-pressed", String(choices.get("logY")));
    this.logX.setAttribute("aria-pressed", String(choices.get("logX")));
    this.logX.disabled = this.page.axis === "wall";
    fill(this.group, groupings(model), choices.get("group"));
    this.band.hidden = !model.groups;
    press(this.band, choices.get("band"));
    this.picker.show();
    this.#arrange();
    this.#nameColors();
    for (const chart of this.charts.values()) chart.load();
  }

  /** Draw again without asking the server. */
  redraw() {
    for (const chart of this.charts.values()) chart.draw();
  }

  forget(ids) {
    for (const chart of this.charts.values()) chart.forget(ids);
  }

  point(run, from) {
    for (const chart of this.charts.values()) if (chart !== from) chart.point(run);
  }

  /** Which colour is which group, or which run if there are few. */
  #nameColors() {
    const { model } = this.page;
    const { groups } = model;
    const most = groups ? MOST_GROUPS_NAMED : MOST_RUNS_NAMED;
    const all = groups ? groups.order : model.visible;
    const items = (all.length <= most || groups ? all.slice(0, most) : []).map((one) => {
      const [color, name] = groups ? [groups.color(one), groups.name(one)] : [model.color(one), one.name];
      const swatch = element("span", { className: "swatch" });
      swatch.style.borderColor = color;
      const members = groups ? groups.members.get(one) : [one];
      const count = groups ? [element("span", { className: "count", textContent: `×${members.length}` })] : [];
      const entry = button("", () => (groups ? this.#only(members) : this.page.open(one)), { title: groups ? `${name}: draw only these ${counted(members.length, "run")}` : name });
      entry.append(swatch, element("span", { textContent: name }), ...count);
      entry.addEventListener("pointerenter", () => this.page.highlight(members[0]));
      entry.addEventListener("pointerleave", () => this.page.highlight(null));
      return element("li", {}, entry);
    });
    if (groups && all.length > most) items.push(element("li", { className: "rest", textContent: `and ${all.length - most} more groups` }));
    place("legend").replaceChildren(...items);
    place("legend").hidden = !items.length;
  }

  /** Draw only some of the runs; once more, all of them. */
  #only(members) {
    const { model } = this.page;
    const alone = model.visible.length === members.length;
    this.page.choices.set({ hidden: alone ? [] : model.filtered.filter((run) => !members.includes(run)).map((run) => run.path) });
  }

  #arrange() {
    const wanted = this.metrics;
    for (const [name, chart] of this.charts) {
      if (wanted.includes(name)) continue;
      chart.close();
      chart.card.remove();
      this.charts.delete(name);
    }
    for (const name of wanted) if (!this.charts.has(name)) this.charts.set(name, new CurveChart(name, this.page));
    const cards = wanted.map((name) => this.charts.get(name).card);
    const area = place("charts");
    if (cards.some((card, index) => area.children[index] !== card) || area.children.length !== cards.length) area.replaceChildren(...cards);
    place("no-curves").hidden = cards.length > 0;
  }
}

/** What runs can be grouped by. */
function groupings(model) {
  const options = [["", "nothing"]];
  if (model.differing.some(isSeed)) options.push([ALL_BUT_SEED, "all but the seed"]);
  for (const name of model.differing) options.push([`config.${name}`, name]);
  options.push(["state", "state"], ["tags", "tags"]);
  const same = model.settings.filter((one) => !model.differing.includes(one.name));
  return [...options, ...same.map((one) => [one.key, one.name])];
}

/** A list to tick several names in, with a search field; it opens below its button. */
class Picker {
  constructor(label, options, chosen, act) {
    Object.assign(this, { options, chosen, act });
    this.count = element("span", { className: "count" });
    this.summary = element("summary", {}, label, " ", this.count);
    this.search = element("input", { type: "search", placeholder: "Search", "aria-label": `Search ${label.toLowerCase()}`, autocomplete: "off" });
    this.list = element("div", { className: "ticks", role: "group", "aria-label": label });
    const tools = element("div", { className: "tick-tools" }, button("All", () => this.#all(true), { className: "small" }), button("None", () => this.#all(false), { className: "small" }), button("Usual", () => act(null), { className: "small" }));
    this.box = element("details", { className: "picker" }, this.summary, element("div", { className: "sheet" }, this.search, tools, this.list));
    this.search.addEventListener("input", () => this.#fill());
    this.box.addEventListener("toggle", () => this.box.open && this.#fill());
    this.box.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.box.open) return;
      this.box.open = false;
      this.summary.focus();
    });
    document.addEventListener("pointerdown", (event) => {
      if (!this.box.contains(event.target)) this.box.open = false;
    });
  }

  show() {
    this.count.textContent = `${this.chosen().length}/${this.options().length}`;
    if (this.box.open) this.#fill();
  }

  #fitting() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    return this.options().filter(([, text]) => words.every((word) => text.toLowerCase().includes(word)));
  }

  #all(on) {
    const names = this.#fitting().map(([value]) => value);
    const others = this.chosen().filter((value) => !names.includes(value));
    this.act(on ? [...others, ...names] : others);
    this.#fill();
  }

  #fill() {
    const chosen = new Set(this.chosen());
    const rows = this.#fitting().slice(0, 300).map(([value, text]) => {
      const box = element("input", { type: "checkbox", checked: chosen.has(value) });
      box.addEventListener("change", () => {
        const others = this.chosen().filter((one) => one !== value);
        this.act(box.checked ? [...others, value] : others);
      });
      return element("label", {}, box, element("span", { textContent: text, title: text }));
    });
    const focused = document.activeElement?.closest?.("label")?.textContent;
    this.list.replaceChildren(...rows);
    rows.find((row) => focused && row.textContent === focused && this.list.contains(row))?.firstChild.focus();
  }
}
