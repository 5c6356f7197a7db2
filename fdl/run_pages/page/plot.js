"use strict";
/* What every plot shares: its card, its canvases, its axes and the reader's cursor. */

class Plot {
  /** A card with a title, buttons, a canvas, a layer for the cursor and a text box beside it. */
  constructor(title, { label, height = 260, role = "slider" }) {
    this.height = height;
    this.title = element("h3", { textContent: title });
    this.tools = element("div", { className: "tools" });
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.overlay = element("canvas", { className: "overlay", "aria-hidden": "true" });
    this.readout = element("div", { className: "readout", hidden: true, "aria-hidden": "true" });
    this.area = element("div", { className: "plot", tabIndex: 0, role, "aria-label": label }, this.canvas, this.overlay, this.readout);
    this.foot = element("p", { className: "plot-foot" });
    this.card = element("article", { className: "card chart" }, element("div", { className: "chart-head" }, this.title, this.tools), this.area, this.foot);
    this.draw = soon(() => this.redraw());
    this.width = 0;
    new ResizeObserver(() => {
      const width = this.area.clientWidth;
      if (width === this.width) return;
      this.width = width;
      this.resized?.();
      this.draw();
    }).observe(this.area);
  }

  /** A canvas that is ready to draw on, or null while the card has no width. */
  begin() {
    if (!this.width) return null;
    prepare(this.overlay, this.width, this.height);
    return prepare(this.canvas, this.width, this.height);
  }

  say(text) {
    const context = this.begin();
    if (!context) return;
    Object.assign(context, { fillStyle: ink.get("soft"), textAlign: "center", textBaseline: "middle" });
    context.fillText(text, this.width / 2, this.height / 2);
  }

  /** Grid lines and labels of both axes inside a box; `title` says what x counts. */
  axes(context, box, x, y, title = "") {
    Object.assign(context, { textBaseline: "middle", textAlign: "right", lineWidth: 1 });
    for (const [at, label] of y.ticks) {
      const height = Math.round(box.bottom - y.at(at) * (box.bottom - box.top)) + 0.5;
      if (height < box.top - 1 || height > box.bottom + 1) continue;
      strokeLine(context, box.left, height, box.right, height, ink.get("grid"));
      context.fillStyle = ink.get("soft");
      context.fillText(label, box.left - 7, height);
    }
    Object.assign(context, { textBaseline: "top", textAlign: "left", fillStyle: ink.get("soft") });
    context.fillText(title, 0, box.bottom + 8);
    context.textAlign = "center";
    let end = title ? context.measureText(title).width : -Infinity;
    for (const [at, label] of x.ticks) {
      const across = box.left + x.at(at) * (box.right - box.left);
      const half = context.measureText(label).width / 2;
      if (across < box.left - 1 || across > box.right + 1) continue;
      const middle = Math.min(Math.max(across, box.left - 6 + half), box.right + 8 - half);
      if (middle - half < end + 8) continue;
      end = middle + half;
      context.fillStyle = ink.get("soft");
      context.fillText(label, middle, box.bottom + 8);
    }
  }

  /** Room for the labels of an axis. */
  boxFor(context, y, { bottom = 28, right = 12, top = 10 } = {}) {
    const widest = Math.max(16, ...y.ticks.map(([, label]) => context.measureText(label).width));
    return { left: Math.ceil(widest) + 12, right: this.width - right, top, bottom: this.height - bottom };
  }

  /** Show the text box beside a position, and speak the same text. */
  tell(x, lines, spoken) {
    this.readout.hidden = !lines.length;
    if (!lines.length) return;
    this.readout.replaceChildren(...lines);
    const left = x > this.width / 2;
    Object.assign(this.readout.style, left ? { right: `${this.width - x + 14}px`, left: "" } : { left: `${x + 14}px`, right: "" });
    this.area.setAttribute("aria-valuetext", spoken);
  }

  /** Position of a pointer inside the canvas. */
  at(event) {
    const frame = this.area.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  }
}

/** A line of the text box: a colour, a name, a value. */
function reading(color, name, value, strong = false) {
  const swatch = element("span", { className: "swatch" });
  swatch.style.borderColor = color;
  return element("span", { className: strong ? "reading strong" : "reading" }, swatch, element("i", { textContent: name }), element("b", { textContent: value }));
}

function fact(name, value) {
  return element("span", { className: "reading" }, element("i", { textContent: name }), element("b", { textContent: value }));
}
