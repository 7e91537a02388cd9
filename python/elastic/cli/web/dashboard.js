"use strict";

const SENTENCES_MAX = 3; // about stragglers
const INCIDENTS_MAX = 10; // the latest ones, unless all are wanted
const NODES_MAX = 16; // those that are not as usual first
const NUMBERS_MAX = 512; // ranks that have their number in the grid
const ROUNDS_KEPT = 64; // by the coordinator
const BARS_MAX = 60; // of goodput; each is one of these times, in seconds
const BAR_SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
const ORDINARY = ["running", "stopped", "succeeded"]; // states that only have a colour

const wanted = { incidents: false, nodes: false }; // all of them
const opened = new Set(); // the rounds whose report is open
let latest = null;

// Every text of the job is set as textContent, so that it cannot become markup.

const byId = (id) => document.getElementById(id);

function element(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function clock(at) {
  return at === null ? "-" : new Date(at * 1000).toTimeString().slice(0, 8);
}

function duration(seconds) {
  if (seconds === null) return "-";
  if (seconds < 0.01) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// What the job does, in one word.
function stateOf(job) {
  if (job.result) return job.result.outcome;
  return job.hang ? "hung" : job.phase;
}

function describe(job) {
  if (job.result) return `${job.result.message} (exit code ${job.result.exit_code})`;
  if (!job.hang) return job.description;
  const { idle_seconds, step, rank, place } = job.hang;
  const suspect = rank === null ? "" : `; suspect: rank ${rank}${place ? `, ${place}` : ""}`;
  return `no rank has made progress for ${duration(idle_seconds)}, since step ${step}${suspect}`;
}

// Seconds until the next round made its first step, or was formed; null: there is no next round yet.
function withoutTraining(round) {
  if (round.phases.rendezvous === null) return null;
  return Object.values(round.phases).reduce((sum, seconds) => sum + (seconds ?? 0), 0);
}

function showNow(job) {
  const lines = [element("p", describe(job), stateOf(job))];
  if (!job.result) {
    if (job.stall && !job.hang) {
      const { idle_seconds, message, place } = job.stall;
      const text = `${message} (for ${duration(idle_seconds)})${place ? `; it is ${place}` : ""}`;
      lines.push(element("p", text, "straggling"));
    }
    if (job.mismatch) lines.push(element("p", job.mismatch, "straggling"));
    for (const one of job.stragglers.slice(0, SENTENCES_MAX)) {
      const text =
        `rank ${one.rank} on ${one.node}: at step ${one.step}, no progress for ` +
        `${duration(one.idle_seconds)} while other ranks advance`;
      lines.push(element("p", text, "straggling"));
    }
    const more = job.stragglers.length - SENTENCES_MAX;
    if (more > 0) lines.push(element("p", `and ${more} ranks more`, "straggling"));
    const reasons = job.excluded.map((one) => `${one.host}: ${one.reason}`);
    for (const one of job.findings) {
      if (reasons.includes(`${one.host}: ${one.text}`)) continue;
      const text = `host ${one.host} at ${clock(one.time)}: ${one.text}`;
      lines.push(element("p", text, "straggling"));
    }
    for (const one of job.excluded) {
      const text = `host ${one.host} is excluded until ${clock(one.until)}: ${one.reason}`;
      lines.push(element("p", text, "straggling"));
    }
  }
  byId("now").replaceChildren(...lines);
  byId("state").textContent = stateOf(job);
  byId("state").className = stateOf(job);
}

function speed(seconds) {
  if (!seconds) return "-";
  const rate = 1 / seconds;
  return `${rate.toFixed(rate >= 100 ? 0 : rate >= 10 ? 1 : 2)} steps/s`;
}

function progressFacts(job) {
  const progress = job.result ? null : job.progress;
  if (progress === null) return [];
  const slowest = progress.slowest_step;
  const behind = slowest !== null && slowest < progress.step ? `, slowest at ${slowest}` : "";
  const recent = job.hang ? null : progress.step_seconds; // no longer true of a job that hangs
  return [
    ["Step", `${progress.step}${behind}`],
    ["Speed", speed(recent)],
    ["One step", duration(recent)],
  ];
}

function coordinator(job) {
  const { address, node, term } = job.coordinator;
  if (address?.startsWith("unix:")) return "in the job's only agent";
  return `${node ?? "outside the round"}, term ${term}`;
}

const nodesText = (count) => (count === 1 ? "1 node" : `${count} nodes`);

// Without steps the time of imports, builds and deadlocks would count as training.
function goodputText(job) {
  if (job.goodput === null) return "-";
  const isKnown = job.progress !== null || job.result !== null;
  return isKnown ? percent(job.goodput) : "no steps reported";
}

function showSummary(job) {
  const pairs = [
    ...progressFacts(job),
    ["Goodput", goodputText(job)],
    ["Running", duration(job.running_seconds)],
    ["Round", job.round === null ? "-" : `${job.round}`],
    ["World size", `${job.world_size} on ${nodesText(job.nodes_in_round)}`],
    ["Restarts", `${job.restarts} of ${job.settings.max_restarts}`],
    ["Membership changes", `${job.membership_changes}`],
    ["Waiting, spare", `${job.waiting_nodes}, ${job.spare_nodes}`],
    ["Coordinator", coordinator(job)],
  ];
  byId("summary").replaceChildren(...facts(pairs).children);
}

// The rounds that were formed, the time that they span, and the parts of it in which they trained.
// Of a job that reports steps a round trains from its first step on.
function courseOf(job) {
  const rounds = job.rounds.filter((round) => round.formed !== null);
  if (rounds.length === 0) return null;
  const begin = rounds[0].formed;
  const ends = job.result ? rounds[rounds.length - 1].ended ?? job.time : job.time;
  const reportsSteps = rounds.some((round) => round.first_step !== null);
  const hungSince = stateOf(job) === "hung" ? job.time - job.hang.idle_seconds : Infinity;
  const trained = rounds.map((round) => {
    const until = round.ended ?? ends;
    const from = reportsSteps ? round.first_step ?? until : round.formed;
    return { from, until: Math.max(from, round.ended === null ? Math.min(until, hungSince) : until) };
  });
  return { rounds, begin, ends, trained };
}

// A segment for each round, and one for each time in which nothing was trained: between two rounds,
// before the first step of a round that reports steps, and while the job hangs.
function showTimeline(job, course) {
  const line = byId("timeline");
  if (course === null) {
    line.replaceChildren();
    byId("span").textContent = "no round yet";
    return;
  }
  const { rounds, begin, ends, trained } = course;
  const whole = Math.max(ends - begin, 1e-3);
  const segment = (from, to, className, title) => {
    const made = element("div", "", className);
    made.style.left = `${(100 * (from - begin)) / whole}%`;
    made.style.width = `${(100 * Math.max(to - from, 0)) / whole}%`;
    made.title = title;
    return made;
  };
  const segments = [];
  const lost = [];
  rounds.forEach((round, index) => {
    const until = round.ended ?? ends;
    const name = `round ${round.round}, ${clock(round.formed)}, ${duration(until - round.formed)}`;
    segments.push(segment(round.formed, until, "round", name));
    const stepped = trained[index].from;
    if (stepped > round.formed) {
      const title = `${duration(stepped - round.formed)} until the first step`;
      lost.push(segment(round.formed, stepped, "start", title));
    }
    const next = rounds[index + 1];
    if (round.ended !== null && (next || !job.result)) {
      const restarted = next ? next.formed : ends;
      const title = `${duration(restarted - round.ended)}: ${round.reason}`;
      lost.push(segment(round.ended, restarted, "gap", title));
    }
  });
  if (job.result && !["succeeded", "stopped"].includes(job.result.outcome)) {
    lost.push(segment(ends, ends, "gap end", job.result.message));
  } else if (stateOf(job) === "hung") {
    lost.push(segment(job.time - job.hang.idle_seconds, ends, "gap", describe(job)));
  }
  line.replaceChildren(...segments, ...lost); // the lost time above the rounds
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
  return seconds >= 60 ? `${seconds / 60} min` : duration(seconds);
}

const percent = (part) => `${(100 * part).toFixed(1)} %`;

// A bar for each part of the time, as high as its share of training, and a line with the goodput of
// all the time until then. Both come from the times of the rounds; the last point is the job's own
// goodput.
function showGoodput(job, course) {
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
    trained.reduce((sum, one) => sum + Math.max(0, Math.min(one.until, to) - Math.max(one.from, from)), 0);
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
  const parts = [
    `bars: the share of each ${roundTime(wide)} in which the job trained`,
    `line: goodput since ${clock(job.began)}, now ${percent(job.goodput)}`,
  ];
  const elsewhere = job.running_seconds - trainedIn(begin, ends);
  if (job.rounds.length >= ROUNDS_KEPT) {
    parts.push(`the coordinator keeps the latest ${ROUNDS_KEPT} rounds`);
  } else if (elsewhere < -1) {
    parts.push(`hangs that ended, ${duration(-elsewhere)} in all, are not in the bars`);
  }
  legend.textContent = parts.join("; ");
}

function showRows(table, rows) {
  const titles = Array.from(byId(table).tHead.rows[0].cells, (cell) => cell.textContent);
  byId(table).tBodies[0].replaceChildren(
    ...rows.map((cells) => {
      const row = element("tr");
      cells.forEach((cell, column) => {
        const holder = element("td");
        holder.append(...(typeof cell === "string" ? [cell] : cell));
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

// Titles and texts; those without a text are not known.
function facts(pairs) {
  const list = element("dl");
  for (const [title, text] of pairs.filter((pair) => pair[1] !== null && pair[1] !== "")) {
    const pair = element("div");
    pair.append(element("dt", title), element("dd", text));
    list.append(pair);
  }
  return list;
}

const textOf = (number) => (number === null ? null : `${number}`);

function exitText(code) {
  if (code === null) return null;
  return code > 128 && code <= 128 + 64 ? `${code} (signal ${code - 128})` : `${code}`;
}

// The report of the failure that ended a round. Observers receive no output of workers then.
function reportOf(job, round) {
  const made = element("details");
  made.open = opened.has(round.round);
  made.addEventListener("toggle", () => {
    if (made.open) opened.add(round.round);
    else opened.delete(round.round);
  });
  const ran = round.first_step ?? round.formed;
  const next = job.rounds.find((one) => one.round > round.round);
  const about = facts([
    ["Rank", textOf(round.rank)],
    ["Node", round.node],
    ["Exit code", exitText(round.exit_code)],
    ["Trained", ran === null || round.ended === null ? null : duration(round.ended - ran)],
    ["Size", `${round.world_size} on ${nodesText(round.nodes)}`],
    ["Next size", next ? `${next.world_size} on ${nodesText(next.nodes)}` : null],
    ["Restarts", next ? `${next.restarts} of ${job.settings.max_restarts}` : null],
  ]);
  made.append(element("summary", round.reason), about);
  if (round.rank !== null) {
    const where = round.node === null ? "its node" : round.node;
    const text = `The output of the worker is not sent to observers: see its log, or the console of ${where}.`;
    made.append(element("p", text, "note"));
  }
  return made;
}

// The report of the failure that ended the job.
function showFailure(job) {
  const holder = byId("failure");
  const { result } = job;
  holder.hidden = result === null || result.outcome !== "failed";
  if (holder.hidden) return;
  const known = result.evidence ?? { output: "" };
  const parts = [
    facts([
      ["Rank", textOf(result.rank)],
      ["Node", result.node],
      ["Host", known.host ?? null],
      ["Time", known.time ? clock(known.time) : null],
      ["Exit code", exitText(result.exit_code)],
      ["Class", known.class ? `${known.class} (${known.cause})` : null],
      ["Error", known.error ?? null],
      ["Hint", known.hint ?? null],
      ["Lost", result.lost.join(", ")],
    ]),
  ];
  if (known.output) {
    parts.push(element("h3", "Last lines of its stderr"), element("pre", known.output));
  } else if (result.rank !== null) {
    parts.push(element("p", "No lines of its stderr were captured.", "note"));
  }
  holder.replaceChildren(...parts);
}

function showIncidents(job) {
  const ended = job.rounds.filter((round) => round.cause !== null).reverse();
  byId("no-incidents").hidden = ended.length > 0;
  byId("incidents").hidden = ended.length === 0;
  showRows(
    "incidents",
    limited("incidents", ended, INCIDENTS_MAX).map((round) => [
      `${round.round}`,
      clock(round.ended),
      round.cause.replaceAll("_", " "),
      duration(withoutTraining(round)),
      duration(round.phases.detect),
      duration(round.phases.stop),
      duration(round.phases.rendezvous),
      duration(round.phases.first_step),
      [reportOf(job, round)],
    ]),
  );
}

// The state of each worker of a node, and what else is to be said about it.
function workersOf(job, node) {
  return (node.workers ?? []).map((worker) => {
    // The last report of a node may be older than the job's end.
    const isOver = job.result !== null && ["running", "starting"].includes(worker.state);
    const straggler = job.stragglers.find((one) => one.rank === worker.rank);
    let state = isOver ? "stopped" : worker.state;
    let note = "";
    if (state === "failed") note = `exit code ${worker.exit_code}`;
    if (!isOver && stateOf(job) === "hung" && job.hang.rank === worker.rank) {
      state = "hung";
    } else if (!isOver && straggler) {
      state = "straggling";
      note = `no progress for ${duration(straggler.idle_seconds)}, at step ${straggler.step}`;
    }
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
  const nodes = job.nodes.map((node) => {
    const workers = workersOf(job, node);
    const isOver = job.result !== null && node.state === "working";
    const known = isOver ? "stopped" : node.state;
    const isUsual =
      node.connected && known === "working" && workers.every(({ state }) => state === "running");
    return { node, workers, known, isUsual };
  });
  showRanks(nodes.flatMap(({ workers }) => workers));
  const first = [...nodes.filter((one) => !one.isUsual), ...nodes.filter((one) => one.isUsual)];
  const shown = limited("nodes", nodes.length > NODES_MAX ? first : nodes, NODES_MAX);
  showRows(
    "nodes",
    shown.map(({ node, workers, known }) => [
      node.rank === null ? "-" : `${node.rank}`,
      node.name,
      node.address ?? "-",
      [
        node.connected
          ? element("span", known, known)
          : element("span", `${known}, disconnected`, "disconnected"),
      ],
      `${duration(node.last_beat_seconds)} ago`,
      workers.length ? workers.map(chip) : "-",
    ]),
  );
}

function show(job) {
  latest = job;
  document.title = `${job.job}: ${stateOf(job)}`;
  byId("job").textContent = `job ${job.job}`;
  showNow(job);
  showFailure(job);
  showSummary(job);
  const course = courseOf(job);
  showTimeline(job, course);
  showGoodput(job, course);
  showIncidents(job);
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
