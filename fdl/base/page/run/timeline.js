"use strict";
/* The view: which part of the time is shown, what is pointed at, and the tables. */

const SHORTEST_VIEW_MS = 5;

class TimelineView {
  #drag = null;
  #title = element("h2", { id: "lanes-title", textContent: "Timeline" });
  /** Draw in the next frame. */
  later = soon(() => this.draw());

  /** Shows a timeline, as it is saved, in a section of the page. */
  constructor(host, raw) {
    const data = (this.data = new TimelineData(raw));
    this.lanes = lanesOf(data);
    this.from = 0;
    this.to = data.end;
    this.moment = null;
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.readout = element("div", { className: "readout", hidden: true, "aria-hidden": "true" });
    const slider = { role: "slider", "aria-orientation": "horizontal", "aria-labelledby": "lanes-title", "aria-describedby": "lanes-help" };
    this.stage = element("div", { id: "stage", className: "stage", tabIndex: 0, ...slider, "aria-valuemin": "0", "aria-valuemax": String(Math.round(data.end)) }, this.canvas, this.readout);
    this.sheet = new Sheet(this.canvas);
    host.replaceChildren(...this.#parts());
    host.hidden = false;
    this.#listen();
    this.draw();
  }

  #parts() {
    const { data } = this;
    const facts = [formatDuration(data.end / 1000), `${data.sampleCount} samples`, `${data.happened.length} events`];
    const acts = [["+", "zoom-in", "Zoom in", () => this.zoom(1 / 1.5)], ["−", "zoom-out", "Zoom out", () => this.zoom(1.5)], ["Fit", "fit", "Show everything", () => this.show(0, data.end)]];
    const tools = acts.map(([text, id, name, act]) => button(text, act, { id, title: name, "aria-label": name }));
    const head = element("div", { className: "section-head" }, this.#title, element("p", { id: "timeline-facts", className: "note", textContent: facts.join(" · ") }), element("div", { className: "lane-tools", role: "group", "aria-label": "View" }, ...tools));
    const help = "Arrow keys move along the time, plus and minus zoom, 0 shows everything, Escape leaves the moment. The figures of the whole timeline are in the tables below.";
    const keys = [["←"], ["→", "move"], ["+"], ["−", "zoom"], ["0", "fit"]].flatMap(([key, text]) => [element("kbd", { textContent: key }), text ? ` ${text} ` : " "]);
    const lanes = element("div", { className: "card lanes" }, element("p", { id: "lanes-help", className: "unseen", textContent: help }), this.stage, legendOf(this.lanes), element("p", { className: "hint", "aria-hidden": "true" }, ...keys, element("span", { textContent: "drag to pan, Ctrl + wheel to zoom" })));
    return [head, lanes, element("div", { className: "lane-tables" }, loadTable(data), eventTable(data))];
  }

  /** Show [from, from + length], kept within the timeline. */
  show(from, length) {
    const wanted = Math.min(this.data.end, Math.max(SHORTEST_VIEW_MS, length));
    this.from = Math.min(Math.max(0, from), this.data.end - wanted);
    this.to = this.from + wanted;
    this.later();
  }

  /** Show `factor` of the present length; the moment `at` keeps its place. */
  zoom(factor, at = this.moment ?? (this.from + this.to) / 2) {
    const length = (this.to - this.from) * factor;
    const bounded = Math.min(this.data.end, Math.max(SHORTEST_VIEW_MS, length));
    const part = (at - this.from) / (this.to - this.from);
    this.show(at - part * bounded, bounded);
  }

  /** Move the moment and, where there is more to see, the view with it. */
  pan(part) {
    const step = (this.to - this.from) * part;
    const at = this.moment ?? (this.from + this.to) / 2;
    this.moment = Math.min(this.data.end, Math.max(0, at + step));
    this.show(this.from + step, this.to - this.from);
  }

  draw() {
    this.width = Math.max(NARROW_GUTTER + 120, this.stage.clientWidth);
    const height = AXIS + this.lanes.reduce((sum, lane) => sum + lane.height, 0);
    this.sheet.begin(this.width, height, this.from, this.to);
    drawAxis(this.sheet);
    let top = AXIS;
    for (const lane of this.lanes) {
      lane.draw(this.sheet, top);
      top += lane.height;
    }
    this.#drawMoment(height);
  }

  #drawMoment(height) {
    const t = this.moment;
    const shown = t !== null && t >= this.from && t <= this.to;
    this.readout.hidden = !shown;
    if (!shown) return;
    const x = Math.round(this.sheet.x(t));
    this.sheet.brush.fillStyle = ink.get("text");
    this.sheet.brush.fillRect(x, AXIS - 6, 1, height - AXIS + 6);
    const reach = 6 / this.sheet.scale;
    const index = this.data.nearest(t);
    const rows = this.lanes.flatMap((lane) => lane.rows(t, reach, index));
    const title = momentText(t, Math.min(1000, (this.to - this.from) / 200));
    this.readout.replaceChildren(
      element("b", {}, title),
      ...rows.map(([name, value]) => element("span", {}, element("i", {}, name), element("em", {}, value))),
    );
    const onLeft = x < (this.sheet.gutter + this.width) / 2;
    this.readout.style.left = onLeft ? `${x + 12}px` : "auto";
    this.readout.style.right = onLeft ? "auto" : `${this.width - x + 12}px`;
    this.stage.setAttribute("aria-valuenow", Math.round(t));
    const spoken = rows.map(([name, value]) => `${name} ${value}`);
    this.stage.setAttribute("aria-valuetext", [title, ...spoken].join(", "));
  }

