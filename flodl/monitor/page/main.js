"use strict";
/* Starts the page: embedded records into the model, the model onto the page, then the stream. */

function start() {
  const { written, live, media, ...run } = JSON.parse(place("data").textContent);
  const model = new RunModel();
  const view = new RunView(model, live ? "" : written);
  // For scripts and tests: what a canvas shows cannot be read from the page.
  window.flodl = { model, view };
  view.media = new MediaSection(media, live);
  startTheme(place("theme"), () => {
    view.repaint();
    view.media.repaint();
  });
  if (live?.buttons && !run.finish) view.acts = new ActButtons(place("acts"));
  if (live) model.setDrawing(live.drawing);
  model.load(run);
  if (live && !run.finish) new LiveFeed(model, view, live.session).start();
}

start();
