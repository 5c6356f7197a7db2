"use strict";
/* Elements, controls, tables, announcements, the theme, and its colours as a canvas takes them. */

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
  return element("button", { type: "button", textContent: text, onclick: act, ...properties });
}

function press(made, on) {
  made.setAttribute("aria-pressed", String(Boolean(on)));
}

function place(id) {
  return document.getElementById(id);
}

/** A list to choose one value from; its options may come later. */
function selection(label, act) {
  return element("select", { "aria-label": label, autocomplete: "off", onchange: (event) => act(event.target.value) });
}

function fill(list, options, chosen) {
  const wanted = JSON.stringify(options);
  if (list.dataset.options !== wanted) {
    list.dataset.options = wanted;
    list.replaceChildren(...options.map(([value, text]) => element("option", { value, textContent: text })));
  }
  list.value = chosen;
}

/** A field for words to search. */
function searchField(label, act, properties = {}) {
  return element("input", { type: "search", placeholder: "Search", autocomplete: "off", spellcheck: false, "aria-label": label, oninput: (event) => act(event.target.value), ...properties });
}

/** A test of whether a text has all words. */
function worded(search) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  return (text) => words.every((word) => text.toLowerCase().includes(word));
}

/** A list to tick several names in, which opens below its button. */
class Picker {
  constructor(label, options, chosen, act) {
    Object.assign(this, { options, chosen, act });
    this.count = element("span", { className: "count" });
    this.search = searchField(`Search ${label.toLowerCase()}`, () => this.#fill());
    this.list = element("div", { className: "ticks", role: "group", "aria-label": label });
    const tools = [["All", () => this.#all(true)], ["None", () => this.#all(false)], ["Usual", () => act(null)]].map(([text, pressed]) => button(text, pressed));
    this.sheet = element("div", { className: "sheet", popover: "auto", ontoggle: () => this.show() }, this.search, ...tools, this.list);
    const opener = element("button", { type: "button", popoverTargetElement: this.sheet }, label, " ", this.count);
    this.box = element("div", { className: "picker" }, opener, this.sheet);
  }

  show() {
    this.count.textContent = `${this.chosen().length}/${this.options().length}`;
    if (this.sheet.matches(":popover-open")) this.#fill();
  }

  get #fitting() {
    const test = worded(this.search.value);
    return this.options().filter(([, text]) => test(text));
  }

  #all(on) {
    const names = this.#fitting.map(([value]) => value);
    const others = this.chosen().filter((value) => !names.includes(value));
    this.act(on ? [...others, ...names] : others);
  }

  #fill() {
    const chosen = this.chosen();
    const focused = this.list.contains(document.activeElement) ? document.activeElement.value : null;
    const rows = this.#fitting.slice(0, 300).map(([value, text]) => {
      const change = ({ target }) => this.act([...this.chosen().filter((one) => one !== value), ...(target.checked ? [value] : [])]);
      const box = element("input", { type: "checkbox", value, checked: chosen.includes(value), onchange: change });
      return element("label", {}, box, element("span", { textContent: text, title: text }));
    });
    this.list.replaceChildren(...rows);
    rows.find((row) => row.firstChild.value === focused)?.firstChild.focus();
  }
}

/** A table: heads, and rows whose first cell names them; a cell is a text or an element. */
function tableOf(title, heads, rows, properties = {}) {
  const cell = (content, tag = "td", more = {}) => {
    const made = element(tag, more);
    made.append(content ?? "");
    return made;
  };
  const body = rows.map(([name, ...cells]) => element("tr", {}, cell(name, "th", { scope: "row" }), ...cells.map((one) => (one?.tagName === "TD" ? one : cell(one)))));
  const head = heads && element("thead", {}, element("tr", {}, ...heads.map((one) => cell(one, "th", { scope: "col" }))));
  return element("table", properties, element("caption", { className: head ? "unseen" : "", textContent: title }), head, element("tbody", {}, ...body));
}

/** Rows [name, value, origin] as a table; `heads` names its columns, and its title is then only spoken. */
function factTable(title, rows, heads = null) {
  const wide = rows.some(([, , origin]) => origin);
  const origin = (text) => element("td", { className: "origin", textContent: text || DASH });
  const cells = rows.map(([name, value, from]) => [name, value, ...(wide ? [origin(from)] : [])]);
  return tableOf(title, heads?.slice(0, wide ? 3 : 2), cells, { className: "facts" });
}

/** A part that scrolls, which keys can reach and a reader can name. */
function scroller(label, content, className = "scroll") {
  return element("div", { className, tabIndex: 0, role: "region", "aria-label": label }, content);
}

/** Make these the children of an element; those that are there already are not moved. */
function arrange(host, wanted) {
  for (const child of [...host.children]) if (!wanted.includes(child)) child.remove();
  wanted.forEach((child, index) => {
    if (host.children[index] !== child) host.insertBefore(child, host.children[index] || null);
  });
}

/** Set a text only if it has changed, which costs no layout and is not spoken again. */
function write(made, text) {
  if (made.textContent !== text) made.textContent = text;
}

/** Say something to a screen reader. */
function announce(text) {
  place("announcer").textContent = text;
}

