"use strict";

// One zoomable timeline: an axis and the critical path in the head, one row per lane in the body. Times are
// nanoseconds from the start of the window. Rows that lie closer together than a pixel are drawn as density:
// the height is how much of the pixel they cover, the colour is the kind that covers most of it.

const GUTTER = 176;
const SHORTEST = 10; // ns across the whole width: one is as wide as a finger
const CLICK = 4; // pixels that a click may move
const STEPS = 16;
const AXIS = STEPS + 22;
const TRACK = 24;
const LANE = 17;
const GAP = 3;
const GROUP = 22;
const MEANING = {
  compute: "compute", transfer: "transfer", communication: "communication, unsplit", copy: "copy", host: "host",
  blocked: "waits for the device", wait: "waits for a late participant", launch: "launch latency", idle: "idle",
};

// A time to the nanosecond, or to the given power of ten of them; zeros at the end are left out.
function formatTime(ns, resolution = 1) {
  const [factor, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]].find(([f]) => Math.abs(ns) >= f) || [1, "ns"];
  const decimals = Math.max(0, Math.round(Math.log10(factor)) - Math.max(0, Math.floor(Math.log10(resolution))));
  return `${Number((ns / factor).toFixed(decimals))}\u202f${unit}`;
}

function decoded(columns) {
  const n = columns.start ? columns.start.length : 0;
  const rows = { n, start: new Float64Array(n), end: new Float64Array(n), longest: 0, ...columnsOf(columns) };
  let at = 0;
  for (let i = 0; i < n; i++) {
    at += columns.start[i];
    rows.start[i] = at;
    rows.end[i] = at + columns.length[i];
    rows.longest = Math.max(rows.longest, columns.length[i]);
  }
  return rows;
}

function columnsOf({ start, length, ...others }) {
  return others;
}

// The first row that may still reach past an instant; rows are sorted by start, and none is longer than the longest.
function firstAfter(rows, instant) {
  let low = 0;
  let high = rows.n;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows.start[middle] + rows.longest <= instant) low = middle + 1;
    else high = middle;
  }
  return low;
}

function tickStep(span, pixels) {
  const rough = span / Math.max(2, pixels / 110);
  const power = 10 ** Math.floor(Math.log10(rough));
  return Math.max(1, power * [1, 2, 5, 10].find((m) => m * power >= rough));
}

// A text cut in its middle until it fits: lanes often differ only at their ends.
function fitted(g, text, room) {
  let keep = text.length;
  let short = text;
  while (keep > 3 && g.measureText(short).width > room) {
    keep -= 1;
    short = `${text.slice(0, keep >> 1)}…${text.slice(text.length - (keep - (keep >> 1) - 1))}`;
  }
  return short;
}

class Timeline {
  constructor(root, data) {
    this.root = root;
    this.duration = Math.max(1, data.duration_ns);
    this.kinds = data.kinds;
    this.names = data.names;
    this.participants = data.participants;
    this.written = data.written;
    this.steps = data.steps;
    this.path = decoded(data.path);
    this.lanes = data.lanes.map((lane) => ({ group: lane.group, label: lane.label, rows: decoded(lane) }));
    this.head = root.querySelector("canvas.head");
    this.body = root.querySelector("canvas.body");
    this.tip = root.querySelector(".bubble");
    this.live = root.querySelector(".live");
    this.small = `10.5px ${getComputedStyle(root).fontFamily}`;
    this.view = { from: 0, to: this.duration };
    this.pinned = null; // what was clicked: {rows, i, lane}
    this.cursor = null; // instant under the pointer
    this.selected = -1; // segment of the path
    this.layOut();
    this.listen();
    new ResizeObserver(() => this.resize()).observe(root);
    this.resize();
  }

  layOut() {
    let y = 2;
    let group = null;
    this.groups = [];
    for (const lane of this.lanes) {
      if (lane.group !== group) {
        this.groups.push({ y, label: lane.group });
        group = lane.group;
        y += GROUP;
      }
      lane.y = y;
      y += LANE + GAP;
    }
    this.height = y + 4;
  }

