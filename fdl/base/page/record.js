"use strict";
/* One run in full. Takes the same messages as every sink, from the page's own data or from a live stream. */

const LOWER_IS_BETTER = new Set("loss losses err error errors mse mae rmse mape nll bce ce xent kl ppl perplexity bpc bpb wer cer fid regret distance".split(" "));
const HIGHER_IS_BETTER = new Set("acc accuracy top1 top5 auc auroc auprc f1 precision recall score bleu rouge map miou iou dice psnr ssim r2 reward return mcc kappa hits success".split(" "));

/** Points of one curve by step on the page; above, the past is thinned. */
const MOST_POINTS = 8192;
const MOST_LOADS = 300;

class RunRecord {
  info = { total: 0, started: "", label: "", run: "", hash: "", metadata: {}, svg: "" };
  records = [];
  /** Metrics by epoch, and by step. */
  series = new Map();
  curves = new Map();
  ledger = {};
  loads = [];
  /** How far the epoch is, and when the page heard of it. */
  progress = null;
  heardAt = performance.now();
  newsAt = performance.now();
  /** Steps, and the seconds of the run at which they were logged. */
  clock = new Series("clock", "step");
  drawing = 0;
  summary = null;
  /** Whether a live stream brings news, so that time goes on between them. */
  following = false;

  /** `changed()` is called after every change. */
  constructor(changed) {
    this.changed = changed;
  }

  /** Take what is new, or a whole run. What is not named here replaces what was known: the facts, the ledger, the version of the drawing. */
  take({ records = [], series = [], clock, progress, finish, ...others }) {
    Object.assign(this, others);
    for (const record of records) this.#add(record);
    for (const { name, steps, values } of series) entry(this.curves, name, () => new Series(name, "step")).append(steps, values);
    if (clock) this.clock.append(clock.steps, clock.seconds);
    if (progress) {
      Object.assign(this, { progress, heardAt: performance.now() });
      if (!others.loads) this.loads = [...this.loads, progress].slice(-MOST_LOADS);
    }
    if (finish) {
      this.summary = finish;
      if (Object.keys(finish.ledger || {}).length) this.ledger = finish.ledger;
    }
    this.newsAt = performance.now();
    this.changed();
  }

  /** Take curves from their beginning; what the page has beyond their end stays. */
  replaceSteps(series, clock) {
    if (clock) this.clock.replace(clock.steps, clock.seconds);
    for (const { name, steps, values } of series) this.curves.get(name)?.replace(steps, values);
    this.take({ series }); // also curves that the page does not know yet
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
    const ys = this.records.map(({ elapsed }) => {
      if (elapsed < last) before += last;
      last = elapsed || 0;
      return before + last;
    });
    return { xs: this.records.map(({ epoch }) => epoch), ys };
  }

  /** The curves over an axis: those by step where there are such values, else by epoch; their values are shared. */
  over(kind) {
    if (kind === "epoch") return [...this.series.values()];
    const timed = kind !== "step" || this.clock.xs.length > 1;
    const names = new Set([...this.curves.keys(), ...(timed ? this.series.keys() : [])]);
    return [...names].map((name) => this.#moved(name, kind));
  }

  #moved(name, kind) {
    const own = this.curves.get(name);
    if (kind === "step" && own) return own;
    const [series, { xs, ys }] = own ? [own, this.clock] : [this.series.get(name), this.epochClock];
    const start = kind === "wall" ? this.startSeconds : 0;
    const at = (x) => {
      const second = between(xs, ys, x);
      return kind === "step" ? between(this.clock.ys, this.clock.xs, second) : start + second;
    };
    return series.moved(at);
  }

  /** Steps at the ends of a range of an axis. */
  stepsOf(range, kind) {
    const start = kind === "wall" ? this.startSeconds : 0;
    return kind === "step" ? range : range.map((x) => between(this.clock.ys, this.clock.xs, x - start));
  }

