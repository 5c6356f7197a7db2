"use strict";
/* The page: of one run with all that is known of it, or of many runs with a table of them. */

const POLL_SECONDS = 2;

/** Milliseconds between two renewals of what is more work than a curve. */
const SLOW_PARTS_EVERY = 500;

const STATUS = { running: ["live", "Running"], complete: ["good", "Complete"], interrupted: ["warn", "Interrupted"], diverged: ["bad", "Diverged"], failed: ["bad", "Failed"], dead: ["bad", "Dead"] };
const AXIS_NAMES = { step: "steps", epoch: "epochs", time: "relative time", wall: "wall time" };

const CHOICES = {
  filter: "", sort: "-started", columns: null, search: "", axis: "", smoothing: 0, logX: false, group: "", band: "range",
  hidden: [], scatterX: "", scatterY: "", axes: null, color: "auto",
};

/** What the reader chose, as fields: kept in the address, so that it can be shared. */
class Choices {
  #changed;

  /** `changed(names)` is called after a change. */
  constructor(changed) {
    this.#changed = changed;
    this.#read();
    addEventListener("hashchange", () => {
      this.#read();
      changed(Object.keys(CHOICES));
    });
  }

  /** Change values. */
  set(changes) {
    const changed = Object.keys(changes).filter((name) => JSON.stringify(this[name]) !== JSON.stringify(changes[name]));
    if (!changed.length) return;
    Object.assign(this, changes);
    // Only what differs from the defaults.
    const own = Object.fromEntries(Object.entries(this).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(CHOICES[name])));
    const hash = Object.keys(own).length ? `#${encodeURIComponent(JSON.stringify(own))}` : "";
    attempt(() => history.replaceState(null, "", hash || location.pathname + location.search));
    this.#changed(changed);
  }

  /** Take the known values that have the type of their default; an address need not be one of this page. */
  #read() {
    const found = attempt(() => JSON.parse(decodeURIComponent(location.hash.slice(1))));
    for (const [name, usual] of Object.entries(CHOICES)) {
      const value = found?.[name];
      const fits = usual === null || Array.isArray(usual) ? Array.isArray(value) : typeof value === typeof usual;
      this[name] = fits ? value : usual;
    }
  }
}

/** What both pages have: the curves, what the reader chose, and where the reader looks. */
class Page {
  record = null;
  runs = null;
  media = null;
  timeline = null;

  constructor(content) {
    this.content = content;
    this.focus = new Focus(new Axis("epoch"), (range) => this.refine?.(range));
    this.choices = new Choices((changed) => this.changed?.(changed));
  }

  /** For scripts and tests: what a canvas shows cannot be read from the page. */
  get charts() {
    return this.curves.charts;
  }

  /** Say beside the title what state the page or its run is in. */
  tell(tone, text, beats) {
    const status = place("status");
    write(status, text);
    status.dataset.tone = tone;
    status.classList.toggle("beating", beats);
    return status;
  }

  /** Draw again, in the colours and the width of now. */
  repaint() {
    for (const { plot } of document.querySelectorAll(".plot")) plot.fit();
  }

  /** Let all charts count what the reader chose, else what there is. */
  turnAxis(usual, zone) {
    const chosen = this.choices.axis;
    const kind = this.axes.some(([one]) => one === chosen) ? chosen : usual;
    if (this.focus.axis.kind !== kind) this.focus.range = null;
    this.focus.axis = new Axis(kind, { zone, log: this.choices.logX });
  }
}

/** The page of one run: live, finished, or a file. */
class RunPage extends Page {
  #usual = null;
  #opened = new Map();
  #detailed = null;
  #image = place("model").appendChild(element("img", { alt: "Drawing of the model's graph, with the time of every node where it is known" }));
  #render = soon(() => this.#renderNow());
  #renderSlow = soon(() => this.#slowParts(), (act) => window.setTimeout(act, SLOW_PARTS_EVERY));
  /** "live", "lost" after a broken line, "gone" if the next try failed too; null for a page that follows nothing. */
  connection = null;
  acts = null;

