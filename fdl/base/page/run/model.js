"use strict";
/* The run as data. Takes the same messages as every sink, from the embedded JSON or from a live
   stream, and knows nothing of the page. */

const LOWER_IS_BETTER = new Set(
  ("loss losses err error errors mse mae rmse mape nll bce ce xent kl ppl perplexity bpc bpb wer cer fid " +
    "regret distance").split(" "),
);
const HIGHER_IS_BETTER = new Set(
  ("acc accuracy top1 top5 auc auroc auprc f1 precision recall score bleu rouge map miou iou dice psnr " +
    "ssim r2 reward return mcc kappa hits success").split(" "),
);

/** Points of one curve by step on the page; above, the past is thinned. */
const MOST_POINTS = 8192;
const MOST_LOADS = 300;

class RunModel {
  #listeners = [];
  #known = "";

  constructor() {
    this.info = { total: 0, started: "", label: "", run: "", hash: "", metadata: {}, svg: "" };
    this.records = [];
    this.series = new Map();
    this.curves = new Map();
    this.ledger = {};
    this.loads = [];
    /** How far the epoch is, and when the page heard of it. */
    this.progress = null;
    this.heardAt = this.newsAt = performance.now();
    /** Steps, and the seconds of the run at which they were logged. */
    this.clock = { steps: [], seconds: [] };
    this.drawing = 0;
    this.summary = null;
    /** Whether a live stream brings news, so that time goes on between them. */
    this.following = false;
  }

  /** Call `listener(kind)` after every change; kinds: info epochs steps ledger progress drawing. */
  watch(listener) {
    this.#listeners.push(listener);
  }

  /** Take a whole run. */
  load({ info, records, series = [], ledger = {}, finish, clock, progress = null, loads = [] }) {
    this.info = info;
    this.#tick(clock);
    this.progress = progress;
    this.loads = loads;
    this.#known = JSON.stringify(info.metadata);
    for (const record of records) this.#take(record);
    for (const one of series) this.#curve(one.name).append(one.steps, one.values);
    this.ledger = ledger;
    this.summary = finish;
    for (const kind of ["info", "epochs", "steps", "ledger", "progress"]) this.#changed(kind);
  }

  open(info) {
    this.info = info;
    const metadata = JSON.stringify(info.metadata);
    this.#changed(metadata === this.#known ? "heading" : "info");
    this.#known = metadata;
  }

  record(record) {
    this.#take(record);
    this.#changed("epochs");
  }

  addSteps(series, clock) {
    this.#tick(clock);
    for (const { name, steps, values } of series) this.#curve(name).append(steps, values);
    this.#changed("steps");
  }

  /** Take curves from their beginning; what the page has beyond their end stays. */
  replaceSteps(series, clock) {
    if (clock) this.clock = clock;
    for (const { name, steps, values } of series) this.#curve(name).replace(steps, values);
    this.#changed("steps");
  }

  setProgress(progress) {
    this.progress = progress;
    this.heardAt = performance.now();
    this.loads.push(progress);
    if (this.loads.length > MOST_LOADS) this.loads.shift();
    this.#changed("progress");
  }

  setLedger(ledger) {
    this.ledger = ledger;
    this.#changed("ledger");
  }

  setDrawing(version) {
    if (version === this.drawing) return;
    this.drawing = version;
    this.#changed("drawing");
  }

  finish(summary) {
    this.summary = summary;
    if (Object.keys(summary.ledger || {}).length) this.ledger = summary.ledger;
    for (const kind of ["heading", "epochs", "ledger"]) this.#changed(kind);
  }

  get status() {
    return this.summary ? this.summary.status : "running";
  }

  /** Seconds since the run began. */
  get duration() {
    if (this.summary) return this.summary.duration;
    const known = [this.records[this.records.length - 1]?.elapsed || 0];
    if (this.progress) known.push(this.progress.elapsed + (this.following ? (performance.now() - this.heardAt) / 1000 : 0));
    return Math.max(...known);
  }

  /** When the run began, in seconds since 1970. */
  get startSeconds() {
    return Date.parse(this.info.started) / 1000 || 0;
  }

