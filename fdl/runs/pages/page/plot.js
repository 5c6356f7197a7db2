"use strict";
/* Plots of runs: buttons above, a line of text below, and what stands in the box at the cursor. */

class RunsPlot extends Plot {
  constructor(title, { label, role = "slider", ...options }) {
    super(title, { role, "aria-label": label, ...options });
    this.tools = element("div", { className: "tools" });
    this.foot = element("p", { className: "plot-foot" });
    this.head.append(this.tools);
    this.card.append(this.foot);
  }

  /** A canvas that is ready to draw on, or null while the card has no width. */
  begin() {
    if (!this.width) return null;
    prepare(this.overlay, this.width, this.height);
    return prepare(this.canvas, this.width, this.height);
  }

  /** Show the text box beside a position, and speak the same text. */
  tell(x, lines, spoken) {
    this.readout.hidden = !lines.length;
    if (!lines.length) return;
    this.readout.replaceChildren(...lines);
    this.beside(x);
    this.area.setAttribute("aria-valuetext", spoken);
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
