// The check of the network between the nodes of a job: the part of Job that begins it, and that
// acts on what it finds.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/base/join_address.h"
#include "core/job/job.h"
#include "core/rendezvous/rank_assign.h"

namespace elastic::core {
// Of nodes that join meanwhile the network is not checked: the check has an end.
bool Job::follow_start() {
  gate::NetworkCheck::Out actions;
  const bool was_running = network_.is_running();
  if (was_running) {
    const std::vector<gate::ProbedNode> nodes = network_.nodes();
    for (const gate::ProbedNode& one : nodes) {
      if (!rendezvous_.has_node(one.id)) network_.lost(one.id, now_, &actions);
    }
  } else if (rendezvous_.is_start_due() && !std::exchange(is_network_checked_, true)) {
    // In the order of ranks without other wishes: neighbours of a ring are pairs.
    std::vector<const NodeInfo*> joined = rendezvous_.probed_nodes();
    std::sort(joined.begin(), joined.end(), [](const NodeInfo* a, const NodeInfo* b) {
      const int by = compare_natural(a->topology, b->topology);
      return by != 0 ? by < 0 : compare_natural(a->name, b->name) < 0;
    });
    std::vector<gate::ProbedNode> nodes;
    for (const NodeInfo* node : joined) {
      nodes.push_back(
          {node->id, node->name, host_of(*node), join_address(node->address, node->probe_port)});
    }
    network_.begin(std::move(nodes), now_, &actions);
  }
  apply_all(std::move(actions));
  settled(&network_);
  // Over, or it has no pair.
  if (!rendezvous_.is_start_due() || network_.is_running()) return false;
  is_network_checked_ = false;
  rendezvous_.allow_start();
  rendezvous_step(rdzv::HostsChanged{});
  return true;
}

void Job::apply(gate::network_action::Inform action) {
  if (action.finding.verdict != gate::Verdict::kGood) findings_.push_back(action.finding);
  out_->push_back(gate::NetworkAction(std::move(action)));
}

// A node receives what was found before it is refused for it.
void Job::remember_findings() {
  const std::vector<gate::Finding> findings = std::exchange(findings_, {});
  if (is_over()) return;
  has_changed_ = true;
  for (const gate::Finding& finding : findings) feed_hosts(finding);
}

}  // namespace elastic::core