  constructor({ written, live, media, ...run }) {
    super(run);
    this.written = live ? "" : written;
    // Changes wait for the next frame: a burst of events draws once.
    this.record = new RunRecord(this.#render);
    this.strip = new ProgressStrip(place("progress"), this.record);
    this.media = new MediaSection(media, live);
    this.record.take({ loads: [], drawing: live?.drawing, ...run });
    this.curves = new CurvesPanel(this);
    this.epochs = new EpochTable(this);
    this.changed(["search"]);
    this.#slowParts();
    if (live?.buttons && !run.finish) this.acts = new ActButtons(place("acts"));
    if (live && !run.finish) (this.feed = new LiveFeed(this, live)).start();
    if (live?.timeline) ask("timeline.json").then((found) => (this.timeline = new Timeline(found)), () => {});
  }

  get axes() {
    const { curves, records, clock } = this.record;
    const kinds = [...(curves.size ? ["step"] : []), ...(records.length || !curves.size ? ["epoch"] : []), ...(records.length || clock.xs.length > 1 ? ["time", "wall"] : [])];
    return kinds.map((kind) => [kind, AXIS_NAMES[kind]]);
  }

  connect(state) {
    this.connection = state;
    this.record.following = state === "live";
    this.#heading();
    this.strip.render();
  }

  changed(names) {
    this.#showCurves();
    if (!names.includes("search")) return;
    this.epochs.render();
    this.media.filter(this.curves.test, Boolean(this.choices.search));
  }

  /** On paper there are also the media that nobody has scrolled to. */
  print(on) {
    if (on) for (const panel of this.media.panels) panel.seen(true);
  }

  #showCurves() {
    const { curves, records, zone } = this.record;
    // Until the reader chooses, the page shows what there is when it has something to show.
    if (!this.#usual && (curves.size || records.length > 1)) this.#usual = curves.size && records.length < 2 ? "step" : "epoch";
    this.turnAxis(this.#usual || "epoch", zone);
    this.curves.show();
  }

  #renderNow() {
    this.#heading();
    this.#showCurves();
    this.#drawing();
    this.strip.render();
    this.#renderSlow();
  }

  #slowParts() {
    const { record } = this;
    const total = Object.values(record.ledger).reduce((sum, seconds) => sum + (seconds || 0), 0);
    place("tiles").replaceChildren(...tilesOf(record));
    const parts = { machine: gauges(record), ranks: rankParts(record), time: ledgerParts(record.ledger, total) };
    for (const [id, found] of Object.entries(parts)) {
      place(`${id}-section`).hidden = !found.length;
      place(id).replaceChildren(...found);
    }
    place("booked").textContent = `${formatDuration(total)} booked`;
    const use = record.summary?.use;
    place("use").textContent = use ? `Use the best model: ${use}, see docs/guide/trained-model.md` : "";
    this.#details();
    this.epochs.render();
    place("footer").textContent = this.connection || !this.written ? "Live from flodl." : `Written by flodl on ${formatMoment(this.written)}. This file needs no network.`;
  }

  #heading() {
    const { info, status, newsAt } = this.record;
    const [tone, word] = STATUS[status] || ["warn", status];
    const lost = status === "running" && ["lost", "gone"].includes(this.connection);
    const gone = lost && this.connection === "gone";
    const heard = new Date(Date.now() - (performance.now() - newsAt)).toTimeString().slice(0, 8);
    const last = gone ? `The run ended or its machine is not reachable. The page shows the last state, received at ${heard}.` : "";
    write(place("notice"), last);
    place("label").textContent = info.label || "Training run";
    const hash = info.hash && element("code", { textContent: info.hash.slice(0, 8), title: `Structural hash of the model: ${info.hash}` });
    const facts = [info.run && `run ${info.run}`, hash && element("span", {}, "model hash ", hash), info.started && `started ${formatMoment(info.started)}`];
    place("facts").replaceChildren(...facts.filter(Boolean).map((one) => element("span", {}, one)));
    this.tell(lost ? "warn" : tone, gone ? "Not reachable" : lost ? "Reconnecting…" : word, this.connection === "live" && status === "running");
    document.title = [info.label || "Training run", info.run].filter(Boolean).join(" · ");
  }

  /** After a zoom: ask for all the points that the picture can show. */
  async refine(range) {
    const { record, focus, feed } = this;
    if (!range || !feed || focus.axis.kind === "epoch") return;
    const ends = record.stepsOf(range, focus.axis.kind);
    const fine = await feed.detail(ends);
    if (focus.range !== range) return; // the reader has moved on
    for (const { name, steps, values } of fine) {
      const curve = record.curves.get(name);
      if (curve) curve.detail = { range: ends, xs: steps, ys: values.map(measured) };
    }
    this.#showCurves();
  }

  #details() {
    const { metadata } = this.record.info;
    const known = JSON.stringify(metadata);
    if (this.#detailed === known) return;
    this.#detailed = known;
    const blocks = detailBlocks(metadata, this.#opened);
    place("details-section").hidden = !blocks.length;
    place("details").replaceChildren(...blocks);
  }

  #drawing() {
    const { info, drawing } = this.record;
    const source = drawing ? `graph.svg?v=${drawing}` : info.svg && `data:image/svg+xml,${encodeURIComponent(info.svg)}`;
    place("model-section").hidden = !source;
    // As an image, scripts and links inside the drawing stay dead.
    if (source && this.#image.getAttribute("src") !== source) this.#image.src = source;
  }
}

