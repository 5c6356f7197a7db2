"use strict";
/* From values to positions along an axis, and the ticks there. */

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
