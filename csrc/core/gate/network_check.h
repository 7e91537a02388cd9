#pragma once

// The check of the network between the nodes of a job, which its first round waits for: orders to
// nodes, their reports, and what follows (docs/policy.md). network_probe.h decides about the
// pairs and who is to blame.
//
// Pure: (event, now) to actions. A part of core::Job.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/parts.h"
#include "core/gate/network_probe.h"
#include "core/gate/probe_messages.h"
#include "elastic/rendezvous_types.h"
#include "elastic/time.h"

namespace elastic {

namespace core::job_event {
// A node has measured the network between it and another one.
struct Probed {
  NodeId node;
  gate::ProbeReport report;
};
}  // namespace core::job_event

namespace gate {

namespace network_action {
struct Order {
  NodeId to;
  ProbeOrder order;
};
// What was found about this node. A verdict that is not good is also for the job's memory.
struct Inform {
  NodeId to;
  Finding finding;
};
struct Log {
  std::string text;
};
}  // namespace network_action
using NetworkAction =
    std::variant<network_action::Order, network_action::Inform, network_action::Log>;

inline constexpr const char* kNetworkCheck = "network";  // Finding::check

struct ProbedNode {
  NodeId id;
  std::string name;
  std::string host;
  std::string address;  // at which its agent answers: host:port
};

class NetworkCheck {
 public:
  using Event = std::variant<core::job_event::Probed, core::PartTick>;
  using Out = std::vector<NetworkAction>;
  void step(const Event& event, Instant now, Out* out) {
    std::visit([&](const auto& one) { on(one, now, out); }, event);
  }
  // The next job of the id follows.
  void reset() { *this = {}; }

  // Begins a check, unless one runs. With fewer than two nodes it is over at once.
  void begin(std::vector<ProbedNode> nodes, Instant now, Out* out);
  // The node is no longer here.
  void lost(const NodeId& node, Instant now, Out* out);
  std::optional<Instant> next_deadline() const;
  bool is_running() const { return probe_.has_value(); }
  const std::vector<ProbedNode>& nodes() const { return nodes_; }  // of the running one
  // "pair 3 of 8"
  std::string describe() const;

 private:
  void on(const core::job_event::Probed& event, Instant now, Out* out);
  void on(const core::PartTick&, Instant now, Out* out);

  std::optional<std::size_t> index_of(const NodeId& node) const;
  void start(const std::vector<ProbePair>& pairs, Out* out);
  void follow(Instant now, Out* out);
  void finish(Instant now, Out* out);
  std::string label(std::size_t node) const;
  std::string measured_text(const ProbePair& pair, const ProbeMeasurement& measured) const;
  Finding finding_of(std::size_t node, const std::vector<ProbeVerdict>& verdicts) const;

  std::vector<ProbedNode> nodes_;
  std::vector<bool> is_lost_;
  std::optional<NetworkProbe> probe_;
  std::vector<ProbePair> pairs_;  // of the round
  std::map<std::pair<std::size_t, std::size_t>, std::string> errors_;
  std::uint64_t number_ = 0;
  Instant began_;
};

std::string rate_text(double bytes_per_second);  // "9.8 GB/s"

}  // namespace gate
}  // namespace elastic
