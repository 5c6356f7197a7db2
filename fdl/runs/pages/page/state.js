"use strict";
/* What the user chose: kept in the address, so that it can be shared, and in the browser. */

const DEFAULTS = {
  filter: "",
  sort: "-started",
  columns: null,
  metrics: null,
  axis: "",
  smoothing: 0,
  logY: false,
  logX: false,
  group: "",
  band: "range",
  hidden: [],
  differing: false,
  scatterX: "",
  scatterY: "",
  scatterColor: "auto",
  axes: null,
  target: "auto",
};
/** What the browser keeps beside the address. */
const KEPT = ["columns"];

class Choices {
  #listeners = [];
  #name = `flodl-runs:${location.protocol === "file:" ? location.pathname : "served"}`;

  constructor() {
    this.values = { ...DEFAULTS, ...this.#kept(), ...this.#shared() };
    addEventListener("hashchange", () => {
      const shared = JSON.stringify(this.#own());
      if (decodeURIComponent(location.hash.slice(1)) === shared) return;
      this.values = { ...DEFAULTS, ...this.#kept(), ...this.#shared() };
      for (const listen of this.#listeners) listen(Object.keys(DEFAULTS));
    });
  }

  get(name) {
    return this.values[name];
  }

  /** Change values and tell everybody which. */
  set(changes) {
    const changed = Object.keys(changes).filter((name) => JSON.stringify(this.values[name]) !== JSON.stringify(changes[name]));
    if (!changed.length) return;
    Object.assign(this.values, changes);
    this.#keep();
    for (const listen of this.#listeners) listen(changed);
  }

  listen(act) {
    this.#listeners.push(act);
  }

  /** What differs from the defaults. */
  #own() {
    const own = {};
    for (const [name, value] of Object.entries(this.values)) {
      if (JSON.stringify(value) !== JSON.stringify(DEFAULTS[name])) own[name] = value;
    }
    return own;
  }

  #keep() {
    const own = this.#own();
    const hash = Object.keys(own).length ? `#${encodeURIComponent(JSON.stringify(own))}` : "";
    try {
      history.replaceState(null, "", hash || location.pathname + location.search);
      const kept = Object.fromEntries(KEPT.map((name) => [name, this.values[name]]));
      localStorage.setItem(this.#name, JSON.stringify(kept));
    } catch {
      // A browser may forbid both for a file; then the choices last as long as the page.
    }
  }

  #kept() {
    try {
      return accepted(JSON.parse(localStorage.getItem(this.#name)), KEPT);
    } catch {
      return {};
    }
  }

  #shared() {
    try {
      return accepted(JSON.parse(decodeURIComponent(location.hash.slice(1))), Object.keys(DEFAULTS));
    } catch {
      return {};
    }
  }
}

/** Of a parsed object, the values of known names that have the type of their default. */
function accepted(content, names) {
  const found = {};
  for (const name of names) {
    const [value, usual] = [content?.[name], DEFAULTS[name]];
    if (value === undefined || value === null) continue;
    const listed = usual === null || Array.isArray(usual);
    if (listed ? Array.isArray(value) : typeof value === typeof usual) found[name] = value;
  }
  return found;
}