/** Run an action once in the next frame, or at another moment, however often it was asked for. */
function soon(act, later = requestAnimationFrame) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    later(() => {
      asked = false;
      act();
    });
  };
}

/** Offer a text as a file to save. */
function save(name, kind, text) {
  const address = URL.createObjectURL(new Blob([text], { type: kind }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** What a function returns, or null if it cannot: the browser's storage may be forbidden to a page, and the address written by somebody else. */
function attempt(act) {
  try {
    return act();
  } catch {
    return null;
  }
}

/** What a map has for a key; it is made if there is nothing. */
function entry(map, key, make) {
  if (!map.has(key)) map.set(key, make());
  return map.get(key);
}

/**
 * Let a button change the theme; `changed()` is called after each change, also one of the system.
 * Paper is white and narrow: before the page prints, it becomes so, and `prints(on)` is called.
 */
function startTheme(made, changed, prints) {
  const names = ["auto", "light", "dark"];
  const { dataset } = document.documentElement;
  let chosen = attempt(() => localStorage.getItem("flodl-theme"));
  if (!names.includes(chosen)) chosen = "auto";
  const apply = (theme = chosen) => {
    dataset.theme = theme;
    made.textContent = `Theme: ${chosen}`;
    ink.forget();
    changed();
  };
  apply();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => apply());
  const printing = (on) => {
    prints(on);
    document.documentElement.toggleAttribute("data-prints", on);
    apply(on ? "light" : chosen);
  };
  addEventListener("beforeprint", () => printing(true));
  addEventListener("afterprint", () => printing(false));
  made.addEventListener("click", () => {
    chosen = names[(names.indexOf(chosen) + 1) % names.length];
    apply();
    attempt(() => localStorage.setItem("flodl-theme", chosen));
  });
}

/** A colour for a style: the theme has it by this name, or it is one already. */
function css(color) {
  return /^[\w-]+$/.test(color) ? `var(--${color})` : color;
}

/** The same colours as a canvas takes them: as the browser resolves them in the theme of now. */
class Ink {
  #known = new Map();
  /** The page's font, which no theme changes; asking the browser each time would make it lay out. */
  font = `12px ${getComputedStyle(document.body).fontFamily}`;

  get(color) {
    return entry(this.#known, color, () => {
      place("ink").style.color = css(color);
      return getComputedStyle(place("ink")).color;
    });
  }

  /** To be called when the theme has changed. */
  forget() {
    this.#known.clear();
  }
}

const ink = new Ink();
const FEW_COLORS = 8;

/** The colour of one of many things: a fixed palette for a few, hues by the golden angle for more. */
function colorOf(number, many) {
  const more = (number % 3) * 0.05;
  return many ? shade(0.56 + more, 0.76 + more, (number * 137.508) % 360) : `series-${number % FEW_COLORS}`;
}

/** A colour of a hue in degrees, with its lightness on a light and on a dark page. */
function shade(light, dark, hue) {
  const [one, other] = [light, dark].map((part) => `oklch(${part.toFixed(3)} 0.15 ${hue.toFixed(1)})`);
  return `light-dark(${one}, ${other})`;
}

/** Empty a canvas, make it as sharp as the screen, and return its context, which counts in CSS pixels. */
function prepare(canvas, width, height) {
  [canvas.width, canvas.height] = [width, height].map((size) => Math.round(size * devicePixelRatio));
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(devicePixelRatio, devicePixelRatio);
  context.font = ink.font;
  return context;
}

/** A dot beside a name, in its colour; a ring without one. */
function dot(color) {
  const made = element("span", { className: "dot", "aria-hidden": "true" });
  if (color) made.style.background = css(color);
  return made;
}

/** Write a text in a colour, with its alignment across and down. */
function label(context, text, x, y, color = "soft", across = "left", down = "middle") {
  Object.assign(context, { fillStyle: ink.get(color), textAlign: across, textBaseline: down });
  context.fillText(text, x, y);
}

/** Text that fits into a width, with an ellipsis if it is cut. */
function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end -= Math.ceil(end / 12);
  return `${text.slice(0, Math.max(1, end))}…`;
}

function strokeLine(context, x1, y1, x2, y2, color, width = 1) {
  Object.assign(context, { strokeStyle: ink.get(color), lineWidth: width });
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
}

function disc(context, x, y, radius, fill, edge = null) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fillStyle = ink.get(fill);
  context.fill();
  if (!edge) return;
  Object.assign(context, { strokeStyle: ink.get(edge), lineWidth: 2 });
  context.stroke();
}

/** Colour a rectangle between two corners lightly. */
function wash(context, color, left, top, right, bottom, alpha = 0.16) {
  Object.assign(context, { fillStyle: ink.get(color), globalAlpha: alpha });
  context.fillRect(left, top, right - left, bottom - top);
  context.globalAlpha = 1;
}

/** Draw inside a box only. */
function inside(context, { left, top, right, bottom }, draw, room = 0) {
  context.save();
  context.beginPath();
  context.rect(left - room, top - room, right - left + 2 * room, bottom - top + 2 * room);
  context.clip();
  draw();
  context.restore();
}
