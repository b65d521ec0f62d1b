"use strict";

(() => {
  const timelines = new Map();
  for (const root of document.querySelectorAll(".timeline")) {
    const data = JSON.parse(document.getElementById(root.dataset.from).textContent);
    timelines.set(root.id, new Timeline(root, data));
  }
  const redraw = () => timelines.forEach((timeline) => timeline.draw());

  // Shows a stretch of time that a table speaks of.
  for (const button of document.querySelectorAll("button.jump")) {
    button.addEventListener("click", () => {
      const timeline = timelines.get(button.dataset.timeline);
      timeline.focusOn(Number(button.dataset.start), Number(button.dataset.start) + Number(button.dataset.length));
      timeline.root.scrollIntoView({ block: "center" });
      timeline.root.focus({ preventScroll: true });
    });
  }

  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const toggle = document.getElementById("theme");
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    const now = document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
    redraw();
  });
  dark.addEventListener("change", redraw);
  window.addEventListener("beforeprint", redraw);
})();