/** The page of many runs: it applies what the reader chose, and follows runs that are training. */
class RunsPage extends Page {
  /** The run that the reader points at. */
  highlighted = null;
  #hasDrawn = false;
  #met = { ids: null, problem: "" };
  #details = null;
  /** The answer to the newest filter. */
  settled = Promise.resolve();
  axes = Object.entries(AXIS_NAMES);

  constructor(content) {
    super(content);
    this.source = new Served();
    this.runs = new Runs();
    this.curves = new CurvesPanel(this);
    this.table = new RunTable(this);
    this.color = selection("Colour by", (color) => this.choices.set({ color }));
    place("relation-tools").append(element("label", { className: "labelled" }, "Colour", this.color));
    this.parallel = new ParallelPanel(this);
    this.scatter = new ScatterPanel(this);
    this.#head();
  }

  async start() {
    do await this.refresh();
    while (this.source.isReading && !this.isLost);
    // Browsers slow down the timers of a page that nobody sees.
    setTimeout(() => this.start(), 1000 * POLL_SECONDS);
  }

  /** Read what is new, and show it. */
  async refresh() {
    try {
      const found = await this.source.runs();
      if (found) {
        const changed = this.runs.update(found);
        for (const chart of this.charts) chart.forget(changed);
      }
      // After a broken line also what the reader chose meanwhile.
      if (found || this.isLost) await this.#filter(Boolean(found));
      for (const chart of this.charts) if (chart.problem) chart.show();
      this.connected();
    } catch (error) {
      this.connected(error.message);
    }
  }

