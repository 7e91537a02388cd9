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
  return at === null ? "-" : new Date(at * 1000).toLocaleTimeString();
}

function duration(seconds) {
  if (seconds === null) return "-";
  if (seconds < 0.01) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 90) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 90 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function showSummary(job) {
  const facts = [
    ["State", job.result ? job.result.outcome : job.phase],
    ["Round", job.round === null ? "-" : `${job.round}`],
    ["World size", `${job.world_size} on ${job.nodes_in_round} nodes`],
    ["Restarts", `${job.restarts} of ${job.settings.max_restarts}`],
    ["Waiting, spare", `${job.waiting_nodes}, ${job.spare_nodes}`],
    ["Goodput", job.goodput === null ? "-" : `${(100 * job.goodput).toFixed(1)} %`],
    ["Running", duration(job.running_seconds)],
    ["Coordinator", `${job.coordinator.node ?? "outside the round"}, term ${job.coordinator.term}`],
    ["Now", job.result ? job.result.message : job.description],
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

// A segment for each round, and one for each gap between a round and its successor.
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
  rounds.forEach((round, index) => {
    const until = round.ended ?? ends;
    const name = `round ${round.round}, ${clock(round.formed)}, ${duration(until - round.formed)}`;
    segments.push(segment(round.formed, until, "round", name));
    const next = rounds[index + 1];
    if (round.ended !== null && (next || !job.result)) {
      const restarted = next ? next.formed : ends;
      const title = `${duration(restarted - round.ended)}: ${round.reason}`;
      segments.push(segment(round.ended, restarted, "gap", title));
    }
  });
  line.replaceChildren(...segments);
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

function chips(node) {
  if (!node.workers) return [element("span", "-")];
  return node.workers.map((worker) => {
    const code = worker.state === "failed" ? ` (${worker.exit_code})` : "";
    const text = `${worker.rank}: ${worker.state}${code}`;
    const chip = element("span", text, `chip ${worker.state}`);
    chip.title = `rank ${worker.rank}, pid ${worker.pid}`;
    return chip;
  });
}

function showNodes(job) {
  showRows(
    "nodes",
    job.nodes.map((node) => {
      const state = node.connected ? node.state : `${node.state}, disconnected`;
      return [
        node.rank === null ? "-" : `${node.rank}`,
        node.name,
        node.address ?? "-",
        [element("span", state, node.connected ? node.state : "disconnected")],
        `${duration(node.last_beat_seconds)} ago`,
        chips(node),
      ];
    }),
  );
}

function show(job) {
  document.title = `${job.job}: ${job.result ? job.result.outcome : job.phase}`;
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
