"use strict";
/* Axes of steps and times, ranges that outliers do not flatten, and smoothing. */

/** Ticks of an axis of steps, epochs, seconds or Unix time. */
function axisScale(kind, first, last, wanted, log) {
  if (log && kind !== "wall") {
    const scale = logScale(Math.max(first, kind === "time" ? 0.01 : 1), Math.max(last, first + 1e-9), wanted, true);
    // A short range may hold no power of ten: round numbers then stand where they belong.
    if (scale.ticks.length < 3) return { ...scale, ticks: axisScale(kind, first, last, wanted, false).ticks };
    const whole = kind === "step" || kind === "epoch";
    const round = scale.ticks.filter(([at]) => !whole || Number.isInteger(Number(at.toFixed(6))));
    return { ...scale, ticks: round.map(([at]) => [at, positionLabel(kind, at, last - first)]) };
  }
  const unit = kind === "time" || kind === "wall" ? timeUnit(last - first, wanted) : 1;
  const shift = kind === "wall" ? -new Date(first * 1000).getTimezoneOffset() * 60 : 0;
  const scale = linearScale((first + shift) / unit, (last + shift) / unit, wanted, true);
  const whole = kind === "step" || kind === "epoch";
  const ticks = scale.ticks
    .map(([at]) => at * unit - shift)
    .filter((at) => !whole || Number.isInteger(Number(at.toFixed(6))))
    .map((at) => [at, positionLabel(kind, at, last - first)]);
  const range = last - first || 1;
  return { low: first, high: last, ticks, at: (x) => (x - first) / range, back: (part) => first + part * range };
}

/** Ticks of time are multiples of seconds, minutes, hours or days. */
function timeUnit(span, wanted) {
  const rough = span / Math.max(1, wanted);
  return rough >= 86400 ? 86400 : rough >= 3600 ? 3600 : rough >= 60 ? 60 : 1;
}

function positionLabel(kind, at, span) {
  if (kind === "time") return at === 0 ? "0" : formatDuration(at);
  if (kind === "wall") return formatClock(at, span);
  return Number.isInteger(at) || Math.abs(at) > 100 ? formatWhole(at) : String(Number(at.toFixed(2)));
}

/** The range of most values: a few outliers far away do not count. Values are finite numbers. */
function robustRange(values) {
  if (!values.length) return null;
  const ordered = Float64Array.from(values).sort();
  const at = (part) => ordered[Math.round(part * (ordered.length - 1))];
  let [low, high] = [ordered[0], ordered[ordered.length - 1]];
  const [q1, q5, q95, q99] = [at(0.01), at(0.05), at(0.95), at(0.99)];
  const room = Math.max(q95 - q5, 1e-12 * Math.max(Math.abs(q5), Math.abs(q95)));
  // A curve that falls from a high start keeps it; what lies ten times as far away is cut off.
  if (high > q95 + 10 * room) high = Math.min(high, Math.max(q99, q95) + room);
  if (low < q5 - 10 * room) low = Math.max(low, Math.min(q1, q5) - room);
  return { low, high, cut: high < ordered[ordered.length - 1] || low > ordered[0] };
}

/** Exponential smoothing that depends on the distance of points, not on how many there are. */
function smoothed(x, y, amount) {
  if (!amount || x.length < 3) return y;
  const made = new Float64Array(y.length);
  const span = (x[x.length - 1] - x[0]) / 400 || 1;
  let [sum, weight] = [0, 0];
  for (let index = 0; index < y.length; index++) {
    const passed = index ? Math.max(0, x[index] - x[index - 1]) / span : 1;
    const keep = amount ** Math.min(passed, 400);
    if (Number.isFinite(y[index])) {
      sum = keep * sum + (1 - keep) * y[index];
      weight = keep * weight + (1 - keep);
    }
    made[index] = weight ? sum / weight : NaN;
  }
  return made;
}
