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

  const page = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const theme = () => page.dataset.theme || (dark.matches ? "dark" : "light");
  const paint = (name) => {
    page.dataset.theme = name;
    redraw();
  };
  const toggle = document.getElementById("theme");
  toggle.hidden = false;
  toggle.addEventListener("click", () => paint(theme() === "dark" ? "light" : "dark"));
  dark.addEventListener("change", redraw);

  // Paper is white.
  let onScreen = "";
  window.addEventListener("beforeprint", () => {
    onScreen = theme();
    paint("light");
  });
  window.addEventListener("afterprint", () => paint(onScreen));
})();
