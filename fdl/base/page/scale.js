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
  return Array.from({ length: Math.max(0, count || 0) }, (_, index) => (first + index) * step);
}

/** A linear scale over [low, high]; `snug` keeps the ends, else they widen to round ticks. */
function linearScale(low, high, wanted, snug = false) {
  if (low === high) {
    const room = Math.abs(low) * 0.1 || 1;
    [low, high] = [low - room, high + room];
  }
  const step = roundStep(high - low, wanted);
  const at = (value) => (value - low) / (high - low);
  if (!Number.isFinite(step) || step < Math.max(Math.abs(low), Math.abs(high)) * 1e-14) {
    return { low, high, at, ticks: [low, high].map((value) => [value, formatNumber(value)]) };
  }
  if (!snug) [low, high] = [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
  return { low, high, at, ticks: multiples(step, low, high).map((value) => [value, tickLabel(value, step)]) };
}

/** A logarithmic scale over [low, high], both above zero; `snug` keeps the ends. */
function logScale(low, high, wanted, snug = false) {
  let [bottom, top] = [Math.log10(low), Math.log10(high)];
  if (top - bottom < 0.05 && !snug) [bottom, top] = [bottom - 0.15, top + 0.15];
  if (top === bottom) [bottom, top] = [bottom - 0.5, top + 0.5];
  const pad = snug ? 0 : (top - bottom) * 0.03;
  [bottom, top] = [bottom - pad, top + pad];
  const decades = top - bottom;
  const factors = decades < 1 ? [1, 1.5, 2, 3, 4, 5, 7] : decades < 2.5 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / Math.max(2, wanted)));
  const ticks = [];
  for (let power = Math.floor(bottom); power <= Math.ceil(top); power++) {
    if (power % every) continue;
    for (const factor of factors) {
      const position = Math.log10(factor) + power;
      if (position >= bottom - 1e-9 && position <= top + 1e-9) {
        ticks.push([factor * 10 ** power, tickLabel(factor * 10 ** power, 10 ** power)]);
      }
    }
  }
  return { low: 10 ** bottom, high: 10 ** top, ticks, at: (value) => (Math.log10(value) - bottom) / decades };
}

function tickLabel(value, step) {
  if (Math.abs(value) < step * 1e-6) return "0";
  const size = Math.max(Math.abs(value), step);
  if (size >= 1e5 || step < 1e-4) return Number(value.toPrecision(4)).toExponential().replace("e+", "e");
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return value.toFixed(Number.isInteger(+(step * 10 ** decimals).toFixed(6)) ? decimals : decimals + 1);
}

/** What the x of a chart counts: steps, epochs, seconds since the start, or Unix time in a zone. */
class Axis {
  /**
   * `kind` is "step", "epoch", "time" or "wall"; clocks are `zone` seconds ahead of UTC. Distances
   * may be logarithmic, but not those of the time of day.
   */
  constructor(kind, zone = 0, log = false) {
    Object.assign(this, { kind, zone, log: log && kind !== "wall" });
  }

  /** Whether the axis has a place for x. */
  has(x) {
    return !this.log || x > 0;
  }

  get numbers() {
    return this.kind === "step" || this.kind === "epoch";
  }

  /** The word below the axis. */
  get title() {
    return this.kind === "wall" ? "clock" : this.kind;
  }

  /** One x in a few characters. */
  label(x) {
    if (this.numbers) return Number.isInteger(x) || Math.abs(x) > 100 ? formatWhole(x) : String(Number(x.toFixed(2)));
    return this.kind === "time" ? formatDuration(x) : clockText(x, this.zone, 1);
  }

  /** One x in words. */
  say(x) {
    return `${{ step: "step", epoch: "epoch", time: "after", wall: "at" }[this.kind]} ${this.label(x)}`;
  }

  /** Ticks as [x, label] over a range; about `wanted` of them. */
  ticks(first, last, wanted) {
    const even = this.#evenTicks(first, last, wanted);
    if (!this.log || first === last) return even;
    const found = logScale(first, last, wanted, true).ticks.map(([at]) => at);
    const shown = this.numbers ? found.filter((at) => Number.isInteger(Number(at.toFixed(6)))) : found;
    // A short range may hold no power of ten: round numbers then stand where they belong.
    if (shown.length < 3) return even;
    return shown.map((at) => [at, this.numbers ? formatWhole(at) : spanText(at, at < 10 ? 0.1 : 1)]);
  }

  /** Ticks at equal distances. */
  #evenTicks(first, last, wanted) {
    if (first === last) return [[first, this.label(first)]];
    if (this.numbers) return wholeTicks(first, last, wanted);
    const raw = (last - first) / Math.max(1, wanted);
    const step = NICE_SECONDS.find((one) => one >= raw) || Math.ceil(raw / 86400) * 86400;
    const shift = this.kind === "wall" ? this.zone : 0;
    const text = (at) => (this.kind === "time" ? spanText(at, step) : clockText(at, this.zone, step, last - first));
    return multiples(step, first + shift, last + shift).map((at) => [at - shift, text(at - shift)]);
  }
}

/** An axis of parts from 0 to 1: of a rate, or with named ticks [part, label]. */
class PartAxis extends Axis {
  named = null;

  constructor(name = "") {
    super("part");
    this.name = name;
  }

  get title() {
    return this.name;
  }

  label(x) {
    return x.toFixed(3);
  }

  say(x) {
    return `${this.name} ${this.label(x)}`;
  }

  ticks(first, last, wanted) {
    return this.named?.filter(([at]) => at >= first && at <= last) ?? linearScale(first, last, wanted, true).ticks;
  }
}

/** Whole numbers from `first` to `last`, with the ends where there is room for them. */
function wholeTicks(first, last, wanted) {
  const step = roundStep(last - first, wanted, [1, 2, 5, 10], 1);
  const ticks = multiples(step, first, last).map((at) => [at, formatWhole(at)]);
  const near = step * 0.6;
  const [low, high] = [Math.ceil(first), Math.floor(last)];
  if (low <= high && (!ticks.length || ticks[0][0] - low > near)) ticks.unshift([low, formatWhole(low)]);
  if (high - ticks[ticks.length - 1]?.[0] > near) ticks.push([high, formatWhole(high)]);
  return ticks;
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
