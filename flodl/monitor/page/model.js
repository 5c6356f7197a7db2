"use strict";
/* The run as data. Takes the same three messages as every sink (open, record, finish), from the
   embedded JSON or from a live stream, and knows nothing of the page. */

const LOWER_IS_BETTER = new Set(
  ("loss losses err error errors mse mae rmse mape nll bce ce xent kl ppl perplexity bpc bpb wer cer fid " +
    "regret distance").split(" "),
);
const HIGHER_IS_BETTER = new Set(
  ("acc accuracy top1 top5 auc auroc auprc f1 precision recall score bleu rouge map miou iou dice psnr " +
    "ssim r2 reward return mcc kappa hits success").split(" "),
);

class RunModel {
  #listeners = [];

  constructor() {
    this.info = { total: 0, started: "", label: "", run: "", hash: "", metadata: {}, svg: "" };
    this.records = [];
    this.series = new Map();
    this.summary = null;
  }

  /** Call `listener` after every change. */
  watch(listener) {
    this.#listeners.push(listener);
  }

  open(info) {
    this.info = info;
    this.#changed();
  }

  record(record) {
    this.#take(record);
    this.#changed();
  }

  finish(summary) {
    this.summary = summary;
    this.#changed();
  }

  /** Take a whole history with one change at its end. */
  load({ info, records, finish }) {
    this.info = info;
    for (const record of records) this.#take(record);
    this.summary = finish;
    this.#changed();
  }

  get status() {
    return this.summary ? this.summary.status : "running";
  }

  /** Seconds since the run began. */
  get duration() {
    if (this.summary) return this.summary.duration;
    return this.records.length ? this.records[this.records.length - 1].elapsed : 0;
  }

  #take(record) {
    this.records.push(record);
    for (const [name, value] of Object.entries(record.metrics)) {
      let series = this.series.get(name);
      if (!series) this.series.set(name, (series = new Series(name, this.series.size)));
      series.add(record.epoch, value);
    }
  }

  #changed() {
    for (const listener of this.#listeners) listener(this);
  }
}

/** One metric over the epochs; a value that was not finite is null. */
class Series {
  constructor(name, index) {
    this.name = name;
    this.index = index;
    this.goal = goalOf(name);
    this.points = [];
    this.best = null;
    this.min = Infinity;
    this.max = -Infinity;
  }

  add(epoch, value) {
    const point = { epoch, value };
    this.points.push(point);
    if (value === null) return;
    this.min = Math.min(this.min, value);
    this.max = Math.max(this.max, value);
    const better = !this.best || (this.goal === "min" ? value < this.best.value : value > this.best.value);
    if (this.goal && better) this.best = point;
  }

  get last() {
    return this.points[this.points.length - 1];
  }

  /** Value at an epoch: a number, null where it was not finite, undefined where there is none. */
  at(epoch) {
    let low = 0;
    let high = this.points.length - 1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      if (this.points[middle].epoch === epoch) return this.points[middle].value;
      if (this.points[middle].epoch < epoch) low = middle + 1;
      else high = middle - 1;
    }
    return undefined;
  }
}

/** Whether less ("min") or more ("max") of a metric is better, judged by its name; null if unclear. */
function goalOf(name) {
  const words = name.replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase().split(/[^\p{L}\p{N}]+/u);
  if (words.some((word) => LOWER_IS_BETTER.has(word))) return "min";
  if (words.some((word) => HIGHER_IS_BETTER.has(word))) return "max";
  return null;
}

/** Metrics that share a chart: all losses; all scores of one range; everything else alone. */
function chartGroups(model) {
  const groups = new Map();
  for (const series of model.series.values()) {
    let [key, title] = [`metric ${series.name}`, series.name];
    if (series.goal === "min") [key, title] = ["min", "Loss"];
    else if (series.goal === "max" && series.min >= 0 && series.max <= 1) [key, title] = ["unit", "Scores"];
    else if (series.goal === "max" && series.min >= 0 && series.max <= 100) [key, title] = ["percent", "Scores, %"];
    if (!groups.has(key)) groups.set(key, { key, title, series: [] });
    groups.get(key).series.push(series);
  }
  for (const group of groups.values()) {
    if (group.series.length === 1) group.title = group.series[0].name;
  }
  const rank = (group) => ["min", "unit", "percent"].indexOf(group.key) >>> 0;
  return [...groups.values()].sort((a, b) => rank(a) - rank(b));
}
