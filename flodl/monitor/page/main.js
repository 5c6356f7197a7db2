"use strict";
/* Starts the page: embedded records into the model, the model onto the page, then the stream. */

function startTheme(button, changed) {
  const names = ["auto", "light", "dark"];
  // A browser may forbid storage to local files; the choice then lasts as long as the page.
  const storage = (use) => {
    try {
      return use(window.localStorage);
    } catch {
      return null;
    }
  };
  const apply = (name) => {
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    button.textContent = `Theme: ${name}`;
    button.dataset.now = name;
    changed();
  };
  const kept = storage((store) => store.getItem("flodl-theme"));
  apply(names.includes(kept) ? kept : "auto");
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  button.addEventListener("click", () => {
    const next = names[(names.indexOf(button.dataset.now) + 1) % names.length];
    apply(next);
    storage((store) => store.setItem("flodl-theme", next));
  });
}

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
