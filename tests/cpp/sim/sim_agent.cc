#include "sim/sim_agent.h"

#include <algorithm>
#include <utility>

namespace elastic::test {

using namespace std::chrono_literals;
using rdzv::NodePhase;

bool SimAgentWorld::has_converged() const {
  return std::none_of(agents_.begin(), agents_.end(),
                      [](const auto& agent) { return agent->is_alive(); });
}

SimAgent* SimAgentWorld::add_agent(const SimAgentOptions& options) {
  return agents_.emplace_back(std::make_unique<SimAgent>(this, options)).get();
}

std::int64_t SimAgentWorld::slowest_step(const SimAgent& agent) const {
  std::int64_t slowest = INT64_MAX;
  int members = 0;
  for (const auto& other : agents_) {
    if (!other->shares_round(agent)) continue;
    ++members;
    slowest = std::min(slowest, other->ranks().slowest_step());
  }
  return members < agent.nodes() ? -1 : slowest;
}

std::pair<std::int64_t, Duration> SimAgentWorld::steps_of(std::uint64_t round) const {
  Dice lot(lot_ ^ round);
  return {lot.between(20, 120), lot.between(Duration(20ms), Duration(250ms))};
}

void SimAgentWorld::check_waiting(const SimAgent& agent, std::int64_t step,
                                  const std::string& what) {
  for (const auto& other : agents_) {
    if (!other->shares_round(agent) || other->ranks().wait_at(step)) continue;
    violate("round " + std::to_string(agent.round()) + ", step " + std::to_string(step) + ": " +
            what + " while a rank of " + other->name() + " does not wait there");
  }
}

void SimAgentWorld::left_at(const SimAgent& agent, std::int64_t step) {
  count("left at a step");
  check_waiting(agent, step, agent.name() + " leaves");
}

void SimAgentWorld::grows(const SimAgent& agent, const std::string& why) {
  const std::int64_t step = agent.ranks().tentative();
  if (step < 0 || why.find("without an agreed step") != std::string::npos) return;
  if (grown_.insert(agent.round()).second) count("grown at a step");
  check_waiting(agent, step, "nodes join");
}

void SimAgentWorld::check_overlap(const SimAgent& agent, Instant next_round, Duration allowed) {
  const Duration overlap = clock_.now() - next_round;
  if (overlap <= allowed) return;
  violate("I1: workers of round " + std::to_string(agent.round()) + " on " + agent.name() +
          " ended " + std::to_string(to_seconds(overlap)) + " s after the next round had begun");
}

void SimAgent::start() {
  is_alive_ = true;
  session_ = std::make_unique<SimSession>(this, world_, options_.settings);
  session_->begin();
  send(rdzv::Join{options_.info, options_.settings});
}

void SimAgent::follow(const std::string& address, bool is_here) {
  now([this, address, is_here] {
    options_.info.hosts_coordinator = is_here;
    session_->follow(address);
  });
}

void SimAgent::displace(const std::string& address) {
  now([this, address] {
    options_.info.hosts_coordinator = false;
    session_->displace(address);
  });
}

void SimAgent::later(Duration wait, std::function<void()> what) {
  world_->clock().after(wait, [this, what = std::move(what)] { now(what); });
}

void SimAgent::now(std::function<void()> what) {
  if (is_alive_) pause_.run(std::move(what));
}

std::shared_ptr<SimLink> SimAgent::link() const {
  return session_ != nullptr ? session_->link() : nullptr;
}

void SimAgent::lose_coordinator() {
  log_progress("coordinator lost");
  stop_workers([this] { finish("coordinator lost"); });
}

void SimAgent::receive(const core::RendezvousAction& action) {
  if (is_leaving_) return;
  log_progress(std::string("receives ") + name_of(action));
  std::visit([this](const auto& one) { obey(one); }, action);
}

void SimAgent::obey(const rdzv::Round& action) {
  if (action.record->round == round()) return;  // sent again
  if (action.record->round < round()) {
    fault_ = "I5: received round " + std::to_string(action.record->round) + " after " +
             std::to_string(round());
    return;
  }
  if (has_workers_ || phase_ != NodePhase::kJoined) {
    fault_ = "a round was given to a node that did not ask for it";
    return;
  }
  held_round_ = core::HeldRound{*action.record, action.own.group_rank, action.cause};
  options_.info.highest_round = action.record->round;
  options_.info.previous_rank = action.own.group_rank;
  failure_.reset();
  phase_ = NodePhase::kWorking;
  has_workers_ = true;
  round_heard_at_ = world_->clock().now();
  world_->round_started(*this, action.own.group_rank);
  is_stopping_ = false;
  work_ = world_->draw_work();
  const std::uint64_t era = ++work_era_;
  log_progress("runs round " + std::to_string(round()) + " as " +
               std::to_string(action.own.group_rank) + "/" + std::to_string(action.record->nodes));
  if (options_.has_steps) {
    const auto [steps, step_time] = world_->steps_of(round());
    ranks_.begin(round(), action.own.base_rank, options_.info.local_world_size, steps, step_time);
    if (!work_.fails) return;
  }
  later(work_.length, [this, era] { workers_ended(work_.fails, era); });
}

void SimAgent::workers_ended(bool failed, std::uint64_t era) {
  if (era != work_era_ || !has_workers_ || is_stopping_ || failure_) return;
  if (is_leaving_) return ranks_exited();  // they had left the round
  if (failed) {
    log_progress("a worker failed");
    FailureReport failure;
    failure.rank = held_round_->group_rank;
    failure.exit_code = 3;
    failure.message = "exited with code 3";
    failure.at = world_->clock().now();
    failure_ = failure;
    ranks_.halt();
    send(rdzv::Failed{options_.info.id, round(), failure});
    world_->collective_broke(*this);
    return;
  }
  log_progress("done");
  no_workers_left();
  phase_ = NodePhase::kDone;
  send(rdzv::Done{options_.info.id, round()});
  world_->workers_gone(*this);
  if (is_departing_ && ranks_.stopped_at().empty()) leave();
}

void SimAgent::no_workers_left() {
  has_workers_ = false;
  ranks_.end();
}

bool SimAgent::shares_round(const SimAgent& other) const {
  const bool takes_part = (is_alive_ && has_workers_) || phase_ == NodePhase::kDone;
  const bool has_round = held_round_ && other.held_round_;
  return takes_part && has_round && held_round_->record == other.held_round_->record;
}

void SimAgent::fail_workers() { workers_ended(true, work_era_); }

void SimAgent::finish_workers() { workers_ended(false, work_era_); }

void SimAgent::break_collective(const SimAgent& peer) {
  if (&peer == this || !is_alive_ || !has_workers_ || is_stopping_ || is_leaving_) return;
  if (!peer.held_round_ || peer.held_round_->record != held_round_->record) return;
  const std::int64_t step = ranks_.tentative();
  if (step >= 0 && ranks_.wait_at(step)) return;  // between two steps
  const std::uint64_t era = work_era_;
  if (world_->dice().chance(0.6)) {
    later(world_->dice().between(1ms, 500ms), [this, era] { workers_ended(true, era); });
  } else {
    ++work_era_;  // they hang until they are stopped
    ranks_.halt();
  }
}

void SimAgent::stop_workers(std::function<void()> then) {
  if (!has_workers_) {
    then();
    return;
  }
  when_stopped_ = std::move(then);
  if (is_stopping_) return;
  is_stopping_ = true;
  ranks_.halt();
  const std::uint64_t era = ++work_era_;
  later(work_.stop, [this, era] {
    if (era != work_era_) return;
    is_stopping_ = false;
    no_workers_left();
    world_->workers_gone(*this);
    world_->collective_broke(*this);
    std::exchange(when_stopped_, {})();
  });
}

void SimAgent::join() {
  phase_ = NodePhase::kJoined;
  ++options_.info.store_port;
  send(rdzv::Join{options_.info, options_.settings});
}

void SimAgent::obey(const rdzv::Restart& action) {
  options_.info.highest_round = std::max(options_.info.highest_round, action.round);
  if (phase_ != NodePhase::kWorking || action.round != round()) {
    join();  // nothing of that round runs here
    return;
  }
  if (action.cause == rdzv::RestartCause::kGrowth) world_->grows(*this, action.reason);
  stop_workers([this] {
    phase_ = NodePhase::kStopped;
    send(rdzv::Gone{options_.info.id, round()});
    join();
  });
}

void SimAgent::obey(const rdzv::Evicted& action) {
  log_progress("evicted: " + action.reason);
  ++evictions_;
  options_.info.highest_round = std::max(options_.info.highest_round, action.round);
  if (is_departing_) return leave();
  stop_workers([this] { join(); });
}

void SimAgent::obey(const rdzv::Closed& action) {
  result_ = *action.result;
  log_progress("receives the result: " + result_->message);
  stop_workers([this] {
    if (held_round_ && phase_ == NodePhase::kWorking) send(rdzv::Gone{options_.info.id, round()});
    send(rdzv::Leave{options_.info.id, "the job is over"});
    drain_and_finish("closed");
  });
}

void SimAgent::obey(const rdzv::Refused& action) {
  fault_ = "refused: " + std::string(action.error.message());
  stop_workers([this] { finish("refused"); });
}

void SimAgent::obey(const rdzv::TimedOut& action) {
  log_progress("timed out: " + action.message);
  stop_workers([this] { finish("timed out"); });
}

void SimAgent::leave() {
  if (is_leaving_) return;
  log_progress("leaves");
  is_leaving_ = true;
  send(rdzv::Leave{options_.info.id, "SIGTERM"});
  stop_workers([this] { drain_and_finish("left"); });
}

// ---- Agreed steps: what AgentMachine does.

void SimAgent::report(const core::NodeReport& report) { session_->report(report); }

void SimAgent::obey(const drain::Order& order) {
  if (is_alive_ && options_.has_steps) ranks_.obey(order);
}

void SimAgent::give_notice(const drain::Notice& notice) {
  if (is_leaving_ || !has_workers_ || is_departing_) return;
  log_progress("gives the notice: " + notice.reason);
  is_departing_ = true;
  report(notice);
  later(notice.left + 5s, [this] {
    if (ranks_.stopped_at().empty()) leave();
  });
}

void SimAgent::depart(Duration limit) {
  give_notice({limit, "SIGTERM on " + name(), drain::Departure{{options_.info.id}, true}});
}

void SimAgent::stop_job(Duration limit) { give_notice({limit, "SIGUSR1 on " + name()}); }

void SimAgent::leave_at(std::int64_t step) {
  if (is_leaving_ || !has_workers_ || is_stopping_) return;
  log_progress("leaves at step " + std::to_string(step));
  is_leaving_ = true;
  world_->left_at(*this, step);
  send(rdzv::Leave{options_.info.id, "at step " + std::to_string(step) + ", as agreed"});
}

void SimAgent::ranks_exited() {
  if (!is_leaving_) return workers_ended(false, work_era_);
  if (!has_workers_ || is_stopping_) return;
  no_workers_left();
  world_->workers_gone(*this);
  drain_and_finish("left");
}

// Ends when its final message was acknowledged.
void SimAgent::drain_and_finish(const std::string& fate) {
  session_->drain([this, fate] { finish(fate); });
}

void SimAgent::finish(const std::string& fate) {
  log_progress("exits: " + fate);
  fate_ = fate;
  is_alive_ = false;
  pause_.cancel();
  path_->has_ended = true;
  if (session_ != nullptr) session_->end(is_host_dead_);
  world_->ended(*this);
}

void SimAgent::crash(bool is_host_dead) {
  log_progress(is_host_dead ? "its host dies" : "is killed");
  is_host_dead_ = is_host_dead;
  const bool had_workers = has_workers_;
  no_workers_left();
  finish("crashed");
  if (!had_workers) return;
  world_->workers_gone(*this);
  world_->collective_broke(*this);
}

void SimAgent::pause() {
  if (pause_.is_on()) return;
  log_progress("is paused");
  pause_.begin(world_->clock().now());
}

void SimAgent::unpause() {
  if (!pause_.is_on()) return;
  log_progress("continues");
  pause_.end(world_->clock().now());
  pause_.run_waiting();
}

}  // namespace elastic::test
