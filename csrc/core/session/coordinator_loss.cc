#include "core/session/coordinator_loss.h"

namespace elastic::core {

std::string NamedSuccessor::note(const succession::Successor& successor, const std::string& address,
                                 bool is_from_coordinator) {
  if (address.empty()) return "";  // it knows none
  const bool is_same_job = successor_ && successor_->lineage == successor.lineage;
  const bool is_settled = is_from_coordinator_ && !is_from_coordinator;
  if (is_settled && is_same_job && successor.term < successor_->term) return address_;
  if (!is_settled || (is_same_job && successor.term > successor_->term)) {
    successor_ = successor;
    address_ = address;
    is_from_coordinator_ = is_from_coordinator;
  }
  return address;
}

}  // namespace elastic::core
