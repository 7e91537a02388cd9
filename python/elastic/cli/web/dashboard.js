"use strict";

const SENTENCES_MAX = 3; // about stragglers
const INCIDENTS_MAX = 10; // the latest ones, unless all are wanted
const NODES_MAX = 16; // those that are not as usual first
const NUMBERS_MAX = 512; // ranks that have their number in the grid
const ORDINARY = ["running", "stopped", "succeeded"]; // states that only have a colour

const wanted = { incidents: false, nodes: false }; // all of them
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
    for (const one of job.stragglers.slice(0, SENTENCES_MAX)) {
      const text =
        `rank ${one.rank} on ${one.node}: at step ${one.step}, no progress for ` +
        `${duration(one.idle_seconds)} while other ranks advance`;
      lines.push(element("p", text, "straggling"));
    }
    const more = job.stragglers.length - SENTENCES_MAX;
    if (more > 0) lines.push(element("p", `and ${more} ranks more`, "straggling"));
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

function showSummary(job) {
  const nodes = job.nodes_in_round === 1 ? "1 node" : `${job.nodes_in_round} nodes`;
  const facts = [
    ...progressFacts(job),
    ["Goodput", job.goodput === null ? "-" : `${(100 * job.goodput).toFixed(1)} %`],
    ["Running", duration(job.running_seconds)],
    ["Round", job.round === null ? "-" : `${job.round}`],
    ["World size", `${job.world_size} on ${nodes}`],
    ["Restarts", `${job.restarts} of ${job.settings.max_restarts}`],
    ["Membership changes", `${job.membership_changes}`],
    ["Waiting, spare", `${job.waiting_nodes}, ${job.spare_nodes}`],
    ["Coordinator", coordinator(job)],
  ];
  byId("summary").replaceChildren(
    ...facts.map(([title, text]) => {
      const pair = element("div");
      pair.append(element("dt", title), element("dd", text));
      return pair;
    }),
  );
}

// A segment for each round, and one for each time in which nothing was trained: between two rounds,
// before the first step of a round that reports steps, and while the job hangs.
function showTimeline(job) {
  const rounds = job.rounds.filter((round) => round.formed !== null);
  const line = byId("timeline");
  if (rounds.length === 0) {
    line.replaceChildren();
    byId("span").textContent = "no round yet";
    return;
  }
  const begin = rounds[0].formed;
  const ends = job.result ? rounds[rounds.length - 1].ended ?? job.time : job.time;
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
  const reportsSteps = rounds.some((round) => round.first_step !== null);
  rounds.forEach((round, index) => {
    const until = round.ended ?? ends;
    const name = `round ${round.round}, ${clock(round.formed)}, ${duration(until - round.formed)}`;
    segments.push(segment(round.formed, until, "round", name));
    if (reportsSteps) {
      const stepped = round.first_step ?? until;
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
      round.reason,
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
  showSummary(job);
  showTimeline(job);
  showIncidents(job);
  showNodes(job);
}

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
