/* The live page. It takes server-sent events and draws what has changed, once a frame at most.
   All text that comes from the cluster is set as text, never as markup. */
"use strict";

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const STATES = ["up", "behind", "held", "down", "silent", "starting"];
const WORDS = { silent: "no answer" };
// One path a state, in a box of 14 by 14: colour alone never tells a state.
const SHAPES = {
  up: "M7 2a5 5 0 1 0 .01 0z",
  behind: "M7 2L12.5 12H1.5z",
  held: "M7 1L13 7L7 13L1 7z",
  down: "M2 2L12 12M12 2L2 12",
  silent: "M7 2a5 5 0 0 1 5 5M7 12a5 5 0 0 1-5-5",
  starting: "M7 3a4 4 0 1 0 .01 0z",
};
const HOLLOW = new Set(["down", "silent", "starting"]);
const INDENT = 20, INDENTED_SHARE = 0.3, MARGIN = 22, TREE_ROW = 44, ROW = 28, SPARK_TICKS = 120, ROWS_MAX = 200;
const STALE_MS = 3000; // without a tick, which comes twice a second
const RETRY_MS = 3000; // after a refusal, as browsers do after a broken connection

function make(tag, name, parent) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (parent) parent.append(element);
  return element;
}
function svg(tag, attributes, parent) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (parent) parent.append(element);
  return element;
}
/* Writing what is there already would make the browser lay out again. */
function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}
function attribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}
function shape(parent) {
  const drawn = svg("svg", { class: "shape", viewBox: "0 0 14 14", "aria-hidden": "true" }, parent);
  svg("path", {}, drawn);
  return drawn;
}
function setShape(drawn, state) {
  attribute(drawn.firstChild, "d", SHAPES[state]);
  attribute(drawn, "fill-opacity", HOLLOW.has(state) ? "0" : "1");
}

const whole = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const count = (value) => (value < 100000 ? whole.format(value) : compact.format(value));
const rate = (value) => (value > 0 && value < 9.95 ? value.toFixed(1) : count(Math.round(value)));
function ago(at, now) {
  const s = Math.max(0, Math.round((now - at) / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  return s < 86400 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`;
}
function clock(at, withMs) {
  const time = new Date(at);
  const two = (value) => String(value).padStart(2, "0");
  const hms = `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
  return withMs ? `${hms}.${String(time.getMilliseconds()).padStart(3, "0")}` : hms;
}
/* The first names of a list; one may have hundreds. */
const some = (names) => names.slice(0, 6).join(", ") + (names.length > 6 ? ` and ${names.length - 6} more` : "");
/* The time of a moment, with its day unless that is today. */
function stamp(at) {
  const time = new Date(at);
  const day = time.toLocaleDateString(undefined, { month: "short", day: "numeric" });
  return time.toDateString() === new Date().toDateString() ? clock(at, true) : `${day}, ${clock(at, true)}`;
}

/* A list of any length, of which only the rows in sight are elements. Arrow keys move the active
   row, Enter and a click choose it. `build` makes an empty row, `draw` fills it with an item. */
class List {
  constructor(box, rowHeight, kind, build, draw, choose) {
    Object.assign(this, { box, rowHeight, kind, build, draw, choose, items: [], active: 0, pool: [] });
    this.fill = make("div", "fill", box);
    this.empty = make("div", "empty", box);
    this.empty.hidden = true;
    box.addEventListener("scroll", () => schedule(this), { passive: true });
    box.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => schedule(this)).observe(box);
  }
  set(items, emptyText) {
    this.items = items;
    this.active = Math.min(this.active, Math.max(0, items.length - 1));
    this.fill.style.height = `${items.length * this.rowHeight}px`;
    attribute(this.box, "aria-rowcount", String(items.length));
    this.empty.hidden = items.length > 0;
    text(this.empty, emptyText || "");
  }
  render() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / this.rowHeight) - 2);
    const shown = Math.min(this.items.length - first,
      Math.ceil(this.box.clientHeight / this.rowHeight) + 4);
    while (this.pool.length < shown) this.pool.push(this.row());
    this.pool.forEach((row, place) => {
      const index = first + place, used = place < shown;
      if (row.hidden === used) row.hidden = !used;
      if (!used) return;
      const at = `translateY(${index * this.rowHeight}px)`;
      if (row.style.transform !== at) row.style.transform = at;
      row.index = index;
      attribute(row, "aria-rowindex", String(index + 1));
      row.classList.toggle("active", index === this.active);
      if (index === this.active) attribute(this.box, "aria-activedescendant", row.id);
      this.draw(row, this.items[index]);
    });
  }
  row() {
    const row = make("div", `row ${this.kind}`, this.box);
    row.id = `${this.box.id}-${this.pool.length}`;
    row.setAttribute("role", "row");
    row.style.height = `${this.rowHeight}px`;
    this.build(row);
    for (const cell of row.children) cell.setAttribute("role", "gridcell");
    row.addEventListener("click", () => this.pick(row.index));
    return row;
  }
  pick(index) {
    this.active = index;
    if (this.items[index]) this.choose(this.items[index]);
    schedule(this);
  }
  key(event) {
    const page = Math.max(1, Math.floor(this.box.clientHeight / this.rowHeight) - 1);
    const last = this.items.length - 1;
    const moves = { ArrowDown: this.active + 1, ArrowUp: this.active - 1, PageDown: this.active + page,
      PageUp: this.active - page, Home: 0, End: last };
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.pick(this.active);
    } else if (event.key in moves) {
      event.preventDefault();
      this.active = Math.max(0, Math.min(last, moves[event.key]));
      const top = this.active * this.rowHeight, low = top + this.rowHeight - this.box.clientHeight;
      if (top < this.box.scrollTop) this.box.scrollTop = top;
      else if (low > this.box.scrollTop) this.box.scrollTop = low;
      schedule(this);
    }
  }
}

