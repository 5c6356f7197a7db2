"use strict";
/* Groups of runs as mean and band. */

const GRID = 240;

/** For each group, the mean of its runs and their range or deviation, over a common grid. */
function groupLines(curves, groups, deviates) {
  const made = new Map(groups.order.map((key) => [key, []]));
  for (const curve of curves) made.get(groups.of.get(curve.run.id))?.push(curve);
  const lines = [];
  for (const [key, members] of made) {
    if (!members.length) continue;
    const grid = gridOf(members);
    const [y, low, high] = [0, 0, 0].map(() => new Float64Array(grid.length).fill(NaN));
    const rows = members.map((one) => resampled(one.x, one.y, grid));
    for (let index = 0; index < grid.length; index++) {
      const found = rows.map((row) => row[index]).filter(Number.isFinite);
      if (!found.length) continue;
      const mean = found.reduce((sum, value) => sum + value, 0) / found.length;
      const squares = found.reduce((sum, value) => sum + (value - mean) ** 2, 0);
      const spread = Math.sqrt(squares / Math.max(1, found.length - 1));
      y[index] = mean;
      low[index] = deviates ? mean - spread : Math.min(...found);
      high[index] = deviates ? mean + spread : Math.max(...found);
    }
    lines.push({ group: key, name: groups.name(key), color: groups.color(key), members, x: grid, y, low, high });
  }
  return lines;
}

/** Common positions for several curves: their own if they are the same, else an even grid. */
function gridOf(curves) {
  const longest = curves.reduce((best, one) => (one.x.length > best.x.length ? one : best));
  if (longest.x.length <= GRID && curves.every((one) => one.x.every((at, index) => at === longest.x[index]))) return longest.x;
  const first = Math.min(...curves.map((one) => one.x[0]));
  const last = Math.max(...curves.map((one) => one.x[one.x.length - 1]));
  return Float64Array.from({ length: GRID }, (_, index) => first + ((last - first) * index) / (GRID - 1));
}

/** The values of a curve at other positions; NaN outside its range. */
function resampled(x, y, grid) {
  const made = new Float64Array(grid.length).fill(NaN);
  const end = x.length - 1;
  let index = 0;
  for (let at = 0; at < grid.length; at++) {
    if (grid[at] < x[0] || grid[at] > x[end]) continue;
    while (index < end && x[index + 1] <= grid[at]) index++;
    const part = index < end ? (grid[at] - x[index]) / (x[index + 1] - x[index] || 1) : 0;
    made[at] = part ? y[index] + part * (y[index + 1] - y[index]) : y[index];
  }
  return made;
}
