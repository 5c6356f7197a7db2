"use strict";
/* What the x of a chart counts: epochs or steps, time since the start, or the time of day. */

const NICE_SECONDS = [
  0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
];

const AXIS_KINDS = ["number", "relative", "wall"];

/** One x axis. `unit` is "epoch" or "step", `kind` one of AXIS_KINDS. */
class Axis {
  #model;
  #log = false;

  constructor(model, unit, kind) {
    this.#model = model;
    this.unit = unit;
    this.kind = kind;
  }

  /** Whether distances are logarithmic; the time of day has no such scale. */
  get log() {
    return this.#log && this.kind !== "wall";
  }

  /** To be called with what the reader chose. */
  space(log) {
    this.#log = log;
  }

  /** Whether the axis has a place for x. */
  has(x) {
    return !this.log || x > 0;
  }

  get numbers() {
    return this.kind === "number";
  }

  /** The word below the axis, with its unit. */
  get title() {
    return { number: this.unit, relative: "time", wall: "clock" }[this.kind];
  }

  /** The head of a column with values of x. */
  get head() {
    return { number: this.unit === "step" ? "Step" : "Epoch", relative: "Since the start", wall: "Time" }[this.kind];
  }

  /** One x in a few characters. */
  label(x) {
    if (this.numbers) return formatWhole(Math.round(x));
    return this.kind === "relative" ? formatDuration(x) : clockText(x, this.#model.zone, 1);
  }

  /** One x in words. */
  say(x) {
    if (this.numbers) return `${this.unit} ${x}`;
    return this.kind === "relative" ? `after ${formatDuration(x)}` : `at ${this.label(x)}`;
  }

  scale(first, last, wanted) {
    const even = this.#evenScale(first, last, wanted);
    if (!this.log || first === last) return even;
    const { ticks, ...scale } = logScale(first, last, wanted, true);
    const shown = this.numbers ? ticks.filter(([at]) => Number.isInteger(Number(at.toFixed(6)))) : ticks;
    // A short range may hold no power of ten: round numbers then stand where they belong.
    if (shown.length < 3) return { ...scale, ticks: even.ticks };
    const label = (at) => (this.numbers ? formatWhole(at) : spanText(at, at < 10 ? 0.1 : 1));
    return { ...scale, ticks: shown.map(([at]) => [at, label(at)]) };
  }

  /** A scale on which equal distances are equal differences. */
  #evenScale(first, last, wanted) {
    if (this.numbers) return wholeScale(first, last, wanted);
    const text = (at, step) => (this.kind === "relative" ? spanText(at, step) : clockText(at, this.#model.zone, step));
    return timeScale(first, last, wanted, text, this.kind === "wall" ? this.#model.zone : 0);
  }

  /** The curve with its x on this axis; its values are shared. */
  of(series) {
    if (this.numbers) return series;
    const times = (xs) => this.#times(xs);
    const made = Object.create(series);
    made.unit = "time";
    made.xs = times(series.xs);
    made.best = series.best && { ...series.best, x: times([series.best.x])[0] };
    const { detail } = series;
    made.detail = detail && { range: times(detail.range), xs: times(detail.xs), ys: detail.ys };
    return made;
  }

  /** Steps at the ends of a range of x. */
  steps(range) {
    if (this.numbers) return range;
    const start = this.kind === "wall" ? this.#model.startSeconds : 0;
    const { steps, seconds } = this.#model.clock;
    return range.map((x) => between(seconds, steps, x - start));
  }

  #times(xs) {
    const start = this.kind === "wall" ? this.#model.startSeconds : 0;
    const { steps, seconds } = this.unit === "step" ? this.#model.clock : this.#model.epochClock;
    return xs.map((x) => start + between(steps, seconds, x));
  }
}

/** The y at x on a line through points with rising xs; it goes on to the left, down to 0, and ends at the right. */
function between(xs, ys, x) {
  const index = nearestIndex(xs, x);
  if (index < 0) return 0;
  const [a, b] = xs[index] <= x ? [index, index + 1] : [index - 1, index];
  if (a < 0) return xs.length > 1 ? Math.max(0, ys[0] - ((ys[1] - ys[0]) * (xs[0] - x)) / (xs[1] - xs[0])) : ys[0];
  if (b >= xs.length || xs[b] === xs[a]) return ys[a];
  return ys[a] + ((ys[b] - ys[a]) * (x - xs[a])) / (xs[b] - xs[a]);
}

/** Ticks at round moments; `shift` seconds lie between the zone of the labels and UTC. */
function timeScale(first, last, wanted, text, shift) {
  if (first === last) return { ticks: [[first, text(first, 1)]], at: () => 0.5, back: () => first };
  const raw = (last - first) / Math.max(1, wanted);
  const day = 86400;
  const step = NICE_SECONDS.find((one) => one >= raw) || Math.ceil(raw / day) * day;
  const ticks = [];
  for (let at = Math.ceil((first + shift) / step - 1e-9) * step - shift; at <= last; at += step) ticks.push([at, text(at, step)]);
  return { ticks, ...evenly(first, last) };
}

/** 90 -> "1m30s"; with the digits that ticks `step` seconds apart need. */
function spanText(seconds, step) {
  if (seconds < 1e-9) return "0s";
  if (step < 0.1) return `${Math.round(seconds * 1000)}ms`;
  if (seconds < 60) return `${step < 1 ? seconds.toFixed(1) : Math.round(seconds)}s`;
  if (seconds < 86400) return formatDuration(seconds + 1e-6).replace(/(\d)m00s$/, "$1m").replace(/h00m$/, "h");
  return `${Number((seconds / 86400).toFixed(1))}d`;
}

/** The time of day of seconds since 1970 in a zone `zone` seconds ahead of UTC. */
function clockText(at, zone, step) {
  const date = new Date(Math.round((at + zone) * 1000));
  const two = (part) => String(part).padStart(2, "0");
  if (step >= 86400) return `${date.getUTCDate()} ${MONTHS[date.getUTCMonth()]}`;
  const time = `${two(date.getUTCHours())}:${two(date.getUTCMinutes())}`;
  if (step >= 60) return time;
  const part = step < 1 ? `.${String(date.getUTCMilliseconds()).padStart(3, "0")}` : "";
  return `${time}:${two(date.getUTCSeconds())}${part}`;
}