/* Drawing waits for the next frame, and a list that is out of date twice is drawn once. */
const due = new Set();
function schedule(part) {
  if (!due.size) requestAnimationFrame(() => {
    const parts = [...due];
    due.clear();
    for (const each of parts) each.render();
  });
  due.add(part);
}

// -- the tree ------------------------------------------------------------------------------------

let layout = null, moment = null, chosen = null, lastTick = 0;
const sparks = new Map();
let totalSpark = [];

function sparkline(drawn, values, width, height) {
  const top = Math.max(1, ...values), step = width / (SPARK_TICKS - 1);
  const left = width - (values.length - 1) * step;
  let line = "";
  values.forEach((value, place) => {
    const y = height - 1 - (value / top) * (height - 3);
    line += `${place ? "L" : "M"}${(left + place * step).toFixed(1)} ${y.toFixed(1)}`;
  });
  attribute(drawn, "viewBox", `0 0 ${width} ${height}`);
  attribute(drawn.children[0], "d", line && `${line}L${width} ${height}L${left.toFixed(1)} ${height}z`);
  attribute(drawn.children[1], "d", line);
}
function newSpark(parent, name) {
  const drawn = svg("svg", { class: name, "aria-hidden": "true" }, parent);
  svg("path", { class: "area" }, drawn);
  svg("path", { class: "line" }, drawn);
  return drawn;
}

let indent = INDENT;
const middle = (depth) => 22 + depth * indent; // of a node's mark
const tree = new List($("tree"), TREE_ROW, "tree-row", (row) => {
  row.who = make("div", "who", row);
  row.shape = shape(row.who);
  row.shape.classList.add("node");
  row.name = make("b", "", row.who);
  row.sub = make("span", "", row.who);
  row.spark = newSpark(make("div", "", row), "spark");
  row.rate = make("div", "num", row);
  row.relayed = make("div", "num muted", row);
  row.lag = make("div", "num", row);
  row.word = make("div", "state", row);
  row.restarts = make("div", "num muted", row);
  row.changed = make("div", "num muted", row);
}, (row, spec) => {
  const facts = moment && moment.collectors[spec.name];
  if (!facts) return;
  const [state, perS, relayed, lag, restarts, changed, sentence] = facts;
  text(row.name, spec.name);
  text(row.sub, sentence || spec.ownNames);
  row.sub.className = sentence ? "why" : "";
  row.title = sentence || `orders ${spec.ownNames || "no log of its own"}`;
  row.who.style.paddingLeft = `${MARGIN + spec.depth * indent}px`;
  row.shape.style.left = `${middle(spec.depth) - 8}px`;
  sparkline(row.spark, sparks.get(spec.name) || [], 120, 26);
  text(row.rate, rate(Math.max(0, perS - relayed)));
  text(row.relayed, spec.parent ? rate(relayed) : "–");
  text(row.lag, count(lag));
  row.lag.classList.toggle("late", state === "behind" || (state === "down" && lag > 0));
  attribute(row, "data-state", state);
  attribute(row, "aria-level", String(spec.depth + 1));
  attribute(row, "aria-selected", String(chosen === spec.name));
  setShape(row.shape, state);
  text(row.word, WORDS[state] || state);
  text(row.restarts, String(restarts));
  text(row.changed, ago(changed, moment.at));
}, (spec) => {
  chosen = chosen === spec.name ? null : spec.name;
  drawLogs();
});

