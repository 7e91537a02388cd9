#include "sim/rendezvous_checker.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

namespace elastic::test {
namespace {

// The round of a message, for the messages that have one.
std::optional<std::uint64_t> round_of(const core::RendezvousEvent& event) {
  if (const auto* failed = std::get_if<rdzv::Failed>(&event)) return failed->round;
  if (const auto* gone = std::get_if<rdzv::Gone>(&event)) return gone->round;
  if (const auto* done = std::get_if<rdzv::Done>(&event)) return done->round;
  return std::nullopt;
}

// What the job has decided and does not send yet: what its gate would send, if the present state
// were in force.
std::vector<core::RendezvousAction> held_by(const core::Job& job) {
  std::vector<core::RendezvousAction> held;
  if (job.gate().last_needed() == 0) return held;
  core::RoundGate gate = job.gate();
  gate.keep_at(gate.keeper());
  gate.in_force(gate.take_proposal(job.rendezvous())->number, &held);
  return held;
}

// Without actions it has changed nothing.
bool is_quiet(const core::RendezvousEvent& event) {
  return std::holds_alternative<rdzv::Heartbeat>(event) ||
         std::holds_alternative<rdzv::Tick>(event);
}

}  // namespace

void RendezvousChecker::broken(const char* invariant, const std::string& what) {
  violations_.push_back(std::string(invariant) + ": " + what);
}

RendezvousChecker::Snapshot::Snapshot(const core::RendezvousMachine& machine)
    : phase(machine.phase()),
      record(machine.record()),
      members(machine.members()),
      settings(machine.settings()) {
  if (machine.result() != nullptr) result = *machine.result();
}

void RendezvousChecker::step(core::RendezvousMachine* machine, const core::RendezvousEvent& event,
                             Instant now, std::vector<core::RendezvousAction>* actions) {
  const Snapshot was(*machine);
  before(event, was);
  std::vector<core::RendezvousAction> mine;
  machine->step(event, now, &mine);
  if (!is_quiet(event) || !mine.empty()) check_stored(*machine, now);
  after(event, was, Snapshot(*machine), mine);
  for (core::RendezvousAction& action : mine) actions->push_back(std::move(action));
}

void RendezvousChecker::step(core::Job* job, const core::JobEvent& event, Instant now,
                             std::vector<core::JobAction>* actions) {
  const auto* stated = std::get_if<core::RendezvousEvent>(&event);
  // Of the others the rendezvous learns only what follows from them.
  const core::RendezvousEvent known = stated != nullptr ? *stated : rdzv::Tick{};
  step_job(job, known, now, actions, [&] { job->step(event, now, actions); });
}

void RendezvousChecker::in_force(core::Job* job, std::uint64_t number, Instant now,
                                 std::vector<core::JobAction>* actions) {
  step_job(job, rdzv::Tick{}, now, actions, [&] { job->in_force(number, now, actions); });
}

// Everything that was held before comes before what is decided in the step.
template <typename Step>
void RendezvousChecker::step_job(core::Job* job, const core::RendezvousEvent& event, Instant now,
                                 std::vector<core::JobAction>* actions, const Step& take) {
  const Snapshot was(job->rendezvous());
  const auto num_held = static_cast<std::ptrdiff_t>(held_by(*job).size());
  before(event, was);
  take();
  std::vector<core::RendezvousAction> decided;
  for (const core::JobAction& action : *actions) {
    if (const auto* one = std::get_if<core::RendezvousAction>(&action)) decided.push_back(*one);
  }
  const std::vector<core::RendezvousAction> held = held_by(*job);
  decided.insert(decided.end(), held.begin(), held.end());
  decided.erase(decided.begin(), decided.begin() + num_held);
  if (!is_quiet(event) || !decided.empty()) check_stored(job->rendezvous(), now);
  after(event, was, Snapshot(job->rendezvous()), decided);
}

// Whatever the state is, the next coordinator must be able to continue from it.
void RendezvousChecker::check_stored(const core::RendezvousMachine& machine, Instant now) {
  gate::HostMemory hosts;
  core::RendezvousMachine next(machine.settings(), now, Duration::zero());
  next.set_host_gate(&hosts);
  const std::string state = machine.encode();
  if (const Status loaded = next.load(state, now); !loaded.ok()) {
    broken("stored state", std::string(loaded.message()));
  } else if (next.encode() != state) {
    broken("stored state", "it is another one when it was read and written again");
  }
}

void RendezvousChecker::account(const NodeId& id, How how) {
  const auto member = members_.find(id);
  if (member == members_.end()) return;
  member->second.is_accounted = true;
  if (how == How::kDone) member->second.is_done = true;
  if (how == How::kDeparted) member->second.is_departed = true;
}

void RendezvousChecker::before(const core::RendezvousEvent& event, const Snapshot& was) {
  const bool is_current = was.record.round == round_;
  if (const auto* gone = std::get_if<rdzv::Gone>(&event)) {
    if (is_current && gone->round == round_) account(gone->node, How::kGone);
  } else if (const auto* done = std::get_if<rdzv::Done>(&event)) {
    if (is_current && done->round == round_) account(done->node, How::kDone);
  } else if (const auto* leave = std::get_if<rdzv::Leave>(&event)) {
    account(leave->node, How::kDeparted);
  } else if (const auto* join = std::get_if<rdzv::Join>(&event)) {
    account(join->node.id, How::kGone);
  } else if (const auto* resume = std::get_if<rdzv::Resume>(&event)) {
    if (resume->phase == rdzv::NodePhase::kWorking) return;
    account(resume->node.id, resume->phase == rdzv::NodePhase::kDone ? How::kDone : How::kGone);
  }
}

void RendezvousChecker::after(const core::RendezvousEvent& event, const Snapshot& was,
                              const Snapshot& is,
                              const std::vector<core::RendezvousAction>& actions) {
  if (is.record.generation > generation_) {
    generation_ = is.record.generation;
    members_.clear();
    record_ = {};
    settings_ = is.settings;
  }
  std::vector<const rdzv::Round*> delivered;
  for (const core::RendezvousAction& action : actions) {
    if (const auto* evicted = std::get_if<rdzv::Evicted>(&action))
      account(evicted->to, How::kDeparted);
    if (const auto* round = std::get_if<rdzv::Round>(&action)) delivered.push_back(round);
  }
  const bool is_new = !delivered.empty() && delivered.front()->record->round != was.record.round;
  if (is_new && delivered.front()->record->round <= round_ && was_restarted_ &&
      was.record.round < round_) {
    // No node of the newer round has resumed in time: a new history, for nodes that know no other.
    members_.clear();
    record_ = {};
    round_ = 0;
  }
  if (is_new && delivered.front()->record->round > round_) {
    round_began(was, delivered);
  } else {
    for (const rdzv::Round* round : delivered) round_repeated(*round);
  }

  if (const auto spoken = round_of(event)) {
    const bool is_stale = *spoken != was.record.round;
    const bool has_changed =
        is.phase != was.phase || is.record != was.record || is.members != was.members;
    if (is_stale && has_changed) broken("I5", "a message of another round changed the state");
  }
  if (const auto* join = std::get_if<rdzv::Join>(&event)) {
    const bool is_answered = std::any_of(
        actions.begin(), actions.end(),
        [&](const core::RendezvousAction& action) { return addressee(action) == join->node.id; });
    if (!is_answered) broken("I7", "the join of " + join->node.name + " was not answered");
  }
  if (is.phase != RendezvousPhase::kClosed) return;
  if (!is.result) {
    broken("I8", "closed without a result");
  } else if (was.phase != RendezvousPhase::kClosed) {
    check_closed(event, is);
  }
}

void RendezvousChecker::round_began(const Snapshot& was,
                                    const std::vector<const rdzv::Round*>& delivered) {
  const RoundRecord& record = *delivered.front()->record;
  const std::string name = "round " + std::to_string(record.round);
  for (const auto& [id, share] : members_) {
    if (share.is_accounted) continue;
    // A member that only an earlier machine knew counts once this one has declared its rank lost
    // (from missing, this may be the very step), or never received the round.
    const auto rank = static_cast<std::size_t>(share.own.group_rank);
    const bool is_declared =
        was.record != record_ ||
        (rank < was.members.size() && (was.members[rank].fate == core::MemberFate::kLost ||
                                       was.members[rank].fate == core::MemberFate::kMissing));
    if (!was_restarted_ || !is_declared) {
      broken("I1", name + " began while rank " + std::to_string(share.own.group_rank) +
                       " of the round before had not accounted for its workers");
    }
  }
  // A machine that was restarted may not know charges that were not sent to any node.
  const bool is_step =
      record.restarts >= record_.restarts && record.restarts <= record_.restarts + 1;
  if (!was_restarted_ && !is_step) {
    broken("budget", name + " went from " + std::to_string(record_.restarts) + " to " +
                         std::to_string(record.restarts) + " restarts");
  }
  if (record.restarts > settings_.max_restarts) broken("budget", name + " overspent");

  const std::map<NodeId, Share> previous = std::exchange(members_, {});
  for (const rdzv::Round* round : delivered) {
    if (*round->record != record) broken("I2", name + " was sent in two versions");
    if (!members_.try_emplace(round->to, Share{round->own}).second) {
      broken("I2", name + " was sent twice to one node");
    }
  }
  const int size = static_cast<int>(members_.size());
  if (size != record.nodes) broken("I2", name + " was not sent to all members at once");
  if (size < settings_.min_nodes || size > settings_.max_nodes) {
    broken("I4", name + " has " + std::to_string(size) + " nodes");
  }
  check_shares(record);
  for (const auto& [id, share] : members_) {
    const auto held = previous.find(id);
    if (held == previous.end() || held->second.is_departed || settings_.static_ranks) continue;
    const int before = held->second.own.group_rank;
    // A machine that was restarted knows only the members that have resumed.
    const auto rank = static_cast<std::size_t>(before);
    if (rank >= was.members.size() || was.members[rank].id != id) continue;
    if (before < size && share.own.group_rank != before) {
      broken("I3", name + " moved rank " + std::to_string(before) + " to " +
                       std::to_string(share.own.group_rank));
    }
  }
  round_ = record.round;
  record_ = record;
  ++rounds_seen_;
}

void RendezvousChecker::check_shares(const RoundRecord& record) {
  std::vector<NodeAssignment> shares;
  for (const auto& [id, share] : members_) shares.push_back(share.own);
  std::sort(shares.begin(), shares.end(),
            [](const auto& a, const auto& b) { return a.group_rank < b.group_rank; });
  int next_rank = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (shares[i].group_rank != static_cast<int>(i)) broken("I3", "node ranks are not dense");
    if (shares[i].base_rank != next_rank) broken("I3", "global ranks are not dense");
    next_rank += shares[i].local_world_size;
    if (shares[i].base_role_rank + shares[i].local_world_size > shares[i].role_world_size) {
      broken("I3", "a role rank is beyond its role's world size");
    }
  }
  if (next_rank != record.world_size) broken("I2", "the world size is not the sum of its parts");
}

