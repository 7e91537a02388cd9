#pragma once

// The progress of all nodes of a round, with what is asked about all of them in order, so that one
// report of one of many nodes costs no visit of the others.
//
// Pure. Not thread-safe.

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/hang/hang_types.h"
#include "elastic/rendezvous_types.h"
#include "elastic/time.h"

namespace elastic::core {

class JobProgress {
 public:
  struct Node {
    std::string name;
    hang::NodeProgress progress;
    Instant progressed;           // by the caller's clock
    Instant slowest_progressed;   // its slowest rank
    bool has_replied = false;     // to the current request for stacks
    std::int32_t straggler = -1;  // the rank that was reported; -1: none lags
  };

  // The node, which is added if it is new.
  Node& add(const NodeId& id);
  void remove(const NodeId& id);
  void clear();
  Node* find(const NodeId& id);  // null: it is unknown
  const std::map<NodeId, Node>& nodes() const { return nodes_; }

  // The times are by the caller's clock.
  void update(const NodeId& id, const hang::NodeProgress& progress, Instant progressed,
              Instant slowest_progressed);
  void shift(Duration gap);

  void forget_replies();
  void note_reply(const NodeId& id);
  bool all_have_replied() const { return num_replies_ == nodes_.size(); }

  // The last progress of any rank that reports; nullopt: no rank does.
  std::optional<Instant> last_progress() const;
  Duration given_limit() const;    // the shortest one; zero: none is given
  Duration section_limit() const;  // the longest one; zero: no section with a limit is open

  // Divides the nodes with ranks that report: the slowest rank of a node that lags has made no
  // progress since the threshold. Returns the nodes that begin to lag; nodes that stop lagging no
  // longer have a straggler.
  std::vector<Node*> divide(Instant threshold);
  // In the order of nodes.
  std::vector<const Node*> lagging() const;
  std::size_t num_lagging() const { return lagging_.size(); }

 private:
  using ByAge = std::set<std::pair<Instant, NodeId>>;  // by the progress of the slowest rank

  void add_to_order(const NodeId& id, const Node& node);
  void remove_from_order(const NodeId& id, const Node& node);

  std::map<NodeId, Node> nodes_;
  std::size_t num_replies_ = 0;
  std::multiset<Instant> progressed_;  // of nodes with ranks that report
  std::multiset<Duration> limits_;     // those that are given
  std::multiset<Duration> section_limits_;
  ByAge timely_;
  ByAge lagging_;
};

}  // namespace elastic::core
