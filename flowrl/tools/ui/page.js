// The page of `flowrl ui`. It asks the server every few seconds for what is new, and draws it. What comes from a run is
// only ever text: nothing here makes markup of a string.
"use strict";

const EVERY = 2000; // milliseconds between two questions
const SHOWN_AT_FIRST = 8; // runs whose curves are drawn unless you choose
const SILENT = 15; // seconds without news after which a running run is said to be silent
const COLOURS = 8;
const DASHES = ["", "8 3", "2 3", "10 3 2 3"];
const STATES = ["busy", "starved", "blocked"];
const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);
const answers = new Map(); // by address: the tag and the values of the last answer
const numbers = new Map(); // of runs by name, for the looks of their curves
const checked = new Map(); // whether the curve of a run is drawn, by name
const axes = { x: "env_steps", y0: "episode_return", y1: "eval_return" };
let current = null; // the name of the run whose details are shown
let drawn = ""; // which plan is drawn
let timer = 0;

// -- elements

function put(parent, tag, attributes = {}, text = "") {
  const svg = parent instanceof SVGElement || tag === "svg";
  const made = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== "") made.textContent = text;
  parent.append(made);
  return made;
}

function say(node, text) {
  if (node.textContent !== text) node.textContent = text; // so that a reader of the screen hears what is new alone
}

// -- numbers in words

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

function shown(value) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return whole.format(value);
  if (size >= 1000 && size < 1e15) return whole.format(value);
  if (size >= 0.001 && size < 1000) return String(Number(value.toPrecision(4)));
  return value.toPrecision(3);
}

const percent = (share) => `${Math.round(100 * share)} %`;

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function stateOf(run) {
  const silent = Date.now() / 1000 - run.heard;
  const words = { done: "done", goal: "goal reached", budget: "ended before the goal", killed: "was killed" };
  if (run.state !== "running") return words[run.state] || run.state;
  return silent > SILENT ? `running, silent for ${duration(silent)}` : "running";
}

// -- asking

async function ask(path, query) {
  const address = `${path}?${new URLSearchParams(query)}`;
  const before = answers.get(path);
  const headers = before && before.address === address ? { "If-None-Match": before.tag } : {};
  const answer = await fetch(address, { headers, cache: "no-store" });
  if (answer.status === 304) return { values: before.values, fresh: false };
  if (!answer.ok) throw new Error(await answer.text());
  const values = await answer.json();
  answers.set(path, { address, tag: answer.headers.get("ETag"), values });
  return { values, fresh: true };
}

async function refresh() {
  clearTimeout(timer);
  if (document.hidden) return; // it asks again once it is seen
  try {
    const { values } = await ask("runs", []);
    showRuns(values.runs);
    showKeys(values.keys);
    const names = values.runs.map((run) => run.name).filter((name) => checked.get(name));
    const query = [["x", axes.x], ["y", axes.y0], ["y", axes.y1], ...names.map((name) => ["run", name])];
    const curves = await ask("curves", query);
    if (curves.fresh) showCurves(curves.values);
    if (current !== null) {
      const run = await ask("run", [["run", current]]);
      showState(run.values);
      if (run.fresh) await showDetails(run.values);
    }
    say(byId("status"), `${values.runs.length === 1 ? "1 run" : `${values.runs.length} runs`}`);
  } catch (error) {
    const gone = error instanceof TypeError;
    say(byId("status"), gone ? "No answer: flowrl ui has ended. What you see is from before." : String(error.message));
  }
  timer = setTimeout(refresh, EVERY);
}

document.addEventListener("visibilitychange", refresh);

// -- the list of runs

function look(name) {
  if (!numbers.has(name)) numbers.set(name, numbers.size);
  const number = numbers.get(name);
  return { colour: `var(--c${number % COLOURS})`, dash: DASHES[Math.floor(number / COLOURS + number) % DASHES.length] };
}

function swatch(parent, name) {
  const svg = put(parent, "svg", { width: 34, height: 10, "aria-hidden": "true" });
  const line = put(svg, "path", { d: "M0 5 H34", class: "curve", "stroke-dasharray": look(name).dash });
  line.style.stroke = look(name).colour;
}

