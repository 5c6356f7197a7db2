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

function place(id) {
  return document.getElementById(id);
}

/** A button that does something. */
function button(text, act, properties = {}) {
  const made = element("button", { type: "button", textContent: text, ...properties });
  made.addEventListener("click", act);
  return made;
}

/** A group of buttons of which one is pressed. */
function choice(label, options, chosen, act) {
  const group = element("div", { className: "choice", role: "group", "aria-label": label });
  for (const [value, text] of options) {
    group.append(button(text, () => act(value), { "aria-pressed": String(value === chosen), "data-value": value }));
  }
  return group;
}

function press(group, chosen) {
  for (const one of group.children) one.setAttribute("aria-pressed", String(one.dataset.value === chosen));
}

/** A list to choose one value from; its options may come later. */
function selection(label, act) {
  const list = element("select", { "aria-label": label });
  list.addEventListener("change", () => act(list.value));
  return list;
}

function fill(list, options, chosen) {
  const wanted = JSON.stringify(options);
  if (list.dataset.options !== wanted) {
    list.dataset.options = wanted;
    list.replaceChildren(...options.map(([value, text]) => element("option", { value, textContent: text })));
  }
  list.value = chosen;
}

/** Say something to a screen reader. */
function announce(text) {
  place("announcer").textContent = text;
}

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

  get font() {
    return (this.#font ||= `11.5px ${getComputedStyle(document.body).fontFamily}`);
  }
}

const ink = new Ink();

const FEW_COLORS = 8;

/** The colour of one of many things: a fixed palette for a few, hues by the golden angle for more. */
function colorOf(index, many) {
  if (!many) return ink.get(`series-${index % FEW_COLORS}`);
  const hue = (index * 137.508) % 360;
  const light = (ink.dark ? 0.76 : 0.56) + (index % 3) * 0.05;
  return ink.get(`oklch(${light.toFixed(2)} 0.15 ${hue.toFixed(1)})`);
}

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

/** Text that fits into a width, with an ellipsis if it is cut. */
function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end -= Math.ceil(end / 12);
  return `${text.slice(0, Math.max(1, end))}…`;
}

/** Offer a text as a file to save. */
function save(name, kind, text) {
  const address = URL.createObjectURL(new Blob([text], { type: kind }));
  const link = element("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
