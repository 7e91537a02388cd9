"use strict";

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
  if (job.result) return job.result.message;
  if (!job.hang) return job.description;
  const { idle_seconds, step, rank, place } = job.hang;
  const suspect = rank === null ? "" : `; suspect: rank ${rank}${place ? `, ${place}` : ""}`;
  return `no rank has made progress for ${duration(idle_seconds)}, since step ${step}${suspect}`;
}

function showSummary(job) {
  const facts = [
    ["State", stateOf(job)],
    ["Round", job.round === null ? "-" : `${job.round}`],
    ["World size", `${job.world_size} on ${job.nodes_in_round} nodes`],
    ["Restarts", `${job.restarts} of ${job.settings.max_restarts}`],
    ["Waiting, spare", `${job.waiting_nodes}, ${job.spare_nodes}`],
    ["Goodput", job.goodput === null ? "-" : `${(100 * job.goodput).toFixed(1)} %`],
    ["Running", duration(job.running_seconds)],
    ["Coordinator", `${job.coordinator.node ?? "outside the round"}, term ${job.coordinator.term}`],
    ["Now", describe(job)],
  ];
  byId("summary").replaceChildren(
    ...facts.map(([title, text]) => {
      const pair = element("div");
      const value = element("dd", text);
      if (title === "State") value.className = text;
      pair.append(element("dt", title), value);
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
  byId(table).tBodies[0].replaceChildren(
    ...rows.map((cells) => {
      const row = element("tr");
      for (const cell of cells) {
        if (typeof cell === "string") row.append(element("td", cell));
        else {
          const holder = element("td");
          holder.append(...cell);
          row.append(holder);
        }
      }
      return row;
    }),
  );
}

function showIncidents(job) {
  const ended = job.rounds.filter((round) => round.cause !== null).reverse();
  byId("no-incidents").hidden = ended.length > 0;
  byId("incidents").hidden = ended.length === 0;
  showRows(
    "incidents",
    ended.map((round) => [
      `${round.round}`,
      clock(round.ended),
      round.cause.replaceAll("_", " "),
      duration(round.phases.detect),
      duration(round.phases.stop),
      duration(round.phases.rendezvous),
      duration(round.phases.first_step),
      round.rank === null ? "-" : `${round.rank}`,
      round.reason,
    ]),
  );
}

function chips(job, node) {
  if (!node.workers) return [element("span", "-")];
  return node.workers.map((worker) => {
    // The last report of a node may be older than the job's end.
    const isOver = job.result !== null && ["running", "starting"].includes(worker.state);
    const straggler = job.stragglers.find((one) => one.rank === worker.rank);
    const isSuspect = stateOf(job) === "hung" && job.hang.rank === worker.rank;
    let state = isOver ? "stopped" : worker.state;
    let text = `${worker.rank}: ${state}`;
    if (state === "failed") text += ` (${worker.exit_code})`;
    if (!isOver && isSuspect) {
      state = "hung";
      text = `${worker.rank}: hung`;
    } else if (!isOver && straggler) {
      state = "straggling";
      text += `, no progress for ${duration(straggler.idle_seconds)} (step ${straggler.step})`;
    }
    const chip = element("span", text, `chip ${state}`);
    chip.title = `rank ${worker.rank}, pid ${worker.pid}`;
    return chip;
  });
}

function showNodes(job) {
  showRows(
    "nodes",
    job.nodes.map((node) => {
      const isOver = job.result !== null && node.state === "working";
      const known = isOver ? "stopped" : node.state;
      const state = node.connected ? known : `${known}, disconnected`;
      return [
        node.rank === null ? "-" : `${node.rank}`,
        node.name,
        node.address ?? "-",
        [element("span", state, node.connected ? known : "disconnected")],
        `${duration(node.last_beat_seconds)} ago`,
        chips(job, node),
      ];
    }),
  );
}

function show(job) {
  document.title = `${job.job}: ${stateOf(job)}`;
  byId("job").textContent = `job ${job.job}`;
  showSummary(job);
  showTimeline(job);
  showIncidents(job);
  showNodes(job);
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