function showRuns(runs) {
  const body = byId("runs").tBodies[0];
  const names = runs.map((run) => run.name);
  if (!names.includes(current)) current = names.length ? newest(runs) : null;
  if ([...body.rows].map((row) => row.dataset.run).join("\n") !== names.join("\n")) {
    for (const name of names) if (!checked.has(name)) checked.set(name, checked.size < SHOWN_AT_FIRST);
    body.replaceChildren();
    for (const name of names) addRow(body, name);
  }
  byId("details").hidden = current === null;
  runs.forEach((run, i) => {
    const row = body.rows[i];
    const values = [
      stateOf(run), shown(run.steps), shown(run.episode_return), shown(run.best_eval_return), shown(run.steps_per_second),
      duration(run.seconds), run.plan, run.env, run.seed,
    ];
    values.forEach((value, k) => say(row.cells[k + 2], value));
    row.cells[2].className = `state-${run.state}`;
    row.className = run.name === current ? "chosen" : "";
    row.querySelector("button").setAttribute("aria-pressed", String(run.name === current));
  });
}

function newest(runs) {
  const running = runs.filter((run) => run.state === "running");
  const among = running.length ? running : runs;
  return among.reduce((best, run) => (run.heard > best.heard ? run : best)).name;
}

function addRow(body, name) {
  const row = put(body, "tr");
  row.dataset.run = name;
  const first = put(row, "td");
  const box = put(first, "input", { type: "checkbox", "aria-label": `draw the curve of ${name}` });
  box.checked = checked.get(name);
  box.addEventListener("change", () => {
    checked.set(name, box.checked);
    refresh();
  });
  first.append(" ");
  swatch(first, name);
  const choose = put(put(row, "td"), "button", { type: "button" }, name);
  choose.addEventListener("click", () => {
    current = name;
    refresh();
  });
  for (let k = 0; k < 9; k++) put(row, "td", { class: [1, 2, 3, 4, 5, 8].includes(k) ? "number" : "" });
}

// -- learning curves

function showKeys(keys) {
  if (keys.length && !keys.includes(axes.y1)) axes.y1 = keys.find((key) => key.startsWith("loss")) || keys[0];
  if (keys.length && !keys.includes(axes.x)) axes.x = keys.includes("updates") ? "updates" : "seconds";
  for (const [id, value] of Object.entries(axes)) {
    const select = byId(id);
    const options = keys.includes(value) ? keys : [value, ...keys];
    if ([...select.options].map((each) => each.value).join("\n") !== options.join("\n")) {
      select.replaceChildren();
      for (const key of options) put(select, "option", { value: key }, key);
      select.value = value;
    }
  }
}

for (const id of Object.keys(axes)) {
  byId(id).addEventListener("change", (event) => {
    axes[id] = event.target.value;
    refresh();
  });
}

let lastCurves = null;

function showCurves(values) {
  lastCurves = values;
  const places = byId("charts");
  while (places.children.length < values.y.length) {
    const figure = put(places, "figure");
    const svg = put(figure, "svg", { class: "chart", tabindex: 0, role: "img" });
    put(figure, "figcaption");
    put(figure, "ul", { class: "legend" });
    follow(svg);
  }
  values.y.forEach((y, i) => chart(places.children[i], values.curves[i], values.x, y));
}

new ResizeObserver(() => lastCurves && showCurves(lastCurves)).observe(byId("charts"));