  resize() {
    this.width = Math.max(GUTTER + 80, this.root.querySelector(".lanes").clientWidth);
    this.ratio = Math.min(2, window.devicePixelRatio || 1);
    this.fit(this.head, AXIS + TRACK + 6);
    this.fit(this.body, this.height);
    this.draw();
  }

  fit(canvas, height) {
    canvas.width = Math.round(this.width * this.ratio);
    canvas.height = Math.round(height * this.ratio);
    canvas.style.width = `${this.width}px`;
    canvas.style.height = `${height}px`;
  }

  // Colours come from the swatches of the legend, so that they follow the theme.
  colours() {
    const colours = { of: [], on: [], hatched: this.kinds.indexOf("wait") };
    for (const kind of this.kinds) {
      const colour = getComputedStyle(this.root.querySelector(`.swatch.${kind}`)).backgroundColor;
      const [r, g, b] = colour.match(/[\d.]+/g).map(Number);
      colours.of.push(colour);
      colours.on.push(0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#14171a" : "#ffffff");
    }
    const style = getComputedStyle(this.root);
    colours.ink = style.color;
    colours.paper = style.backgroundColor;
    colours.muted = getComputedStyle(this.root.querySelector(".hint")).color;
    colours.line = getComputedStyle(this.root).borderTopColor;
    colours.stripe = colours.of[this.kinds.indexOf("transfer")];
    return colours;
  }

  // Waiting is hatched, so that it is told from a transfer without colours too.
  hatch(g, left, top, wide, tall, colours) {
    g.save();
    g.beginPath();
    g.rect(left, top, wide, tall);
    g.clip();
    g.beginPath();
    for (let x = Math.floor((left - tall) / 7) * 7; x < left + wide; x += 7) {
      g.moveTo(x, top + tall);
      g.lineTo(x + tall, top);
    }
    g.strokeStyle = colours.stripe;
    g.globalAlpha = 0.55;
    g.lineWidth = 1.2;
    g.stroke();
    g.restore();
  }

  x(instant) {
    return GUTTER + ((instant - this.view.from) / (this.view.to - this.view.from)) * (this.width - GUTTER);
  }

  instant(x) {
    return this.view.from + ((x - GUTTER) / (this.width - GUTTER)) * (this.view.to - this.view.from);
  }

  requestDraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.draw();
    });
  }

  draw() {
    const colours = this.colours();
    this.drawHead(this.begin(this.head, colours), colours);
    this.drawBody(this.begin(this.body, colours), colours);
  }

  begin(canvas, colours) {
    const g = canvas.getContext("2d");
    g.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    g.fillStyle = colours.paper;
    g.fillRect(0, 0, this.width, canvas.height);
    g.textBaseline = "middle";
    g.font = this.small;
    this.letter = g.measureText("abcdefghijklmnopqrstuvwxyz__").width / 28 + 0.4; // of a caption, on average
    g.font = `11px ${getComputedStyle(this.root).fontFamily}`;
    return g;
  }

  drawHead(g, colours) {
    const step = tickStep(this.view.to - this.view.from, this.width - GUTTER);
    g.fillStyle = colours.muted;
    for (let t = Math.ceil(this.view.from / step) * step; t <= this.view.to; t += step) {
      const x = Math.round(this.x(t)) + 0.5;
      const label = formatTime(t, step);
      g.fillRect(x, AXIS - 5, 1, 5);
      if (x + g.measureText(label).width + 6 < this.width) g.fillText(label, x + 4, AXIS - 11);
    }
    this.clipped(g, this.head, () => this.drawSteps(g, colours));
    this.label(g, "critical path", AXIS + TRACK / 2, colours.ink, true);
    this.clipped(g, this.head, () => this.drawRows(g, this.path, AXIS, TRACK, colours, null));
    if (this.selected >= 0) this.outline(g, this.path, this.selected, AXIS, TRACK, colours);
    this.drawCursor(g, this.head, colours);
  }

  drawSteps(g, colours) {
    for (const [step, start, end] of this.steps) {
      const left = Math.max(GUTTER, this.x(start));
      const wide = Math.min(this.width, this.x(end)) - left;
      if (wide < 2) continue;
      g.fillStyle = colours.line;
      g.fillRect(left, 1, Math.max(1, wide - 1), STEPS - 3);
      g.fillStyle = colours.muted;
      if (wide > 46) g.fillText(`step ${step}`, left + 5, STEPS / 2);
    }
  }

  drawBody(g, colours) {
    const shade = colours.line;
    for (const group of this.groups) {
      g.fillStyle = shade;
      g.fillRect(0, group.y + 0.5, this.width, 1);
      this.label(g, group.label, group.y + GROUP / 2 + 1, colours.ink, true);
    }
    for (const lane of this.lanes) {
      this.label(g, lane.label, lane.y + LANE / 2, colours.muted, false);
      g.fillStyle = shade;
      g.globalAlpha = 0.5;
      g.fillRect(GUTTER, lane.y + LANE, this.width - GUTTER, 1);
      g.globalAlpha = 1;
    }
    this.clipped(g, this.body, () => {
      for (const lane of this.lanes) this.drawRows(g, lane.rows, lane.y, LANE, colours, lane);
      if (this.pinned && this.pinned.lane) this.outline(g, this.pinned.rows, this.pinned.i, this.pinned.lane.y, LANE, colours);
    });
    this.drawCursor(g, this.body, colours);
  }

  clipped(g, canvas, paint) {
    g.save();
    g.beginPath();
    g.rect(GUTTER, 0, this.width - GUTTER, canvas.height);
    g.clip();
    paint();
    g.restore();
  }

  label(g, text, y, colour, strong) {
    g.fillStyle = colour;
    g.font = `${strong ? "600 " : ""}11px ${getComputedStyle(this.root).fontFamily}`;
    const left = strong ? 4 : 12;
    g.fillText(fitted(g, text, GUTTER - left - 8), left, y);
  }

  drawRows(g, rows, y, height, colours, lane) {
    const perPixel = (this.view.to - this.view.from) / (this.width - GUTTER);
    const covered = new Float64Array(this.kinds.length);
    let column = -1;
    let onPath = false;
    const flush = () => {
      if (column < 0) return;
      const total = covered.reduce((sum, ns) => sum + ns, 0);
      const tall = lane ? Math.max(2, height * Math.min(1, total / perPixel)) : height; // the path has no gaps
      g.fillStyle = colours.of[covered.indexOf(Math.max(...covered))];
      g.fillRect(column, y + height - tall, 1, tall);
      if (lane && onPath) this.underline(g, column, 1, y, height, colours);
      covered.fill(0);
      column = -1;
      onPath = false;
    };
    for (let i = firstAfter(rows, this.view.from); i < rows.n && rows.start[i] < this.view.to; i++) {
      const left = this.x(rows.start[i]);
      const wide = this.x(rows.end[i]) - left;
      if (wide >= 1.5) {
        flush();
        this.drawRow(g, rows, i, Math.max(left, GUTTER - 2), left + wide, y, height, colours, lane);
        continue;
      }
      if (Math.floor(left) !== column) flush();
      column = Math.floor(left);
      covered[rows.kind[i]] += ((rows.end[i] - rows.start[i]) * (rows.covered ? rows.covered[i] : 100)) / 100;
      onPath = onPath || Boolean(rows.path && rows.path[i]);
    }
    flush();
  }

  drawRow(g, rows, i, left, right, y, height, colours, lane) {
    right = Math.min(right, this.width + 2);
    const share = rows.covered ? rows.covered[i] / 100 : 1;
    const tall = Math.max(2, height * share);
    const wide = right - left > 4 ? right - left - 0.5 : right - left;
    g.fillStyle = colours.of[rows.kind[i]];
    g.fillRect(left, y + height - tall, wide, tall);
    if (rows.kind[i] === colours.hatched && wide > 4) this.hatch(g, left, y + height - tall, wide, tall, colours);
    if (share > 0.7 && wide > 36) this.caption(g, rows, i, left, wide, y + height / 2, colours);
    if (!lane || !rows.path[i]) return;
    if (wide < 5) this.underline(g, left, wide, y, height, colours);
    else this.frame(g, left, y, wide, height, colours.ink, 1.5);
  }

  caption(g, rows, i, left, wide, y, colours) {
    g.font = this.small;
    g.fillStyle = colours.on[rows.kind[i]];
    const room = Math.floor((wide - 8) / this.letter);
    const gap = this.kinds[rows.kind[i]] === "idle";
    const name = gap ? "idle" : this.title(rows, i);
    const shown = name.length > room ? `${name.slice(0, Math.max(0, room - 1))}…` : name;
    const at = Math.max(left, GUTTER) + 4;
    if (rows.kind[i] === colours.hatched) {
      g.fillStyle = colours.of[rows.kind[i]];
      g.fillRect(at - 3, y - 6.5, Math.min(wide - 2, g.measureText(shown).width + 6), 13);
      g.fillStyle = colours.on[rows.kind[i]];
    }
    g.fillText(shown, at, y + 0.5);
  }

  underline(g, left, wide, y, height, colours) {
    g.fillStyle = colours.ink;
    g.fillRect(left, y + height - 1, wide, 2);
  }

  outline(g, rows, i, y, height, colours) {
    const left = Math.max(GUTTER, this.x(rows.start[i]));
    this.frame(g, left, y, Math.max(2, Math.min(this.width, this.x(rows.end[i])) - left), height, colours.ink, 2);
  }

  frame(g, left, y, wide, height, colour, thick) {
    g.strokeStyle = colour;
    g.lineWidth = thick;
    g.strokeRect(left + thick / 2, y + thick / 2, wide - thick, height - thick);
  }

  drawCursor(g, canvas, colours) {
    if (this.cursor === null) return;
    g.fillStyle = colours.muted;
    g.globalAlpha = 0.6;
    g.fillRect(Math.round(this.x(this.cursor)), 0, 1, canvas.height);
    g.globalAlpha = 1;
  }

  // Moving through time ----------------------------------------------------------------------------------------

  zoomTo(from, to) {
    this.pin(null);
    const span = Math.min(this.duration, Math.max(SHORTEST, to - from));
    const start = Math.min(Math.max(0, (from + to - span) / 2), this.duration - span);
    this.view = { from: start, to: start + span };
    this.requestDraw();
  }

  zoomAt(instant, factor) {
    this.pin(null);
    const { from, to } = this.view;
    const span = Math.min(this.duration, Math.max(SHORTEST, (to - from) * factor));
    const share = (instant - from) / (to - from);
    const start = Math.min(Math.max(0, instant - share * span), this.duration - span);
    this.view = { from: start, to: start + span };
    this.requestDraw();
  }

  pan(share) {
    const shift = share * (this.view.to - this.view.from);
    this.zoomTo(this.view.from + shift, this.view.to + shift);
  }

  reset() {
    this.zoomTo(0, this.duration);
  }

  // What is where ----------------------------------------------------------------------------------------------

  at(canvas, x, y) {
    if (x < GUTTER) return null;
    if (canvas === this.head) return y < AXIS ? null : this.nearest(this.path, x, null);
    const lane = this.lanes.find((candidate) => y >= candidate.y && y < candidate.y + LANE + GAP);
    return lane ? this.nearest(lane.rows, x, lane) : null;
  }

  // The row under the pointer; where several are, the shortest; where none is, one no further than two pixels.
  nearest(rows, x, lane) {
    const reach = 2 * ((this.view.to - this.view.from) / (this.width - GUTTER));
    const t = this.instant(x);
    let best = -1;
    let distance = reach;
    for (let i = firstAfter(rows, t - reach); i < rows.n && rows.start[i] <= t + reach; i++) {
      const away = Math.max(0, rows.start[i] - t, t - rows.end[i]);
      const shorter = best < 0 || rows.end[i] - rows.start[i] <= rows.end[best] - rows.start[best];
      if (away < distance || (away === distance && shorter)) [best, distance] = [i, away];
    }
    return best < 0 ? null : { rows, i: best, lane };
  }

  // What a row is called; a gap has the name of what came after it.
  title(rows, i) {
    const name = this.names[rows.name[i]] || "(no name)";
    const gap = { idle: "idle before", launch: "launch of" }[this.kinds[rows.kind[i]]];
    return gap ? `${gap} ${name}` : name;
  }

  describe({ rows, i, lane }) {
    const lines = [
      ["kind", MEANING[this.kinds[rows.kind[i]]]],
      ["start", formatTime(rows.start[i])],
      ["duration", formatTime(rows.end[i] - rows.start[i])],
      ["where", lane ? `${lane.group}, ${lane.label}` : rows.places[rows.place[i]]],
    ];
    if (rows.who[i] >= 0) lines.push(["waited for", this.participants[rows.who[i]]]);
    const segment = lane ? this.segmentOf(rows, i) : i;
    lines.push(...this.told(rows, i));
    if (segment >= 0 && this.path.reason[segment] >= 0) lines.push(["why", this.names[this.path.reason[segment]]]);
    if (lane) lines.push(["slack", this.slack(rows, i)]);
    else if (rows.edge[i]) lines.push(["reached by", `${rows.edge[i]} edge`]);
    if (rows.count[i] > 1) lines.push(["merged", this.merged(rows, i)]);
    return lines;
  }

  // What the programs tell of a row.
  told(rows, i) {
    if (!rows.written || rows.written[i] < 0) return [];
    const told = this.written[rows.written[i]];
    return ["operation", "scope", "source"].map((key, k) => [key, this.names[told[k]]]).filter((_, k) => told[k] >= 0);
  }

  // The segment of the path that a slice on it makes, -1 for none.
  segmentOf(rows, i) {
    if (!rows.path[i]) return -1;
    for (let j = firstAfter(this.path, rows.start[i]); j < this.path.n && this.path.start[j] < rows.end[i]; j++) {
      if (this.path.end[j] > rows.start[i] && this.path.name[j] === rows.name[i] && this.path.kind[j] === rows.kind[i]) return j;
    }
    return -1;
  }

  slack(rows, i) {
    if (rows.path[i]) return "none: on the critical path";
    return rows.slack[i] < 0 ? "not defined: it only waits" : formatTime(rows.slack[i]);
  }

  merged(rows, i) {
    const covered = rows.covered ? `, ${rows.covered[i]}\u202f% of the span covered` : "";
    return `${rows.count[i]} pieces${covered}; the name is the longest one's`;
  }

  // Listening --------------------------------------------------------------------------------------------------

  listen() {
    for (const canvas of [this.head, this.body]) {
      canvas.addEventListener("pointerdown", (event) => this.onDown(event, canvas));
      canvas.addEventListener("pointermove", (event) => this.onMove(event, canvas));
      canvas.addEventListener("pointerup", (event) => this.onUp(event, canvas));
      canvas.addEventListener("pointerleave", () => this.onLeave());
      canvas.addEventListener("dblclick", (event) => this.onDouble(event, canvas));
      canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    }
    window.addEventListener("scroll", () => this.pin(null), { passive: true, capture: true });
    this.root.addEventListener("keydown", (event) => this.onKey(event));
    for (const button of this.root.querySelectorAll("button[data-do]")) {
      button.addEventListener("click", () => this.act(button.dataset.do));
    }
  }

  onDown(event, canvas) {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    this.drag = { x: event.offsetX, from: this.view.from, to: this.view.to };
  }

  onMove(event, canvas) {
    this.cursor = event.offsetX < GUTTER ? null : this.instant(event.offsetX);
    if (this.drag && Math.abs(this.drag.x - event.offsetX) >= CLICK) {
      const shift = ((this.drag.x - event.offsetX) / (this.width - GUTTER)) * (this.drag.to - this.drag.from);
      this.zoomTo(this.drag.from + shift, this.drag.to + shift);
    }
    if (!this.pinned) this.show(this.drag ? null : this.at(canvas, event.offsetX, event.offsetY), event.clientX, event.clientY);
    this.requestDraw();
  }

  // A press that did not move is a click: what is there stays told until another click, or Escape.
  onUp(event, canvas) {
    if (this.drag && Math.abs(this.drag.x - event.offsetX) < CLICK) {
      this.pin(this.at(canvas, event.offsetX, event.offsetY), event.clientX, event.clientY);
    }
    this.drag = null;
  }

  onLeave() {
    this.cursor = null;
    if (!this.pinned) this.show(null);
    this.requestDraw();
  }

  onDouble(event, canvas) {
    const hit = this.at(canvas, event.offsetX, event.offsetY);
    if (hit) this.focusOn(hit.rows.start[hit.i], hit.rows.end[hit.i]);
    else this.reset();
  }

  // A plain wheel scrolls the page; it zooms once the timeline was chosen, or with Ctrl as in maps.
  onWheel(event) {
    const chosen = event.ctrlKey || event.metaKey || this.root.contains(document.activeElement);
    if (!chosen) return;
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX || event.deltaY) / 800);
    else this.zoomAt(this.instant(Math.max(GUTTER, event.offsetX)), Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))));
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const action = {
      ArrowLeft: "left", a: "left", ArrowRight: "right", d: "right", "+": "in", "=": "in", w: "in", "-": "out", s: "out",
      0: "reset", Home: "reset", ",": "previous", ".": "next", Escape: "hide",
    }[event.key];
    if (!action) return;
    event.preventDefault();
    this.act(action);
  }

  act(action) {
    const middle = (this.view.from + this.view.to) / 2;
    const does = {
      left: () => this.pan(-0.2),
      right: () => this.pan(0.2),
      in: () => this.zoomAt(middle, 0.6),
      out: () => this.zoomAt(middle, 1 / 0.6),
      reset: () => this.reset(),
      previous: () => this.walk(-1),
      next: () => this.walk(1),
      hide: () => this.pin(null),
    };
    does[action]();
  }

  // Walks along the critical path, segment by segment, and says where it is.
  walk(by) {
    if (!this.path.n) return;
    this.selected = this.selected < 0 && by < 0 ? this.path.n - 1 : Math.min(this.path.n - 1, Math.max(0, this.selected + by));
    const [start, end] = [this.path.start[this.selected], this.path.end[this.selected]];
    if (end < this.view.from || start > this.view.to) this.zoomTo(start - (end - start), end + (end - start));
    const hit = { rows: this.path, i: this.selected, lane: null };
    const box = this.head.getBoundingClientRect();
    this.pin(hit, box.left + Math.max(GUTTER, Math.min(this.width - 300, this.x(start))), box.top + AXIS + TRACK);
  }

  // Keeps telling what a row is, and says it aloud.
  pin(hit, x, y) {
    if (!hit && !this.pinned && this.tip.hidden) return;
    this.pinned = hit;
    if (hit) this.selected = hit.lane ? this.segmentOf(hit.rows, hit.i) : hit.i;
    this.show(hit, x, y);
    this.requestDraw();
    if (!hit) return;
    const told = this.describe(hit).map(([key, value]) => `${key} ${value}`);
    this.live.textContent = [this.title(hit.rows, hit.i), ...told].join(", ");
  }

  focusOn(start, end) {
    const around = (end - start) * 0.6;
    this.zoomTo(start - around, end + around);
  }

  show(hit, x, y) {
    this.tip.hidden = !hit;
    if (!hit) return;
    const name = document.createElement("strong");
    name.textContent = this.title(hit.rows, hit.i);
    const list = document.createElement("dl");
    for (const [key, value] of this.describe(hit)) {
      list.append(Object.assign(document.createElement("dt"), { textContent: key }));
      list.append(Object.assign(document.createElement("dd"), { textContent: value }));
    }
    this.tip.replaceChildren(name, list);
    this.tip.style.left = `${Math.max(4, Math.min(x + 14, window.innerWidth - this.tip.offsetWidth - 8))}px`;
    const below = y + 16 + this.tip.offsetHeight < window.innerHeight;
    this.tip.style.top = `${below ? y + 16 : Math.max(4, y - this.tip.offsetHeight - 12)}px`;
  }
}
