"use strict";
/* The section of media: groups by the first part of a name, and a panel with a step slider per name. */

const KIND_TITLES = {
  image: "image",
  histogram: "histogram",
  text: "text",
  table: "table",
  confusion_matrix: "confusion matrix",
  roc: "ROC curve",
  pr: "precision-recall curve",
};

/** Panels that are open when the page is opened. */
const OPEN_PANELS = 12;

class MediaSection {
  #groups = new Map();
  #panels = new Map();
  #live;
  #asked = false;
  #again = false;

  /** `media` is what the page holds; a live page loads it from its server. */
  constructor(media, live) {
    this.#live = live;
    this.count = element("span");
    this.search = element("input", { type: "search", placeholder: "Search names", autocomplete: "off" });
    this.search.setAttribute("aria-label", "Search names of media");
    this.search.addEventListener("input", () => this.#filter());
    this.host = element("div", { className: "media-groups" });
    this.note = element("p", { className: "note", hidden: true });
    const title = element("h2", { id: "media-title" }, "Media ", this.count);
    const head = element("div", { className: "section-head" }, title, this.search);
    this.section = element("section", { id: "media-section", hidden: true }, head, this.host, this.note);
    this.section.setAttribute("aria-labelledby", "media-title");
    place("machine-section").before(this.section);
    this.visible = new IntersectionObserver((seen) => {
      for (const { target, isIntersecting } of seen) target.panel.seen(isIntersecting);
    }, { rootMargin: "300px" });
    this.sizes = new ResizeObserver((changes) => {
      for (const { target } of changes) target.panel.draw();
    });
    if (media) this.#offer(media.entries, media.left_out);
    if (live) this.refresh();
  }

  get panels() {
    return [...this.#panels.values()];
  }

  /** Draw what is drawn with the colours of the theme. */
  repaint() {
    for (const panel of this.panels) panel.draw();
  }

  /** Ask the server what there is; news during a request make one more. */
  async refresh() {
    if (this.#asked) {
      this.#again = true;
      return;
    }
    this.#asked = true;
    try {
      this.#offer((await ask("api/media")).entries);
    } catch {
      // The line is broken; the next connection asks anew.
    }
    window.setTimeout(() => {
      this.#asked = false;
      if (this.#again) this.refresh();
      this.#again = false;
    }, 1000);
  }

  #offer(entries, left = null) {
    this.section.hidden = !entries.length && !(left && left.records);
    this.count.textContent = entries.length;
    const room = OPEN_PANELS - this.#panels.size;
    const fresh = entries.filter(({ kind, name }) => !this.#panels.has(`${kind} ${name}`)).length;
    for (const entry of entries) {
      const key = `${entry.kind} ${entry.name}`;
      if (!this.#panels.has(key)) this.#panels.set(key, this.#add(entry, fresh <= room));
      this.#panels.get(key).offer(entry);
    }
    for (const { made, note, panels } of this.#groups.values()) made.dataset.panels = note.textContent = panels.length;
    if (left && left.records) {
      this.note.hidden = false;
      this.note.textContent =
        `${COUNT.format(left.records)} media records (${formatBytes(left.bytes)}) are left out: this file holds at most ` +
        `${formatBytes(left.budget)} of media. The folder media of the run directory has them.`;
    }
    this.#filter();
  }

  #add(entry, open) {
    const cut = entry.name.indexOf("/");
    const title = cut > 0 ? entry.name.slice(0, cut) : "General";
    if (!this.#groups.has(title)) this.#groups.set(title, this.#group(title, open || !this.#groups.size));
    const group = this.#groups.get(title);
    const panel = new MediaPanel(entry, cut > 0 ? entry.name.slice(cut + 1) : entry.name, this.#live);
    group.panels.push(panel);
    group.grid.append(panel.card);
    this.visible.observe(panel.card);
    this.sizes.observe(panel.card);
    return panel;
  }

  #group(title, open) {
    const note = element("span");
    const grid = element("div", { className: "media-panels" });
    const made = element("details", { className: "media-group", open }, element("summary", { textContent: title }, note), grid);
    this.host.append(made);
    return { made, note, grid, panels: [] };
  }

  #filter() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const { made, panels } of this.#groups.values()) {
      for (const panel of panels) panel.card.hidden = !words.every((word) => panel.name.toLowerCase().includes(word));
      made.hidden = panels.every((panel) => panel.card.hidden);
      if (words.length && !made.hidden) made.open = true;
    }
  }
}

/** The records of one kind and name, one of them shown. */
class MediaPanel {
  #records = [];
  #index = -1;
  #live;
  #seen = false;
  #stale = false;
  #newest = "";
  #kept = {};
  plot = null;

  constructor({ kind, name }, title, live) {
    [this.kind, this.name, this.#live] = [kind, name, live];
    this.body = element("div", { className: "media-body" });
    this.slider = element("input", { type: "range", min: 0, value: 0, step: 1, autocomplete: "off" });
    this.slider.setAttribute("aria-label", `Step of ${name}`);
    this.output = element("output");
    this.slider.addEventListener("input", () => this.show(Number(this.slider.value)));
    const head = element("header", { className: "chart-head" }, element("h3", { textContent: title, title: name }), element("span", { textContent: KIND_TITLES[kind] }));
    this.foot = element("footer", { className: "media-steps" }, this.slider, this.output);
    this.card = element("article", { className: "card media-panel" }, head, this.body, this.foot);
    this.card.dataset.kind = kind;
    this.card.panel = this;
  }

  get record() {
    return this.#records[this.#index];
  }

  /** Take the records of an entry, or note that the server has newer ones. */
  offer({ records, count, step }) {
    if (records) this.#take(records);
    else if (this.#newest !== `${count} ${step}`) {
      this.#newest = `${count} ${step}`;
      this.#stale = true;
      if (this.#seen) this.#load();
    }
  }

  seen(seen) {
    this.#seen = seen;
    if (seen && this.#stale) this.#load();
    else if (seen && this.#index < 0 && this.#records.length) this.show(this.#records.length - 1);
  }

  async #load() {
    this.#stale = false;
    try {
      this.#take((await ask(`api/media?${new URLSearchParams({ kind: this.kind, name: this.name })}`)).records);
    } catch {
      this.#stale = true;
    }
  }

  /** A panel at its newest record follows; a reader who went back stays at that step. */
  #take(records) {
    const follows = this.#index < 0 || this.#index === this.#records.length - 1;
    const step = this.record?.step;
    this.#records = records;
    this.slider.max = records.length - 1;
    this.slider.hidden = records.length < 2;
    let index = records.length - 1;
    if (!follows) index = Math.max(0, records.findIndex((one) => one.step >= step));
    this.slider.value = index;
    this.output.textContent = mediaStep(records[index]);
    if (this.#seen || this.#index >= 0) this.show(index);
  }

  show(index) {
    this.#index = index;
    this.slider.value = index;
    const text = mediaStep(this.record);
    this.output.textContent = text;
    this.slider.setAttribute("aria-valuetext", text);
    if (this.kind === "histogram") {
      this.plot ||= new HistogramPlot(this.name, (at) => this.show(at));
      if (!this.body.firstChild) this.body.append(...this.plot.parts);
      this.plot.show(this.#records, index);
    } else if (this.kind === "roc" || this.kind === "pr") {
      this.plot ||= new RateChart(this.name, this.kind);
      if (!this.body.firstChild) this.body.append(...this.plot.parts);
      this.plot.show(this.record);
    } else {
      this.body.replaceChildren(...this.#parts());
    }
  }

  #parts() {
    const { kind, name, record } = this;
    if (kind === "image") return imagePart(record, name);
    if (kind === "text") return textPart(record, name, this.#kept);
    if (kind === "table") return tablePart(record, name, this.#kept);
    return matrixPart(record, name, this.#kept);
  }

  draw() {
    this.plot?.draw();
  }
}