function ticks(low, high, most) {
  const rough = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((each) => each >= rough);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

function chart(figure, curves, x, y) {
  const [svg, caption, legend] = figure.children;
  const lines = Object.entries(curves).filter(([, [xs]]) => xs.length);
  const width = svg.clientWidth || 480;
  const height = svg.clientHeight || 270;
  const box = { left: 58, right: width - 30, top: 10, bottom: height - 36 };
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  legend.replaceChildren();
  say(caption, lines.length ? `${y} over ${x}` : `${y}: no result of the chosen runs has it`);
  svg.setAttribute("aria-label", `${caption.textContent}; the arrow keys read single results`);
  svg.chart = null;
  if (!lines.length) return;
  const all = (k) => lines.flatMap(([, points]) => [Math.min(...points[k]), Math.max(...points[k])]);
  let [x0, x1, y0, y1] = [Math.min(...all(0)), Math.max(...all(0)), Math.min(...all(1)), Math.max(...all(1))];
  if (x0 === x1) [x0, x1] = [x0 - 1, x1 + 1];
  if (y0 === y1) [y0, y1] = [y0 - (Math.abs(y0) || 1) / 10, y1 + (Math.abs(y1) || 1) / 10];
  const at = (px, py) => [
    box.left + ((px - x0) / (x1 - x0)) * (box.right - box.left),
    box.bottom - ((py - y0) / (y1 - y0)) * (box.bottom - box.top),
  ];
  for (const tick of ticks(y0, y1, 5)) {
    const [, py] = at(x0, tick);
    put(svg, "path", { class: "grid", d: `M${box.left} ${py} H${box.right}` });
    put(svg, "text", { x: box.left - 6, y: py + 4, "text-anchor": "end" }, shown(Number(tick.toPrecision(12))));
  }
  for (const tick of ticks(x0, x1, Math.max(2, Math.floor(width / 110)))) {
    const [px] = at(tick, y0);
    put(svg, "text", { x: px, y: box.bottom + 16, "text-anchor": "middle" }, shown(Number(tick.toPrecision(12))));
  }
  put(svg, "text", { x: (box.left + box.right) / 2, y: height - 4, "text-anchor": "middle" }, x);
  for (const [name, [xs, ys]] of lines) {
    const { colour, dash } = look(name);
    const points = xs.map((px, i) => at(px, ys[i]).map((each) => each.toFixed(1)));
    const line = put(svg, "path", { class: "curve", d: `M${points.map((each) => each.join(" ")).join("L")}` });
    line.setAttribute("stroke-dasharray", dash);
    line.style.stroke = colour;
    if (points.length < 25) {
      for (const [px, py] of points) put(svg, "circle", { class: "dot", cx: px, cy: py, r: 2.5 }).style.fill = colour;
    }
    const entry = put(legend, "li");
    swatch(entry, name);
    put(entry, "span", {}, ` ${name} `);
    put(entry, "b", {}, shown(ys[ys.length - 1]));
  }
  const cursor = put(svg, "path", { class: "cursor" });
  svg.chart = { lines, legend, caption, box, x0, x1, at, cursor, words: caption.textContent, x };
}

// Read single results with the pointer or the arrow keys.
function follow(svg) {
  let place = null;
  const show = (share) => {
    if (!svg.chart) return;
    const { lines, legend, caption, x0, x1, at, box, cursor, words, x } = svg.chart;
    place = share === null ? null : Math.min(1, Math.max(0, share));
    const where = x0 + (place ?? 1) * (x1 - x0);
    lines.forEach(([, [xs, ys]], i) => {
      const nearest = place === null ? xs.length - 1 : xs.reduce((b, v, k) => (Math.abs(v - where) < Math.abs(xs[b] - where) ? k : b), 0);
      legend.children[i].lastChild.textContent = shown(ys[nearest]);
    });
    say(caption, place === null ? words : `${words}, at ${shown(Number(where.toPrecision(4)))}`);
    cursor.setAttribute("d", place === null ? "" : `M${at(where, 0)[0]} ${box.top} V${box.bottom}`);
    if (place !== null) svg.setAttribute("aria-label", `${x} ${shown(where)}: ${legend.textContent}`);
  };
  const share = (event) => {
    const { left } = svg.getBoundingClientRect();
    const { box } = svg.chart;
    return (event.clientX - left - box.left) / (box.right - box.left);
  };
  svg.addEventListener("pointermove", (event) => svg.chart && show(share(event)));
  svg.addEventListener("pointerleave", () => show(null));
  svg.addEventListener("blur", () => show(null));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -0.02, ArrowRight: 0.02 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    show((place ?? 1) + step);
  });
}

// -- one run

function showState(run) {
  say(byId("run-title"), `Run ${run.name}`);
  const parts = [stateOf(run), `${shown(run.results)} results`];
  if (run.started) parts.push(`begun ${run.started.replace("T", " ")}`);
  if (run.why) parts.push(run.why);
  say(byId("state"), parts.join("; "));
  byId("state").className = `state-${run.state}`;
  showLines(byId("stalls"), [
    ...run.problems,
    ...(run.profile && ["running", "killed"].includes(run.state) ? run.profile.stalls.map((line) => `Waits: ${line}`) : []),
  ]);
}

function showLines(place, lines) {
  if ([...place.children].map((each) => each.textContent).join("\n") === lines.join("\n")) return;
  place.replaceChildren();
  for (const line of lines) put(place, "p", {}, line);
}

