"use strict";
/* From values to positions along an axis, the ticks there, limits that outliers do not flatten, and smoothing. */

const NICE_SECONDS = [
  0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
];

/** A factor times a power of ten, about `wanted` of which make a length. */
function roundStep(length, wanted, factors = [1, 2, 2.5, 5, 10], least = 0) {
  const raw = Math.max(least, length / Math.max(1, wanted));
  const power = 10 ** Math.floor(Math.log10(raw));
  return factors.find((factor) => factor * power >= raw * 0.999) * power;
}

/** The multiples of a step from `low` to `high`. */
function multiples(step, low, high) {
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: Math.min(1000, Math.max(0, count || 0)) }, (_, index) => (first + index) * step);
}

/** Round numbers from `low` to `high`, about `wanted` of them; on a logarithmic scale with round factors between them. */
function roundNumbers(low, high, wanted, log = false) {
  if (!log) return multiples(roundStep(high - low, wanted), low, high);
  const decades = Math.log10(high / low);
  const factors = decades < 1 ? [1, 1.5, 2, 3, 4, 5, 7] : decades < 2.5 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / Math.max(2, wanted)));
  const powers = multiples(every, Math.floor(Math.log10(low)), Math.log10(high));
  const found = powers.flatMap((power) => factors.map((factor) => factor * 10 ** power));
  return found.filter((at) => at >= low * (1 - 1e-9) && at <= high * (1 + 1e-9));
}

/** The ends of an axis for values from `low` to `high`, and its ticks. */
function roomyScale(low, high, wanted, log) {
  if (log) {
    const room = high / low < 1.12 ? 1.4 : (high / low) ** 0.03;
    [low, high] = [low / room, high * room];
  } else {
    const least = high - low > Math.abs(high) * 1e-12 ? 0 : Math.abs(low) * 0.1 || 1;
    const step = roundStep(Math.min(Number.MAX_VALUE, high - low + 2 * least), wanted);
    [low, high] = [Math.floor((low - least) / step + 1e-9) * step, Math.ceil((high + least) / step - 1e-9) * step];
  }
  return { low, high, ticks: roundNumbers(low, high, wanted, log).map((at) => [at, tickLabel(at)]) };
}

function tickLabel(value) {
  const size = Math.abs(value);
  const short = Number(value.toPrecision(12));
  return size > 0 && (size >= 1e5 || size < 1e-4) ? short.toExponential().replace("e+", "e") : String(short);
}

/** What the x of a chart counts: steps, epochs, seconds since the start, Unix time in a zone, or any value. */
class Axis {
  /** Ticks [x, label] where numbers mean nothing. */
  named = null;

  /**
   * `kind` is "step", "epoch", "time", "wall", or "value" of what `title` names; clocks are `zone`
   * seconds ahead of UTC. Distances may be logarithmic, but not those of the time of day.
   */
  constructor(kind, { zone = 0, log = false, title = kind === "wall" ? "clock" : kind } = {}) {
    Object.assign(this, { kind, zone, title, log: log && kind !== "wall" });
  }

  /** Whether the axis has a place for x. */
  has(x) {
    return !this.log || x > 0;
  }

  get numbers() {
    return this.kind === "step" || this.kind === "epoch";
  }

  /** One x in a few characters. */
  label(x) {
    if (this.numbers) return Number.isInteger(x) || Math.abs(x) > 100 ? formatWhole(x) : String(Number(x.toFixed(2)));
    if (this.kind === "value") return x.toFixed(3);
    return this.kind === "time" ? formatDuration(x) : clockText(x, this.zone, 1);
  }

  /** One x in words. */
  say(x) {
    return `${{ time: "after", wall: "at" }[this.kind] ?? this.title} ${this.label(x)}`;
  }

