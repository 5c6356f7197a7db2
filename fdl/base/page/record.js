"use strict";
/* One run in full. Takes the same messages as every sink, from the page's own data or from a live stream. */

const LOWER_IS_BETTER = new Set("loss losses err error errors mse mae rmse mape nll bce ce xent kl ppl perplexity bpc bpb wer cer fid regret distance".split(" "));
const HIGHER_IS_BETTER = new Set("acc accuracy top1 top5 auc auroc auprc f1 precision recall score bleu rouge map miou iou dice psnr ssim r2 reward return mcc kappa hits success".split(" "));

/** Points of one curve by step on the page; above, the past is thinned. */
const MOST_POINTS = 8192;
const MOST_LOADS = 300;

class RunRecord {
  #changed;
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
  clock = { steps: [], seconds: [] };
  drawing = 0;
  summary = null;
  /** Whether a live stream brings news, so that time goes on between them. */
  following = false;

  /** `changed()` is called after every change. */
  constructor(changed) {
    this.#changed = () => {
      this.newsAt = performance.now();
      changed();
    };
  }

  /** Take a whole run. */
  load({ info, records = [], series = [], ledger = {}, finish = null, clock, progress = null, loads = [] }) {
    Object.assign(this, { info, ledger, progress, loads, summary: finish });
    this.#tick(clock);
    for (const record of records) this.#take(record);
    this.addSteps(series);
  }

  open(info) {
    const { metadata } = this.info;
    // Equal facts stay the same object, so that what the reader opened there is not made anew.
    this.info = JSON.stringify(metadata) === JSON.stringify(info.metadata) ? { ...info, metadata } : info;
    this.#changed();
  }

  record(record) {
    this.#take(record);
    this.#changed();
  }

  addSteps(series, clock) {
    this.#tick(clock);
    for (const { name, steps, values } of series) this.#curve(name).append(steps, values);
    this.#changed();
  }

  /** Take curves from their beginning; what the page has beyond their end stays. */
  replaceSteps(series, clock) {
    if (clock) this.clock = clock;
    for (const { name, steps, values } of series) this.#curve(name).replace(steps, values);
    this.#changed();
  }

  setProgress(progress) {
    this.progress = progress;
    this.heardAt = performance.now();
    this.loads.push(progress);
    if (this.loads.length > MOST_LOADS) this.loads.shift();
    this.#changed();
  }

  /** Take what has one value at a time: the ledger, the version of the drawing. */
  set(values) {
    Object.assign(this, values);
    this.#changed();
  }

  finish(summary) {
    this.summary = summary;
    if (Object.keys(summary.ledger || {}).length) this.ledger = summary.ledger;
    this.#changed();
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

  /** The names of curves over an axis, those that are judged by their name as they came. */
  names(kind) {
    if (kind === "epoch") return [...this.series.keys()];
    const timed = kind !== "step" || this.clock.steps.length > 1;
    return [...new Set([...this.curves.keys(), ...(timed ? this.series.keys() : [])])];
  }

  /** A metric with its x on an axis: by step where it has such values, else by epoch; its values are shared. */
  curve(name, kind) {
    const own = this.curves.get(name);
    if (kind === "epoch") return this.series.get(name);
    if (kind === "step" && own) return own;
    const [series, { steps, seconds }] = own ? [own, this.clock] : [this.series.get(name), this.epochClock];
    const start = kind === "wall" ? this.startSeconds : 0;
    const at = (x) => {
      const second = between(steps, seconds, x);
      return kind === "step" ? between(this.clock.seconds, this.clock.steps, second) : start + second;
    };
    return series?.moved(at);
  }

  /** Steps at the ends of a range of an axis. */
  stepsOf(range, kind) {
    const start = kind === "wall" ? this.startSeconds : 0;
    return kind === "step" ? range : range.map((x) => between(this.clock.seconds, this.clock.steps, x - start));
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
    for (const name of ["lr", "grad_norm"]) {
      if (name in record && !Object.hasOwn(record.metrics, name)) record.metrics[name] = measured(record[name]);
    }
    for (const [name, value] of Object.entries(record.metrics)) {
      if (!this.series.has(name)) this.series.set(name, new Series(name, "epoch"));
      this.series.get(name).add(record.epoch, value);
    }
    (record.ranks?.each || []).forEach(({ loss, scalars }, rank) => {
      for (const [name, value] of Object.entries({ loss, ...scalars })) {
        const ranks = this.series.get(name)?.ranks;
        if (ranks) (ranks[rank] ||= new Series(`${name} of rank ${rank}`, "epoch")).add(record.epoch, measured(value));
      }
    });
  }

  #curve(name) {
    if (!this.curves.has(name)) this.curves.set(name, new Series(name, "step"));
    return this.curves.get(name);
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

  /** `unit` is what `xs` counts: "epoch", "step" or "time". */
  constructor(name, unit) {
    Object.assign(this, { name, unit, goal: goalOf(name) });
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

  /** The same with other positions; `at(x)` gives them. */
  moved(at) {
    const { best, detail } = this;
    return Object.assign(Object.create(this), {
      unit: "time",
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
  const [keptXs, keptYs] = [[], []];
  for (let start = 0; start < xs.length; start += width) {
    let [low, high, broken] = [-1, -1, -1];
    for (let index = start; index < Math.min(start + width, xs.length); index++) {
      if (!Number.isFinite(ys[index])) broken = index;
      else {
        if (low < 0 || ys[index] < ys[low]) low = index;
        if (high < 0 || ys[index] > ys[high]) high = index;
      }
    }
    const kept = new Set([low, high, broken].filter((index) => index >= 0));
    for (const index of [...kept].sort((a, b) => a - b)) {
      keptXs.push(xs[index]);
      keptYs.push(ys[index]);
    }
  }
  return [keptXs, keptYs];
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
