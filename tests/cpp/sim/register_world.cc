#include "sim/register_world.h"

#include <algorithm>
#include <utility>

#include "core/register/register_names.h"

namespace elastic::test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Duration kNodeTimeout = milliseconds(300);
constexpr Duration kReconnectGrace = milliseconds(50);
constexpr Duration kObservation = milliseconds(50);

const char* kind_of(const reg::Message& message) {
  return reg::kMessageNames[message.body.index()].data();
}

}  // namespace

RegisterWorld::RegisterWorld(std::uint64_t seed, const RegisterSimOptions& options)
    : SimWorld(seed, options.is_traced), options_(options) {
  for (int slot = 0; slot < kSlots; ++slot) {
    slots_[slot].host = slot;
    clock_.after(dice_.between(Duration::zero(), kObservation), [this, slot] { observe(slot); });
  }
}

reg::LineageId RegisterWorld::lineage_of(int first_slot) {
  return {0xF1857, static_cast<std::uint64_t>(first_slot) + 1};
}

void RegisterWorld::create(int slot, bool is_same_life) {
  Slot& state = slots_[slot];
  ++state.life;
  if (!is_same_life) {
    state.former_lineages.clear();
    state.self = {{static_cast<std::uint64_t>(slot), state.life * 100 + slot},
                  std::to_string(slot)};
  }
  state.machine =
      std::make_unique<Machine>(state.self, settings_, dice_.next(), TestRules{options_.deleted});
  state.base.reset();
  state.candidates.clear();
  state.incumbent_down_since.reset();
  state.is_loss_reported = false;
  state.alarm.cancel();
  state.stalled_until = clock_.now();
}

void RegisterWorld::begin(int slot) {
  for (int other = 0; other < kSlots; ++other) {
    if (other == slot || are_linked(slot, other)) feed(other, reg::Joined{lineage_of(slot)});
  }
  observe_voters(slot);
  reg::Content nothing;
  nothing.bytes = "0";
  feed(slot, reg::Begin{lineage_of(slot), derived_content(nothing, ++nonces_, false)});
}

void RegisterWorld::crash(int slot) {
  if (!is_alive(slot)) return;
  trace(std::to_string(slot) + " crashes");
  slots_[slot].machine.reset();
  slots_[slot].alarm.cancel();
}

void RegisterWorld::crash_host(int host) {
  for (int slot = 0; slot < kSlots; ++slot) {
    if (slots_[slot].host == host) crash(slot);
  }
}

void RegisterWorld::restart(int slot) {
  if (is_alive(slot)) return;
  create(slot, options_.do_restarts_forget);
  trace(std::to_string(slot) + " starts as " + std::to_string(slots_[slot].self.node.low));
}

void RegisterWorld::change_lineage(int slot, const reg::LineageId& lineage) {
  if (!is_alive(slot) || machine(slot).lineage() == lineage) return;
  // Whoever has promised something in a lineage may return to it only in another life.
  const bool was_there = slots_[slot].former_lineages.contains(lineage);
  trace(std::to_string(slot) + " joins another lineage");
  if (machine(slot).lineage()) slots_[slot].former_lineages.insert(*machine(slot).lineage());
  create(slot, !was_there);
  feed(slot, reg::Joined{lineage});
}

void RegisterWorld::stall(int slot, Duration time) {
  if (!is_alive(slot)) return;
  trace(std::to_string(slot) + " stalls");
  slots_[slot].stalled_until = std::max(slots_[slot].stalled_until, clock_.now() + time);
  slots_[slot].alarm.cancel();
  set_alarm(slot);
}

void RegisterWorld::heal() {
  links_.heal();
  silent_losses_.heal();
  is_faulty_ = false;
  false_suspicion_chance_ = 0;
  resignation_chance_ = 0;
}

bool RegisterWorld::is_running(int slot) const {
  const Slot& state = slots_[slot];
  return state.machine != nullptr && state.stalled_until <= clock_.now();
}

bool RegisterWorld::are_linked(int a, int b) const {
  return is_running(a) && is_running(b) && !links_.has_any(a, b);
}

bool RegisterWorld::is_current(const NodeId& node) const {
  const int slot = slot_of(node);
  return is_alive(slot) && slots_[slot].self.node == node;
}