  #listen() {
    const { stage } = this;
    stage.addEventListener("pointermove", (event) => this.#point(event));
    stage.addEventListener("pointerleave", () => {
      if (!this.#drag && !stage.matches(":focus-visible")) this.#leave();
    });
    stage.addEventListener("pointerdown", (event) => {
      this.#drag = { x: event.clientX, from: this.from };
      stage.setPointerCapture(event.pointerId);
      stage.classList.add("dragging");
    });
    for (const kind of ["pointerup", "pointercancel"]) {
      stage.addEventListener(kind, () => {
        this.#drag = null;
        stage.classList.remove("dragging");
      });
    }
    // A wheel alone scrolls the page, as everywhere.
    stage.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(1.0015 ** event.deltaY, this.sheet.t(this.#x(event)));
    }, { passive: false });
    stage.addEventListener("focus", () => {
      if (this.moment === null && stage.matches(":focus-visible")) this.moment = (this.from + this.to) / 2;
      this.later();
    });
    stage.addEventListener("blur", () => this.#leave());
    stage.addEventListener("keydown", (event) => this.#press(event));
    new ResizeObserver(() => {
      if (stage.clientWidth !== this.width) this.later();
    }).observe(stage);
  }

  #press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = {
      ArrowLeft: () => this.pan(-0.05),
      ArrowRight: () => this.pan(0.05),
      PageUp: () => this.pan(-0.5),
      PageDown: () => this.pan(0.5),
      Home: () => this.pan(-Infinity),
      End: () => this.pan(Infinity),
      "+": () => this.zoom(1 / 1.5),
      "=": () => this.zoom(1 / 1.5),
      "-": () => this.zoom(1.5),
      0: () => this.show(0, this.data.end),
      Escape: () => this.#leave(),
    };
    if (!Object.hasOwn(moves, event.key)) return;
    event.preventDefault();
    moves[event.key]();
  }

  #point(event) {
    const x = this.#x(event);
    if (this.#drag) {
      this.show(this.#drag.from - (event.clientX - this.#drag.x) / this.sheet.scale, this.to - this.from);
    }
    this.moment = x < this.sheet.gutter ? null : Math.min(this.to, Math.max(this.from, this.sheet.t(x)));
    this.later();
  }

  #leave() {
    this.moment = null;
    this.later();
  }

  #x(event) {
    return event.clientX - this.stage.getBoundingClientRect().left;
  }
}

/** Mean and largest of the values that are known. */
function statistics(values) {
  let [count, sum, most] = [0, 0, -Infinity];
  for (const value of values) {
    if (value === null) continue;
    count++;
    sum += value;
    most = Math.max(most, value);
  }
  return count ? { count, mean: sum / count, most } : null;
}

