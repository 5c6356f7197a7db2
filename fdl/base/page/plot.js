"use strict";
/* What every drawing has: its card, a layer for the cursor, the text box beside it, dragging. */

/** A shorter way with the button down is a click. */
const DRAG_PIXELS = 5;

/** Run an action once in the next frame, however often it was asked for. */
function soon(act) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      act();
    });
  };
}

/** A drawing; a class that extends it has `redraw`, and says in `scales` where its axes are: {box}. */
class Plot {
  /** A card with a title, a surface to draw on, a layer for the cursor and a text box beside it. */
  constructor(title, { height = 260, surface = element("canvas"), ...attributes }) {
    this.height = height;
    this.width = 0;
    this.scales = null;
    /** Where the reader drags with the left button: {from, to, moved}, in pixels. */
    this.drag = null;
    this.title = element("h3", { textContent: title, title });
    this.canvas = surface;
    this.canvas.setAttribute("aria-hidden", "true");
    this.overlay = element("canvas", { className: "overlay", "aria-hidden": "true" });
    this.readout = element("div", { className: "readout", hidden: true, "aria-hidden": "true" });
    this.area = element("div", { className: "plot", tabIndex: 0, ...attributes }, this.canvas, this.overlay, this.readout);
    this.head = element("div", { className: "chart-head" }, this.title);
    this.card = element("article", { className: "card chart" }, this.head, this.area);
    this.draw = soon(() => this.redraw());
    // Drawing changes the height, which the observer must not see as a change of its own making.
    new ResizeObserver(() => {
      const width = this.area.clientWidth;
      if (width === this.width) return;
      this.width = width;
      this.resized?.();
      this.draw();
    }).observe(this.area);
  }

  /** Write a text into the middle of the chart. */
  say(context, text) {
    Object.assign(context, { fillStyle: ink.get("soft"), textAlign: "center", textBaseline: "middle" });
    context.fillText(text, this.width / 2, this.height / 2);
  }

  /** The part of the canvas inside the labels of the axes. */
  boxFor(context, y, { bottom = 28, right = 12, top = 10 } = {}) {
    const widest = Math.max(16, ...y.ticks.map(([, label]) => context.measureText(label).width));
    return { left: Math.ceil(widest) + 12, right: this.width - right, top, bottom: this.height - bottom };
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
      context.fillText(label, middle, box.bottom + 8);
    }
  }

  /** Draw inside a box only, and a little around it. */
  inside(context, box, room, draw) {
    context.save();
    context.beginPath();
    context.rect(box.left - room, box.top - room, box.right - box.left + 2 * room, box.bottom - box.top + 2 * room);
    context.clip();
    draw();
    context.restore();
  }

  /** Put the text box beside x, on the side that has more room, and inside of the chart. */
  beside(x) {
    const room = Math.max(0, this.width - this.readout.offsetWidth);
    const left = x > this.width / 2 ? x - 14 - this.readout.offsetWidth : x + 14;
    this.readout.style.left = `${Math.min(Math.max(left, 0), room)}px`;
  }

  /** Position of a pointer on the canvas. */
  at(event) {
    const frame = this.area.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  }

  /** The same across, inside the axes. */
  across(event) {
    const { box } = this.scales;
    return Math.min(box.right, Math.max(box.left, this.at(event)[0]));
  }

  /** Let the reader drag over a range. `chose` gets its ends in pixels, `clicked` is for a click. */
  letDrag(chose, clicked = () => {}) {
    this.area.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !this.scales) return;
      const x = this.across(event);
      this.drag = { from: x, to: x, moved: false };
      this.area.setPointerCapture(event.pointerId);
    });
    this.area.addEventListener("pointermove", (event) => {
      if (!this.drag || !this.scales) return;
      this.drag.to = this.across(event);
      this.drag.moved ||= Math.abs(this.drag.to - this.drag.from) > DRAG_PIXELS;
    });
    this.area.addEventListener("pointerup", () => {
      const { drag } = this;
      this.drag = null;
      if (!drag || !this.scales) return;
      if (drag.moved) chose([drag.from, drag.to].sort((a, b) => a - b));
      else clicked();
    });
    this.area.addEventListener("pointercancel", () => (this.drag = null));
  }

  /** Shade what the reader has dragged over. */
  drawSelection(context) {
    if (!this.drag?.moved) return;
    const { box } = this.scales;
    const [from, to] = [this.drag.from, this.drag.to].sort((a, b) => a - b);
    context.globalAlpha = 0.16;
    context.fillStyle = ink.get("accent");
    context.fillRect(from, box.top, to - from, box.bottom - box.top);
    context.globalAlpha = 1;
  }
}
