"use strict";
/* Starts the page: embedded records into the model, the model onto the page, then the stream. */

/** A page that only shows a timeline: everything else stays away. */
function startTimeline(title, timeline) {
  for (const part of document.querySelectorAll("main > section, #status, footer")) part.hidden = true;
  place("label").textContent = title;
  const view = (window.timeline = new TimelineView(place("timeline"), timeline));
  place("facts").replaceChildren(...place("timeline-facts").childNodes);
  startTheme(place("theme"), () => view.later());
}

function start() {
  const { written, live, media, title, timeline, ...run } = JSON.parse(place("data").textContent);
  if (timeline) return startTimeline(title, timeline);
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
