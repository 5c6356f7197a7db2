"use strict";
/* The page: what of it is drawn anew when something of the run has changed. */

const MOST_TILES = 8;
const MOST_ROWS = 1000;

/** Milliseconds between two renewals of what is more work than a curve. */
const SLOW_PARTS_EVERY = 500;

const STATUS = {
  running: ["live", "Running"],
  complete: ["good", "Complete"],
  interrupted: ["warn", "Interrupted"],
  diverged: ["bad", "Diverged"],
  failed: ["bad", "Failed"],
};

const FACT_HEADS = ["Name", "Value", "Set in"];
const DETAIL_TITLES = { acts: "Acts while it trained", config: "Configuration", environment: "Environment", parameters: "Parameters" };

class RunView {
  #panel;
  #strip;
  #focuses = new Map();
  #kind = "number";
  #logX = false;
  #options = { smoothing: 0 };
  #unit = null;
  #open = new Map();
  #dirty = new Set();
  #framed = false;
  #slowAt = -Infinity;
  #slowTimer = 0;
  #epochs;
  #image = null;
  /** "live", "lost", or null for a page that follows nothing. */
  connection = null;
  /** Fetches finer points of curves for a range of steps, where there is a server. */
  detail = null;

  constructor(model, written) {
    this.model = model;
    this.written = written;
    this.#strip = new ProgressStrip(place("progress"), model);
    const make = (title, focus) => new LineChart(title, focus, this.#options);
    this.#panel = new MetricPanel(place("charts"), make, () => this.#metricCharts());
    this.#epochs = new EpochTable(model, (name) => this.#panel.shows(name));
    this.#controls();
    model.watch((kind) => this.#later(kind));
  }

  /** The charts on the page; those of the other unit keep their state aside. */
  get charts() {
    return this.#panel.charts;
  }

  /** "live", "lost" after a broken line, "gone" if the next try failed too, or null. */
  connect(state) {
    this.connection = state;
    this.model.following = state === "live";
    this.#heading();
    this.#strip.render();
  }

  /** Where the reader looks on the axis that is shown now. */
  #focus() {
    const unit = this.#unit || "epoch";
    const key = `${unit} ${this.#kind}`;
    if (!this.#focuses.has(key)) {
      const focus = new Focus(new RunAxis(this.model, unit, this.#kind));
      if (unit === "step") focus.watch((what) => what === "zoom" && this.#refine(focus));
      this.#focuses.set(key, focus);
    }
    const focus = this.#focuses.get(key);
    focus.axis.space(this.#logX);
    return focus;
  }

  /** Draw everything that is drawn with the colours of the theme. */
  repaint() {
    for (const chart of this.charts) chart.redraw();
  }

  /** Changes wait for the next frame: a burst of events draws once. */
  #later(kind) {
    this.#dirty.add(kind);
    if (this.#framed) return;
    this.#framed = true;
    requestAnimationFrame(() => {
      this.#framed = false;
      this.#render();
    });
  }

  #render() {
    const dirty = this.#dirty;
    const any = (...kinds) => kinds.some((kind) => dirty.has(kind));
    if (any("info", "heading", "epochs")) this.#heading();
    if (any("info", "epochs", "steps")) this.#metricCharts();
    if (any("info")) this.#details();
    if (any("info", "drawing")) this.#drawing();
    if (any("info", "heading", "epochs", "progress")) this.#strip.render();
    const first = !this.model.series.size; // tiles show the newest step
    const slow = any("info", "heading", "epochs", "ledger", "progress", ...(first ? ["steps"] : []));
    dirty.clear();
    if (!slow) return;
    const wait = this.#slowAt + SLOW_PARTS_EVERY - performance.now();
    window.clearTimeout(this.#slowTimer);
    if (wait <= 0) this.#slowParts();
    else this.#slowTimer = window.setTimeout(() => this.#slowParts(), wait);
  }

  #slowParts() {
    this.#slowAt = performance.now();
    const { model } = this;
    // In the first epoch, the newest step is all that is known.
    const all = [...(model.series.size ? model.series : model.curves).values()];
    const judged = [...all.filter((one) => one.goal), ...all.filter((one) => !one.goal)];
    place("tiles").replaceChildren(...judged.slice(0, MOST_TILES).map(metricTile), ...runTiles(model));
    const load = gauges(model);
    place("machine-section").hidden = !load.length;
    place("machine").replaceChildren(...load);
    const ranks = rankParts(model.records);
    place("ranks-section").hidden = !ranks.length;
    place("ranks").replaceChildren(...ranks);
    const ledger = ledgerParts(model.ledger);
    place("time-section").hidden = !ledger.length;
    place("time").replaceChildren(...ledger);
    place("booked").textContent = ledger.length ? `${formatDuration(ledgerTotal(model.ledger))} booked` : "";
    this.#epochs.render();
    place("footer").textContent = this.connection || !this.written
      ? "Live from flodl."
      : `Written by flodl on ${formatMoment(this.written)}. This file needs no network.`;
  }

  #heading() {
    const { info, status } = this.model;
    const [tone, word] = STATUS[status] || ["warn", status];
    const lost = status === "running" && ["lost", "gone"].includes(this.connection);
    const gone = lost && this.connection === "gone";
    place("notice").hidden = !gone;
    place("notice").textContent = gone ? `The run ended or its machine is not reachable. The page shows the last state, received at ${this.#newsAt()}.` : "";
    place("label").textContent = info.label || "Training run";
    const facts = [];
    if (info.run) facts.push(element("span", { textContent: `run ${info.run}` }));
    if (info.hash) {
      const hash = element("code", { textContent: info.hash.slice(0, 8), title: `Structural hash of the model: ${info.hash}` });
      facts.push(element("span", {}, "model hash ", hash));
    }
    if (info.started) facts.push(element("span", { textContent: `started ${formatMoment(info.started)}` }));
    place("facts").replaceChildren(...facts);
    const text = gone ? "Not reachable" : lost ? "Reconnecting…" : word;
    if (place("status").textContent !== text) place("status").textContent = text;
    place("status").dataset.tone = lost ? "warn" : tone;
    place("status").classList.toggle("beating", this.connection === "live" && status === "running");
    document.title = [info.label || "Training run", info.run].filter(Boolean).join(" · ");
  }

  /** The time of day at which the last message came, by the reader's clock. */
  #newsAt() {
    const ago = performance.now() - this.model.newsAt;
    return new Date(Date.now() - ago).toTimeString().slice(0, 8);
  }

  #controls() {
    const slider = place("smoothing");
    slider.addEventListener("input", () => {
      this.#options.smoothing = Number(slider.value);
      place("smoothing-value").textContent = slider.value === "0" ? "off" : Number(slider.value).toFixed(2);
      for (const chart of this.charts) chart.redraw();
    });
    place("x-axis").addEventListener("change", () => {
      this.#kind = place("x-axis").value;
      this.#metricCharts();
    });
    place("log-x").addEventListener("click", () => {
      this.#logX = !this.#logX;
      this.#metricCharts();
    });
    place("search").addEventListener("input", () => {
      this.#panel.search(place("search").value);
      this.#epochs.render();
    });
    for (const unit of ["epoch", "step"]) {
      place(`by-${unit}`).addEventListener("click", () => {
        this.#unit = unit;
        this.#metricCharts();
      });
    }
  }

  #metricCharts() {
    const { model } = this;
    // Until the reader chooses, the page shows what there is when it has something to show.
    if (!this.#unit && (model.curves.size || model.records.length > 1)) {
      this.#unit = model.curves.size && model.records.length < 2 ? "step" : "epoch";
    }
    const unit = this.#unit || "epoch";
    place("units").hidden = !model.curves.size;
    for (const one of ["epoch", "step"]) place(`by-${one}`).setAttribute("aria-pressed", String(one === unit));
    const all = [...(unit === "step" ? model.curves : model.series).values()];
    const timed = unit === "epoch" || model.clock.steps.length > 1;
    for (const option of place("x-axis").options) option.disabled = option.value !== "number" && !timed;
    place("x-axis").options[0].textContent = `${unit}s`;
    if (!timed) this.#kind = place("x-axis").value = "number";
    const { axis } = this.#focus();
    place("log-x").disabled = axis.kind === "wall";
    place("log-x").setAttribute("aria-pressed", String(axis.log));
    place("log-x").title = axis.kind === "wall" ? "The time of day has no logarithmic scale" : "Logarithmic x axis";
    const left = this.#panel.show(all, unit, this.#focus());
    for (const id of ["smoothing-control", "axis-control"]) place(id).hidden = !all.length;
    place("search-control").hidden = all.length <= FEW_METRICS;
    const found = `${left < all.length ? `${left} of ` : ""}${all.length} metrics`;
    if (place("found").textContent !== found) place("found").textContent = found;
    const use = model.summary?.use;
    place("use").hidden = !use;
    place("use").textContent = use ? `Use the best model: ${use}, see docs/guide/trained-model.md` : "";
    place("no-metrics").hidden = left > 0;
    const none = model.records.length ? "This run recorded no metrics." : "No epoch has finished yet.";
    place("no-metrics").textContent = all.length ? "No metric has these words in its name." : none;
  }

