"use strict";
/* Starts the page: embedded records into the model, the model onto the page, then the stream. */

/** A page that shows one thing: the sections of a run stay away. */
function alone(title) {
  for (const part of document.querySelectorAll("main > section, #status, footer")) part.hidden = true;
  place("label").textContent = title;
}

function startTimeline({ title, timeline }) {
  alone(title);
  const view = (window.timeline = new TimelineView(place("timeline"), timeline));
  place("facts").replaceChildren(...place("timeline-facts").childNodes);
  startTheme(place("theme"), () => view.later());
}

/** Some curves by epoch as one chart; null stands for a value that is not finite. */
function startCurves({ title, unit, curves }) {
  alone(title);
  place("facts").textContent = `by epoch ${unit}`;
  const series = curves.map(({ name, values }) => {
    const made = new Series(name, "epoch");
    values.forEach((value, index) => made.add(index + 1, value));
    return Object.assign(made, { best: null });
  });
  const chart = new LineChart(title, new Focus(new Axis("epoch")), { smoothing: 0 });
  document.querySelector("main").append(chart.card);
  chart.show(title, series);
  startTheme(place("theme"), () => chart.redraw());
}

function start() {
  const data = JSON.parse(place("data").textContent);
  if (data.timeline) return startTimeline(data);
  if (data.curves) return startCurves(data);
  const { written, live, media, ...run } = data;
  const model = new RunModel();
  const view = new RunView(model, live ? "" : written);
  // For scripts and tests: what a canvas shows cannot be read from the page.
  window.flodl = { model, view };
  view.media = new MediaSection(media, live);
  startTheme(place("theme"), () => {
    view.repaint();
    view.media.repaint();
    window.timeline.later?.();
  });
  if (live?.buttons && !run.finish) view.acts = new ActButtons(place("acts"));
  if (live) model.setDrawing(live.drawing);
  model.load(run);
  if (live && !run.finish) new LiveFeed(model, view, live).start();
  if (live?.timeline) ask("timeline.json").then((found) => (window.timeline = new TimelineView(place("timeline"), found)), () => {});
}

start();
