"use strict";
/* The runs, what is known of each, which are shown, and how they are grouped. */

const FACTS = {
  name: ["Run", (run) => run.name],
  state: ["State", (run) => run.state],
  started: ["Started", (run) => run.started],
  seconds: ["Time", (run) => elapsed(run)],
  epochs: ["Epochs", (run) => run.epochs],
  tags: ["Tags", (run) => run.tags],
  note: ["Note", (run) => run.note],
  resumed_from: ["Continues", (run) => run.resumed_from],
  error: ["Error", (run) => run.error],
  path: ["Folder", (run) => run.path],
};
const NUMBERS = new Set(["seconds", "epochs"]);
const ALL_BUT_SEED = "all but the seed";
const NO_VALUE = "\u0000";

/** Seconds that a run took, or has taken until now. */
function elapsed(run) {
  return run.state === "running" ? Math.max(0, Date.now() / 1000 - Date.parse(run.started) / 1000) : run.seconds;
}

class Model {
  runs = [];
  filtered = [];
  visible = [];
  groups = null;
  curveNames = [];
  differing = [];
  problem = "";
  #byId = new Map();
  #columns = new Map();
  #colors = new Map();

  constructor() {
    this.#describe();
  }

  /** Take over new rows; return the ids of runs whose content changed. */
  update({ order, rows }) {
    for (const row of rows) this.#byId.set(row.id, prepared(row));
    this.runs = order.map((id) => this.#byId.get(id)).filter(Boolean);
    for (const id of [...this.#byId.keys()]) if (!order.includes(id)) this.#byId.delete(id);
    this.#describe();
    return new Set(rows.map((row) => row.id));
  }

  run(id) {
    return this.#byId.get(id);
  }

  /** Apply filter, hidden runs and groups, as the user chose them. */
  apply(choices) {
    this.problem = "";
    let meets = () => true;
    try {
      meets = parseFilter(choices.get("filter"), this.runs);
    } catch (error) {
      // The runs that were shown stay while a condition is being typed.
      this.problem = error.message;
      const before = new Set(this.filtered.map((run) => run.id));
      if (before.size) meets = (run) => before.has(run.id);
    }
    this.filtered = this.runs.filter(meets);
    const hidden = new Set(choices.get("hidden"));
    this.visible = this.filtered.filter((run) => !hidden.has(run.path));
    this.differing = this.#differing(this.filtered, "config");
    this.groups = this.#grouped(choices.get("group"));
  }

  /** All columns of a table, by key. */
  get columns() {
    return this.#columns;
  }

  column(key) {
    return this.#columns.get(key);
  }

  get settings() {
    return [...this.#columns.values()].filter((one) => one.kind === "setting");
  }

  color(run) {
    const group = this.groups?.of.get(run.id);
    return group ? this.groups.color(group) : this.ownColor(run);
  }

  ownColor(run) {
    if (!this.#colors.has(run.id)) this.#colors.set(run.id, colorOf(run.id, this.runs.length > FEW_COLORS));
    return this.#colors.get(run.id);
  }

  forgetColors() {
    this.#colors.clear();
  }

  /** The names of settings (or facts of the environment) that are not the same in all runs. */
  differingIn(runs, part) {
    return this.#differing(runs, part);
  }

  #describe() {
    const columns = new Map();
    for (const [key, [label, value]] of Object.entries(FACTS)) {
      columns.set(key, { key, label, kind: "fact", value, numeric: NUMBERS.has(key) });
    }
    const [metrics, curves, settings] = [new Map(), new Map(), new Map()];
    for (const run of this.runs) {
      for (const [name, { higher }] of Object.entries(run.metrics)) metrics.set(name, higher);
      for (const name of run.curves) curves.set(name, (curves.get(name) || 0) + 1);
      for (const [name, [value]] of Object.entries(run.config)) {
        const all = settings.get(name);
        const numeric = typeof value === "number";
        if (all === undefined) settings.set(name, numeric);
        else if (all && !numeric && value !== null) settings.set(name, false);
      }
    }
    for (const [name, numeric] of settings) {
      const key = `config.${name}`;
      const value = (run) => run.config[name]?.[0];
      columns.set(key, { key, label: name, kind: "setting", name, value, numeric });
    }
    for (const [name, higher] of metrics) {
      for (const which of ["best", "last"]) {
        const key = `${which}:${name}`;
        const value = (run) => run.metrics[name]?.[which];
        columns.set(key, { key, label: `${which} ${name}`, kind: "metric", name, value, numeric: true, higher });
      }
    }
    this.#columns = columns;
    this.curveNames = [...curves.keys()].sort((a, b) => interest(a) - interest(b) || (a < b ? -1 : 1));
  }

  #differing(runs, part) {
    const [first, ...others] = runs;
    if (!others.length) return [];
    const names = new Set(runs.flatMap((run) => Object.keys(run[part])));
    const plain = (run, name) => (part === "config" ? run.config[name]?.[0] : run.environment[name]);
    return [...names].filter((name) => {
      const expected = plain(first, name);
      return others.some((run) => plain(run, name) !== expected);
    });
  }

  #grouped(by) {
    if (!by) return null;
    let keyOf;
    if (by === ALL_BUT_SEED) {
      const names = this.differing.filter((name) => !isSeed(name));
      keyOf = (run) => names.map((name) => `${name} ${formatSetting(run.config[name]?.[0])}`).join(" · ") || "all runs";
    } else {
      const value = this.#columns.get(by)?.value;
      if (!value) return null;
      keyOf = (run) => {
        const found = value(run);
        return found === undefined ? NO_VALUE : Array.isArray(found) ? found.join(", ") : formatSetting(found);
      };
    }
    const members = new Map();
    const of = new Map();
    for (const run of this.visible) {
      const key = keyOf(run);
      if (!members.has(key)) members.set(key, []);
      members.get(key).push(run);
      of.set(run.id, key);
    }
    const order = [...members.keys()].sort(byValue);
    const places = new Map(order.map((key, index) => [key, index]));
    const color = (key) => colorOf(places.get(key), order.length > FEW_COLORS);
    const label = by === ALL_BUT_SEED ? "" : this.#columns.get(by).label;
    const name = (key) => (key === NO_VALUE ? `${label}: none` : label ? `${label} = ${key}` : key);
    return { order, members, of, color, name };
  }
}

/** A row with what is derived from it. */
function prepared(row) {
  const settings = Object.entries(row.config).map(([name, [value]]) => `${name}=${formatSetting(value)}`);
  const text = [row.name, row.path, row.state, row.note, ...row.tags, ...settings].join("\n").toLowerCase();
  return { ...row, text };
}

function isSeed(name) {
  return /(^|[._-])seed$/.test(name);
}

/** A number that grows as a metric is less likely to be what the user looks for. */
function interest(name) {
  const lower = name.toLowerCase();
  const isValidation = /^(val|valid|validation|eval|test)[_/.-]/.test(lower);
  if (/loss/.test(lower)) return isValidation ? 0 : 1;
  if (isValidation) return 2;
  return /^(lr|learning_rate|grad_norm|epoch_time)/.test(lower) ? 4 : 3;
}

/** Compare two values: numbers by size, missing ones last, everything else as text. */
function byValue(a, b) {
  const [missingA, missingB] = [a, b].map((one) => one === undefined || one === null || one === NO_VALUE);
  if (missingA || missingB) return missingA - missingB;
  const [x, y] = [Number(a), Number(b)];
  if (!Number.isNaN(x) && !Number.isNaN(y)) return x - y;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

/** Runs in the order that the user chose: "-started" is newest first. */
function sorted(runs, order, column) {
  const key = order.replace(/^-/, "");
  // Runs of different time zones are ordered by the moment, not by its text.
  const value = key === "started" ? (run) => Date.parse(run.started) : column(key)?.value;
  if (!value) return [...runs];
  const down = order.startsWith("-");
  // Values that are not finite stand behind numbers in both directions, and missing ones at the end.
  const isMetric = column(key)?.kind === "metric";
  const rank = (one) => (one === undefined || one === null || one === "" ? 2 : isMetric && typeof one === "string" ? 1 : 0);
  return runs
    .map((run, index) => [value(run), index, run])
    .sort(([a, i], [b, j]) => {
      if (rank(a) || rank(b)) return rank(a) - rank(b) || i - j;
      return (down ? byValue(b, a) : byValue(a, b)) || i - j;
    })
    .map(([, , run]) => run);
}
