#include "core/session/coordinator_loss.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/register/register_codec.h"
#include "core/rendezvous/rendezvous_machine.h"
#include "core/succession/job_record.h"

namespace elastic::core {

Result<OfferedJob> OfferedJob::create(const succession::StartCoordinator& start, const NodeId& self,
                                      Instant now) {
  if (Status fault = start.record.settings.validate(); !fault.ok()) return fault;
  RendezvousMachine machine(start.record.settings, now, Duration::zero());
  const RendezvousSuccession succession{
      .term = start.term, .successor = self, .lost_incumbent = {}};
  if (Status fault = machine.succeed(start.record.state, succession, now); !fault.ok()) {
    return fault;
  }
  const std::vector<NodeStatus> nodes = machine.nodes(now);
  const bool is_alone = std::all_of(nodes.begin(), nodes.end(),
                                    [&](const NodeStatus& one) { return one.id == self; });
  return OfferedJob(start, self, is_alone);
}

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

HandOverMember::Answer HandOverMember::asked(const session::TakeOver& offer, const Own& own) {
  const auto failed = [](std::string why) { return session::TakenOver{.error = std::move(why)}; };
  if (job_ == succession::Successor{offer.lineage, offer.term}) return Repeat{};
  if (offer.begin == 0) pieces_.clear();
  if (offer.begin != pieces_.size() || offer.size > reg::kContentBytesMax) {
    return failed("a piece of the job's record is missing, or the record is too large");
  }
  pieces_ += offer.piece;
  if (pieces_.size() < offer.size) return session::TakenOver{.wants_more = true};
  auto record = succession::decode_record(std::exchange(pieces_, {}));
  if (!record.ok()) return failed(std::string(record.status().message()));
  if (own.is_ending) return failed("its agent ends, too");
  if (own.has_lineage) return failed("it belongs to another lineage of the job");
  return succession::StartCoordinator{.lineage = offer.lineage,
                                      .term = offer.term,
                                      .record = *std::move(record),
                                      .lost_incumbent = {},
                                      .is_recorded = false};
}

void HandOverMember::kept(const succession::Successor& job, bool is_running) {
  job_ = job;
  is_running_ = is_running;
  is_wait_logged_ = false;
}

std::optional<succession::Successor> HandOverMember::begin() {
  if (!job_ || std::exchange(is_running_, true)) return std::nullopt;
  return job_;
}

// The coordinator that has asked this node will no longer name it. A job that runs here is this
// node's without that: no other one could be asked, or a node was sent here.
HandOverMember::Order HandOverMember::end() {
  if (job_ && !is_running_) return Order::kDrop;
  settle();
  return Order::kNone;
}

HandOverMember::Order HandOverMember::connected(bool is_last) {
  is_left_ = is_wait_logged_ = false;
  named_.reset();
  return is_last ? Order::kNone : end();
}

HandOverMember::Order HandOverMember::closed() {
  if (std::exchange(is_left_, false)) return end();
  const bool waits = job_ && !is_running_;
  return waits && !std::exchange(is_wait_logged_, true) ? Order::kLogWait : Order::kNone;
}

HandOverMember::Direction HandOverMember::directed(const succession::Incumbent& to,
                                                   bool is_from_coordinator) {
  const succession::Successor named{to.lineage, to.term};
  Direction result{named_.note(named, to.address, is_from_coordinator), Order::kNone};
  if (!job_) return result;
  // Not one of before, to which a process still directs.
  const bool is_later = named.lineage == job_->lineage && named.term > job_->term;
  if (named == *job_) {
    result.order = Order::kRun;
  } else if (is_from_coordinator || is_later) {
    result.order = end();
  }
  return result;
}

}  // namespace elastic::core
