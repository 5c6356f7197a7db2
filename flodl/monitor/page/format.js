"use strict";
/* Numbers as people read them, beside those of all pages. */

const NAMED_NUMBERS = { nan: NaN, inf: Infinity, "-inf": -Infinity };

/** A measured value of a record, in which nan and infinity are text. */
function measured(value) {
  return typeof value === "string" ? NAMED_NUMBERS[value] : value === null ? NaN : value;
}

function formatBytes(count) {
  const [kib, mib, gib] = [1024, 1024 ** 2, 1024 ** 3];
  if (count < kib) return `${Math.round(count)} B`;
  if (count < mib - kib / 2) return `${Math.round(count / kib)} KB`;
  if (count < gib - mib / 2) return `${Math.round(count / mib)} MB`;
  return `${(count / gib).toFixed(1)} GB`;
}

/** 1234567 -> "1.23M" */
function formatCount(count) {
  for (const [size, unit] of [[1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(count) >= size) return `${Number((count / size).toPrecision(3))}${unit}`;
  }
  return String(Number(count.toPrecision(3)));
}

function formatPercent(value) {
  return `${Math.round(value)} %`;
}
