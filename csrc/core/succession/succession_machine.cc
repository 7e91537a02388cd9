#include "core/succession/succession_machine.h"

#include <variant>

#include "core/base/earliest.h"
#include "core/succession/meeting.h"

namespace elastic::succession {

void Machine::step(const Event& event, Instant now, std::vector<Action>* actions) {
  run(now, actions, [&] {
    std::visit([this](const auto& one) { note(one); }, event);
    if (is_dissolved_) return;
    receive(event);
    if (own_.ending && now_ >= own_.ending->until) stop(own_.ending->reason);
    if (follow_until_ && now_ >= *follow_until_) {
      follow_until_.reset();
      follow_failed();
    }
  });
}

std::optional<Instant> Machine::next_deadline() const {
  if (is_dissolved_) return std::nullopt;
  std::optional<Instant> ends;
  if (own_.ending) ends = own_.ending->until;
  return core::earliest({ends, follow_until_, keeper_deadline()});
}

void Machine::note(const Timings& event) {
  limits_.node_timeout = event.node_timeout;
  limits_.store_grace = event.store_grace;
}

// ---- The coordinator that this node follows.

bool Machine::learn(const Incumbent& incumbent) {
  if (incumbent.term == 0) return false;
  if (incumbent_ && incumbent_->lineage != incumbent.lineage) return false;
  if (incumbent_ && incumbent.term < incumbent_->term) return false;
  const bool is_new = !incumbent_ || incumbent.term > incumbent_->term;
  const bool has_address = !incumbent.address.empty();
  if (is_new) {
    incumbent_ = incumbent;
  } else {
    // The process of a coordinator that a store names may not have joined yet.
    if (incumbent_->node == NodeId{}) incumbent_->node = incumbent.node;
    if (!incumbent.voters.empty()) incumbent_->voters = incumbent.voters;
    if (has_address) incumbent_->address = incumbent.address;
  }
  if (is_new && own_.ending && has_address && incumbent.node != self_) stop(own_.ending->reason);
  return is_new;
}

void Machine::direct_session() {
  await_session();
  emit(Follow{*incumbent_});
}

// ---- The coordinator of this process.

void Machine::start(StartCoordinator action) {
  own_.is_started = own_.has_majority = true;
  own_.ending.reset();
  follow_until_.reset();
  emit(std::move(action));
}

void Machine::end_soon(std::string reason) {
  own_.ending = Ending{std::move(reason), add_saturating(now_, limits_.handover_timeout)};
}

void Machine::stop(std::string reason) {
  const bool was_started = std::exchange(own_, {}).is_started;
  stopped();
  if (was_started) emit(StopCoordinator{std::move(reason), successor()});
}

std::optional<Incumbent> Machine::successor() const {
  const bool is_known = incumbent_ && incumbent_->node != self_ && !incumbent_->address.empty();
  return is_known ? incumbent_ : std::nullopt;
}

// The content is compared, because other changes of the record carry it too.
void Machine::in_force(const reg::Content& content) {
  if (!own_.open || own_.open->content != content) return;
  emit(InForce{std::exchange(own_.open, std::nullopt)->number});
}

void Machine::lose_majority(std::vector<reg::Voter> unreachable) {
  own_.has_majority = false;
  emit(MajorityLost{std::move(unreachable)});
}

void Machine::regain_majority() {
  own_.has_majority = true;
  emit(MajorityRegained{});
}

void Machine::expire(const std::string& reason) {
  stop(reason);
  emit(Expired{reason});
}

// ---- Two coordinators of one job id (R8).

void Machine::note(const Met& event) {
  if (!own_.is_started || !may_meet()) return;
  if (event.incumbent.node == self_) return;  // a process directs nodes here
  switch (meet(has_record() ? incumbent_ : std::nullopt, event.incumbent)) {
    case Meeting::kSame:
    case Meeting::kOurs: break;
    case Meeting::kLater: met_successor(event.incumbent); break;
    case Meeting::kTheirs: dissolve(event.incumbent); break;
  }
}

void Machine::dissolve(const Incumbent& by) {
  emit(Log{"the job runs already, with the coordinator at " + by.address + " (term " +
           std::to_string(by.term) + "): the nodes of this coordinator join it there"});
  own_ = {};
  stopped();
  is_dissolved_ = true;
  emit(Displaced{by});
}

}  // namespace elastic::succession
