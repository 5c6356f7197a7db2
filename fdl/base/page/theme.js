"use strict";
/* The button of the theme: as the system has it, light, or dark; all pages of one place remember it. */

/** Let a button change the theme; `changed()` is called after each change, also one of the system. */
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
  const tell = () => {
    ink.forget();
    changed();
  };
  const apply = (name) => {
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    button.textContent = `Theme: ${name}`;
    button.dataset.now = name;
    tell();
  };
  const kept = storage((store) => store.getItem("flodl-theme"));
  apply(names.includes(kept) ? kept : "auto");
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tell);
  button.addEventListener("click", () => {
    const next = names[(names.indexOf(button.dataset.now) + 1) % names.length];
    apply(next);
    storage((store) => store.setItem("flodl-theme", next));
  });
}
