"use strict";
/* Starts the page: embedded records into the model, the model onto the page. */

function startTheme(button) {
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
  };
  const kept = storage((store) => store.getItem("flodl-theme"));
  apply(names.includes(kept) ? kept : "auto");
  button.addEventListener("click", () => {
    const next = names[(names.indexOf(button.dataset.now) + 1) % names.length];
    apply(next);
    storage((store) => store.setItem("flodl-theme", next));
  });
}

function start() {
  startTheme(document.getElementById("theme"));
  const { written, ...run } = JSON.parse(document.getElementById("data").textContent);
  const model = new RunModel();
  const view = new ReportView(model, written);
  model.watch(() => view.render());
  model.load(run);
}

start();
