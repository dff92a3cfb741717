// The page: asks every few seconds while it is seen, draws what changed, and says what is wrong.
import { ChartCard } from "./charts.js";
import { showEnvironment } from "./detail.js";
import { ask, clockTime, make, shown, table } from "./parts.js";

const EVERY_MS = 3000;
const at = (id) => document.getElementById(id);
const state = { run: "", tags: {}, cards: new Map(), panels: new Map(), paused: false, timer: 0, asked: 0, generation: -1, broker: false };

async function begin() {
  const { body } = await ask("/api/panels");
  for (const panel of body) {
    state.panels.set(panel.name, panel);
    if (panel.kind === "table") {
      at(`${panel.name}-title`).textContent = panel.title;
      at(panel.name).querySelector("p.quiet").textContent = panel.shows;
    } else {
      const card = new ChartCard(panel);
      state.cards.set(panel.name, card);
      at("charts").append(card.element);
    }
  }
  await listRuns(new URLSearchParams(location.hash.slice(1)).get("run"));
  at("run").addEventListener("change", () => choose(at("run").value));
  at("pause").addEventListener("click", pause);
  at("search").addEventListener("input", () => { state.tags.environments = ""; tick(); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && !state.paused) tick(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => state.cards.forEach((card) => card.draw()));
  await tick();
}

async function listRuns(wished) {
  const { body } = await ask("/api/runs");
  state.broker = body.broker;
  at("run").replaceChildren(...body.runs.map((one) => make("option", { value: one.run }, `${one.run} (${one.state})`)));
  const known = body.runs.map((one) => one.run);
  if (!state.run) choose(known.includes(wished) ? wished : body.first, false);
  at("run").value = state.run;
  state.ended = body.runs.find((one) => one.run === state.run)?.state === "finished";
}

function choose(run, now = true) {
  state.run = run;
  state.tags = {};
  state.generation = -1;
  history.replaceState(null, "", `#run=${encodeURIComponent(run)}`);
  if (now) tick();
}

function pause() {
  state.paused = !state.paused;
  state.asked += 1; // what is under way comes too late
  clearTimeout(state.timer);
  at("pause").setAttribute("aria-pressed", String(state.paused));
  at("pause").textContent = state.paused ? "Go on" : "Pause";
  if (!state.paused) tick();
}

// What is shown carries its tag: an answer that comes too late is neither shown nor remembered.
function show(name, found, draw) {
  if (!found) return;
  draw(found.body);
  state.tags[name] = found.tag;
}

async function tick() {
  clearTimeout(state.timer);
  const run = state.run;
  const own = ++state.asked;
  try {
    if (run) {
      const wanted = { charts: { run }, environments: { run, search: at("search").value } };
      const [charts, environments] = await Promise.all(Object.entries(wanted).map(([name, values]) => ask(`/api/${name}`, values, state.tags[name])));
      if (own !== state.asked) return;
      show("charts", charts, showCharts);
      show("environments", environments, showEnvironments);
    }
    await listRuns();
    at("trouble").hidden = true;
    at("updated").textContent = run ? `${state.ended ? "The run has finished. " : ""}Read at ${clockTime(Date.now() / 1000)}` : "The store knows no run yet.";
  } catch (problem) {
    if (own !== state.asked) return;
    at("trouble").textContent = `Nothing new: ${problem.message}. Trying again.`;
    at("trouble").hidden = false;
  }
  await showLag(run);
  if (own !== state.asked) return;
  clearTimeout(state.timer);
  if (!state.paused && !document.hidden) state.timer = setTimeout(tick, EVERY_MS);
}

function showCharts({ rows, alarms }) {
  for (const [name, card] of state.cards) card.show(rows[name]);
  const list = alarms.length ? alarms.map((alarm) => make("li", { class: "alarm" }, alarm))
    : [make("li", { class: "fine" }, "None: staleness, effective sample size, diversity and regret are in bounds.")];
  at("alarms").replaceChildren(...list);
  showTiles(rows);
  const columns = Object.keys(rows.rejected[0] ?? {}).filter((name) => name !== "environment");
  fillTable("rejected", [{ name: "environment", cell: opener }, ...columns.map((name) => ({ name, ...(name === "time" ? { text: true, cell: (row) => clockTime(row.time) } : {}) }))],
    rows.rejected, "Nothing was rejected yet.");
}

function showTiles(rows) {
  const last = (name) => rows[name].at(-1) ?? {};
  const generation = last("win_rate").generation ?? null;
  const step = last("policy_lag").step ?? null;
  const tiles = [
    ["Generations closed", generation === null ? 0 : generation + 1], ["Steps trained", step === null ? 0 : step + 1],
    ["Win rate", shown(last("win_rate")["without hint"], "share")], ["With hint", shown(last("win_rate")["with hint"], "share")],
    ["Regret", shown(last("regret").regret, "return")], ["Vendi / n", shown(last("diversity")["Vendi / n"])],
  ];
  at("tiles").replaceChildren(...tiles.map(([name, value]) => make("div", { class: "tile" }, make("span", { class: "quiet" }, name), make("b", {}, shown(value)))));
  if (generation !== null && generation !== state.generation) {
    if (state.generation >= 0) at("said").textContent = `Generation ${generation} has closed.`;
    state.generation = generation;
  }
}

function opener(row) {
  const id = row.environment;
  return make("button", { type: "button", "aria-haspopup": "dialog", "aria-label": `Environment ${id}`,
    onclick: () => showEnvironment(state.run, id) }, id.slice(0, 8));
}

function showEnvironments({ rows, most }) {
  at("found").textContent = rows.length < most ? `${rows.length} found` : `the newest ${most}`;
  fillTable("environments", [
    { name: "environment", cell: opener }, { name: "generation" }, { name: "skill" }, { name: "verdict" },
    { name: "win rate", unit: "share" }, { name: "with hint", unit: "share" }, { name: "regret", unit: "return" }, { name: "reward" },
  ], rows, "No design fits.");
}

async function showLag(run) {
  if (!state.broker || !run) {
    at("lag-table").replaceChildren(make("p", { class: "quiet" }, "No broker is named: start the page with --broker."));
    return;
  }
  try {
    const { body } = await ask("/api/lag", { run });
    const rows = body.rows.map((row) => ({ ...row, group: row.group.replace(`-${run}`, "") }));
    fillTable("lag", [{ name: "group" }, { name: "topic" }, { name: "lag" }, { name: "position", label: "furthest behind" }], rows,
      "The broker knows no consumer group of this run.");
  } catch (problem) {
    at("lag-table").replaceChildren(make("p", { class: "quiet", role: "status" }, problem.message));
  }
}

// Keeps the focus where it was: a table that is drawn anew has new buttons.
function fillTable(name, columns, rows, empty) {
  const place = at(name).querySelector(".scroll");
  const focused = place.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  const scrolled = place.scrollTop;
  const caption = at(`${name}-title`).textContent;
  place.setAttribute("tabindex", "0");
  place.setAttribute("role", "region");
  place.setAttribute("aria-label", `${caption}: table`);
  place.replaceChildren(rows.length ? table(caption, columns, rows) : make("p", { class: "quiet" }, empty));
  place.scrollTop = scrolled;
  if (focused) [...place.querySelectorAll("button")].find((one) => one.getAttribute("aria-label") === focused)?.focus();
}

begin().catch((problem) => {
  at("trouble").textContent = `The page can't begin: ${problem.message}. Load it again.`;
  at("trouble").hidden = false;
});
