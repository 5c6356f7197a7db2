"use strict";
/* Curves on a canvas, and small ones as SVG. */

const SVG = document.getElementById("mark").namespaceURI;
const DASHES = [[], [7, 4], [2, 4]];

function svgElement(tag, attributes = {}) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** A run with more points than this per pixel, which go up and down by more pixels than that per pixel, fills an area. */
const [DENSE, JAGGED] = [0.5, 4];

/** Of a run that fills an area: one upright bar per pixel, as [x, top, bottom]. */
function bars(run, width) {
  const made = [];
  let [x, end] = run[0];
  const bar = (at, low, high) => made.push([at, low - width / 2, high + width / 2]);
  for (let index = 0; index < run.length; ) {
    const [nextX, nextY] = run[index];
    const pixel = Math.floor(nextX);
    const between = (at) => end + ((nextY - end) * (at - x)) / (nextX - x);
    for (let at = Math.floor(x) + 1; at < pixel; at++) {
      const ends = [between(at), between(at + 1)];
      bar(at, Math.min(...ends), Math.max(...ends));
    }
    // The line comes from the pixel before, so this bar begins where that one ended.
    let [low, high] = [end, end];
    for (; index < run.length && Math.floor(run[index][0]) === pixel; index++) {
      [x, end] = run[index];
      [low, high] = [Math.min(low, end), Math.max(high, end)];
    }
    bar(pixel, low, high);
  }
  return made;
}

/** Whether bars show the run as well as a line; a jagged line takes the browser thirty times as long. */
function fillsArea(run) {
  const pixels = run[run.length - 1][0] - run[0][0] + 1;
  if (run.length < DENSE * pixels) return false;
  let travelled = 0;
  for (let index = 1; index < run.length; index++) travelled += Math.abs(run[index][1] - run[index - 1][1]);
  return travelled > JAGGED * pixels;
}

/** Draw runs of points; a run of one point becomes a dot, one that fills an area a band of bars. */
function strokeRuns(context, runs, { color, width, dash = [], alpha = 1 }) {
  context.save();
  Object.assign(context, { strokeStyle: color, lineWidth: width, lineJoin: "round", lineCap: "round", globalAlpha: alpha });
  context.setLineDash(dash);
  const bands = runs.filter((run) => run.length > 1 && fillsArea(run));
  context.beginPath();
  for (const run of runs) {
    if (run.length < 2 || bands.includes(run)) continue;
    context.moveTo(run[0][0], run[0][1]);
    for (let index = 1; index < run.length; index++) context.lineTo(run[index][0], run[index][1]);
  }
  context.stroke();
  context.setLineDash([]);
  context.fillStyle = color;
  for (const run of bands) {
    for (const [x, top, bottom] of bars(run, width)) context.fillRect(x, top, 1, bottom - top);
  }
  for (const run of runs) if (run.length === 1) disc(context, run[0][0], run[0][1], 3, color);
  context.restore();
}

/** A small curve without axes; `range` fixes what its bottom and top mean. */
function sparkline(values, { width, height, range = null, area = false }) {
  const svg = svgElement("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const finite = values.filter(Number.isFinite);
  if (!finite.length) return svg;
  const limits = robustLimits(finite);
  const [low, high] = range || [limits.low, limits.high];
  const x = (index) => (values.length > 1 ? (index / (values.length - 1)) * width : width);
  const share = (value) => Math.min(1, Math.max(0, (value - low) / (high - low)));
  const y = (value) => (high > low ? height - 1 - share(value) * (height - 2) : height / 2);
  const points = values.map((value, index) => [x(index), Number.isFinite(value) ? y(value) : null]);
  for (const run of curveRuns(points, width)) {
    const line = run.length > 1 ? run : [[0, run[0][1]], [width, run[0][1]]].slice(values.length > 1 ? 1 : 0);
    if (area && line.length > 1) {
      const [start, end] = [line[0][0], line[line.length - 1][0]];
      svg.append(svgElement("path", { class: "area", d: `${pathOf(line)}L${end} ${height}L${start} ${height}Z` }));
    }
    svg.append(svgElement("path", { d: pathOf(line) }));
  }
  return svg;
}
