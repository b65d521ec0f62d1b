// Draws a critical path to click through. The model is that of anywidget, or one of a page without a kernel.
function render({ model, el }) {
  const path = model.get("data");
  const element = (tag, name, text) => {
    const made = document.createElement(tag);
    if (name) made.className = name;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const numberOf = new Map(path.segments.map((segment, number) => [segment.row, number]));
  const root = element("div", "traceflow-path");
  root.tabIndex = 0;
  root.dataset.lmSuppressShortcuts = "true"; // arrow keys are ours while this has the focus, not the notebook's

  const head = element("div", "head");
  head.append(element("b", "", path.title));
  for (const [kind, colour] of Object.entries(path.colours)) {
    const key = element("span", "kind", kind);
    key.style.setProperty("--kind", colour);
    head.append(key);
  }
  let zoom = 1;
  const button = (text, title, act) => {
    const made = element("button", "", text);
    made.title = title;
    made.addEventListener("click", act);
    head.append(made);
  };
  button("‹", "the segment before (left arrow)", () => choose(selected() - 1));
  button("›", "the segment after (right arrow)", () => choose(selected() + 1));
  button("−", "all of it (minus)", () => magnify(zoom / 2));
  button("+", "closer (plus)", () => magnify(zoom * 2));

  const drawing = element("div", "drawing"), labels = element("div"), tracks = element("div", "tracks");
  const tracksOf = new Map();
  for (const place of path.places) {
    const label = element("div", "label", place), track = element("div", "track");
    label.title = place;
    labels.append(label);
    tracks.append(track);
    tracksOf.set(place, track);
  }
  drawing.append(labels, tracks);
  const bars = path.segments.map((segment, number) => {
    const bar = element("button");
    bar.tabIndex = -1; // the arrow keys go through all of them
    bar.title = `${segment.name}\n${segment.kind}, ${segment.when}`;
    bar.style.left = `${100 * segment.start_ns / path.whole_ns}%`;
    bar.style.width = `${100 * segment.duration_ns / path.whole_ns}%`;
    bar.style.setProperty("--kind", path.colours[segment.kind]);
    bar.addEventListener("click", () => { choose(number); root.focus({ preventScroll: true }); });
    tracksOf.get(segment.who).append(bar);
    return bar;
  });

  const panel = element("div", "told");
  panel.setAttribute("aria-live", "polite");
  root.append(head, drawing, panel);
  el.append(root);

  function selected() {
    return model.get("selected");
  }

  function choose(number) {
    const within = Math.max(0, Math.min(number, path.segments.length - 1));
    if (within === selected()) return;
    model.set("selected", within);
    model.save_changes();
    show();
  }

  function magnify(factor) {
    zoom = Math.max(1, Math.min(factor, 1024));
    for (const track of tracksOf.values()) track.style.width = `${100 * zoom}%`;
    reveal();
  }

  function reveal() {
    const bar = bars[selected()];
    if (zoom > 1) tracks.scrollLeft = bar.offsetLeft - tracks.clientWidth / 2;
    const top = bar.parentElement.offsetTop - drawing.offsetTop;
    if (top < drawing.scrollTop || top + 26 > drawing.scrollTop + drawing.clientHeight) drawing.scrollTop = top;
  }

  function around(title, neighbours, nothing) {
    const part = element("div");
    part.append(element("h4", "", title));
    if (!neighbours.length) part.append(element("span", "muted", nothing));
    const list = element("ul");
    for (const one of neighbours) {
      const item = element("li");
      if (numberOf.has(one.row) && one.row !== path.segments[selected()].row) {
        const link = element("button", "", one.name);
        link.addEventListener("click", () => choose(numberOf.get(one.row)));
        item.append(link);
      } else item.append(element("span", "", one.name));
      item.append(element("span", "muted", ` ${one.where}: ${one.text}`));
      list.append(item);
    }
    part.append(list);
    return part;
  }

  function show() {
    const number = selected(), segment = path.segments[number];
    bars.forEach((bar, at) => bar.setAttribute("aria-pressed", at === number));
    const facts = element("dl");
    const rows = { kind: segment.kind, who: `${segment.who}, ${segment.lane}`, took: segment.when, "reached by": segment.why, slack: segment.slack,
      operation: segment.operation, scope: segment.scope, source: segment.source };
    for (const [name, value] of Object.entries(rows)) {
      if (value !== null) facts.append(element("dt", "", name), element("dd", "", value));
    }
    const own = element("div");
    own.append(element("h4", "", `${number + 1} of ${path.segments.length}: ${segment.name}`), facts);
    panel.replaceChildren(own, around("It waited for", segment.before, "nothing that the trace tells"),
      around("What waited for it", segment.after, "nothing that the trace tells"));
    reveal();
  }

  root.addEventListener("keydown", (event) => {
    const keys = {
      ArrowLeft: () => choose(selected() - 1), ArrowRight: () => choose(selected() + 1), Home: () => choose(0),
      End: () => choose(path.segments.length - 1), "+": () => magnify(zoom * 2), "-": () => magnify(zoom / 2),
    };
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    keys[event.key]();
    event.preventDefault();
    event.stopPropagation();
  });
  model.on("change:selected", show);
  if (path.segments.length) show();
}