/* The edges: an elbow from the middle of the parent's row to that of the child's. */
new ResizeObserver(() => {
  if (moment) { edges.build(); edges.render(); schedule(tree); }
}).observe($("tree"));
const edges = {
  box: document.querySelector(".edges"), paths: new Map(),
  build() {
    // However deep the tree and narrow the window, most of a row is left for the name.
    const room = document.querySelector(".heads.tree-row > span").clientWidth * INDENTED_SHARE;
    indent = Math.min(INDENT, room / Math.max(1, ...layout.collectors.map((spec) => spec.depth)));
    this.box.replaceChildren();
    this.paths.clear();
    const places = new Map(layout.collectors.map((spec, place) => [spec.name, { spec, place }]));
    attribute(this.box, "width", "1");
    attribute(this.box, "height", String(layout.collectors.length * TREE_ROW));
    const y = (place) => place * TREE_ROW + TREE_ROW / 2;
    for (const { spec, place } of places.values()) {
      const group = svg("g", { "data-state": "starting" }, this.box);
      if (spec.parent) {
        const above = places.get(spec.parent);
        const x0 = middle(above.spec.depth), x1 = middle(spec.depth), r = indent / 2;
        const d = `M${x0} ${y(above.place) + 9}V${y(place) - r}Q${x0} ${y(place)} ${x0 + r} ${y(place)}H${x0 + Math.max(r, indent - 9)}`;
        group.edge = svg("path", { d }, group);
      }
      this.paths.set(spec.name, group);
    }
  },
  render() {
    for (const [name, group] of this.paths) {
      const facts = moment.collectors[name];
      if (!facts || !group.edge) continue;
      const width = facts[2] > 0 ? Math.min(10, 1.5 + 1.7 * Math.log10(1 + facts[2])) : 1.5;
      attribute(group.edge, "stroke-width", width.toFixed(1));
      attribute(group.edge, "class", facts[2] > 0 ? "flows" : "idle");
    }
  },
};

// -- logs ----------------------------------------------------------------------------------------

const logs = new List($("logs"), ROW, "log-row", (row) => {
  row.name = make("div", "", row);
  row.top = make("div", "muted", row);
  row.rate = make("div", "num", row);
  row.lag = make("div", "num", row);
  row.place = make("div", "num muted", row);
}, (row, { name, top, facts }) => {
  text(row.name, name);
  row.title = name;
  text(row.top, top || "itself");
  text(row.rate, rate(facts[3]));
  text(row.lag, count(facts[2]));
  row.lag.classList.toggle("late", facts[2] > 0);
  text(row.place, whole.format(facts[1]));
}, ({ top }) => {
  const place = layout.collectors.findIndex((spec) => spec.name === top);
  if (place < 0) return;
  tree.active = place;
  tree.box.scrollTop = (place - 3) * TREE_ROW;
  schedule(tree);
});

function drawLogs() {
  const rows = [];
  layout.logs.forEach((log, place) => {
    const facts = moment.logs[place];
    if (facts && (!chosen || log.top === chosen)) rows.push({ ...log, facts });
  });
  rows.sort((one, other) => other.facts[2] - one.facts[2]);
  text($("h-logs"), chosen ? `Logs ordered by ${chosen}` : `Logs`);
  $("all-logs").hidden = !chosen;
  logs.set(rows, "This collector orders no log of its own.");
  schedule(logs);
  schedule(tree);
}
$("all-logs").addEventListener("click", () => { chosen = null; drawLogs(); });

// -- consumers -----------------------------------------------------------------------------------

