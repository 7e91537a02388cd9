// What the register decides, and how the coordinator's machine executes it.

#include <iterator>
#include <utility>

#include "core/base/duration_text.h"
#include "core/succession/succession_machine.h"

namespace elastic::succession {

// An action may feed a further event, whose actions follow those of the first one.
void Machine::feed(const reg::Event& event) {
  std::vector<reg::Action> actions;
  register_.step(event, now_, &actions);
  std::move(actions.begin(), actions.end(), std::back_inserter(register_actions_));
  if (std::exchange(is_executing_, true)) return;
  while (!register_actions_.empty()) {
    reg::Action action = std::move(register_actions_.front());
    register_actions_.pop_front();
    std::visit([this](auto& one) { execute(one); }, action);
  }
  is_executing_ = false;
  watch_elected();
}

// A coordinator whose record this voter has accepted announces itself, unless it is lost before.
void Machine::watch_elected() {
  if (settings_.is_witness) return;
  const auto& elected = register_.incumbent();
  if (!elected || elected->node == settings_.self.node || register_.has_lost_incumbent()) return;
  // One that was lost may have been elected again.
  if (elected->node == session_with_ && !is_lost_) return;
  const Watched now{elected->node, register_.known()->record.newness.term};
  if (std::exchange(watched_, now) == now) return;
  follow_until_ = add_saturating(now_, settings_.follow_timeout);
}

void Machine::execute(reg::Send& action) {
  const NodeId to = action.message.to;
  send(to, action.address, std::move(action.message));
}

void Machine::execute(const reg::Elected& action) {
  const reg::Record& record = action.record;
  auto job = decode_record(record.content.bytes);
  if (!job.ok()) {
    emit(Log{std::string(job.status().message())});
    feed(reg::StepDown{});
    return;
  }
  // A deposed coordinator that waits for its successor's address, and is elected itself.
  stop_service("this node was elected again, in a later term");
  const bool has_former = incumbent_ && incumbent_->node != settings_.self.node;
  const NodeId former = has_former ? incumbent_->node : NodeId{};
  incumbent_ = Incumbent{.lineage = record.lineage,
                         .term = record.newness.term,
                         .node = settings_.self.node,
                         .address = {},
                         .voters = record.voters,
                         .replaces = job->replaces};
  emit(Log{"this node was elected to run the job's coordinator (term " +
           std::to_string(record.newness.term) + ")"});
  take_office(record, *std::move(job), former, is_lost_ ? former : NodeId{});
}

// The owner starts the coordinator of incumbent_, which is in this process. `record`: its voters
// include that of the former coordinator, if it was one. `lost`: as in StartCoordinator.
void Machine::take_office(const reg::Record& record, JobRecord job, const NodeId& former,
                          const NodeId& lost) {
  on(Timings{job.settings.node_timeout, job.settings.store_grace});
  ending_.reset();
  former_incumbent_ = former;
  former_address_.clear();
  for (const auto* voters : {&record.voters, &record.previous_voters}) {
    for (const reg::Voter& voter : *voters) {
      if (voter.node == former) former_address_ = voter.address;
    }
  }
  resumed_.clear();
  resume_until_ = add_saturating(now_, settings_.follow_timeout);
  is_started_ = was_turned_on_ = has_majority_ = true;
  follow_until_.reset();
  emit(StartCoordinator{incumbent_->lineage, incumbent_->term, std::move(job), lost});
  update_candidates();
}

void Machine::execute(const reg::Deliver& action) {
  const reg::Record& record = action.record;
  incumbent_->voters = record.voters;
  if (open_ && open_->content == record.content) {
    emit(InForce{std::exchange(open_, std::nullopt)->number});
  }
  if (!incumbent_->address.empty()) inform();
}

void Machine::execute(const reg::Deposed& action) {
  if (!is_started_) return;
  const std::string reason = ending_ ? ending_->reason : action.reason;
  emit(Log{"the coordinator in this process has no authority any more: " + reason});
  ending_ = Ending{reason, add_saturating(now_, settings_.handover_timeout)};
  const bool has_successor = incumbent_ && incumbent_->node != settings_.self.node;
  if (has_successor && !incumbent_->address.empty()) stop_service(reason);
}

// Logged when it lasts: voters that resume one by one after an election do not.
void Machine::execute(const reg::MajorityLost& action) {
  unreachable_.clear();
  for (const reg::Voter& voter : action.unreachable) {
    unreachable_ += (unreachable_.empty() ? "" : ", ") + voter.address;
  }
  has_majority_ = false;
  majority_log_at_ = add_saturating(now_, settings_.repeat_interval);
  emit(MajorityLost{action.unreachable});
}

void Machine::execute(const reg::MajorityRegained&) {
  has_majority_ = true;
  if (!std::exchange(majority_log_at_, std::nullopt)) {
    emit(Log{"the coordinator reaches a majority of its voters again"});
  }
  emit(MajorityRegained{});
}

void Machine::execute(const reg::AuthorityExpired&) {
  const std::string reason =
      "the coordinator reached no majority of its voters for store_grace: the other hosts may go "
      "on "
      "without this one";
  stop_service(reason);
  emit(Expired{reason});
}

void Machine::execute(const reg::VoterSilent& action) {
  emit(Log{"the voter at " + action.voter.address +
           " answers, but has not accepted the job's record for " +
           core::duration_text(settings_.follow_timeout) + ": it counts as unreachable"});
}

}  // namespace elastic::succession
