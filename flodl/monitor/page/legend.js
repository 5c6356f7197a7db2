"use strict";
/* Which curves of a chart are shown: one button per curve, grouped by the first part of its name. */

const HINT = "Click: show or hide. Double click, or Shift with click or Enter: only this one.";

class Legend {
  #names = [];
  #buttons = new Map();
  #hidden = new Set();
  #changed;
  #look;

  /** `look(name)` gives {color, dash}; `changed()` is called after the reader has chosen. */
  constructor(look, changed) {
    this.#look = look;
    this.#changed = changed;
    this.list = element("ul", { className: "legend" });
  }

  shows(name) {
    return !this.#hidden.has(name);
  }

  /** Offer these curves; what was hidden stays so. Buttons are made anew only if names changed. */
  offer(names) {
    this.list.hidden = names.length < 2;
    if (names.length === this.#names.length && names.every((name, index) => name === this.#names[index])) return;
    this.#names = names;
    this.#buttons.clear();
    const groups = new Map();
    for (const name of names) {
      const group = groupOf(name);
      groups.set(group, [...(groups.get(group) || []), name]);
    }
    const items = [];
    for (const [group, members] of groups) {
      if (group && groups.size > 1 && members.length > 1) items.push(this.#groupItem(group, members));
      items.push(...members.map((name) => this.#item(name)));
    }
    this.list.replaceChildren(...items);
    this.#mark();
  }

  #item(name) {
    const button = element("button", { type: "button", title: `${name}\n${HINT}` }, swatch(this.#look(name)), element("span", { textContent: name }));
    this.#buttons.set(name, button);
    // The two clicks of a double click toggle twice, which undoes itself.
    button.addEventListener("click", (event) => (event.shiftKey ? this.solo([name]) : this.toggle([name])));
    button.addEventListener("dblclick", (event) => event.shiftKey || this.solo([name]));
    return element("li", {}, button);
  }

  #groupItem(group, members) {
    const button = element("button", { type: "button", className: "group", textContent: `${group}.*`, title: `All of ${group}\n${HINT}` });
    this.#buttons.set(members, button);
    button.addEventListener("click", (event) => (event.shiftKey ? this.solo(members) : this.toggle(members)));
    button.addEventListener("dblclick", (event) => event.shiftKey || this.solo(members));
    return element("li", {}, button);
  }

  toggle(names) {
    const show = names.every((name) => this.#hidden.has(name));
    for (const name of names) this.#hidden[show ? "delete" : "add"](name);
    this.#mark();
    this.#changed();
    announce(`${names.join(", ")} ${show ? "shown" : "hidden"}`);
  }

  /** Show these alone; doing it again shows all. */
  solo(names) {
    const shown = this.#names.filter((name) => this.shows(name));
    const already = shown.length === names.length && shown.every((name) => names.includes(name));
    this.#hidden = new Set(already ? [] : this.#names.filter((name) => !names.includes(name)));
    this.#mark();
    this.#changed();
    announce(already ? "all curves shown" : `only ${names.join(", ")} shown`);
  }

  #mark() {
    for (const [names, button] of this.#buttons) {
      const any = [names].flat().some((name) => this.shows(name));
      button.setAttribute("aria-pressed", String(any));
    }
  }
}

/** "encoder.loss" -> "encoder", "train/acc" -> "train", "loss" -> "". */
function groupOf(name) {
  const cut = name.search(/[./]/);
  return cut > 0 ? name.slice(0, cut) : "";
}

function swatch({ token, dash }) {
  const made = element("span", { className: "swatch" });
  made.style.borderTopColor = `var(--${token})`;
  made.style.borderTopStyle = dash.length ? "dashed" : "solid";
  return made;
}

