#include "core/hang/job_progress.h"

#include <iterator>

namespace elastic::core {
namespace {

template <typename Value>
void erase_one(std::multiset<Value>* from, const Value& value) {
  from->erase(from->find(value));
}

bool has_slowest(const hang::NodeProgress& progress) {
  return progress.reporting > 0 && progress.slowest_rank >= 0;
}

}  // namespace

JobProgress::Node& JobProgress::add(const NodeId& id) { return nodes_[id]; }

JobProgress::Node* JobProgress::find(const NodeId& id) {
  const auto found = nodes_.find(id);
  return found == nodes_.end() ? nullptr : &found->second;
}

void JobProgress::remove(const NodeId& id) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return;
  remove_from_order(id, found->second);
  num_replies_ -= found->second.has_replied ? 1 : 0;
  nodes_.erase(found);
}

void JobProgress::clear() { *this = JobProgress(); }

void JobProgress::update(const NodeId& id, const hang::NodeProgress& progress, Instant progressed,
                         Instant slowest_progressed) {
  Node& node = nodes_.at(id);
  remove_from_order(id, node);
  node.progress = progress;
  node.progressed = progressed;
  node.slowest_progressed = slowest_progressed;
  if (!has_slowest(progress)) node.straggler = -1;
  add_to_order(id, node);
}

void JobProgress::shift(Duration gap) {
  for (auto& [id, node] : nodes_) {
    remove_from_order(id, node);
    node.progressed += gap;
    node.slowest_progressed += gap;
    add_to_order(id, node);
  }
}

void JobProgress::add_to_order(const NodeId& id, const Node& node) {
  const hang::NodeProgress& progress = node.progress;
  if (progress.limit > Duration::zero()) limits_.insert(progress.limit);
  if (progress.section_limit > Duration::zero()) section_limits_.insert(progress.section_limit);
  if (progress.reporting == 0) return;
  progressed_.insert(node.progressed);
  if (!has_slowest(progress)) return;
  (node.straggler < 0 ? timely_ : lagging_).emplace(node.slowest_progressed, id);
}

void JobProgress::remove_from_order(const NodeId& id, const Node& node) {
  const hang::NodeProgress& progress = node.progress;
  if (progress.limit > Duration::zero()) erase_one(&limits_, progress.limit);
  if (progress.section_limit > Duration::zero()) {
    erase_one(&section_limits_, progress.section_limit);
  }
  if (progress.reporting == 0) return;
  erase_one(&progressed_, node.progressed);
  timely_.erase({node.slowest_progressed, id});
  lagging_.erase({node.slowest_progressed, id});
}

void JobProgress::forget_replies() {
  for (auto& [id, node] : nodes_) node.has_replied = false;
  num_replies_ = 0;
}

void JobProgress::note_reply(const NodeId& id) {
  num_replies_ += std::exchange(nodes_.at(id).has_replied, true) ? 0 : 1;
}

std::optional<Instant> JobProgress::last_progress() const {
  if (progressed_.empty()) return std::nullopt;
  return *progressed_.rbegin();
}

Duration JobProgress::given_limit() const {
  return limits_.empty() ? Duration::zero() : *limits_.begin();
}

Duration JobProgress::section_limit() const {
  return section_limits_.empty() ? Duration::zero() : *section_limits_.rbegin();
}

std::vector<JobProgress::Node*> JobProgress::divide(Instant threshold) {
  std::vector<Node*> begun;
  while (!lagging_.empty() && lagging_.rbegin()->first > threshold) {
    const auto newest = std::prev(lagging_.end());
    nodes_.at(newest->second).straggler = -1;
    timely_.insert(lagging_.extract(newest));
  }
  while (!timely_.empty() && timely_.begin()->first <= threshold) {
    Node& node = nodes_.at(timely_.begin()->second);
    node.straggler = node.progress.slowest_rank;
    lagging_.insert(timely_.extract(timely_.begin()));
    begun.push_back(&node);
  }
  return begun;
}

std::vector<const JobProgress::Node*> JobProgress::lagging() const {
  std::set<NodeId> ids;
  for (const auto& [since, id] : lagging_) ids.insert(id);
  std::vector<const Node*> found;
  for (const NodeId& id : ids) found.push_back(&nodes_.at(id));
  return found;
}

}  // namespace elastic::core
