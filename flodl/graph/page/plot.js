"use strict";
/* Curves on a canvas, a legend by dotted group, a crosshair for mouse and keyboard. */

const DASHES = [[], [7, 4], [2, 4]];
const COLORS = 8;

function made(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** What stands before the last dot of a name; "" without one. */
function groupOf(name) {
  return name.slice(0, Math.max(0, name.lastIndexOf(".")));
}

class Legend {
  #buttons = new Map();
  #names;
  #changed;

  constructor(host, series, changed) {
    this.#names = series.map((one) => one.name);
    this.shown = new Set(this.#names);
    this.#changed = changed;
    const groups = new Map();
    for (const one of series) {
      const group = groupOf(one.name);
      groups.set(group, [...(groups.get(group) || []), one]);
    }
    for (const [group, members] of groups) host.append(this.#row(group, members));
  }

  #row(group, members) {
    const row = made("div");
    if (group) {
      const heading = made("button", { type: "button", className: "group", textContent: group });
      heading.addEventListener("click", (event) => this.#click(event, members.map((one) => one.name)));
      row.append(heading);
    }
    const list = made("ul", { className: "legend" });
    for (const one of members) {
      one.swatch = made("span", { className: "swatch" });
      one.swatch.style.cssText = `color:var(--series-${one.place % COLORS});border-top-style:${one.dash.length ? "dashed" : "solid"}`;
      const label = made("span", { textContent: group ? one.name.slice(group.length + 1) : one.name });
      const button = made("button", { type: "button", title: one.name }, one.swatch, label);
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", (event) => this.#click(event, [one.name]));
      this.#buttons.set(one.name, button);
      list.append(made("li", {}, button));
    }
    row.append(list);
    return row;
  }

  #click(event, names) {
    const visible = names.every((name) => this.shown.has(name));
    if (event.ctrlKey || event.shiftKey || event.metaKey) {
      for (const name of names) visible ? this.shown.delete(name) : this.shown.add(name);
    } else {
      const alone = visible && this.shown.size === names.length;
      this.shown = new Set(alone ? this.#names : names);
    }
    for (const [name, button] of this.#buttons) button.setAttribute("aria-pressed", String(this.shown.has(name)));
    this.#changed();
  }
}

class Plot {
  #log = false;
  #epoch = null;
  #scales = null;

  constructor(series) {
    this.series = series.map((one, place) => ({ ...one, place, dash: DASHES[Math.floor(place / COLORS) % DASHES.length] }));
    this.epochs = series.reduce((most, one) => Math.max(most, one.values.length), 0);
    this.host = document.getElementById("plot");
    this.canvas = this.host.querySelector("canvas");
    this.readout = document.getElementById("readout");
    this.logButton = document.getElementById("log");
    this.legend = new Legend(document.getElementById("legend"), this.series, () => this.draw());
    this.host.setAttribute("aria-valuemin", 1);
    this.host.setAttribute("aria-valuemax", this.epochs);
    document.getElementById("description").textContent = this.series.map(describe).join(" ");
    this.#listen();
    this.draw();
  }

  draw() {
    const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight];
    const density = window.devicePixelRatio || 1;
    [this.canvas.width, this.canvas.height] = [Math.round(width * density), Math.round(height * density)];
    this.pen = this.canvas.getContext("2d");
    this.pen.scale(density, density);
    const shown = this.#shown();
    const values = shown.flatMap((one) => one.values).filter((value) => value !== null);
    const positive = values.filter((value) => value > 0);
    this.#offerLog(positive.length > 0);
    const log = this.#log && positive.length > 0;
    const usable = log ? positive : values;
    this.#scales = usable.length ? this.#measure(usable, log, width, height) : null;
    const ink = this.#ink();
    if (!this.#scales) {
      this.#write(shown.length ? "no finite value" : "all curves are hidden", width / 2, height / 2, "center", ink);
    } else {
      this.#drawAxes(ink);
      for (const one of shown) this.#drawCurve(one, ink);
    }
    this.#drawCursor(ink);
  }

  #shown() {
    return this.series.filter((one) => this.legend.shown.has(one.name));
  }

  /** The colours of the theme now in force, which a canvas cannot look up itself. */
  #ink() {
    const probe = made("i");
    this.host.append(probe);
    const ink = { font: `11.5px ${getComputedStyle(document.body).fontFamily}` };
    for (const name of ["text", "soft", "line", "grid", "bad", "card"]) {
      probe.style.color = `var(--${name})`;
      ink[name] = getComputedStyle(probe).color;
    }
    probe.remove();
    return ink;
  }

  #measure(values, log, width, height) {
    let [low, high] = [Infinity, -Infinity];
    for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
    const y = log ? logScale(low, high, height / 48) : linearScale(low, high, height / 48);
    const left = 14 + 6.6 * Math.max(...y.ticks.map(([, label]) => label.length));
    const box = { left, right: width - 14, top: 10, bottom: height - 26 };
    const x = wholeScale(1, this.epochs, (box.right - left) / 76);
    return {
      box, x, y, log,
      px: (epoch) => left + x.at(epoch) * (box.right - left),
      py: (value) => box.bottom - y.at(value) * (box.bottom - box.top),
    };
  }

  #line(points, color, width = 1, dash = []) {
    this.pen.strokeStyle = color;
    this.pen.lineWidth = width;
    this.pen.lineJoin = this.pen.lineCap = "round";
    this.pen.setLineDash(dash);
    this.pen.beginPath();
    for (const [x, y] of points) this.pen.lineTo(x, y);
    this.pen.stroke();
  }

  #dot(x, y, radius, fill, rim = null) {
    this.pen.fillStyle = fill;
    this.pen.setLineDash([]);
    this.pen.beginPath();
    this.pen.arc(x, y, radius, 0, 2 * Math.PI);
    this.pen.fill();
    if (rim) [this.pen.strokeStyle, this.pen.lineWidth] = [rim, 1.5];
    if (rim) this.pen.stroke();
  }

  #write(text, x, y, align, ink) {
    [this.pen.font, this.pen.fillStyle, this.pen.textAlign] = [ink.font, ink.soft, align];
    this.pen.fillText(text, x, y);
  }

  #drawAxes(ink) {
    const { box, x, y, px, py } = this.#scales;
    for (const [at, label] of y.ticks) {
      const level = Math.round(py(at)) + 0.5;
      this.#line([[box.left, level], [box.right, level]], ink.grid);
      this.#write(label, box.left - 8, level + 4, "right", ink);
    }
    for (const [at, label] of x.ticks) this.#write(label, px(at), box.bottom + 18, "center", ink);
    this.#line([[box.left, box.bottom + 0.5], [box.right, box.bottom + 0.5]], ink.line);
  }

  #drawCurve(one, ink) {
    const { box, px, py, log } = this.#scales;
    const color = getComputedStyle(one.swatch).color;
    const points = one.values.map((value, index) => [px(index + 1), value === null || (log && value <= 0) ? null : py(value)]);
    const width = points.length > (box.right - box.left) / 2 ? 1.2 : 1.9;
    for (const run of curveRuns(points, box.right - box.left)) {
      if (run.length === 1) this.#dot(...run[0], 3, color);
      else this.#line(run, color, width, one.dash);
    }
    one.values.forEach((value, index) => {
      const at = px(index + 1);
      if (value === null) this.#line([[at, box.bottom - 7], [at, box.bottom]], ink.bad, 2);
    });
  }

  #drawCursor(ink) {
    const epoch = this.#epoch;
    this.readout.hidden = !this.#scales || epoch === null;
    if (this.readout.hidden) return;
    const { box, px, py, log } = this.#scales;
    const at = px(epoch);
    this.#line([[at, box.top], [at, box.bottom]], ink.soft, 1, [3, 3]);
    const rows = [made("b", { textContent: `Epoch ${epoch}` })];
    const spoken = [`Epoch ${epoch}`];
    for (const one of this.#shown()) {
      const value = one.values[epoch - 1];
      if (value === undefined) continue;
      rows.push(made("span", {}, one.swatch.cloneNode(), made("i", { textContent: one.name }), formatMetric(value)));
      spoken.push(`${one.name} ${formatMetric(value)}`);
      if (value !== null && (!log || value > 0)) this.#dot(at, py(value), 4, getComputedStyle(one.swatch).color, ink.card);
    }
    this.readout.replaceChildren(...rows);
    const leftHalf = at < (box.left + box.right) / 2;
    this.readout.style.left = leftHalf ? `${at + 14}px` : "auto";
    this.readout.style.right = leftHalf ? "auto" : `${this.host.clientWidth - at + 14}px`;
    this.host.setAttribute("aria-valuenow", epoch);
    this.host.setAttribute("aria-valuetext", spoken.join(", "));
  }

  #offerLog(possible) {
    this.logButton.disabled = !possible;
    this.logButton.title = possible ? "Logarithmic scale; values at or below 0 are left out" : "No value is above 0";
    this.logButton.setAttribute("aria-pressed", String(this.#log && possible));
  }

  #point(epoch) {
    const next = epoch === null ? null : Math.min(this.epochs, Math.max(1, epoch));
    if (next === this.#epoch) return;
    this.#epoch = next;
    this.draw();
  }

  #pointAt(x) {
    if (!this.#scales) return;
    const { left, right } = this.#scales.box;
    this.#point(1 + Math.round(((x - left) / (right - left)) * (this.epochs - 1)));
  }

  #press(event) {
    const [here, page] = [this.#epoch, Math.max(1, Math.round(this.epochs / 10))];
    const from = (step) => (here === null ? (step > 0 ? 1 : this.epochs) : here + step);
    const moves = {
      ArrowRight: from(1), ArrowUp: from(1), ArrowLeft: from(-1), ArrowDown: from(-1),
      PageUp: from(page), PageDown: from(-page), Home: 1, End: this.epochs, Escape: null,
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.#point(moves[event.key]);
  }

  #listen() {
    this.logButton.addEventListener("click", () => {
      this.#log = !this.#log;
      this.draw();
    });
    this.host.addEventListener("pointermove", (event) => this.#pointAt(event.clientX - this.host.getBoundingClientRect().left));
    this.host.addEventListener("pointerleave", () => this.#point(null));
    this.host.addEventListener("blur", () => this.#point(null));
    this.host.addEventListener("keydown", (event) => this.#press(event));
    new ResizeObserver(() => this.draw()).observe(this.host);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }
}

function describe(one) {
  const count = one.values.length;
  const last = `${formatMetric(one.values[count - 1])} at epoch ${count}`;
  return count === 1 ? `${one.name}: ${last}.` : `${one.name}: from ${formatMetric(one.values[0])} at epoch 1 to ${last}.`;
}

new Plot(JSON.parse(document.getElementById("data").textContent).series);