void RendezvousChecker::round_repeated(const rdzv::Round& delivered) {
  if (delivered.record->round < round_) {
    // A machine that was restarted with an older state sends that round to a member that has not
    // received it yet. What a node receives never goes back: SimAgent checks that.
    if (!was_restarted_) {
      broken("I5", "round " + std::to_string(delivered.record->round) + " was sent after round " +
                       std::to_string(round_));
    }
    return;
  }
  const auto member = members_.find(delivered.to);
  if (member == members_.end() || *delivered.record != record_ ||
      delivered.own != member->second.own) {
    broken("I2", "a round was sent again with other contents");
  }
}

void RendezvousChecker::check_closed(const core::RendezvousEvent& event, const Snapshot& is) {
  if (std::holds_alternative<rdzv::Close>(event)) return;
  const JobResult& result = *is.result;
  if (result.message.empty()) broken("I8", "closed without a sentence");
  if (result.outcome == JobOutcome::kSucceeded) {
    // A machine that was restarted can rebuild a round that is not the newest.
    if (is.record.round != round_ && !was_restarted_) broken("I8", "succeeded in an older round");
    for (const auto& [id, share] : members_) {
      if (!share.is_done && is.record.round == round_) {
        broken("I8", "succeeded although rank " + std::to_string(share.own.group_rank) +
                         " has not finished");
      }
    }
  } else if (result.cause == JobCause::kNone) {
    broken("I8", "failed without a cause");
  }
}

}  // namespace elastic::test
