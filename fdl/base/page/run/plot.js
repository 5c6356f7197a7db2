"use strict";
/* The metrics of a graph by epoch, as one chart. */

function startPlot({ series: found, unit }) {
  place("unit").textContent = unit;
  const series = found.map(({ name, values }) => {
    const ys = values; // null stands for a value that is not finite
    const xs = ys.map((_, index) => index + 1);
    const made = { name, unit: "epoch", xs, ys, best: null, last: { x: xs.length, y: ys[ys.length - 1] } };
    return { ...made, within: () => made };
  });
  const title = place("title").textContent;
  const chart = new LineChart(title, new Focus(new Axis("epoch")), { smoothing: 0 });
  place("plot").append(chart.card);
  chart.show(title, series);
  startTheme(place("theme"), () => chart.redraw());
  return chart;
}

const chart = startPlot(JSON.parse(place("data").textContent));