  #add(record) {
    // A run that was started again in its folder repeats the epochs after its checkpoint.
    const repeated = this.records.findIndex(({ epoch }) => epoch >= record.epoch);
    if (repeated >= 0) {
      const before = this.records.splice(0).slice(0, repeated);
      this.series.clear();
      for (const one of before) this.#add(one);
    }
    this.records.push(record);
    const { epoch, metrics } = record;
    for (const name of ["lr", "grad_norm"]) if (name in record && !(name in metrics)) metrics[name] = record[name];
    for (const [name, value] of Object.entries(metrics)) {
      metrics[name] = measured(value);
      entry(this.series, name, () => new Series(name, "epoch")).add(epoch, metrics[name]);
    }
    (record.ranks?.each || []).forEach(({ loss, scalars }, rank) => {
      for (const [name, value] of Object.entries({ loss, ...scalars })) {
        const ranks = this.series.get(name)?.ranks;
        if (ranks) (ranks[rank] ||= new Series(`${name} of rank ${rank}`, "epoch")).add(epoch, measured(value));
      }
    });
  }

}

/** One quantity over epochs, steps or time. */
class Series {
  xs = [];
  ys = [];
  best = null;
  min = Infinity;
  max = -Infinity;
  /** Finer points of a part: {range, xs, ys}. */
  detail = null;
  /** The same of each rank, if there are several. */
  ranks = [];

  /** `unit` is what `xs` counts at first: "epoch", "step" or "time". */
  constructor(name, unit) {
    Object.assign(this, { name, unit, goal: goalOf(name) });
  }

  add(x, y) {
    this.xs.push(x);
    this.ys.push(y);
    // A zoom beyond the end is filled by what comes.
    const { range, xs, ys } = this.detail ?? {};
    if (range && x > (xs[xs.length - 1] ?? range[0]) && x <= range[1]) {
      xs.push(x);
      ys.push(y);
    }
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

  /** The same with other positions; `at(x)` gives them. */
  moved(at) {
    const { best, detail } = this;
    return Object.assign(Object.create(this), {
      xs: this.xs.map(at),
      best: best && { ...best, x: at(best.x) },
      ranks: this.ranks.map((one) => one.moved(at)),
      detail: detail && { range: detail.range.map(at), xs: detail.xs.map(at), ys: detail.ys },
    });
  }

  /** The points to draw for a range of x; finer ones, where they were fetched for it. */
  within(range) {
    const { detail } = this;
    return range && detail && detail.range[0] <= range[0] && detail.range[1] >= range[1] ? detail : this;
  }

  get last() {
    const end = this.xs.length - 1;
    return { x: this.xs[end], y: this.ys[end] };
  }
}

/** At most about `most` points that draw the same picture: of every run the extremes and a gap. */
function thinned(xs, ys, most) {
  const width = Math.ceil(xs.length / Math.max(1, most / 2));
  const kept = [];
  for (let start = 0; start < xs.length; start += width) {
    const run = [...ys.slice(start, start + width).keys()].map((index) => start + index);
    const known = run.filter((index) => Number.isFinite(ys[index]));
    const low = known.reduce((best, index) => (ys[index] < ys[best] ? index : best), known[0]);
    const high = known.reduce((best, index) => (ys[index] > ys[best] ? index : best), known[0]);
    const gap = run.findLast((index) => !Number.isFinite(ys[index]));
    kept.push(...new Set([low, high, gap].filter((index) => index !== undefined).sort((a, b) => a - b)));
  }
  return [kept.map((index) => xs[index]), kept.map((index) => ys[index])];
}

/** The last word of a name that says what is measured, such as loss; undefined if none is known. */
function quantityOf(name) {
  const words = name.replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase().split(/[^\p{L}\p{N}]+/u);
  return words.findLast((word) => LOWER_IS_BETTER.has(word)) ?? words.findLast((word) => HIGHER_IS_BETTER.has(word));
}

/** Whether less ("min") or more ("max") of a metric is better, judged by its name; undefined if unclear. */
function goalOf(name) {
  const word = quantityOf(name);
  return word && (LOWER_IS_BETTER.has(word) ? "min" : "max");
}

/** The y at x on a line through points with rising xs; it goes on to the left, down to 0, and ends at the right. */
function between(xs, ys, x) {
  const index = nearestIndex(xs, x);
  if (index < 0) return 0;
  const [a, b] = xs[index] <= x ? [index, index + 1] : [index - 1, index];
  if (a < 0) return xs.length > 1 ? Math.max(0, ys[0] - ((ys[1] - ys[0]) * (xs[0] - x)) / (xs[1] - xs[0])) : ys[0];
  if (b >= xs.length || xs[b] === xs[a] || x === xs[a]) return ys[a];
  return ys[a] + ((ys[b] - ys[a]) * (x - xs[a])) / (xs[b] - xs[a]);
}