async function showDetails(run) {
  const profile = run.profile || { operators: {}, changes: [], sentence: "", seconds: 0 };
  say(byId("span"), run.profile ? `In the last ${duration(profile.seconds)}${run.state === "running" ? "" : " of the run"}:` : "");
  say(byId("sentence"), profile.sentence);
  const changes = byId("changes");
  changes.replaceChildren();
  for (const [change, gain] of profile.changes) put(changes, "li", {}, `${change}: ${gain < 0 ? "" : "+"}${percent(gain)}`);
  showOperators(profile.operators);
  const ofEpisodes = (key) => /^(episode|eval_|best_|confirmed|goal_|win_rate)/.test(key);
  const entries = Object.entries(run.newest);
  showPairs(byId("episodes"), entries.filter(([key]) => ofEpisodes(key)));
  showPairs(byId("newest"), entries.filter(([key]) => !ofEpisodes(key)));
  showLags(run.lags);
  showFilms(run.name, run.films);
  byId("log").hidden = run.log.length === 0;
  say(byId("log").lastElementChild, run.log.join("\n"));
  const which = `${run.name}\n${run.plan_version}`;
  if (which !== drawn) {
    drawn = which;
    byId("plan").replaceChildren();
    if (run.plan_version) await showPlan(run.name);
  }
  colour(profile.operators);
}

function showPairs(table, pairs) {
  const body = table.tBodies[0];
  while (body.rows.length > pairs.length) body.deleteRow(-1);
  pairs.forEach(([key, value], i) => {
    if (i >= body.rows.length) {
      const row = put(body, "tr");
      put(row, "th", { scope: "row" });
      put(row, "td", { class: "number" });
    }
    say(body.rows[i].cells[0], key);
    say(body.rows[i].cells[1], shown(value));
  });
}

function holds(fill) {
  return fill ? `${shown(fill[0])} of ${shown(fill[1])}` : "";
}

function showOperators(operators) {
  const body = byId("operators").tBodies[0];
  body.replaceChildren();
  for (const [path, of] of Object.entries(operators)) {
    const row = put(body, "tr");
    put(row, "td", {}, path);
    put(row, "td", {}, of.state);
    for (const state of STATES) put(row, "td", { class: "number" }, percent(of[state]));
    put(row, "td", { class: "number" }, shown(of.rate));
    put(row, "td", { class: "number" }, holds(of.fill));
  }
}

function showLags(lags) {
  const place = byId("lags");
  place.hidden = Object.keys(lags).length === 0;
  const row = place.lastElementChild;
  row.replaceChildren();
  for (const [key, { edges, counts }] of Object.entries(lags)) {
    const figure = put(row, "figure");
    put(figure, "figcaption", {}, key);
    const svg = put(figure, "svg", { class: "bars", viewBox: "0 0 300 140", role: "img", preserveAspectRatio: "none" });
    const most = Math.max(...counts);
    const wide = 290 / counts.length;
    counts.forEach((count, i) => {
      const high = (105 * count) / most;
      const bar = put(svg, "rect", { x: 5 + i * wide, y: 115 - high, width: Math.max(1, wide - 2), height: high });
      put(bar, "title", {}, `${shown(edges[i])} to ${shown(edges[i + 1])}: ${count} results`);
    });
    put(svg, "text", { x: 5, y: 132 }, shown(edges[0]));
    put(svg, "text", { x: 295, y: 132, "text-anchor": "end" }, shown(edges[edges.length - 1]));
    put(svg, "text", { x: 295, y: 12, "text-anchor": "end" }, `at most ${shown(most)} results`);
    const words = counts.map((count, i) => (count ? `${shown(edges[i])}: ${count}` : "")).filter(Boolean);
    svg.setAttribute("aria-label", `results by ${key}: ${words.join(", ")}`);
  }
}

function showFilms(run, films) {
  const place = byId("films");
  place.hidden = films.length === 0;
  const row = place.lastElementChild;
  if (row.dataset.films === JSON.stringify([run, films])) return;
  row.dataset.films = JSON.stringify([run, films]);
  row.replaceChildren();
  for (const film of films) {
    const figure = put(row, "figure");
    const video = put(figure, "video", { controls: "", preload: "metadata", "aria-label": film });
    video.src = `film?${new URLSearchParams([["run", run], ["film", film]])}`;
    put(figure, "figcaption", {}, film);
  }
}

// -- the drawn plan

const TAGS = ["svg", "g", "rect", "path", "text", "title", "defs", "marker"];
const ATTRIBUTES = [
  "class", "x", "y", "width", "height", "rx", "d", "viewBox", "data-path", "data-store", "text-anchor", "textLength",
  "lengthAdjust", "id", "refX", "refY", "markerWidth", "markerHeight", "orient",
];