const STANDS_S = 120; // as in AmcastConsumerStands
const stands = (row) => row.never !== true && row.stands_seconds >= STANDS_S;
const consumers = new List($("consumers"), ROW, "consumer-row", (row) => {
  row.name = make("div", "state", row);
  row.lag = make("div", "num", row);
  row.since = make("div", "num", row);
  row.last = make("div", "num muted", row);
}, (row, facts) => {
  const state = facts.never ? "silent" : stands(facts) || facts.problem ? "down" : "up";
  attribute(row, "data-state", state);
  text(row.name, facts.consumer + (state === "down" ? ": stands" : ""));
  row.title = facts.never ? "no group has committed for it: nobody sees where it is"
    : facts.problem || (state === "down" ? `it has stood for ${ago(0, facts.stands_seconds * 1000)}` : "");
  text(row.lag, facts.never ? "?" : count(facts.lag));
  text(row.since, facts.lag_seconds > 0 ? ago(0, facts.lag_seconds * 1000) : "–");
  text(row.last, facts.never ? "never" : facts.committed_at ? `${ago(facts.committed_at * 1000, moment.at)} ago` : "?");
}, () => {});

function drawCluster() {
  const { brokers, away = [], short: lacking = 0, leaderless = 0, consumers: rows = [], error } = moment.cluster;
  const told = rows.slice().sort((one, other) => (other.stands_seconds || 0) - (one.stands_seconds || 0));
  text($("t-brokers"), brokers ? `${brokers - away.length}\u2009/\u2009${brokers}` : "–");
  text($("t-brokers-sub"), leaderless ? `${leaderless} partitions have no leader`
    : lacking ? `${lacking} partitions lack replicas` : moment.unchecked ? "settings not all checked"
    : brokers ? "all replicas in sync" : error || "");
  $("tile-brokers").title = moment.unchecked;
  attribute($("tile-brokers"), "data-tone", away.length || leaderless ? "down" : lacking ? "behind" : "");
  const still = told.filter(stands).length, never = told.filter((row) => row.never).length;
  text($("t-consumers"), String(told.length));
  text($("t-consumers-sub"), [still && `${still} stand`, never && `${never} never committed`]
    .filter(Boolean).join(", ") || error || "none stands");
  attribute($("tile-consumers"), "data-tone", still ? "down" : "");
  consumers.set(told, error || "No consumer of the plan has committed.");
  schedule(consumers);
}

// -- totals and changes --------------------------------------------------------------------------

const CHECKS = { ok: ["in order", "up"], violated: ["violated", "down"], starting: ["starting", ""],
  off: ["off", ""] };

const totals = {
  render() {
    const sums = moment.totals, check = moment.check;
    text($("t-rate"), rate(sums.rate));
    sparkline($("t-spark"), totalSpark, 400, 78);
    text($("t-lag"), count(sums.lag));
    const late = Object.values(moment.collectors).some((facts) => facts[0] === "behind");
    attribute($("tile-lag"), "data-tone", late ? "behind" : "");
    text($("t-up"), `${sums.up}\u2009/\u2009${sums.collectors}`);
    const named = STATES.slice(1).map((state) =>
      [WORDS[state] || state, Object.values(moment.collectors).filter((facts) => facts[0] === state).length]);
    text($("t-up-sub"), named.filter(([, n]) => n).map(([word, n]) => `${n} ${word}`).join(", ") || "all of them");
    const down = Object.values(moment.collectors).some((facts) => facts[0] === "down");
    attribute($("tile-up"), "data-tone", down ? "down" : "");
    text($("t-logs"), count(sums.logs));
    text($("t-logs-sub"), sums.late_logs ? `${count(sums.late_logs)} with waiting messages` : "nothing waits");
    text($("t-epoch"), String(moment.epoch));
    text($("t-epoch-sub"), `last change ${ago(sums.changed, moment.at)} ago`);
    const [word, tone] = CHECKS[check.state] || CHECKS.off;
    text($("t-check"), word);
    attribute($("tile-check"), "data-tone", tone);
    text($("t-check-sub"), check.state === "off" ? "amcast collectors run --check starts one" : check.state === "violated"
      ? String(check.witness || `${check.violations} violations`)
      : `${count(Number(check.messages) || 0)} messages`);
    $("tile-check").title = String(check.witness || "");
    const dark = down || ["tile-brokers", "tile-consumers"].some((id) => $(id).dataset.tone === "down");
    document.title = `${dark ? "✕ " : ""}${layout.topic} · amcast`;
  },
};

