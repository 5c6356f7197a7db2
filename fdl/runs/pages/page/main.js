"use strict";
/* The page: it reads runs, applies what the user chose, and follows runs that are training. */

const POLL_SECONDS = 2;
const HIDDEN_POLL_SECONDS = 15;

class Page {
  #highlighted = null;
  #timer = 0;

  constructor(content) {
    this.content = content;
    this.source = content.served ? new Served() : new Embedded(content);
    this.model = new Model();
    this.choices = new Choices();
    this.focus = new Focus(new Axis("step"));
    this.curves = new CurvesPanel(this);
    this.table = new RunTable(this);
    this.parallel = new ParallelPanel(this);
    this.scatter = new ScatterPanel(this);
    this.differences = new DifferencesPanel(this);
    this.details = new DetailsPanel(this);
    this.#head();
    this.choices.listen((changed) => this.#changed(changed));
  }

  /** What curves are drawn over: the user's choice, else steps if there are any. */
  get axis() {
    const chosen = this.choices.get("axis");
    if (chosen) return chosen;
    const bySteps = this.model.runs.some((run) => run.curves.length > 0 && run.has_steps);
    return bySteps ? "step" : "epoch";
  }

  async start() {
    do await this.refresh();
    while (this.source.isReading && !this.isLost);
    if (!this.content.served) return;
    const next = () => {
      const seconds = document.hidden ? HIDDEN_POLL_SECONDS : POLL_SECONDS;
      this.#timer = setTimeout(async () => {
        await this.refresh();
        next();
      }, seconds * 1000);
    };
    next();
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) return;
      clearTimeout(this.#timer);
      this.refresh().then(next);
    });
  }

  /** Read what is new, and show it. */
  async refresh() {
    let found;
    try {
      found = await this.source.runs();
    } catch (error) {
      return this.lost(error);
    }
    if (found) {
      this.curves.forget(this.model.update(found));
      this.show();
    }
    this.#connection(true);
  }

  show() {
    this.model.apply(this.choices);
    this.#turnAxis();
    this.#summary();
    for (const panel of [this.curves, this.table, this.parallel, this.scatter, this.differences, this.details]) panel.show();
    document.documentElement.dataset.ready = "yes";
  }

  /** Let all charts count what the user chose; clocks are those of the reader. */
  #turnAxis() {
    const { axis } = this.focus;
    if (axis.kind !== this.axis) {
      this.focus.range = null;
      this.focus.axis = new Axis(this.axis, -60 * new Date().getTimezoneOffset());
    }
    this.focus.axis.space(this.choices.get("logX"));
  }

  open(run) {
    this.details.open(run);
  }

  /** Show one run in all panels; null for none. */
  highlight(run, from = null) {
    if (run === this.#highlighted) return;
    this.#highlighted = run;
    this.curves.point(run, from);
    for (const panel of [this.table, this.parallel, this.scatter]) panel.point(run);
  }

  /** Hide or show the curves of some runs. */
  hide(runs, hides) {
    const paths = new Set(runs.map((run) => run.path));
    const others = this.choices.get("hidden").filter((path) => !paths.has(path));
    this.choices.set({ hidden: hides ? [...others, ...paths] : others });
  }

  lost(error) {
    this.#connection(false, error.message);
  }

  #changed(changed) {
    const redraws = ["smoothing", "logY", "logX", "band"];
    if (changed.every((name) => redraws.includes(name))) {
      this.#turnAxis();
      return this.curves.show();
    }
    if (changed.every((name) => ["sort", "columns", "differing"].includes(name))) return this.table.show();
    this.show();
  }

  #head() {
    place("title").textContent = this.content.title || "Runs";
    place("version").textContent = `flodl ${this.content.version}`;
    const filter = place("filter");
    filter.value = this.choices.get("filter");
    let wait = 0;
    filter.addEventListener("input", () => {
      clearTimeout(wait);
      wait = setTimeout(() => this.choices.set({ filter: filter.value }), 120);
    });
    place("clear-filter").addEventListener("click", () => {
      this.choices.set({ filter: "" });
      filter.focus();
    });
    startTheme(place("theme"), () => {
      this.model.forgetColors();
      if (document.documentElement.dataset.ready) this.show();
    });
    addEventListener("keydown", (event) => {
      const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName);
      if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      filter.focus();
    });
  }

  #summary() {
    const { runs, filtered, visible, problem } = this.model;
    const filter = place("filter");
    if (document.activeElement !== filter) filter.value = this.choices.get("filter");
    const running = runs.filter((run) => run.state === "running").length;
    const parts = [`${counted(runs.length, "run")}${this.source.isReading ? " so far" : ""}`];
    if (running) parts.push(`${running} training`);
    place("facts").replaceChildren(...parts.map((text) => element("span", { textContent: text })));
    place("shown").textContent = filtered.length < runs.length || visible.length < filtered.length ? `${filtered.length} of ${runs.length} listed, ${visible.length} drawn` : `all ${counted(runs.length, "run")} listed and drawn`;
    filter.setAttribute("aria-invalid", String(Boolean(problem)));
    place("problem").textContent = problem;
    place("clear-filter").hidden = !this.choices.get("filter");
  }

  #connection(isThere, why = "") {
    this.isLost = !isThere;
    const status = place("status");
    const running = this.model.runs.some((run) => run.state === "running");
    status.hidden = !this.content.served;
    const [tone, text] = !isThere ? ["warn", "Not connected"] : running ? ["live", "Live"] : ["good", "Up to date"];
    if (status.textContent !== text) status.textContent = text;
    status.dataset.tone = tone;
    status.title = isThere ? "Runs that are training are updated every two seconds" : `The page shows what it knows. ${why} Start it again: fdl runs ui`;
  }
}

const page = new Page(JSON.parse(place("data").textContent));
page.start();