// What a drawn plan has, and nothing else: a run of somebody else's may hold any file.
function copied(node, parent) {
  if (!TAGS.includes(node.localName)) return;
  const made = put(parent, node.localName);
  for (const name of ATTRIBUTES) if (node.hasAttribute(name)) made.setAttribute(name, node.getAttribute(name));
  const marker = /^url\(#(store-)?head\)$/.exec(node.getAttribute("marker-end") || "");
  if (marker) made.setAttribute("marker-end", marker[0]);
  if (["text", "title"].includes(node.localName)) made.textContent = node.textContent;
  else for (const child of node.children) copied(child, made);
}

async function showPlan(name) {
  const answer = await fetch(`plan?${new URLSearchParams([["run", name]])}`);
  if (!answer.ok || name !== current) return;
  const text = (await answer.text()).replace(/<style>.*?<\/style>/s, ""); // the page has its own colours
  const parsed = new DOMParser().parseFromString(text, "image/svg+xml");
  if (parsed.documentElement.localName !== "svg") return;
  copied(parsed.documentElement, byId("plan"));
  const svg = byId("plan").firstElementChild;
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", "the drawn plan; the table of operators has its numbers");
}

// Colour the operators by what they did, with their shares as bars, the largest as a word, and rates on the edges.
function colour(operators) {
  for (const old of byId("plan").querySelectorAll(".live")) old.remove();
  for (const group of byId("plan").querySelectorAll("[data-path]")) {
    const of = operators[group.dataset.path];
    group.setAttribute("class", of ? `is-${of.state}` : "");
    const shape = group.querySelector("rect");
    if (!of || !shape) continue;
    const [x, y, width, height] = ["x", "y", "width", "height"].map((name) => Number(shape.getAttribute(name)));
    const live = put(group, "g", { class: "live" });
    const lines = [`${group.dataset.path}: ${STATES.map((state) => `${state} ${percent(of[state])}`).join(", ")}`];
    lines.push(`${shown(of.rate)} items per second`, of.fill ? `holds ${holds(of.fill)}` : "");
    put(live, "title", {}, lines.filter(Boolean).join("; "));
    bar(live, x + 10, y + height - 5, width - 20, STATES.map((state) => [`bar-${state}`, of[state]]));
    const words = of.state === "idle" ? "idle" : `${of.state} ${percent(of[of.state])}`;
    const wide = 6.1 * words.length + 10;
    put(live, "rect", { class: "badge", x: x + width - wide + 6, y: y - 8, width: wide, height: 14, rx: 7 });
    put(live, "text", { class: "badge-text", x: x + width - wide / 2 + 6, y: y + 3, "text-anchor": "middle" }, words);
    const beside = { class: "rate", x: x + width / 2 - 6, "text-anchor": "end" };
    put(live, "text", { ...beside, y: y + height + 11 }, `${shown(Number(of.rate.toPrecision(3)))}/s`);
    if (of.fill && !of.store) put(live, "text", { ...beside, y: y + height + 21 }, holds(of.fill));
  }
  for (const group of byId("plan").querySelectorAll("[data-store]")) {
    const of = operators[group.dataset.store];
    const texts = group.querySelectorAll("text");
    if (!of || !of.fill || !texts.length) continue;
    const live = put(group, "g", { class: "live" });
    const last = texts[texts.length - 1];
    last.textContent = last.textContent.replace(/(rows|items)=\d+|^\d+(?= of)/, (old, word) => // when it was drawn
      word ? `${word}=${of.fill[0]}` : String(of.fill[0]));
    last.removeAttribute("textLength");
    const x = Number(last.getAttribute("x"));
    const y = Number(last.getAttribute("y"));
    put(live, "title", {}, `holds ${holds(of.fill)}`);
    bar(live, x - 40, y + 5, 80, [["filled", of.fill[0] / of.fill[1]]]);
    put(live, "text", { class: "rate", x: x + 46, y: y + 10 }, percent(of.fill[0] / of.fill[1]));
  }
}

function bar(parent, x, y, width, parts) {
  put(parent, "rect", { class: "track", x, y, width, height: 5, rx: 1 });
  for (const [kind, share] of parts) {
    const wide = width * Math.min(1, share);
    if (wide >= 0.5) put(parent, "rect", { class: kind, x, y, width: wide, height: 5 });
    x += wide;
  }
}

refresh();
