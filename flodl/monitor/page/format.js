"use strict";
/* Numbers as people read them: the rules of the terminal lines, with more digits for small metrics. */

const DASH = "–";
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

function formatMetric(value) {
  if (value === undefined) return DASH;
  if (value === null) return "not finite";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e15) return value.toExponential(2).replace("e+", "e");
  if (size < 0.1) return value.toPrecision(4);
  return value.toFixed(size < 100 ? 4 : 2);
}

function formatDuration(seconds) {
  if (!Number.isFinite(seconds) || seconds < 0) return DASH;
  if (seconds < 1) return `${Math.min(999, Math.round(seconds * 1000))}ms`;
  if (seconds < 60) return `${(Math.floor(seconds * 10 + 1e-9) / 10).toFixed(1)}s`;
  const whole = Math.floor(seconds);
  const two = (part) => String(part).padStart(2, "0");
  if (seconds < 3600) return `${Math.floor(whole / 60)}m${two(whole % 60)}s`;
  return `${Math.floor(whole / 3600)}h${two(Math.floor((whole % 3600) / 60))}m`;
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

/** "2026-05-04T13:37:00+02:00" -> "4 May 2026, 13:37", in the time zone of the run. */
function formatMoment(iso) {
  const parts = /^(\d+)-(\d+)-(\d+)T(\d+:\d+)/.exec(iso || "");
  if (!parts) return "";
  return `${Number(parts[3])} ${MONTHS[parts[2] - 1]} ${parts[1]}, ${parts[4]}`;
}