const changes = {
  shown: "",
  render() {
    const events = moment.events.slice().reverse();
    const key = events.length ? `${events.length}/${events[0].at}/${events[0].text}` : "none";
    if (key === this.shown) return;
    if (this.shown && events.length) text($("news"), events[0].text);
    this.shown = key;
    $("events").replaceChildren(...events.map((event) => {
      const item = make("li");
      item.dataset.state = event.state;
      const time = make("time", "", item);
      text(time, clock(event.at));
      setShape(shape(item), event.state);
      text(make("span", "", item), event.text);
      return item;
    }));
    if (!events.length) text(make("li", "none", $("events")), "none since this page looks");
  },
};

// -- the timeline --------------------------------------------------------------------------------

let timelineSource = null, messages = [], waiting = [], paused = false, shownInterest = "";

const timeline = new List($("timeline"), ROW, "time-row", (row) => {
  row.when = make("div", "muted", row);
  row.id_ = make("div", "mono", row);
  row.to = make("div", "", row);
  row.key_ = make("div", "mono", row);
  row.text_ = make("div", "mono", row);
  row.by = make("div", "", row);
  row.after = make("div", "num muted", row);
}, (row, message) => {
  if (row.message === message) return;
  row.message = message;
  const at = message.ordered || message.stored;
  text(row.when, stamp(at));
  text(row.id_, message.id);
  row.to.replaceChildren(...message.to.split("+").map((name) => {
    const chip = make("span", "chip");
    chip.textContent = name;
    return chip;
  }));
  text(row.key_, message.key);
  text(row.text_, message.decision || message.text || `${whole.format(message.size)} bytes`);
  row.text_.classList.toggle("muted", !message.text);
  text(row.by, message.by || (message.from.startsWith("@") ? "its log" : "–"));
  text(row.after, message.ordered ? `${whole.format(message.ordered - message.stored)} ms` : "");
  row.classList.toggle("gap", message.gap);
  row.classList.toggle("void", message.decision !== "");
  row.title = message.gap ? "messages before this one were skipped: too many came" : "";
}, (message) => explain(message.id, message));

function drawTimeline() {
  timeline.set(messages, $("search").value ? "No message of the window has these words."
    : "No message has come yet.");
  text($("found"), paused && waiting.length ? `${waiting.length} new`
    : $("search").value ? `${messages.length}${messages.length === ROWS_MAX ? "+" : ""} found` : "");
  schedule(timeline);
}
function take(rows) {
  if (rows.length) {
    const held = timeline.active > 0 ? rows.length : 0; // the same message stays active
    messages = rows.reverse().concat(messages).slice(0, ROWS_MAX);
    timeline.active = Math.min(timeline.active + held, messages.length - 1);
    if (timeline.box.scrollTop > 0) timeline.box.scrollTop += rows.length * ROW;
  }
  drawTimeline();
}
function openTimeline() {
  closeTimeline();
  if (!layout || !layout.consumers.length) return;
  messages = [];
  waiting = [];
  const query = new URLSearchParams({ interest: $("interest").value, q: $("search").value });
  const source = timelineSource = new EventSource(`timeline?${query}`);
  source.addEventListener("rows", (event) => {
    const rows = JSON.parse(event.data).rows;
    if (paused) waiting = waiting.concat(rows).slice(-ROWS_MAX);
    if (paused) drawTimeline(); else take(rows);
  });
  source.addEventListener("problem", (event) => {
    timeline.set(messages, JSON.parse(event.data).error || "reading the order");
    schedule(timeline);
  });
  source.onopen = () => { messages = []; waiting = []; };
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) {
      setTimeout(() => { if (timelineSource === source) openTimeline(); }, RETRY_MS);
    }
  };
}
function closeTimeline() {
  if (timelineSource) timelineSource.close();
  timelineSource = null;
}
let typing = 0;
$("search").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(openTimeline, 200); });
$("search").addEventListener("keydown", (event) => {
  const words = $("search").value.trim();
  if (event.key === "Enter" && /^[^\s:]+:\d+$/.test(words)) explain(words, null);
});
$("interest").addEventListener("change", openTimeline);
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  if (!paused && !timelineSource) openTimeline();
  else if (!paused) take(waiting.splice(0));
  else drawTimeline();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/INPUT|SELECT/.test(document.activeElement.tagName)) {
    event.preventDefault();
    $("search").focus();
  }
});

