"use strict";

const INCIDENTS_MAX = 10; // the latest ones, unless all are wanted
const NODES_MAX = 16; // those that are not as usual first
const NUMBERS_MAX = 512; // ranks that have their number in the grid
const BARS_MAX = 60; // of goodput; each is one of these times, in seconds
const BAR_SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
const ORDINARY = ["running", "being stopped", "stopped", "succeeded"]; // states that only have a colour

const wanted = { incidents: false, nodes: false }; // all of them
const opened = new Set(); // the rounds whose report is open
let latest = null;

// The texts are in job.page: cli/dashboard_view.py makes them. Each is set as textContent, so that it
// cannot become markup. A state is the text of an element and its classes, too.

const byId = (id) => document.getElementById(id);

// A sentence: a string, or a list in which numbers are times.
function read(words) {
  if (typeof words === "string") return words;
  return words.map((part) => (typeof part === "number" ? clock(part) : part)).join("");
}

function element(name, words = "", className = "") {
  const made = document.createElement(name);
  made.textContent = read(words);
  if (className) made.className = className;
  return made;
}

function clock(at) {
  return new Date(at * 1000).toTimeString().slice(0, 8);
}

function showNow({ state, headline, warnings }) {
  const lines = warnings.map((one) => element("p", one, "straggling"));
  byId("now").replaceChildren(element("p", headline, state), ...lines);
  byId("state").textContent = state;
  byId("state").className = state;
}

function showTimeline(course) {
  const line = byId("timeline");
  if (course === null) {
    line.replaceChildren();
    byId("span").textContent = "no round yet";
    return;
  }
  const { begin, ends, segments } = course;
  const whole = Math.max(ends - begin, 1e-3);
  line.replaceChildren(
    ...segments.map(({ kind, from, until, title }) => {
      const made = element("div", "", kind);
      made.style.left = `${(100 * (from - begin)) / whole}%`;
      made.style.width = `${(100 * Math.max(until - from, 0)) / whole}%`;
      made.title = read(title);
      return made;
    }),
  );
  byId("span").textContent = `${clock(begin)} to ${clock(ends)}`;
}

function svg(name, attributes, title = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (title) {
    const shown = document.createElementNS("http://www.w3.org/2000/svg", "title");
    shown.textContent = title;
    made.append(shown);
  }
  return made;
}

// One of BAR_SECONDS.
function roundTime(seconds) {
  if (seconds >= 3600) return `${seconds / 3600} h`;
  return seconds >= 60 ? `${seconds / 60} min` : `${seconds} s`;
}

const percent = (part) => `${(100 * part).toFixed(1)} %`;

// A bar for each part of the time, as high as its share of training, and a line with the goodput of
// all the time until then. Both come from the times of the rounds; the last point is the job's own
// goodput.
function showGoodput(job) {
  const { course } = job.page;
  const chart = byId("goodput");
  const legend = byId("goodput-legend");
  if (course === null || job.began === null || job.goodput === null) {
    chart.replaceChildren();
    legend.textContent = "not known yet";
    return;
  }
  const { begin, ends, trained } = course;
  const whole = Math.max(ends - begin, 1e-3);
  const trainedIn = (from, to) =>
    trained.reduce((sum, [begun, until]) => sum + Math.max(0, Math.min(until, to) - Math.max(begun, from)), 0);
  const least = whole / BARS_MAX;
  const wide = BAR_SECONDS.find((one) => one >= least) ?? 86400 * Math.ceil(least / 86400);
  const bars = [];
  const points = [];
  for (let from = begin; from < ends; from += wide) {
    const to = Math.min(from + wide, ends);
    if (to - from < 1e-6) break;
    const share = Math.min(trainedIn(from, to) / (to - from), 1);
    const title = `${clock(from)} to ${clock(to)}: ${percent(share)}`;
    const [x, width] = [(100 * (from - begin)) / whole, (100 * (to - from)) / whole];
    bars.push(svg("rect", { x, width, y: 100 * (1 - share), height: 100 * share }, title));
    const until = (job.running_seconds - trainedIn(to, ends)) / Math.max(to - job.began, 1e-3);
    points.push(`${x + width},${100 * (1 - Math.min(Math.max(until, 0), 1))}`);
  }
  chart.replaceChildren(...bars, svg("polyline", { points: points.join(" ") }));
  const bar = `bars: the share of each ${roundTime(wide)} in which the job trained`;
  legend.textContent = [bar, ...course.notes.map(read)].join("; ");
}

function showRows(table, rows) {
  const titles = Array.from(byId(table).tHead.rows[0].cells, (cell) => cell.textContent);
  byId(table).tBodies[0].replaceChildren(
    ...rows.map((cells) => {
      const row = element("tr");
      cells.forEach((cell, column) => {
        const holder = element("td");
        holder.append(...(Array.isArray(cell) && cell[0] instanceof Node ? cell : [read(cell)]));
        holder.dataset.title = titles[column]; // shown where the table is narrow
        row.append(holder);
      });
      return row;
    }),
  );
}

// The rows that are shown, and a button for the others.
function limited(name, rows, limit) {
  const button = byId(`all-${name}`);
  button.hidden = rows.length <= limit;
  button.textContent = wanted[name] ? `show ${limit} of ${rows.length}` : `show all ${rows.length}`;
  return wanted[name] ? rows : rows.slice(0, limit);
}

// Titles and texts.
function facts(pairs) {
  const list = element("dl");
  for (const [title, words] of pairs) {
    const pair = element("div");
    pair.append(element("dt", title), element("dd", words));
    list.append(pair);
  }
  return list;
}