int RegisterWorld::coordinator(const reg::LineageId& lineage) const {
  int newest = -1;
  for (int slot = 0; slot < kSlots; ++slot) {
    if (!is_alive(slot) || machine(slot).role() != reg::Role::kCoordinator) continue;
    if (machine(slot).lineage() != lineage) continue;
    if (newest < 0 ||
        machine(newest).known()->record.newness.term < machine(slot).known()->record.newness.term) {
      newest = slot;
    }
  }
  return newest;
}

// ---- Machines and messages.

void RegisterWorld::feed(int slot, const reg::Event& event) {
  std::vector<reg::Action> actions;
  slots_[slot].machine->step(event, clock_.now(), &actions);
  carry_out(slot, actions);
  set_alarm(slot);
}

void RegisterWorld::set_alarm(int slot) {
  Slot& state = slots_[slot];
  const std::optional<Instant> deadline = state.machine->next_deadline();
  if (!deadline) return;
  state.alarm.set(&clock_, std::max(*deadline, state.stalled_until), [this, slot] {
    if (is_running(slot)) {
      feed(slot, reg::Tick{});
    } else {
      set_alarm(slot);
    }
  });
}

void RegisterWorld::carry_out(int slot, const std::vector<reg::Action>& actions) {
  Slot& state = slots_[slot];
  for (const reg::Action& action : actions) {
    if (const auto* send = std::get_if<reg::Send>(&action)) {
      carry(send->message);
    } else if (const auto* elected = std::get_if<reg::Elected>(&action)) {
      trace(std::to_string(slot) + " elected with " + describe(elected->record));
      count("elections");
      state.base = elected->record.content;
      checker_.on_delivered(slot, elected->record, true);
    } else if (const auto* delivered = std::get_if<reg::Deliver>(&action)) {
      trace(std::to_string(slot) + " delivers " + describe(delivered->record));
      state.base = delivered->record.content;
      checker_.on_delivered(slot, delivered->record, false);
    } else if (const auto* deposed = std::get_if<reg::Deposed>(&action)) {
      trace(std::to_string(slot) + " deposed: " + deposed->reason);
      count("depositions");
    } else if (std::holds_alternative<reg::AuthorityExpired>(action)) {
      trace(std::to_string(slot) + " has no authority any more");
      count("expirations");
    }
  }
}

void RegisterWorld::carry(const reg::Message& message) {
  const int from = slot_of(message.from);
  const int to = slot_of(message.to);
  if (links_.has(from, to) || silent_losses_.has(from, to)) return;
  if (is_faulty_ && dice_.chance(0.03)) return;
  const int copies = is_faulty_ && dice_.chance(0.04) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    Duration delay = is_simultaneous_ ? Duration(milliseconds(1))
                                      : dice_.between(microseconds(100), milliseconds(3));
    if (is_faulty_ && dice_.chance(0.15)) {
      delay = dice_.between(milliseconds(1), milliseconds(dice_.chance(0.3) ? 3000 : 300));
    }
    clock_.after(delay, [this, to, message] { arrive(to, slots_[to].life, message); });
  }
}

void RegisterWorld::arrive(int slot, std::uint64_t life, const reg::Message& message) {
  Slot& state = slots_[slot];
  // What is under way when a link is cut may be lost or late: both happen.
  if (state.machine == nullptr || state.life != life) return;
  if (!is_running(slot)) {
    clock_.at(state.stalled_until, [this, slot, life, message] { arrive(slot, life, message); });
    return;
  }
  trace(std::to_string(slot) + " receives " + kind_of(message) + " of " +
        std::to_string(message.from.low));
  feed(slot, reg::Received{message});
}

// ---- The model of the owner.

void RegisterWorld::observe(int slot) {
  const Duration pause = is_simultaneous_
                             ? kObservation
                             : dice_.between(kObservation / 2, kObservation + kObservation / 2);
  clock_.after(pause, [this, slot] { observe(slot); });
  if (!is_running(slot)) return;
  join_a_coordinator(slot);
  observe_incumbent(slot);
  if (machine(slot).role() != reg::Role::kCoordinator) return;
  observe_voters(slot);
  propose(slot);
}

// A node that was started again joins whichever job it finds.
void RegisterWorld::join_a_coordinator(int slot) {
  if (machine(slot).lineage()) return;
  for (int other = 0; other < kSlots; ++other) {
    if (!is_alive(other) || machine(other).role() != reg::Role::kCoordinator) continue;
    if (are_linked(slot, other)) return feed(slot, reg::Joined{*machine(other).lineage()});
  }
}

