"use strict";
/* A scatter plot: any setting or metric against any other, one point per run. */

class ScatterPanel extends RunsPlot {
  #points = [];
  #pointed = null;

  constructor(page) {
    super("Scatter", { label: "Scatter plot of the visible runs", height: 320, role: "group" });
    this.page = page;
    const { choices } = page;
    this.x = selection("Horizontal axis", (scatterX) => choices.set({ scatterX }));
    this.y = selection("Vertical axis", (scatterY) => choices.set({ scatterY }));
    this.color = selection("Colour of the points", (scatterColor) => choices.set({ scatterColor }));
    this.tools.append(
      element("label", { className: "labelled" }, "x", this.x),
      element("label", { className: "labelled" }, "y", this.y),
      element("label", { className: "labelled" }, "Colour", this.color),
    );
    place("scatter").append(this.card);
    this.#listen();
  }

  /** The columns of both axes; unless chosen, the first setting that differs and the first metric. */
  get columns() {
    const { model, choices } = this.page;
    const numeric = model.settings.filter((one) => model.differing.includes(one.name) && !isSeed(one.name));
    const setting = (numeric.find((one) => one.numeric) || numeric[0])?.key;
    const metric = model.curveNames.map((name) => `best:${name}`).find((key) => model.column(key));
    const x = model.column(choices.get("scatterX")) || model.column(setting ?? "epochs");
    const y = model.column(choices.get("scatterY")) || model.column(metric ?? "seconds");
    return [x, y];
  }

  show() {
    const { model, choices } = this.page;
    const options = axisOptions(model);
    const [x, y] = this.columns;
    fill(this.x, options, x.key);
    fill(this.y, options, y.key);
    fill(this.color, colorOptions(model), choices.get("scatterColor"));
    this.draw();
  }

  point(run) {
    this.#pointed = run;
    this.#drawPointed();
  }

  redraw() {
    const context = this.begin();
    if (!context) return;
    const { model, choices } = this.page;
    const [x, y] = this.columns;
    const [across, up] = [x, y].map((column) => valueScale(column, model.visible));
    const asTicks = ({ ticks }) => ({ ticks, at: (part) => 0.03 + 0.94 * part });
    const [xs, ys] = [across, up].map(asTicks);
    const box = this.boxFor(context, ys, { bottom: 46, right: 18, top: 28 });
    this.axes(context, box, xs, ys);
    Object.assign(context, { fillStyle: ink.get("text"), textAlign: "left", textBaseline: "top" });
    context.fillText(fitted(context, y.label, box.right - 4), 4, 4);
    Object.assign(context, { textAlign: "center", textBaseline: "bottom" });
    context.fillText(fitted(context, x.label, box.right - box.left), (box.left + box.right) / 2, this.height - 4);
    this.paint = paintBy(choices.get("scatterColor"), model);
    this.#points = [];
    for (const run of model.visible) {
      const [a, b] = [across.at(x.value(run)), up.at(y.value(run))];
      if (a === null || b === null) continue;
      this.#points.push({ run, x: box.left + xs.at(a) * (box.right - box.left), y: box.bottom - ys.at(b) * (box.bottom - box.top) });
    }
    context.globalAlpha = this.#points.length > 60 ? 0.7 : 0.9;
    for (const one of this.#points) disc(context, one.x, one.y, this.#points.length > 200 ? 3 : 4.5, this.paint(one.run));
    context.globalAlpha = 1;
    const missing = model.visible.length - this.#points.length;
    this.foot.textContent = `${y.label} against ${x.label} · ${counted(this.#points.length, "run")}${missing ? ` · ${missing} without both values` : ""}`;
    this.area.setAttribute("aria-label", `Scatter plot of ${y.label} against ${x.label}, ${counted(this.#points.length, "run")}`);
    this.#drawPointed();
  }

  #drawPointed() {
    if (!this.width) return;
    const context = prepare(this.overlay, this.width, this.height);
    const found = this.#points.find((one) => one.run === this.#pointed);
    if (!found) return this.tell(0, [], "");
    disc(context, found.x, found.y, 6.5, this.paint(found.run), ink.get("text"));
  }

  #tellAbout({ run, x }) {
    const { model } = this.page;
    const columns = [...this.columns, ...model.differing.slice(0, 4).map((name) => model.column(`config.${name}`))];
    const facts = [...new Set(columns)].map((column) => fact(column.label, shownCell(column, run)));
    this.tell(x, [reading(this.paint(run), run.name, "", true), ...facts], run.name);
  }

  #listen() {
    const nearest = (event) => {
      const [x, y] = this.at(event);
      let [best, distance] = [null, 24];
      for (const one of this.#points) {
        const away = Math.hypot(one.x - x, one.y - y);
        if (away < distance) [best, distance] = [one, away];
      }
      return best;
    };
    this.area.addEventListener("pointermove", (event) => {
      const found = nearest(event);
      this.page.highlight(found?.run ?? null);
      if (found) this.#tellAbout(found);
    });
    this.area.addEventListener("pointerleave", () => this.page.highlight(null));
    this.area.addEventListener("click", (event) => {
      const found = nearest(event);
      if (found) this.page.open(found.run);
    });
    this.area.addEventListener("keydown", (event) => {
      const turn = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
      if (event.key === "Escape") this.page.highlight(null);
      if (event.key === "Enter" && this.#pointed) this.page.open(this.#pointed);
      if (!turn || !this.#points.length) return;
      event.preventDefault();
      const along = [...this.#points].sort((a, b) => a.x - b.x || b.y - a.y);
      const now = along.findIndex((one) => one.run === this.#pointed);
      const next = along[Math.min(along.length - 1, Math.max(0, now + turn))];
      this.page.highlight(next.run);
      this.#tellAbout(next);
      const [x, y] = this.columns;
      announce(`${next.run.name}: ${x.label} ${shownCell(x, next.run)}, ${y.label} ${shownCell(y, next.run)}`);
    });
  }
}
