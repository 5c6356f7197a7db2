"use strict";
/* One run: its facts, metrics, settings with their origins, environment, and its report. */

class DetailsPanel {
  #run = null;

  constructor(page) {
    this.page = page;
    this.dialog = place("details");
    place("close-details").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
    this.dialog.addEventListener("close", () => (this.#run = null));
  }

  open(run) {
    this.#run = run;
    this.#fill();
    if (!this.dialog.open) this.dialog.showModal();
    place("details-body").scrollTop = 0;
  }

  /** Show the newest state of the run that is open. */
  show() {
    const run = this.#run && this.page.model.run(this.#run.id);
    if (!run || run === this.#run) return;
    this.#run = run;
    this.#fill();
  }

  #fill() {
    const run = this.#run;
    place("details-title").textContent = run.title;
    const facts = [
      ["State", stateBadge(run.state)],
      ["Error", run.error],
      ["Started", formatMoment(run.started)],
      ["Time", formatDuration(elapsed(run))],
      ["Epochs", String(run.epochs)],
      ["Tags", run.tags.join(", ")],
      ["Note", run.note],
      ["Continues", run.resumed_from],
      ["Folder", run.path],
      ["Show", `fdl runs show ${run.path}`],
    ].filter(([, value]) => value);
    const settings = Object.entries(run.config).map(([name, [value, origin]]) => [name, formatSetting(value), origin]);
    const metrics = Object.entries(run.metrics).map(([name, one]) => [name, formatMeasured(one.last), `best ${formatMeasured(one.best)}${one.epoch ? ` in epoch ${one.epoch}` : ""}`]);
    const environment = Object.entries(run.environment).map(([name, value]) => [name, formatSetting(value)]);
    const link = (href, text) => element("a", { className: "button", href, target: "_blank", rel: "noopener", textContent: text });
    const links = [run.page && link(run.page, "Open the page of this run"), run.report && link(run.report, "Open the report")].filter(Boolean);
    if (!links.length) links.push(element("p", { className: "note", textContent: "This run has no report." }));
    place("details-body").replaceChildren(
      element("p", { className: "links" }, ...links),
      factTable("Facts", facts),
      ...(metrics.length ? [factTable("Metrics", metrics)] : []),
      ...(settings.length ? [factTable("Settings and where they were set", settings)] : []),
      ...(environment.length ? [factTable("Environment", environment)] : []),
    );
  }
}