void RegisterWorld::observe_incumbent(int slot) {
  Slot& state = slots_[slot];
  const std::optional<reg::Voter> incumbent = state.machine->incumbent();
  if (!incumbent || incumbent->node == state.self.node) return;
  const NodeId node = incumbent->node;
  const int other = slot_of(node);
  const bool is_gone = !is_current(node);
  auto is_serving = [&] {
    const reg::Role role = machine(other).role();
    return role != reg::Role::kFollower && role != reg::Role::kAsking &&
           machine(other).lineage() == machine(slot).lineage();
  };
  const bool is_up =
      !is_gone && are_linked(slot, other) && is_serving() && !dice_.chance(false_suspicion_chance_);
  if (is_up) {
    state.incumbent_down_since.reset();
    state.is_loss_reported = false;
    return feed(slot, reg::IncumbentReturned{node});
  }
  if (!state.incumbent_down_since) state.incumbent_down_since = clock_.now();
  const Duration limit = is_gone ? kReconnectGrace : kNodeTimeout;
  const bool is_suspected = dice_.chance(false_suspicion_chance_);
  if (clock_.now() - *state.incumbent_down_since < limit && !is_suspected) return;
  if (!state.is_loss_reported) trace(std::to_string(slot) + " has lost the coordinator");
  state.is_loss_reported = true;
  feed(slot, reg::IncumbentLost{node});
}

void RegisterWorld::observe_voters(int slot) {
  Slot& state = slots_[slot];
  std::vector<reg::VoterCandidate> candidates;
  for (int other = 0; other < kSlots; ++other) {
    if (!is_alive(other) || (is_coordinator_outside_ && other == 0)) continue;
    if (machine(other).lineage() != state.machine->lineage()) continue;
    const bool is_reachable = other == slot || are_linked(slot, other);
    candidates.push_back(
        {slots_[other].self, "host" + std::to_string(slots_[other].host), "",
         other < 6 ? reg::VoterCandidate::Kind::kMember : reg::VoterCandidate::Kind::kSpare,
         is_reachable});
  }
  if (candidates == state.candidates) return;
  state.candidates = candidates;
  feed(slot, reg::CandidatesChanged{std::move(candidates)});
}

void RegisterWorld::propose(int slot) {
  Slot& state = slots_[slot];
  if (!does_propose_ || !state.machine->can_propose() || !state.base) return;
  if (dice_.chance(resignation_chance_)) {
    const int other = dice_.between(0, kSlots - 1);
    if (other != slot && are_linked(slot, other) && machine(other).lineage() &&
        machine(other).lineage() == state.machine->lineage()) {
      trace(std::to_string(slot) + " resigns");
      return feed(slot, reg::Resign{slots_[other].self});
    }
  }
  if (!dice_.chance(0.5)) return;
  const bool is_result = !state.base->is_result && dice_.chance(0.1);
  feed(slot, reg::Propose{derived_content(*state.base, ++nonces_, is_result)});
}

bool RegisterWorld::can_recover(const reg::LineageId& lineage) const {
  auto is_majority_alive = [&](const std::vector<reg::Voter>& voters) {
    const auto alive = std::count_if(voters.begin(), voters.end(), [&](const reg::Voter& voter) {
      return is_current(voter.node) && machine(slot_of(voter.node)).lineage() == lineage;
    });
    return 2 * static_cast<std::size_t>(alive) > voters.size();
  };
  const reg::Record* newest = nullptr;
  for (int slot = 0; slot < kSlots; ++slot) {
    if (!is_alive(slot) || machine(slot).lineage() != lineage) continue;
    const auto& known = machine(slot).known();
    if (!known) continue;
    const reg::Record& record = known->record;
    if (newest == nullptr || newest->newness < record.newness) newest = &record;
    if (!is_majority_alive(record.voters) ||
        (!record.previous_voters.empty() && !is_majority_alive(record.previous_voters))) {
      return false;
    }
  }
  return newest != nullptr;
}

SimReport RegisterWorld::finish() {
  for (int slot = 0; slot < kSlots; ++slot) {
    count("delivered", checker_.delivered(lineage_of(slot)));
  }
  return std::move(report_);
}

}  // namespace elastic::test
