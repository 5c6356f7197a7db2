"use strict";
/* From values to positions: ranges, ticks, and no more points than there are pixels. */

/** Values that a limit may leave out, at either end, and how far away they must be for it. */
const OUTLIER_SHARE = 0.02;
const [FAR, FAR_OF_FEW] = [100, 1000];

/**
 * Lowest and highest value without those few that lie far from all others.
 *
 * Without this, one value of 1e30 would make a flat line of all others.
 */
function robustLimits(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  const count = values.length;
  if (count < 3 || low === high) return { low, high, outside: 0 };
  const every = Math.max(1, Math.floor(count / 1024));
  const sample = Float64Array.from({ length: Math.ceil(count / every) }, (_, index) => values[index * every]).sort();
  const left = Math.max(1, Math.floor(sample.length * OUTLIER_SHARE));
  const [lower, upper] = [sample[left], sample[sample.length - 1 - left]];
  const room = upper - lower || Math.abs(upper) * 0.1 || 1;
  const far = room * (count < 20 ? FAR_OF_FEW : FAR);
  if (low >= lower - far && high <= upper + far) return { low, high, outside: 0 };
  [low, high] = [Infinity, -Infinity];
  let outside = 0;
  for (const value of values) {
    if (value < lower - far || value > upper + far) outside += 1;
    else [low, high] = [Math.min(low, value), Math.max(high, value)];
  }
  return { low, high, outside };
}

/** A linear scale over [low, high], widened to round ticks. */
function linearScale(low, high, wanted) {
  if (low === high) {
    const room = Math.abs(low) * 0.1 || 1;
    [low, high] = [low - room, high + room];
  }
  const raw = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw * 0.999) * power;
  const [first, last] = [Math.floor(low / step + 1e-9), Math.ceil(high / step - 1e-9)];
  if (!Number.isFinite(step) || last - first > 50) {
    return { low, high, ticks: [low, high].map((at) => [at, formatMetric(at)]), at: (v) => (v - low) / (high - low) };
  }
  const ticks = [];
  for (let index = first; index <= last; index++) ticks.push([index * step, tickLabel(index * step, step)]);
  const [bottom, top] = [first * step, last * step];
  return { low: bottom, high: top, ticks, at: (value) => (value - bottom) / (top - bottom) };
}

/** A logarithmic scale over [low, high], both above zero. */
function logScale(low, high, wanted) {
  let [bottom, top] = [Math.log10(low), Math.log10(high)];
  if (top - bottom < 0.05) [bottom, top] = [bottom - 0.15, top + 0.15];
  const pad = (top - bottom) * 0.03;
  [bottom, top] = [bottom - pad, top + pad];
  const decades = top - bottom;
  const factors = decades < 1 ? [1, 1.5, 2, 3, 4, 5, 7] : decades < 2.5 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / Math.max(2, wanted)));
  const ticks = [];
  for (let power = Math.floor(bottom); power <= Math.ceil(top); power++) {
    if (power % every) continue;
    for (const factor of factors) {
      const at = Math.log10(factor) + power;
      if (at >= bottom && at <= top) ticks.push([factor * 10 ** power, tickLabel(factor * 10 ** power, 10 ** power)]);
    }
  }
  return { low: 10 ** bottom, high: 10 ** top, ticks, at: (value) => (Math.log10(value) - bottom) / decades };
}

/** Whole numbers, exactly from `first` to `last`, which may lie between two of them. */
function wholeScale(first, last, wanted) {
  if (first === last) return { ticks: [[first, wholeLabel(first)]], at: () => 0.5 };
  const raw = Math.max(1, (last - first) / Math.max(1, wanted));
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw) * power;
  const ticks = [];
  for (let at = Math.ceil(first / step) * step; at <= last; at += step) ticks.push([at, wholeLabel(at)]);
  const near = step * 0.6;
  const [low, high] = [Math.ceil(first), Math.floor(last)];
  if (low <= high && (!ticks.length || ticks[0][0] - low > near)) ticks.unshift([low, wholeLabel(low)]);
  if (high - ticks[ticks.length - 1]?.[0] > near) ticks.push([high, wholeLabel(high)]);
  return { ticks, at: (x) => (x - first) / (last - first) };
}

/** 1234567 -> "1,234,567" */
function wholeLabel(value) {
  return String(value).replace(/\B(?=(\d{3})+$)/g, ",");
}

function tickLabel(value, step) {
  if (Math.abs(value) < step * 1e-6) return "0";
  const size = Math.max(Math.abs(value), step);
  if (size >= 1e5 || step < 1e-4) return Number(value.toPrecision(4)).toExponential().replace("e+", "e");
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return value.toFixed(Number.isInteger(+(step * 10 ** decimals).toFixed(6)) ? decimals : decimals + 1);
}

/** Runs of points [x, y]; a null y ends a run. Of many points per pixel only the extremes remain. */
function curveRuns(points, width) {
  const runs = [];
  let run = [];
  for (const point of points) {
    if (point[1] !== null) run.push(point);
    else if (run.length) run = void runs.push(run) || [];
  }
  if (run.length) runs.push(run);
  return points.length > 4 * width ? runs.map(extremes) : runs;
}

function extremes(run) {
  const kept = [];
  for (let start = 0; start < run.length; ) {
    const pixel = Math.floor(run[start][0]);
    let [low, high, end] = [start, start, start];
    for (; end < run.length && Math.floor(run[end][0]) === pixel; end++) {
      if (run[end][1] < run[low][1]) low = end;
      if (run[end][1] > run[high][1]) high = end;
    }
    const wanted = new Set([start, low, high, end - 1]);
    for (const index of [...wanted].sort((a, b) => a - b)) kept.push(run[index]);
    start = end;
  }
  return kept;
}

function pathOf(run) {
  return run.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}
