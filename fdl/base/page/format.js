"use strict";
/* Numbers as people read them, settings, and rows of a file. The rules are those of the terminal, with more digits for small metrics. */

const DASH = "–";
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/** A number as people read it; what is not finite comes as a number or as text. */
function formatNumber(value) {
  if (value === null || value === undefined) return DASH;
  if (typeof value === "string") return value;
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-3 || size >= 1e15) return value.toExponential(2).replace("e+", "e");
  return size < 0.1 ? value.toPrecision(4) : value.toFixed(size < 100 ? 4 : 2);
}

/** 4.2ms, 42ms, 1.2s, 2m05s, 3h12m, 5d04h */
function formatDuration(seconds) {
  if (!Number.isFinite(seconds) || seconds < 0) return DASH;
  if (seconds < 0.01) return `${Number((1000 * seconds).toPrecision(2))}ms`;
  if (seconds < 1) return `${Math.min(999, Math.round(seconds * 1000))}ms`;
  if (seconds < 60) return `${(Math.floor(seconds * 10 + 1e-9) / 10).toFixed(1)}s`;
  const whole = Math.floor(seconds);
  const two = (part) => String(part).padStart(2, "0");
  if (seconds < 3600) return `${Math.floor(whole / 60)}m${two(whole % 60)}s`;
  if (seconds < 48 * 3600) return `${Math.floor(whole / 3600)}h${two(Math.floor((whole % 3600) / 60))}m`;
  return `${Math.floor(whole / 86400)}d${two(Math.floor((whole % 86400) / 3600))}h`;
}

/** "2026-05-04T13:37:00+02:00" -> "4 May 2026, 13:37", in the time zone of the text. */
function formatMoment(iso) {
  const parts = /^(\d+)-(\d+)-(\d+)T(\d+:\d+)/.exec(iso || "");
  return parts ? `${Number(parts[3])} ${MONTHS[parts[2] - 1]} ${parts[1]}, ${parts[4]}` : DASH;
}

/** 1234567 -> "1,234,567" */
function formatWhole(value) {
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, ",");
}

/** A measured value; null stands for one that is not finite. */
function formatMetric(value) {
  return value === null ? "not finite" : formatNumber(value);
}

/** A measured value of a record, in which nan and infinity are text. */
function measured(value) {
  return typeof value === "string" ? Number(value.replace("inf", "Infinity")) : (value ?? NaN);
}

function formatBytes(count) {
  let power = 0;
  for (; Math.round(count) >= 1024 && power < 3; power++) count /= 1024;
  return `${power < 3 ? Math.round(count) : count.toFixed(1)} ${["B", "KB", "MB", "GB"][power]}`;
}

/** 1234567 -> "1.23M" */
function formatCount(count) {
  return new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }).format(count).replace("K", "k");
}

function formatPercent(value) {
  return `${Math.round(value)} %`;
}

/** A setting as it was written: 0.001, 3e-4, true, adam. */
function formatSetting(value) {
  if (value === undefined) return DASH;
  if (value === null) return "none";
  if (typeof value === "number" && value !== 0 && Math.abs(value) < 1e-4) return value.toExponential().replace("e+", "e");
  return String(value);
}

function counted(count, word) {
  return `${formatWhole(count)} ${word}${count === 1 ? "" : "s"}`;
}

/** Rows of comma-separated values. A cell that a spreadsheet would execute begins with a quote. */
function csvText(rows) {
  const csvCell = (cell) => {
    let text = cell === null || cell === undefined ? "" : String(cell);
    if (typeof cell === "string" && /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text))) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((cells) => `${cells.map(csvCell).join(",")}\n`).join("");
}