// The report of the failure that ended a round.
function reportOf(incident) {
  const made = element("details");
  made.open = opened.has(incident.round);
  made.addEventListener("toggle", () => {
    if (made.open) opened.add(incident.round);
    else opened.delete(incident.round);
  });
  made.append(element("summary", incident.reason), facts(incident.facts));
  if (incident.note) made.append(element("p", incident.note, "note"));
  return made;
}

// The report of the failure that ended the job.
function showFailure(failure) {
  const holder = byId("failure");
  holder.hidden = failure === null;
  if (failure === null) return;
  const parts = [facts(failure.facts)];
  if (failure.output) {
    parts.push(element("h3", "Last lines of its stderr"), element("pre", failure.output));
  }
  if (failure.note) parts.push(element("p", failure.note, "note"));
  holder.replaceChildren(...parts);
}

function showIncidents(incidents) {
  byId("no-incidents").hidden = incidents.length > 0;
  byId("incidents").hidden = incidents.length === 0;
  showRows(
    "incidents",
    limited("incidents", incidents, INCIDENTS_MAX).map((one) => [...one.cells, [reportOf(one)]]),
  );
}

// The state of each worker of a node, and what else is to be said about it.
function workersOf(job, node) {
  return (node.workers ?? []).map((worker) => {
    const { state, note } = job.page.workers[worker.rank] ?? { state: worker.state, note: "" };
    const text = ORDINARY.includes(state) ? `${worker.rank}` : `${worker.rank} ${state}`;
    const title = [`rank ${worker.rank}: ${state}`, note, `pid ${worker.pid} on ${node.name}`];
    return { rank: worker.rank, state, text, title: title.filter((part) => part).join(", ") };
  });
}

function chip(worker) {
  const made = element("span", worker.text, `chip ${worker.state}`);
  made.title = worker.title;
  return made;
}

// A cell for each rank. Cells are kept, so that the title under the pointer stays.
function showRanks(workers) {
  const grid = byId("ranks");
  const counts = {};
  for (const { state } of workers) counts[state] = (counts[state] ?? 0) + 1;
  const parts = Object.entries(counts).map(([state, count]) =>
    element("span", `${count} ${state}`, state),
  );
  byId("counts").replaceChildren(...(parts.length ? parts : ["not reported"]));
  grid.className = workers.length > NUMBERS_MAX ? "many" : "";
  if (grid.children.length !== workers.length) {
    grid.replaceChildren(...workers.map(() => element("span")));
  }
  const sorted = workers.slice().sort((one, other) => one.rank - other.rank);
  sorted.forEach((worker, index) => {
    const cell = grid.children[index];
    const text = workers.length > NUMBERS_MAX ? "" : `${worker.rank}`;
    if (cell.textContent !== text) cell.textContent = text;
    if (cell.className !== worker.state) cell.className = worker.state;
    if (cell.title !== worker.title) cell.title = worker.title;
  });
}

function showNodes(job) {
  const nodes = job.nodes.map((node, index) => {
    const workers = workersOf(job, node);
    const { state, cells } = job.page.nodes[index];
    const isUsual =
      node.connected && state === "working" && workers.every((worker) => worker.state === "running");
    return { node, workers, state, cells, isUsual };
  });
  showRanks(nodes.flatMap(({ workers }) => workers));
  const first = [...nodes.filter((one) => !one.isUsual), ...nodes.filter((one) => one.isUsual)];
  const shown = limited("nodes", nodes.length > NODES_MAX ? first : nodes, NODES_MAX);
  showRows(
    "nodes",
    shown.map(({ node, workers, state, cells }) => {
      const [rank, name, address, words, beat] = cells;
      const tone = node.connected ? state : "disconnected";
      const chips = workers.length ? workers.map(chip) : "-";
      return [rank, name, address, [element("span", words, tone)], beat, chips];
    }),
  );
}

function show(job) {
  latest = job;
  const { page } = job;
  document.title = `${job.job}: ${page.state}`;
  byId("job").textContent = `job ${job.job}`;
  showNow(page);
  showFailure(page.failure);
  byId("summary").replaceChildren(...facts(page.summary).children);
  showTimeline(page.course);
  showGoodput(job);
  showIncidents(page.incidents);
  showNodes(job);
  byId("stacks").hidden = job.result !== null && byId("stacks-text").hidden;
  byId("collect").hidden = job.result !== null;
}

// The stacks of all ranks, once for each click.
async function collectStacks() {
  const [button, shown] = [byId("collect"), byId("stacks-text")];
  button.disabled = true;
  button.textContent = "collecting";
  let text;
  try {
    const reply = await fetch("stacks", { method: "POST", headers: { "X-Elastic": "stacks" } });
    text = await reply.text();
  } catch {
    text = "the dashboard's server does not answer";
  }
  shown.textContent = text;
  shown.hidden = false;
  button.disabled = false;
  button.textContent = "collect stacks";
}

byId("collect").addEventListener("click", collectStacks);

for (const name of Object.keys(wanted)) {
  byId(`all-${name}`).addEventListener("click", () => {
    wanted[name] = !wanted[name];
    show(latest);
  });
}

function showLink(text, isLost) {
  byId("link").textContent = text;
  byId("link").className = isLost ? "lost" : "";
}

const events = new EventSource("events");
events.addEventListener("job", (event) => {
  const job = JSON.parse(event.data);
  show(job);
  showLink(`updated ${clock(job.time)}`, false);
});
events.addEventListener("lost", (event) => showLink(JSON.parse(event.data), true));
events.onerror = () => showLink("the dashboard's server does not answer; trying again", true);
