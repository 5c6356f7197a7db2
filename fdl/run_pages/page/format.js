"use strict";
/* Numbers as people read them, by the rules of the terminal lines. */

const DASH = "–";

function formatNumber(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return DASH;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (size < 1e-3 || size >= 1e15) return value.toExponential(2).replace("e+", "e");
  if (size < 0.1) return value.toPrecision(4);
  return value.toFixed(size < 100 ? 4 : 2);
}

/** A setting as it was written: 0.001, 3e-4, true, adam. */
function formatSetting(value) {
  if (value === undefined) return DASH;
  if (value === null) return "none";
  if (typeof value === "number" && value !== 0 && Math.abs(value) < 1e-4) return value.toExponential().replace("e+", "e");
  return String(value);
}

function formatDuration(seconds) {
  if (seconds === null || !Number.isFinite(seconds) || seconds < 0) return DASH;
  if (seconds < 60) return seconds < 10 ? `${seconds.toFixed(1)}s` : `${Math.floor(seconds)}s`;
  const whole = Math.floor(seconds);
  const two = (part) => String(part).padStart(2, "0");
  if (seconds < 3600) return `${Math.floor(whole / 60)}m${two(whole % 60)}s`;
  if (seconds < 48 * 3600) return `${Math.floor(whole / 3600)}h${two(Math.floor((whole % 3600) / 60))}m`;
  return `${Math.floor(whole / 86400)}d${two(Math.floor((whole % 86400) / 3600))}h`;
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/** "2026-05-04T13:37:00+02:00" -> "4 May 2026, 13:37", in the time zone of the text. */
function formatMoment(iso) {
  const parts = /^(\d+)-(\d+)-(\d+)T(\d+:\d+)/.exec(iso || "");
  return parts ? `${Number(parts[3])} ${MONTHS[parts[2] - 1]} ${parts[1]}, ${parts[4]}` : DASH;
}

/** A Unix time on an axis: hours and minutes within days, else the day. */
function formatClock(seconds, span) {
  const at = new Date(seconds * 1000);
  const two = (part) => String(part).padStart(2, "0");
  const time = `${two(at.getHours())}:${two(at.getMinutes())}`;
  if (span < 300) return `${time}:${two(at.getSeconds())}`;
  const day = `${at.getDate()} ${MONTHS[at.getMonth()]}`;
  return span < 86400 ? time : span < 5 * 86400 ? `${day} ${time}` : day;
}

/** 1234567 -> "1,234,567" */
function formatWhole(value) {
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, ",");
}

function counted(count, word) {
  return `${formatWhole(count)} ${word}${count === 1 ? "" : "s"}`;
}

/** One row of comma-separated values. A cell that a spreadsheet would execute begins with a quote. */
function csvRow(cells) {
  return cells
    .map((cell) => {
      let text = cell === null || cell === undefined ? "" : String(cell);
      if (typeof cell === "string" && /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text))) text = `'${text}`;
      return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    })
    .join(",");
}
