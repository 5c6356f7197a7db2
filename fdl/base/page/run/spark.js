"use strict";
/* Small curves as SVG. */

const SVG = document.getElementById("mark").namespaceURI;

function svgElement(tag, attributes = {}) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** A small curve without axes; `range` fixes what its bottom and top mean. */
function sparkline(values, { width, height, range = null, area = false }) {
  const svg = svgElement("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const finite = values.filter(Number.isFinite);
  if (!finite.length) return svg;
  const limits = robustLimits(finite);
  const [low, high] = range || [limits.low, limits.high];
  const share = (value) => Math.min(1, Math.max(0, (value - low) / (high - low)));
  const y = (value) => (high > low ? height - 1 - share(value) * (height - 2) : height / 2);
  const [xs, ys] = values.length > width ? thinned([...values.keys()], values, width) : [[...values.keys()], values];
  for (const run of runsOf(xs.map((x, index) => [(x / (values.length - 1)) * width, ys[index]]))) {
    const points = run.map(([x, value]) => [x.toFixed(1), y(value).toFixed(1)].join(" "));
    // One value alone is a level; a lone value between gaps is a short stroke.
    const line = run.length > 1 ? `M${points.join("L")}` : values.length > 1 ? `M${points[0]}h0` : `M0 ${y(values[0])}H${width}`;
    if (area && run.length > 1) {
      svg.append(svgElement("path", { class: "area", d: `${line}L${run[run.length - 1][0]} ${height}L${run[0][0]} ${height}Z` }));
    }
    svg.append(svgElement("path", { d: line }));
  }
  return svg;
}

/** Runs of points [x, y] without a gap. */
function runsOf(points) {
  const runs = [[]];
  for (const point of points) {
    if (Number.isFinite(point[1])) runs[runs.length - 1].push(point);
    else if (runs[runs.length - 1].length) runs.push([]);
  }
  return runs.filter((run) => run.length);
}
