#include "core/rendezvous/former_nodes.h"

#include <utility>

namespace elastic::core {

void FormerNodes::add(FormerNode node, std::size_t max) {
  latest_[node.id] = first_ + all_.size();
  all_.push_back(std::move(node));
  for (; all_.size() > max; ++first_) {
    const auto found = latest_.find(all_.front().id);
    if (found->second == first_) latest_.erase(found);  // else it has a later entry
    all_.pop_front();
  }
}

void FormerNodes::assign(std::deque<FormerNode> all) {
  all_ = std::move(all);
  first_ = 0;
  latest_.clear();
  for (std::size_t i = 0; i < all_.size(); ++i) latest_[all_[i].id] = i;
}

const FormerNode* FormerNodes::find(const NodeId& id) const {
  const auto found = latest_.find(id);
  if (found == latest_.end()) return nullptr;
  return &all_[static_cast<std::size_t>(found->second - first_)];
}

}  // namespace elastic::core