  /** Ticks as [x, label] over a range; about `wanted` of them. */
  ticks(first, last, wanted) {
    if (this.named) return this.named.filter(([at]) => at >= first && at <= last);
    if (first === last) return [[first, this.label(first)]];
    if (this.kind === "value") return roundNumbers(first, last, wanted, this.log).map((at) => [at, tickLabel(at)]);
    const round = this.log ? roundNumbers(first, last, wanted, true) : [];
    const shown = this.numbers ? round.filter((at) => Number.isInteger(Number(at.toFixed(6)))) : round;
    // A short range may hold no power of ten: numbers at equal distances then stand where they belong.
    if (shown.length < 3) return this.#evenTicks(first, last, wanted);
    return shown.map((at) => [at, this.#tick(at, at < 10 ? 0.1 : 1)]);
  }

  #evenTicks(first, last, wanted) {
    const raw = (last - first) / Math.max(1, wanted);
    const step = this.numbers ? roundStep(last - first, wanted, [1, 2, 5, 10], 1) : NICE_SECONDS.find((one) => one >= raw) || Math.ceil(raw / 86400) * 86400;
    const shift = this.kind === "wall" ? this.zone : 0;
    const places = multiples(step, first + shift, last + shift).map((at) => at - shift);
    // The first and the last whole number are named where there is room for them.
    const ends = this.numbers ? [Math.ceil(first), Math.floor(last)].filter((end) => end >= first && end <= last && places.every((at) => Math.abs(at - end) > 0.6 * step)) : [];
    return [...places, ...ends].map((at) => [at, this.#tick(at, step, last - first)]);
  }

  #tick(at, step, span = 0) {
    if (this.numbers) return formatWhole(at);
    return this.kind === "time" ? spanText(at, step) : clockText(at, this.zone, step, span);
  }
}

/** 90 -> "1m30s"; with the digits that ticks `step` seconds apart need. */
function spanText(seconds, step) {
  if (seconds < 1e-9) return "0s";
  if (step < 0.1) return `${Math.round(seconds * 1000)}ms`;
  if (seconds < 60) return `${step < 1 ? seconds.toFixed(1) : Math.round(seconds)}s`;
  if (seconds < 86400) return formatDuration(seconds + 1e-6).replace(/(\d)m00s$/, "$1m").replace(/h00m$/, "h");
  return `${Number((seconds / 86400).toFixed(1))}d`;
}

/** The time of day of seconds since 1970 in a zone `zone` seconds ahead of UTC; over days, with the day. */
function clockText(at, zone, step, span = 0) {
  const date = new Date(Math.round((at + zone) * 1000));
  const day = `${date.getUTCDate()} ${MONTHS[date.getUTCMonth()]}`;
  const time = date.toISOString().slice(11, step >= 60 ? 16 : step < 1 ? 23 : 19);
  if (step >= 86400) return day;
  return step >= 60 && span >= 86400 ? `${day} ${time}` : time;
}

/**
 * Lowest and highest value without those few that lie far from all others.
 *
 * Without this, one value of 1e30 would make a flat line of all others. `share` of the values at
 * either end may be left out; they are far if they lie `far` times the range of the others away.
 */
function robustLimits(values, share = 0.02, far = values.length < 20 ? 1000 : 100) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  const count = values.length;
  if (count < 3 || low === high) return { low, high, outside: 0 };
  const every = Math.max(1, Math.floor(count / 1024));
  const sample = Float64Array.from({ length: Math.ceil(count / every) }, (_, index) => values[index * every]).sort();
  const left = Math.max(1, Math.floor(sample.length * share));
  const [lower, upper] = [sample[left], sample[sample.length - 1 - left]];
  const room = far * (upper - lower || Math.abs(upper) * 0.1 || 1);
  if (low >= lower - room && high <= upper + room) return { low, high, outside: 0 };
  [low, high] = [Infinity, -Infinity];
  let outside = 0;
  for (const value of values) {
    if (value < lower - room || value > upper + room) outside += 1;
    else [low, high] = [Math.min(low, value), Math.max(high, value)];
  }
  return { low, high, outside };
}

/** Exponential smoothing that depends on the distance of points, not on how many there are; gaps stay gaps. */
function smoothed(x, y, amount) {
  if (!amount || x.length < 3) return y;
  const span = (x[x.length - 1] - x[0]) / 400 || 1;
  let [sum, weight] = [0, 0];
  return Float64Array.from(y, (value, index) => {
    const passed = index ? Math.max(0, x[index] - x[index - 1]) / span : 1;
    const keep = amount ** Math.min(passed, 400);
    if (!Number.isFinite(value)) return NaN;
    sum = keep * sum + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    return sum / weight;
  });
}

/** Index of the element of rising `xs` that is nearest to `x`; -1 if there is none. */
function nearestIndex(xs, x) {
  let [low, high] = [0, xs.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - xs[low - 1] <= xs[low] - x ? low - 1 : Math.min(low, xs.length - 1);
}
