"use strict";
/* Ranges that outliers do not flatten, whole numbers, and no more points than there are pixels. */

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

/** Whole numbers, exactly from `first` to `last`, which may lie between two of them. */
function wholeScale(first, last, wanted) {
  if (first === last) return { ticks: [[first, formatWhole(first)]], at: () => 0.5, back: () => first };
  const raw = Math.max(1, (last - first) / Math.max(1, wanted));
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw) * power;
  const ticks = [];
  for (let at = Math.ceil(first / step) * step; at <= last; at += step) ticks.push([at, formatWhole(at)]);
  const near = step * 0.6;
  const [low, high] = [Math.ceil(first), Math.floor(last)];
  if (low <= high && (!ticks.length || ticks[0][0] - low > near)) ticks.unshift([low, formatWhole(low)]);
  if (high - ticks[ticks.length - 1]?.[0] > near) ticks.push([high, formatWhole(high)]);
  return { ticks, ...evenly(first, last) };
}

/** Position of a number from `first` (0) to `last` (1), and back. */
function evenly(first, last) {
  return { at: (x) => (x - first) / (last - first), back: (part) => first + part * (last - first) };
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