/** A table of numbers on a card. */
function cardTable(id, name, title, heads, rows) {
  const table = Object.assign(numberTable(title, heads, rows), { id });
  const scroll = element("div", { className: "card scroll", tabIndex: 0, role: "region", "aria-label": title }, table);
  return element("div", {}, element("h3", { textContent: name }), scroll);
}

function loadTable(data) {
  const row = (name, values, show, idle = [DASH, DASH]) => {
    const found = statistics(values);
    return [name, ...(found ? [show(found.mean), show(found.most)] : [DASH, DASH]), ...idle];
  };
  const rows = [];
  if (data.cpu) rows.push(row("CPU", data.cpu, formatPercent));
  if (data.ram) rows.push(row("RAM", data.ram.used, formatBytes));
  for (const rank of data.ranks) {
    const waited = rank.waits.reduce((sum, wait) => sum + wait.end - wait.start, 0);
    const name = data.many ? `Rank ${rank.rank} busy` : "Busy";
    const waits = rank.waits.length ? [formatPercent((100 * waited) / data.end), `${rank.waits.length}, ${lengthText(waited)}`] : undefined;
    rows.push(row(name, rank.busy, formatPercent, waits));
  }
  for (const gpu of data.gpus) {
    const below = gpu.util.filter((value) => value !== null && value < IDLE_BELOW).length;
    const known = gpu.util.filter((_, index) => gpu.used[index] !== null).length;
    const gone = gpu.gaps.reduce((sum, [start, end]) => sum + end - start, 0);
    const gaps = gpu.gaps.length ? `${gpu.gaps.length}, ${lengthText(gone)}` : "none";
    const idle = [known ? formatPercent((100 * below) / known) : DASH, gaps];
    rows.push(row(gpu.name ? `GPU ${gpu.device}, ${gpu.name}` : `GPU ${gpu.device}`, gpu.util, formatPercent, idle));
    rows.push(row(`GPU ${gpu.device} memory`, gpu.used, formatBytes));
  }
  if (!rows.length) rows.push(["no samples", DASH, DASH, DASH, DASH]);
  return cardTable("load", "Load", "Load of the machine over the whole timeline", ["Resource", "Mean", "Most", "Idle", "Idle gaps"], rows);
}

function eventTable(data) {
  const lengths = (spans) => spans.map((span) => span.last?.ms ?? span.end - span.start);
  const row = (name, values) => {
    const found = statistics(values);
    const cells = found ? [found.mean, found.most, found.mean * found.count] : [];
    return [name, String(values.length), ...(found ? cells.map(lengthText) : [DASH, DASH, DASH])];
  };
  const rows = [];
  if (data.epochs.length) rows.push(row("Epochs", data.epochs.map((span) => span.end - span.start)));
  if (data.windows.length) rows.push(row("Windows", lengths(data.windows)));
  if (data.waits.length) rows.push(row("Waiting", lengths(data.waits)));
  if (data.syncs.length) rows.push(row("Sync", lengths(data.syncs)));
  if (data.averages.length) rows.push(row("CPU average", lengths(data.averages)));
  for (const [kind, name] of MARKS) {
    const found = data.marks.filter((mark) => mark.k === kind);
    if (!found.length) continue;
    rows.push(kind === "idle" ? row(name, found.map((mark) => mark.ms)) : [name, String(found.length), DASH, DASH, DASH]);
  }
  if (!rows.length) rows.push(["none", "0", DASH, DASH, DASH]);
  return cardTable("events", "Events", "Events of the whole timeline by kind", ["Event", "Count", "Mean", "Longest", "Total"], rows);
}

/** One entry for each colour and form on the page. */
function legendOf(lanes) {
  const entries = new Map();
  for (const [token, form, text] of lanes.flatMap((lane) => lane.legend())) {
    const key = `${token} ${form}`;
    if (!entries.has(key)) entries.set(key, { token, form, texts: new Set() });
    entries.get(key).texts.add(text);
  }
  const items = [...entries.values()].map(({ token, form, texts }) => {
    const swatch = element("i", { className: `swatch ${form}` });
    swatch.style.setProperty("--ink", `var(--${token})`);
    return element("li", {}, swatch, element("span", {}, [...texts].join(", ")));
  });
  return element("ul", { id: "legend", className: "legend", "aria-label": "Colours and forms" }, ...items);
}
