"use strict";
/* Elements, announcements, and the colours of the theme as a canvas takes them. */

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((one) => one !== null && one !== undefined));
  return made;
}

/** A button that does something. */
function button(text, act, properties = {}) {
  const made = element("button", { type: "button", textContent: text, ...properties });
  made.addEventListener("click", act);
  return made;
}

function place(id) {
  return document.getElementById(id);
}

/** Rows [name, value, origin] as a table; `heads` names its columns, and its title is then only spoken. */
function factTable(title, rows, heads = null) {
  const origins = rows.some(([, , origin]) => origin);
  const body = rows.map(([name, value, origin]) =>
    element("tr", {}, element("th", { textContent: name, scope: "row" }), element("td", {}, value), origins ? element("td", { className: "origin", textContent: origin || DASH }) : null),
  );
  const head = heads?.slice(0, origins ? 3 : 2).map((text) => element("th", { textContent: text, scope: "col" }));
  const caption = element("caption", { className: head ? "unseen" : "", textContent: title });
  return element("table", { className: "facts" }, caption, head ? element("thead", {}, element("tr", {}, ...head)) : null, element("tbody", {}, ...body));
}

/** Say something to a screen reader. */
function announce(text) {
  place("announcer").textContent = text;
}

/** The theme's colours by the names of their custom properties, as the browser resolves them. */
class Ink {
  #known = new Map();
  #font = "";

  get(name) {
    if (!this.#known.has(name)) {
      const probe = place("ink");
      probe.style.color = name.startsWith("oklch") ? name : `var(--${name})`;
      this.#known.set(name, getComputedStyle(probe).color);
    }
    return this.#known.get(name);
  }

  get dark() {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  /** To be called when the theme has changed. */
  forget() {
    this.#known.clear();
  }

  /** The page's font, which no theme changes; asking the browser each time would make it lay out. */
  get font() {
    return (this.#font ||= `12px ${getComputedStyle(document.body).fontFamily}`);
  }
}

const ink = new Ink();

/** Make a canvas as sharp as the screen and return its context, which counts in CSS pixels. */
function prepare(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [across, down] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== across || canvas.height !== down) {
    [canvas.width, canvas.height] = [across, down];
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = ink.font;
  return context;
}

function strokeLine(context, x1, y1, x2, y2, color, width = 1) {
  context.strokeStyle = color;
  context.lineWidth = width;
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
}

function disc(context, x, y, radius, fill, edge = null) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fillStyle = fill;
  context.fill();
  if (!edge) return;
  context.strokeStyle = edge;
  context.lineWidth = 2;
  context.stroke();
}