async function explain(id, message) {
  text($("x-title"), `Message ${id}`);
  const facts = message ? [["to", message.to.split("+").join(", ")], ["key", message.key || "none"],
    ["made", stamp(message.stored)],
    ["ordered", message.ordered ? `${stamp(message.ordered)} by ${message.by}` : "by its log"],
    ["order of", `${message.from}, record ${message.record}, epoch ${message.epoch}`]] : [];
  $("x-facts").replaceChildren(...facts.flatMap(([name, value]) => {
    const term = make("dt"), fact = make("dd");
    term.textContent = name;
    fact.textContent = value;
    return [term, fact];
  }));
  text($("x-payload"), message ? message.text : "");
  text($("x-lines"), "reading the order…");
  if (!$("explain").open) $("explain").showModal();
  try {
    const answer = await (await fetch(`explain?${new URLSearchParams({ id })}`)).json();
    text($("x-lines"), answer.error || answer.lines.join("\n"));
  } catch {
    text($("x-lines"), "The explanation did not come; try again.");
  }
}
$("x-close").addEventListener("click", () => $("explain").close());

// -- events --------------------------------------------------------------------------------------

function linked(state, sentence) {
  document.body.dataset.link = $("link").dataset.state = state;
  text($("link-text"), sentence);
}
function arranged(event) {
  layout = JSON.parse(event.data);
  text($("topic"), layout.topic);
  sparks.clear();
  totalSpark = [];
  for (const spec of layout.collectors) {
    sparks.set(spec.name, spec.rates.slice(0, -1));
    spec.ownNames = some(spec.own.map((number) => layout.logs[number].name));
  }
  if (chosen && !sparks.has(chosen)) chosen = null;
  edges.build();
  const rows = Math.max(3, Math.min(10, layout.collectors.length));
  $("tree").style.height = `${rows * TREE_ROW}px`;
  tree.set(layout.collectors, "This plan has no collectors: each log is its own order.");
  const before = $("interest").value, signature = JSON.stringify(layout.consumers);
  if (signature !== shownInterest) {
    shownInterest = signature;
    $("interest").replaceChildren(...layout.consumers.map((consumer) => {
      const option = make("option");
      option.value = consumer.name;
      option.textContent = `${consumer.name}: ${some(consumer.interest)}`;
      return option;
    }));
    if (layout.consumers.some((consumer) => consumer.name === before)) $("interest").value = before;
    openTimeline();
  }
}
function ticked(event) {
  moment = JSON.parse(event.data);
  lastTick = Date.now();
  linked("live", "live");
  for (const [name, facts] of Object.entries(moment.collectors)) {
    const values = sparks.get(name);
    if (values && values.push(facts[7]) > SPARK_TICKS) values.shift();
  }
  if (totalSpark.push(moment.totals.rate) > SPARK_TICKS) totalSpark.shift();
  drawLogs();
  drawCluster();
  for (const part of [totals, changes, edges, tree]) schedule(part);
}

/* A browser opens six connections to a server for all its tabs, so a tab in the background, which
   nobody reads, has none. An answer that is no stream ends a source for good; it is opened again. */
let source = null, retry = 0;
function openEvents() {
  closeEvents();
  source = new EventSource("events");
  source.addEventListener("layout", arranged);
  source.addEventListener("moment", ticked);
  source.addEventListener("problem", (event) =>
    linked("lost", JSON.parse(event.data).error || "reading the order"));
  source.onerror = () => {
    if (!lastTick) linked("lost", "no answer; trying again");
    if (source.readyState === EventSource.CLOSED) retry = setTimeout(openEvents, RETRY_MS);
  };
}
function closeEvents() {
  clearTimeout(retry);
  if (source) source.close();
  source = null;
}
document.addEventListener("visibilitychange", () => {
  lastTick = 0;
  if (document.hidden) {
    closeEvents();
    closeTimeline();
    linked("wait", "not looking");
    if (layout) document.title = `${layout.topic} · amcast (not looking)`;
  } else {
    linked("wait", "connecting");
    openEvents();
    if (!paused) openTimeline();
  }
});
if (!document.hidden) openEvents();
setInterval(() => {
  const silent = Date.now() - lastTick;
  if (lastTick && silent > STALE_MS) linked("lost", `no news for ${ago(0, silent)}`);
}, 1000);

for (const state of STATES) {
  const item = make("li", "", $("legend"));
  item.dataset.state = state;
  setShape(shape(item), state);
  item.append(WORDS[state] || state);
}
{
  const item = make("li", "", $("legend"));
  const drawn = svg("svg", { class: "width", viewBox: "0 0 26 10" }, item);
  svg("path", { d: "M1 5L25 1V9z" }, drawn);
  item.append("width: messages relayed");
}