  /** Seconds by which the clocks of the run are ahead of UTC. */
  get zone() {
    const parts = /([+-])(\d\d):(\d\d)$/.exec(this.info.started);
    return parts ? (parts[1] === "-" ? -60 : 60) * (60 * parts[2] + Number(parts[3])) : 0;
  }

  /** Epochs, and the seconds at which they ended; a resumed run counts on. */
  get epochClock() {
    let [before, last] = [0, 0];
    const seconds = this.records.map(({ elapsed }) => {
      if (elapsed < last) before += last;
      last = elapsed || 0;
      return before + last;
    });
    return { steps: this.records.map(({ epoch }) => epoch), seconds };
  }

  #tick(clock) {
    const { steps, seconds } = this.clock;
    (clock?.steps || []).forEach((step, index) => {
      if (steps.length && step <= steps[steps.length - 1]) return;
      steps.push(step);
      seconds.push(clock.seconds[index]);
    });
  }

  #take(record) {
    // A run that was started again in its folder repeats the epochs after its checkpoint.
    const repeated = this.records.findIndex(({ epoch }) => epoch >= record.epoch);
    if (repeated >= 0) {
      const before = this.records.splice(0).slice(0, repeated);
      this.series.clear();
      for (const one of before) this.#take(one);
    }
    this.records.push(record);
    for (const name of Object.keys(record.metrics)) record.metrics[name] = measured(record.metrics[name]);
    const own = ["lr", "grad_norm"].filter((name) => name in record);
    for (const name of own) record[name] = measured(record[name]);
    const further = own.filter((name) => !Object.hasOwn(record.metrics, name)).map((name) => [name, record[name]]);
    for (const [name, value] of [...Object.entries(record.metrics), ...further]) {
      let series = this.series.get(name);
      if (!series) this.series.set(name, (series = new Series(name, "epoch")));
      series.add(record.epoch, value);
    }
    (record.ranks?.each || []).forEach(({ loss, scalars }, rank) => {
      for (const [name, value] of Object.entries({ loss, ...scalars })) {
        const ranks = this.series.get(name)?.ranks;
        if (ranks) (ranks[rank] ||= new Series(`${name} of rank ${rank}`, "epoch")).add(record.epoch, measured(value));
      }
    });
  }

  #curve(name) {
    let curve = this.curves.get(name);
    if (!curve) this.curves.set(name, (curve = new Series(name, "step")));
    return curve;
  }

  #changed(kind) {
    this.newsAt = performance.now();
    for (const listener of this.#listeners) listener(kind);
  }
}

/** One quantity over epochs or steps. */
class Series {
  /** `unit` is what `xs` counts: "epoch" or "step". */
  constructor(name, unit) {
    this.name = name;
    this.unit = unit;
    this.goal = goalOf(name);
    this.xs = [];
    this.ys = [];
    this.best = null;
    this.min = Infinity;
    this.max = -Infinity;
    this.detail = null;
    /** The same of each rank, if there are several. */
    this.ranks = [];
  }

  add(x, y) {
    this.xs.push(x);
    this.ys.push(y);
    if (!Number.isFinite(y)) return;
    this.min = Math.min(this.min, y);
    this.max = Math.max(this.max, y);
    const better = !this.best || (this.goal === "min" ? y < this.best.y : y > this.best.y);
    if (this.goal && this.unit === "epoch" && better) this.best = { x, y };
  }

  /** Add the points behind the last one. */
  append(xs, ys) {
    let last = this.xs.length ? this.xs[this.xs.length - 1] : -Infinity;
    for (let index = 0; index < xs.length; index++) {
      if (xs[index] > last) this.add((last = xs[index]), measured(ys[index]));
    }
    if (this.xs.length > MOST_POINTS) [this.xs, this.ys] = thinned(this.xs, this.ys, MOST_POINTS / 2);
  }

  replace(xs, ys) {
    const [oldXs, oldYs] = [this.xs, this.ys];
    [this.xs, this.ys] = [[], []];
    this.append(xs, ys);
    this.append(oldXs, oldYs);
  }

  /** The points to draw for a range of x; finer ones, where they were fetched for it. */
  within(range) {
    const { detail } = this;
    if (range && detail && detail.range[0] <= range[0] && detail.range[1] >= range[1]) return detail;
    return this;
  }