  /** After a zoom into steps: ask for all the points that the picture can show. */
  async #refine(focus) {
    const { range, axis } = focus;
    if (!range || !this.detail) return;
    const ends = axis.steps(range);
    const fine = await this.detail([...this.model.curves.keys()], ends);
    if (focus.range !== range) return; // the reader has moved on
    for (const { name, steps, values } of fine) {
      const curve = this.model.curves.get(name);
      if (curve) curve.detail = { range: ends, xs: steps, ys: values.map(measured) };
    }
    this.#metricCharts();
  }

  #details() {
    const { acts, config, environment, parameters, ...rest } = this.model.info.metadata;
    const blocks = [];
    for (const [key, value, open] of [["acts", acts, true], ["config", config, true], ["environment", environment, false], ["parameters", parameters, false]]) {
      const rows = value === undefined ? [] : factRows(value);
      if (rows.length) blocks.push(this.#block(DETAIL_TITLES[key], `${rows.length} values`, factTable(DETAIL_TITLES[key], rows, FACT_HEADS), open));
    }
    const further = factRows(rest);
    if (further.length) blocks.push(this.#block("Metadata", `${further.length} values`, factTable("Metadata", further, FACT_HEADS), false));
    place("details-section").hidden = !blocks.length;
    place("details").replaceChildren(...blocks);
  }

  #drawing() {
    const source = drawingSource(this.model);
    place("model-section").hidden = !source;
    if (!source) return;
    // As an image, scripts and links inside the drawing stay dead.
    if (!this.#image) {
      this.#image = element("img", { alt: "Drawing of the model's graph, with the time of every node where it is known" });
      place("model").append(this.#image);
    }
    if (this.#image.getAttribute("src") !== source) this.#image.src = source;
  }

  /** A part that folds; what the reader opened or closed stays so when the page changes. */
  #block(title, note, content, open) {
    const summary = element("summary", { textContent: title }, element("span", { textContent: note }));
    const made = element("details", { className: "card", open: this.#open.get(title) ?? open }, summary, content);
    made.addEventListener("toggle", () => this.#open.set(title, made.open));
    return made;
  }
}