  /** Ask which runs meet the filter, and show them; of several questions the last one counts. */
  #filter(grew = false) {
    const text = this.choices.filter.trim();
    const answer = text ? ask(`where?${new URLSearchParams({ text })}`) : Promise.resolve({ ids: null, problem: "" });
    const asked = answer.then((met) => {
      if (this.settled !== asked) return this.settled;
      this.#met = met;
      return this.show(grew);
    });
    return (this.settled = asked);
  }

  show(grew = false) {
    const { runs, choices } = this;
    runs.apply(choices, this.#met);
    const bySteps = runs.all.some((run) => run.curves.length > 0 && run.has_steps);
    // Clocks are those of the reader.
    this.turnAxis(bySteps ? "step" : "epoch", -60 * new Date().getTimezoneOffset());
    this.#summary();
    fill(this.color, colorOptions(runs), choices.color);
    // Curves of the first runs are drawn at once. Those of the others would keep the server from reading them.
    const waits = grew && this.source.isReading && this.#hasDrawn;
    this.#hasDrawn ||= runs.all.length > 0;
    for (const panel of [...(waits ? [] : [this.curves]), this.table, this.parallel, this.scatter]) panel.show();
    showDifferences(this);
    const open = this.#details && runs.byId.get(this.#details.id);
    if (open && open !== this.#details) showDetails((this.#details = open));
    document.documentElement.dataset.ready = "yes";
  }

  changed(names) {
    const only = (...some) => names.every((name) => some.includes(name));
    const filter = place("filter");
    // Not at every news: a text may have been typed that is not yet taken.
    if (names.includes("filter") && document.activeElement !== filter) filter.value = this.choices.filter;
    if (names.includes("filter")) this.#filter().catch((error) => this.connected(error.message));
    else if (only("sort", "columns")) this.table.show();
    else this.show();
  }

  print(on) {
    this.table.whole = on;
    this.table.show(); // at once: the browser does not wait for a frame
  }

  open(run) {
    showDetails((this.#details = run));
    if (!place("details-box").open) place("details-box").showModal();
    place("details-body").scrollTop = 0;
  }

  /** Show one run in all panels; null for none. */
  highlight(run, from = null) {
    if (run?.id === this.highlighted?.id) return;
    this.highlighted = run;
    for (const panel of [...this.charts, this.table, this.parallel, this.scatter]) if (panel !== from) panel.point(run);
  }

  /** Hide or show the curves of some runs. */
  hide(runs, hides) {
    const paths = runs.map((run) => run.path);
    const others = this.choices.hidden.filter((path) => !paths.includes(path));
    this.choices.set({ hidden: hides ? [...others, ...paths] : others });
  }

  #head() {
    place("label").textContent = this.content.title;
    place("footer").textContent = `flodl ${this.content.version}`;
    const filter = place("filter");
    filter.value = this.choices.filter;
    filter.oninput = soon(() => this.choices.set({ filter: filter.value }), (act) => setTimeout(act, 120));
    place("details-box").onclose = () => (this.#details = null);
    addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || document.activeElement?.matches("input, select, textarea")) return;
      event.preventDefault();
      filter.focus();
    });
  }

  #summary() {
    const { all, filtered, visible, problem } = this.runs;
    const running = all.filter((run) => run.state === "running").length;
    const parts = [`${counted(all.length, "run")}${this.source.isReading ? " so far" : ""}`, running && `${running} training`];
    place("facts").replaceChildren(...parts.filter(Boolean).map((text) => element("span", { textContent: text })));
    write(place("shown"), visible.length < all.length ? `${filtered.length} of ${all.length} listed, ${visible.length} drawn` : `all ${counted(all.length, "run")} listed and drawn`);
    place("filter").setAttribute("aria-invalid", String(Boolean(problem)));
    write(place("problem"), problem);
  }

  /** Say whether the server answers, or why it does not. */
  connected(problem = null) {
    this.isLost = problem !== null;
    const running = this.runs.all.some((run) => run.state === "running");
    const [tone, text] = this.isLost ? ["warn", "Not connected"] : running ? ["live", "Live"] : ["good", "Up to date"];
    this.tell(tone, text, !this.isLost && running).title = this.isLost ? `The page shows what it knows. ${problem} Start it again: fdl runs ui` : "Runs that are training are updated every two seconds";
  }
}

/** A page of a timeline, or of some curves by epoch, alone. */
class LonePage extends Page {
  constructor(content) {
    super(content);
    place("label").textContent = content.title;
    place("status").hidden = true;
    if (content.timeline) {
      this.timeline = new Timeline(content.timeline);
      place("facts").replaceChildren(place("timeline-facts").textContent);
      place("timeline-facts").hidden = true;
    } else {
      place("facts").textContent = `by epoch ${content.unit}`;
      place("curves-section").hidden = false;
      const series = content.curves.map(({ name, values }) => {
        const made = new Series(name, "step"); // no value is the best one
        values.forEach((value, index) => made.add(index + 1, value));
        return made;
      });
      const chart = new LineChart(content.title, this.focus);
      place("charts").append(chart.card);
      chart.show(content.title, series);
    }
  }

}

function start() {
  const content = JSON.parse(place("data").textContent);
  const [kind, of] = content.timeline || content.curves ? [LonePage, ""] : content.info ? [RunPage, "run"] : [RunsPage, "runs"];
  // A section is of one run, of many, or of both.
  for (const part of document.querySelectorAll("[data-of]")) part.hidden = !of || (part.dataset.of !== of && part.dataset.of !== "both");
  const page = (window.page = new kind(content));
  startTheme(place("theme"), () => page.repaint(), (on) => page.print?.(on));
  page.start?.();
}

start();
