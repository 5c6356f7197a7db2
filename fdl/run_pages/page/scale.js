"use strict";
/* From values to positions: ranges that outliers do not flatten, ticks, and their labels. */

/** A linear scale over [low, high]; `snug` keeps the ends, else they widen to round ticks. */
function linearScale(low, high, wanted, snug = false) {
  if (low === high) {
    const room = Math.abs(low) * 0.1 || 1;
    [low, high] = [low - room, high + room];
  }
  const raw = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw * 0.999) * power;
  const at = (value) => (value - low) / (high - low);
  const back = (part) => low + part * (high - low);
  if (!Number.isFinite(step) || step < Math.max(Math.abs(low), Math.abs(high)) * 1e-14) {
    return { low, high, at, back, ticks: [low, high].map((value) => [value, formatNumber(value)]) };
  }
  if (!snug) [low, high] = [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++) {
    ticks.push([index * step, tickLabel(index * step, step)]);
  }
  return { low, high, at, back, ticks };
}

/** A logarithmic scale over [low, high], both above zero. */
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
  return {
    low: 10 ** bottom,
    high: 10 ** top,
    ticks,
    at: (value) => (Math.log10(value) - bottom) / decades,
    back: (part) => 10 ** (bottom + part * decades),
  };
}

function tickLabel(value, step) {
  if (Math.abs(value) < step * 1e-6) return "0";
  const size = Math.max(Math.abs(value), step);
  if (size >= 1e5 || step < 1e-4) return Number(value.toPrecision(4)).toExponential().replace("e+", "e");
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return value.toFixed(Number.isInteger(+(step * 10 ** decimals).toFixed(6)) ? decimals : decimals + 1);
}

/** Ticks of an axis of steps, epochs, seconds or Unix time. */
function axisScale(kind, first, last, wanted, log) {
  if (log && kind !== "wall") {
    const scale = logScale(Math.max(first, kind === "time" ? 0.01 : 1), Math.max(last, first + 1e-9), wanted, true);
    scale.ticks = scale.ticks.map(([at]) => [at, positionLabel(kind, at, last - first)]);
    return scale;
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
