#include "sim/succession_world.h"

#include <utility>

#include "sim/succession_world_impl.h"

namespace elastic::test {

void SuccessionWorld::start() {
  if (is_standalone_) boot(kCoordinatorSlot);
  if (has_witness_ && !processes_[kWitnessSlot].is_alive) boot(kWitnessSlot);
  for (std::size_t slot = 0; slot < nodes_; ++slot) boot(slot);
  const std::size_t voters = nodes_ >= 5 ? 5 : 3;
  if (!advance_until(10s, [&] { return runs_round_of(nodes_) && has_voters(voters); })) {
    violate("the job does not start with " + std::to_string(voters) + " voters");
  }
  advance(1s);
}

void SuccessionWorld::expect_next_round(std::size_t nodes, Duration within) {
  const Instant began = clock_.now();
  const std::uint64_t next = checker_.last_round().round + 1;
  const bool is_there = advance_until(within, [&] { return runs_round_of(nodes, next); });
  report_.recovery = clock_.now() - began;
  if (!is_there) violate("no round of the survivors within the limit");
}

void SuccessionWorld::crash(std::size_t slot, bool is_host_dead) {
  Process& process = processes_[slot];
  if (!process.is_alive) return;
  trace(name(slot) + (is_host_dead ? "  ---- its host is lost" : "  ---- its process ends"));
  process.is_alive = false;
  if (is_host_dead) hosts_down_.insert(slot);
  if (process.agent != nullptr) process.agent->crash(is_host_dead);
  if (process.server != nullptr) process.server->crash(is_host_dead);
  if (has_witness_ && !is_host_dead) close_connections_with_witness(slot);
}

// The end of a connection arrives behind the frames that were sent on it.
void SuccessionWorld::close_connections_with_witness(std::size_t slot) {
  if (is_witness(slot)) {
    for (std::size_t to = 0; to < nodes_; ++to) {
      if (cut_[slot][to]) continue;
      clock_.after(2ms, [this, to, address = voter_address(slot)] {
        feed(to, succession::Unreachable{address});
      });
    }
  } else if (!cut_[slot][kWitnessSlot]) {
    clock_.after(2ms, [this, connection = processes_[slot].life * 10 + slot] {
      feed(kWitnessSlot, succession::ConnectionEnded{connection});
    });
  }
}

void SuccessionWorld::cut(std::size_t a, std::size_t b, bool is_cut) {
  cut_[a][b] = is_cut;
  for (const auto& [pair, one] : paths_) {
    if (pair.first == a && pair.second == b) one->is_blocked[0] = is_cut;
    if (pair.first == b && pair.second == a) one->is_blocked[1] = is_cut;
    if (!is_cut && one->is_open()) one->unblock();
  }
}

void SuccessionWorld::cut_both(std::size_t a, std::size_t b, bool is_cut) {
  cut(a, b, is_cut);
  cut(b, a, is_cut);
}

void SuccessionWorld::cut_off(std::size_t slot, bool is_cut) {
  for (std::size_t to = 0; to < kSlots; ++to) {
    if (to != slot) cut_both(slot, to, is_cut);
  }
}

void SuccessionWorld::heal() {
  trace("---- everything heals");
  for (std::size_t a = 0; a < kSlots; ++a) {
    for (std::size_t b = 0; b < kSlots; ++b) cut(a, b, false);
  }
  is_healed_ = true;
}

void SuccessionWorld::cause_fault() {
  const std::size_t slot = any_process();
  const std::size_t other = any_process();
  const Duration length = dice_.between(Duration(10ms), Duration(9s));
  const auto alive = static_cast<std::size_t>(std::count_if(
      processes_.begin(), processes_.end(), [](const Process& one) { return one.is_alive; }));
  switch (dice_.between(0, 6)) {
    case 0:
      if (alive > 2 && crashes_ < 2) {
        ++crashes_;
        crash(slot, dice_.chance(0.5));
      }
      break;
    case 1:
    case 2:
      if (slot == other) break;
      trace("---- cut between " + name(slot) + " and " + name(other));
      cut(slot, other, true);
      if (dice_.chance(0.7)) cut(other, slot, true);
      clock_.after(length, [this, slot, other] { cut_both(slot, other, false); });
      break;
    case 3:
      trace("---- " + name(slot) + " is cut off");
      cut_off(slot, true);
      clock_.after(length, [this, slot] { cut_off(slot, false); });
      break;
    case 4:
      if (is_witness(slot)) {
        restart_witness();
      } else if (processes_[slot].is_alive) {
        processes_[slot].agent->fail_workers();
      }
      break;
    case 5:
      if (processes_[slot].machine->is_coordinator() && has_voters(3)) {
        feed(slot, succession::Resign{});
      }
      break;
    case 6:
      // A node that coordinates ends with its service, which a leave does not.
      if (processes_[slot].is_alive && alive > 3 && processes_[slot].server == nullptr &&
          dice_.chance(0.3)) {
        processes_[slot].agent->leave();
      }
      break;
  }
}

void SuccessionWorld::lose_coordinator() {
  const RoundRecord before = checker_.last_round();
  switch (scene_) {
    case SuccessionScene::kHostLost:
      crash(0, true);
      expect_next_round(2, 3 * kNodeTimeout);
      break;
    case SuccessionScene::kProcessLost:
      crash(0, false);
      advance(1ms);
      expect_next_round(2, 300ms);
      break;
    case SuccessionScene::kTwoOfFive:
      crash(0, true);
      crash(1, true);
      expect_next_round(3, 4s);
      break;
    case SuccessionScene::kStandaloneLost:
    case SuccessionScene::kStandaloneAgain: {
      crash(kCoordinatorSlot, false);
      if (scene_ == SuccessionScene::kStandaloneAgain) {
        clock_.after(dice_.between(Duration(1ms), Duration(300ms)),
                     [this] { boot(kCoordinatorSlot); });
      }
      const bool is_elected =
          advance_until(2s, [this] { return report_.elections > 0 && has_voters(3); });
      if (!is_elected) violate("no coordinator was elected");
      advance(5s);
      if (checker_.num_rounds() != 1) violate("the loss of the coordinator alone ended the round");
      break;
    }
    case SuccessionScene::kHandOver:
      feed(0, succession::Resign{});
      if (!advance_until(300ms, [this] { return report_.elections == 1 && has_voters(3); })) {
        violate("no coordinator succeeds the one that resigned");
      }
      advance(5s);
      if (checker_.num_rounds() != 1) violate("handing over ended the round");
      break;
    case SuccessionScene::kPartition:
      for (const std::size_t inside : {0u, 1u}) {
        for (const std::size_t outside : {2u, 3u, 4u}) {
          cut_both(inside, outside, true);
        }
      }
      if (!advance_until(4s, [this] { return checker_.last_round().nodes == 3; })) {
        violate("the majority forms no round");
      }
      advance(4s);
      heal();
      break;
    case SuccessionScene::kWitness: lose_one_of_two(); break;
    case SuccessionScene::kSameId: use_id_again(); break;
    case SuccessionScene::kReturn: return_host(); break;
    case SuccessionScene::kDoneLost: lose_done_host(); break;
    case SuccessionScene::kOverride: lose_majority(); break;
    case SuccessionScene::kFaults:
    case SuccessionScene::kWitnessFaults:
      plan_fault();
      advance(dice_.between(Duration(10s), Duration(40s)));
      break;
  }
  const RoundRecord& after = checker_.last_round();
  const bool is_same_job = !has_random_faults() && scene_ != SuccessionScene::kSameId;
  if (is_same_job && after.restarts != before.restarts) {
    violate("a restart was charged for a lost host");
  }
}

// ---- An operator's override.

void SuccessionWorld::workers_gone(const SimAgent& agent) {
  // Workers of a job that dissolves are those of another round.
  if (scene_ == SuccessionScene::kReturn && agent.info().id.high != 2) return;
  const Duration overlap = clock_.now() - checker_.next_round_after(agent.round_heard_at());
  if (overlap <= kOverlapMax) return;
  violate("I1: workers of " + agent.name() + " ended " + std::to_string(to_seconds(overlap)) +
          " s after the next round had begun");
}

FormerVoter::FormerVoter(const reg::Voter& self, const reg::VoterState& state, Instant now)
    : register_(self, {}, 1) {
  static_cast<void>(register_.restore(state, now));
}

std::vector<reg::Send> FormerVoter::receive(const reg::Message& message, Instant now) {
  std::vector<reg::Action> actions;
  register_.step(reg::Received{message}, now, &actions);
  std::vector<reg::Send> replies;
  for (const reg::Action& action : actions) {
    if (const auto* reply = std::get_if<reg::Send>(&action)) replies.push_back(*reply);
  }
  return replies;
}

void SuccessionWorld::keep_voting(std::size_t slot, const succession::Event& event) {
  if (options_.deleted != ServiceRule::kLeaveReplaced) return;
  Process& process = processes_[slot];
  const reg::Register& own = process.machine->job_register();
  if (own.lineage() && !process.has_changed) process.state = own.state();
  const auto* received = std::get_if<succession::Received>(&event);
  if (process.former == nullptr || received == nullptr) return;
  const auto frame = succession::decode_frame(received->frame);
  const auto* message = frame.ok() ? std::get_if<reg::Message>(&frame->body) : nullptr;
  if (message == nullptr || message->lineage != process.state->lineage) return;
  for (const reg::Send& reply : process.former->receive(*message, clock_.now())) {
    if (reply.message.to != frame->from) continue;
    execute(slot, succession::Send{
                      received->connection, "",
                      succession::encode_frame({"job", process.id, frame->from, reply.message})});
  }
}

// Whether the command has succeeded.
bool SuccessionWorld::override_at(std::size_t slot) {
  answer_.reset();
  const succession::Override command{++nonces_, false};
  feed(slot, succession::Received{
                 kOperator, succession::encode_frame({"job", {99, nonces_}, {}, command}), ""});
  advance_until(3s, [this] { return answer_ && answer_->nonce == nonces_; });
  if (!answer_) violate("the operator's command is not answered");
  return answer_ && answer_->is_done;
}

// A majority of the voters is lost at once. One of those that were lost may come back much later.
void SuccessionWorld::lose_majority() {
  const std::size_t lost = nodes_ / 2 + 1;
  const std::uint64_t round = checker_.last_round().round;
  const bool comes_back = dice_.chance(0.6);
  std::vector<std::size_t> slots;
  for (std::size_t slot = 0; slot < nodes_; ++slot) slots.push_back(slot);
  for (std::size_t i = 0; i < lost; ++i) {
    const auto at =
        static_cast<std::size_t>(dice_.between(static_cast<int>(i), static_cast<int>(nodes_) - 1));
    std::swap(slots[i], slots[at]);
    if (i == 0 && comes_back) {
      trace("---- " + name(slots[i]) + " is cut off");
      cut_off(slots[i], true);
    } else {
      crash(slots[i], dice_.chance(0.5));
    }
  }
  const auto survivor = [&] {
    const int last = static_cast<int>(nodes_) - 1;
    return slots[static_cast<std::size_t>(dice_.between(static_cast<int>(lost), last))];
  };
  advance(dice_.between(Duration(0), 2 * kStoreGrace));
  bool is_done = false;
  for (int turn = 0; turn < 12 && !is_done && report_.violations.empty(); ++turn) {
    const std::size_t slot = survivor();
    const std::size_t other = survivor();
    if (other != slot) {  // two operators
      feed(other,
           succession::Received{
               kOperator,
               succession::encode_frame({"job", {98, 1}, {}, succession::Override{0, false}}), ""});
      advance(dice_.between(Duration(0), Duration(2500ms)));
    }
    is_done = override_at(slot) || new_lineage_.has_value();
    advance(dice_.between(Duration(0), Duration(1s)));
  }
  if (!is_done) return violate("the survivors refuse to go on without the lost majority");
  const auto survivors = static_cast<int>(nodes_ - lost);
  const auto goes_on = [&] {
    return checker_.last_round().round > round && checker_.last_round().nodes == survivors;
  };
  if (!advance_until(20s, goes_on)) return violate("no round of the survivors after the override");
  if (!comes_back) return;
  advance(dice_.between(Duration(0), Duration(10s)));
  heal();
  is_healed_ = false;  // the workers go on
  const auto grows = [&] { return checker_.last_round().nodes == survivors + 1; };
  if (!advance_until(30s, grows)) violate("the node that came back does not follow the survivors");
}

void SuccessionWorld::restart_witness() {
  crash(kWitnessSlot, false);
  boot(kWitnessSlot);
}

// Two nodes and a witness: any one of them, or the links between them, may be lost.
void SuccessionWorld::lose_one_of_two() {
  const bool is_host_dead = dice_.chance(0.5);
  const Duration limit = is_host_dead ? 3 * kNodeTimeout : Duration(500ms);
  switch (dice_.between(0, 5)) {
    case 0:  // the witness was started again, and has forgotten what it promised
      restart_witness();
      if (!advance_until(3 * kNodeTimeout, [this] { return !has_voters(3); }) ||
          !advance_until(5s, [this] { return has_voters(3); })) {
        return violate("a witness that was started again gets no vote");
      }
      advance(100ms);
      [[fallthrough]];
    case 1:
      crash(0, is_host_dead);
      expect_next_round(1, limit);
      if (report_.elections != 1) violate("the remaining node was not elected");
      break;
    case 2:
      crash(1, is_host_dead);
      expect_next_round(1, limit);
      break;
    case 3:  // the witness is lost, then the other node
      crash(kWitnessSlot, is_host_dead);
      if (!advance_until(3 * kNodeTimeout, [this] { return !has_voters(3); })) {
        return violate("a witness that is lost still counts");
      }
      advance(100ms);
      crash(1, is_host_dead);
      expect_next_round(1, limit);
      break;
    case 4:
      cut_off(0, true);
      if (!advance_until(4s, [this] { return checker_.last_round().nodes == 1; })) {
        violate("the side of the witness forms no round");
      }
      advance(4s);
      break;
    default:  // the nodes do not reach each other, and both reach the witness
      cut_both(0, 1, true);
      if (!advance_until(4s, [this] { return checker_.last_round().nodes == 1; })) {
        violate("the coordinator forms no round with the witness");
      }
      advance(4s);
      if (report_.elections > 0) violate("R4: one bad link ended the coordinator's authority");
      break;
  }
}

// A requeued job, on the same hosts, while the witness still knows the former one.
void SuccessionWorld::use_id_again() {
  for (int runs = dice_.between(1, 3); runs > 0 && report_.violations.empty(); --runs) {
    crash(0, false);
    crash(1, false);
    report_.elections = 0;
    advance(dice_.between(Duration(1ms), Duration(20s)));
    checker_ = SuccessionChecker(&report_.violations);
    start();
  }
  if (report_.violations.empty()) lose_one_of_two();
}

// The host of the endpoint is replaced while the job goes on elsewhere, and newcomers know the
// endpoint only. Where the two sides do not reach each other, a second job begins and runs.
void SuccessionWorld::return_host() {
  crash(0, dice_.chance(0.5));
  const std::size_t newcomers = static_cast<std::size_t>(dice_.between(0, 2));
  const double split = dice_.chance(0.4) ? 0 : dice_.chance(0.7) ? 1 : 0.6;
  for (const std::size_t outside : {0u, 3u, 4u}) {
    for (const std::size_t inside : {1u, 2u}) {
      if (dice_.chance(split)) cut_both(outside, inside, true);
    }
  }
  clock_.after(dice_.between(Duration(1ms), Duration(3s)), [this] {
    hosts_down_.erase(0);
    boot(0);
    // The second job may elect a coordinator, too.
    if (!dice_.chance(0.3)) return;
    clock_.after(dice_.between(Duration(1s), Duration(6s)), [this] { crash(0, false); });
    clock_.after(dice_.between(Duration(6s), Duration(8s)), [this] { boot(0); });
  });
  for (std::size_t slot = 3; slot < 3 + newcomers; ++slot) {
    clock_.after(dice_.between(Duration(1ms), Duration(5s)), [this, slot] { boot(slot); });
  }
  advance(dice_.between(Duration(3s), Duration(12s)));
  for (std::size_t a = 0; a < kSlots; ++a) {
    for (std::size_t b = 0; b < kSlots; ++b) cut(a, b, false);
  }
  const std::size_t all = 3 + newcomers;
  const auto is_complete = [&](const SuccessionChecker& job) {
    return job.num_rounds() > 0 && job.last_round().nodes == static_cast<int>(all) &&
           runs_round_of(all, job.last_round().round);
  };
  const bool is_one = advance_until(25s, [&] {
    return is_complete(checker_) ||
           std::any_of(other_jobs_.begin(), other_jobs_.end(), is_complete);
  });
  if (!is_one) violate("R8: the replaced host and the newcomers do not join the job");
}

// The work of a node that is done is not repeated, whoever else is lost with it.
void SuccessionWorld::lose_done_host() {
  processes_[0].agent->finish_workers();
  if (dice_.chance(0.4)) processes_[1].agent->finish_workers();
  advance(dice_.between(Duration(50ms), Duration(3s)));
  crash(0, dice_.chance(0.5));
  const auto is_elected = [this] { return report_.elections == 1; };
  if (!advance_until(4s, is_elected)) return violate("no node succeeds the coordinator");
  if (!advance_until(kConvergeWithin, [this] { return has_converged(); })) return;
  if (checker_.num_rounds() != 1) violate("the loss of a node that is done ended the round");
  if (!checker_.has_result()) violate("the job has no result");
}

SuccessionReport SuccessionWorld::run() {
  start();
  if (report_.violations.empty()) lose_coordinator();
  if (report_.violations.empty()) {
    heal();
    // Workers that were to run long end, so that the job can.
    for (Process& process : processes_) {
      if (process.is_alive && process.agent != nullptr && process.agent->is_alive()) {
        process.agent->fail_workers();
        break;
      }
    }
    if (!advance_until(kConvergeWithin, [this] { return has_converged(); })) {
      violate("the job has not ended within the limit after everything has healed");
    }
  }
  report_.rounds = checker_.num_rounds();
  return std::move(report_);
}

SuccessionReport simulate_succession(SuccessionScene scene, std::uint64_t seed,
                                     const SuccessionOptions& options) {
  return SuccessionWorld(scene, seed, options).run();
}

}  // namespace elastic::test