  /** Limits of the values without outliers. */
  get limits() {
    if (this.limited?.count !== this.ys.length) {
      this.limited = { count: this.ys.length, ...robustLimits(this.ys.filter(Number.isFinite)) };
    }
    return this.limited;
  }

  get last() {
    const end = this.xs.length - 1;
    return { x: this.xs[end], y: this.ys[end] };
  }

  /** Value at x; undefined where there is none. */
  at(x) {
    const index = nearestIndex(this.xs, x);
    return this.xs[index] === x ? this.ys[index] : undefined;
  }
}

/** At most about `most` points that draw the same picture: of every run the extremes and a gap. */
function thinned(xs, ys, most) {
  const width = Math.ceil(xs.length / Math.max(1, most / 2));
  const [keptXs, keptYs] = [[], []];
  for (let start = 0; start < xs.length; start += width) {
    const kept = new Set();
    let [low, high, broken] = [-1, -1, -1];
    for (let index = start; index < Math.min(start + width, xs.length); index++) {
      if (!Number.isFinite(ys[index])) broken = index;
      else {
        if (low < 0 || ys[index] < ys[low]) low = index;
        if (high < 0 || ys[index] > ys[high]) high = index;
      }
    }
    for (const index of [low, high, broken]) if (index >= 0) kept.add(index);
    for (const index of [...kept].sort((a, b) => a - b)) {
      keptXs.push(xs[index]);
      keptYs.push(ys[index]);
    }
  }
  return [keptXs, keptYs];
}

/** Whether less ("min") or more ("max") of a metric is better, judged by its name; null if unclear. */
function goalOf(name) {
  const words = name.replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase().split(/[^\p{L}\p{N}]+/u);
  if (words.some((word) => LOWER_IS_BETTER.has(word))) return "min";
  if (words.some((word) => HIGHER_IS_BETTER.has(word))) return "max";
  return null;
}

/** Curves share an axis if the largest values differ by at most this factor; the second keeps them together. */
const [JOIN, STAY] = [8, 24];

/**
 * What shares a chart: losses whose ranges fit; scores of one range; everything else alone.
 *
 * `before` maps names to the chart that they had, so that a curve does not move back and forth
 * while a run goes on; it is brought up to date.
 */
function chartGroups(all, before = new Map()) {
  const groups = new Map();
  for (const series of all) {
    const [kind, title] = kindOf(series);
    const key = kind === "min" ? lossKey(series, groups, before) : kind;
    before.set(series.name, key);
    if (!groups.has(key)) groups.set(key, { key, kind, title, series: [] });
    groups.get(key).series.push(series);
  }
  const losses = [...groups.values()].filter(({ kind }) => kind === "min");
  for (const group of groups.values()) {
    const names = group.series.map((one) => one.name);
    if (names.length === 1) [group.title] = names;
    else if (group.kind === "min" && losses.length > 1) group.title = names.length > 3 ? `${names[0]} and ${names.length - 1} more` : names.join(", ");
  }
  const rank = (group) => ["min", "unit", "percent"].indexOf(group.kind) >>> 0;
  return [...groups.values()].sort((a, b) => rank(a) - rank(b));
}

function kindOf({ name, goal, limits: { low, high } }) {
  if (goal === "min") return ["min", "Loss"];
  if (goal === "max" && low >= 0 && high <= 1) return ["unit", "Scores"];
  if (goal === "max" && low >= 0 && high <= 100) return ["percent", "Scores, %"];
  return [`metric ${name}`, name];
}

/** The chart of a loss: the first whose curves are about as large, else its own. */
function lossKey(series, groups, before) {
  const size = ({ limits: { low, high } }) => Math.max(Math.abs(low), Math.abs(high));
  const own = size(series);
  for (const { key, kind, series: members } of groups.values()) {
    if (kind !== "min") continue;
    const factor = before.get(series.name) === key ? STAY : JOIN;
    const fits = members.every((one) => {
      const [less, more] = [own, size(one)].sort((a, b) => a - b);
      return !Number.isFinite(more) || less === 0 || more / less <= factor;
    });
    if (fits) return key;
  }
  return `min ${series.name}`;
}
