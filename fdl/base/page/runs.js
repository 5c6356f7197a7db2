"use strict";
/* Many runs: what is known of each, which are shown, and how they are grouped. */

/** The facts of a run that a table can show: a title, and how they are written. */
const FACTS = {
  name: ["Run"],
  state: ["State"],
  started: ["Started", formatMoment],
  seconds: ["Time", formatDuration],
  epochs: ["Epochs"],
  tags: ["Tags"],
  note: ["Note"],
  resumed_from: ["Continues"],
  error: ["Error"],
  path: ["Folder"],
};
const ALL_BUT_SEED = "all but the seed";
const NO_VALUE = "\u0000";

/** Seconds that a run took, or has taken until now. */
function elapsed(run) {
  return run.state === "running" ? Math.max(0, Date.now() / 1000 - Date.parse(run.started) / 1000) : run.seconds;
}

class Runs {
  all = [];
  filtered = [];
  visible = [];
  groups = null;
  curveNames = [];
  differing = [];
  problem = "";
  /** All columns of a table, by key: {key, label, kind, name, numeric, higher}, `value(run)` and `show(value)`. */
  columns = new Map();
  byId = new Map();

  constructor() {
    this.#describe();
  }

  /** Take over new rows; return the ids of runs whose content changed. */
  update({ order, rows }) {
    for (const row of rows) this.byId.set(row.id, row);
    this.all = order.map((id) => this.byId.get(id)).filter(Boolean);
    this.byId = new Map(this.all.map((run) => [run.id, run]));
    this.#describe();
    return new Set(rows.map((row) => row.id));
  }

  /** Show the runs that meet the filter; the runs that were shown stay while a condition is being typed. */
  apply(choices, { ids, problem }) {
    this.problem = problem;
    const shown = problem && this.filtered.length ? this.filtered.map((run) => run.id) : ids;
    const met = shown && new Set(shown);
    this.filtered = this.all.filter((run) => !met || met.has(run.id));
    const hidden = new Set(choices.hidden);
    this.visible = this.filtered.filter((run) => !hidden.has(run.path));
    this.differing = this.differingIn(this.filtered, "config");
    this.groups = this.#grouped(choices.group);
  }

  column(key) {
    return this.columns.get(key);
  }

  color(run) {
    const group = this.groups?.of.get(run.id);
    if (group) return this.groups.color(group);
    return colorOf(run.id, this.all.length > FEW_COLORS);
  }

  /** The names of settings, or of facts of the environment, that are not the same in all of some runs. */
  differingIn(runs, part) {
    const names = new Set(runs.flatMap((run) => Object.keys(run[part])));
    return [...names].filter((name) => runs.some((run) => plainOf(run, part, name) !== plainOf(runs[0], part, name)));
  }

  #describe() {
    const columns = new Map();
    const add = (key, label, kind, value, show, more) => columns.set(key, { key, label, kind, value, show, ...more });
    const plain = (value) => (value === "" || value === undefined || value === null ? DASH : String(value));
    for (const [key, [label, show = plain]] of Object.entries(FACTS)) {
      add(key, label, "fact", key === "seconds" ? elapsed : (run) => run[key], show, { numeric: key === "seconds" || key === "epochs" });
    }
    const [metrics, curves, settings] = [new Map(), new Set(), new Map()];
    for (const run of this.all) {
      for (const [name, { higher }] of Object.entries(run.metrics)) metrics.set(name, higher);
      for (const name of run.curves) curves.add(name);
      for (const [name, [value]] of Object.entries(run.config)) {
        if (value !== null || !settings.has(name)) settings.set(name, (settings.get(name) ?? true) && typeof value === "number");
      }
    }
    for (const [name, numeric] of settings) add(`config.${name}`, name, "setting", (run) => run.config[name]?.[0], formatSetting, { name, numeric });
    for (const [name, higher] of metrics) {
      for (const which of ["best", "last"]) add(`${which}:${name}`, `${which} ${name}`, "metric", (run) => run.metrics[name]?.[which], formatNumber, { name, numeric: true, higher });
    }
    this.columns = columns;
    this.curveNames = [...curves].sort((a, b) => interest(a) - interest(b) || (a < b ? -1 : 1));
    this.settings = [...columns.values()].filter((one) => one.kind === "setting");
    // The best values, those first that are most likely looked for.
    this.results = this.curveNames.map((name) => `best:${name}`).filter((key) => columns.has(key));
  }

  #grouped(by) {
    if (!by) return null;
    const column = this.columns.get(by);
    if (by !== ALL_BUT_SEED && !column) return null;
    const names = this.differing.filter((name) => !isSeed(name));
    const keyOf = (run) => {
      if (!column) return names.map((name) => `${name} ${formatSetting(run.config[name]?.[0])}`).join(" · ") || "all runs";
      const found = column.value(run);
      return found === undefined ? NO_VALUE : Array.isArray(found) ? found.join(", ") : formatSetting(found);
    };
    const members = Map.groupBy(this.visible, keyOf);
    const of = new Map([...members].flatMap(([key, runs]) => runs.map((run) => [run.id, key])));
    const order = [...members.keys()].sort(byValue);
    const color = (key) => colorOf(order.indexOf(key), order.length > FEW_COLORS);
    const name = (key) => (key === NO_VALUE ? `${column.label}: none` : column ? `${column.label} = ${key}` : key);
    return { order, members, of, color, name };
  }
}

/** The value of a setting, or of a fact of the environment. */
function plainOf(run, part, name) {
  return part === "config" ? run.config[name]?.[0] : run.environment[name];
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
  const way = order.startsWith("-") ? -1 : 1;
  // Values that are not finite stand behind numbers in both directions, and missing ones at the end.
  const isMetric = column(key)?.kind === "metric";
  const rank = (one) => (one === undefined || one === null || one === "" ? 2 : isMetric && typeof one === "string" ? 1 : 0);
  const keyed = runs.map((run) => [value(run), run]);
  keyed.sort(([a], [b]) => rank(a) - rank(b) || (rank(a) ? 0 : way * byValue(a, b)));
  return keyed.map(([, run]) => run);
}
