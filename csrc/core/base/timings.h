#pragma once

// The times that follow from the job's timings, each with the reason of its fraction, and the
// margins on which two machines must agree. A time that one machine alone uses stands there.

#include <algorithm>
#include <chrono>

#include "elastic/time.h"

namespace elastic::core {

// ---- Of node_timeout, after which a silent node is lost.

// Eight heartbeats: a session survives an outage of node_timeout less one interval and the time to
// open a new connection. At most 15 s, because heartbeats also compare the clocks and keep proxies
// from closing the connection.
constexpr Duration heartbeat_interval(Duration node_timeout) {
  return std::clamp<Duration>(node_timeout / 8, std::chrono::milliseconds(5),
                              std::chrono::seconds(15));
}
// A coordinator replies at once, so that one missing reply is enough to dial a second connection,
// and seven eighths are left for that.
constexpr Duration silence_limit(Duration node_timeout) {
  return std::max<Duration>(node_timeout / 8, std::chrono::milliseconds(5));
}
// One attempt to connect may take as long as the coordinator waits, and a slow start of many nodes.
constexpr Duration attempt_limit(Duration node_timeout) {
  return std::max<Duration>(node_timeout, std::chrono::seconds(5));
}
// Between two attempts of a node that has lost its session: it can dial 16 addresses before the
// coordinator counts it as lost. `usual`: the pause of a node that was never connected.
constexpr Duration attempt_pace(Duration node_timeout, Duration usual) {
  return std::clamp<Duration>(node_timeout / 16, std::chrono::milliseconds(10), usual);
}
// A process that was stopped for longer than two heartbeats charges the gap to no peer.
constexpr bool is_clock_gap(Duration gap, Duration node_timeout) { return gap > node_timeout / 4; }
// The kernel gives a connection up when sent bytes are not acknowledged for so long: later than the
// coordinator counts the node as lost, so that this is decided in one place.
constexpr Duration unacknowledged_limit(Duration node_timeout) { return 2 * node_timeout; }
// A witness has no session and notices the loss of a coordinator by its probes: as many as
// heartbeats.
inline constexpr int kWitnessProbesPerTimeout = 8;
constexpr Duration witness_probe_interval(Duration node_timeout) {
  return node_timeout / kWitnessProbesPerTimeout;
}
// How long the end of a round waits for advice about its failures: the coordinator decides without
// it after node_timeout.
inline constexpr Duration kAdviceLimit = std::chrono::seconds(5);
constexpr Duration advice_limit(Duration node_timeout) {
  return std::min<Duration>(kAdviceLimit, node_timeout / 2);
}

// ---- Of node_timeout, where a store keeps the record.

// One call that waits for a change: it returns several times within node_timeout, so that a store
// that has stopped answering is noticed.
constexpr Duration keeper_wait_limit(Duration node_timeout) {
  return std::clamp<Duration>(node_timeout / 4, std::chrono::milliseconds(50),
                              std::chrono::seconds(1));
}
// Where the store reports no changes: a challenge is answered within two intervals, which are to be
// short compared to node_timeout.
constexpr Duration keeper_poll_interval(Duration node_timeout) {
  return std::clamp<Duration>(node_timeout / 20, std::chrono::milliseconds(10),
                              std::chrono::milliseconds(250));
}
// How long a challenged coordinator has to answer: as long as the coordinator of a session. Less
// than a tenth of a second is too short for a store on the network.
inline constexpr Duration kKeeperAnswerTimeMin = std::chrono::milliseconds(100);
constexpr Duration keeper_answer_time(Duration node_timeout) {
  return std::clamp<Duration>(node_timeout / 8, kKeeperAnswerTimeMin, std::chrono::seconds(1));
}

// ---- Of reconnect_grace, within which a node whose connection broke may resume.

// Half of it: a witness agrees to an election when the first of the nodes asks.
constexpr Duration witness_reconnect_grace(Duration reconnect_grace) { return reconnect_grace / 2; }
// Between two dials of a node's liveness port that are refused: five within the grace.
constexpr Duration end_proof_interval(Duration reconnect_grace) {
  return std::min<Duration>(reconnect_grace / 5, std::chrono::seconds(1));
}

// ---- Margins.

// The coordinator evicts a node that does not stop its workers within its stop grace and this; so a
// node that ends waits as long for the others.
inline constexpr Duration kStopMargin = std::chrono::seconds(10);
// How long after an election a node may need to resume, in addition to node_timeout.
inline constexpr Duration kSuccessionMargin = std::chrono::seconds(1);
// A new coordinator completes no round for this long, so that members of a round of an earlier one
// can resume; not if max_nodes nodes without an earlier round have joined.
inline constexpr Duration kStartHold = std::chrono::seconds(2);
// How often an elected coordinator announces itself at the endpoints: before a coordinator that was
// started there completes a round.
inline constexpr Duration kAnnounceInterval = std::chrono::seconds(1);
static_assert(kAnnounceInterval < kStartHold);

}  // namespace elastic::core
