"use strict";
/* Settings and rows of a file, beside the numbers of all pages. */

/** A setting as it was written: 0.001, 3e-4, true, adam. */
function formatSetting(value) {
  if (value === undefined) return DASH;
  if (value === null) return "none";
  if (typeof value === "number" && value !== 0 && Math.abs(value) < 1e-4) return value.toExponential().replace("e+", "e");
  return String(value);
}

/** A value of a metric; "nan" and "inf" come as text. */
function formatMeasured(value) {
  return typeof value === "string" ? value : formatNumber(value);
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
