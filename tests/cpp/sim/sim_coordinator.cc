#include "sim/sim_coordinator.h"

#include <algorithm>
#include <utility>

#include "core/rendezvous/rendezvous_events.h"
#include "core/session/coordinator_loss.h"

namespace elastic::test {

void SimCoordinator::start() {
  if (is_up_) return;
  is_up_ = true;
  started_at_ = clock_->now();
  const bool has_state = file_.has_value();
  note(lives_ == 0 ? "coordinator starts"
       : has_state ? "coordinator is restarted with its stored state"
                   : "coordinator is restarted without state");
  if (lives_++ > 0) checker_.machine_restarted();
  delay_now_ = world_->dice().between(Duration(1), 2 * std::max(store_delay_, Duration(1)));
  if (!has_state) return;
  job_.emplace(kJobId, file_->settings, clock_->now(), core::kStartHold);
  const Status restored = job_->restore(file_->bytes, clock_->now());
  if (!restored.ok()) fault_ = std::string(restored.message());
  job_->gate().restored(rendezvous(), core::RecordKeeper::kFile);
  note(rendezvous().describe(clock_->now()));
  watch_deadline();
}

void SimCoordinator::leave(const std::string& reason) {
  if (!is_up_) return;
  for (const auto& [id, session] : sessions_) {
    session.link->send(Side::kServer, SimLink::Leaving{reason});
  }
  crash(false);
}

void SimCoordinator::crash(bool is_host_dead) {
  if (!is_up_) return;
  note(is_host_dead ? "the coordinator's host dies" : "coordinator ends");
  is_up_ = false;
  is_storing_ = false;
  // What was being written is in the file, or not.
  if (writing_ && world_->dice().chance(0.5)) file_ = writing_;
  writing_.reset();
  left_.clear();
  end(is_host_dead);
}

void SimCoordinator::stall() {
  if (!is_up_ || pause_.is_on()) return;
  note("coordinator stalls");
  pause_.begin(clock_->now());
}

void SimCoordinator::unstall() {
  if (!pause_.is_on()) return;
  note("coordinator continues");
  const Duration gap = pause_.end(clock_->now());
  if (job_) step(rdzv::ClockGap{gap});
  pause_.run_waiting();
  if (job_) step(rdzv::Tick{});
}

void SimCoordinator::greet(const std::shared_ptr<SimLink>& link, const SimLink::Hello& hello) {
  open(hello.node, link);
  link->send(Side::kServer, SimLink::HelloReply{era_, clock_->now()});
}

Duration SimCoordinator::start_hold() const {
  return std::max(started_at_ + core::kStartHold - clock_->now(), Duration(0));
}

void SimCoordinator::serve(const NodeId& id, const core::RendezvousEvent& event) {
  const bool is_recorded = is_stored() && job_ && !is_over() && rendezvous().record().round > 0;
  if (is_recorded && std::holds_alternative<rdzv::Leave>(event)) left_.insert(id);
  const bool is_start =
      std::holds_alternative<rdzv::Join>(event) || std::holds_alternative<rdzv::Resume>(event);
  if (is_start) left_.erase(id);
  SimService::serve(id, event);
  if (has_timings_ && is_start) send_timings(id);
}

void SimCoordinator::send_timings(const NodeId& id) {
  Session& session = sessions_[id];
  const std::uint32_t current = rendezvous().record().generation;
  if (std::exchange(session.timings_of, current) == current) return;
  session.link->send(Side::kServer, SimLink::Timings{rendezvous().settings()});
}

void SimCoordinator::session_lost(const NodeId& id, const SimLink& link) {
  // Like the real coordinator, it gives a slow path more than a short reconnect_grace.
  const Duration least_grace =
      has_timings_ ? core::kRoundTripsToResume * link.longest_round_trip() : Duration(0);
  if (job_) step(rdzv::SessionLost{id, least_grace});
  // Half of the nodes have a liveness port. The connection to it takes a round trip.
  if (id.low % 2 != 0 || !link.path().has_ended) return;
  clock_->after(link.longest_round_trip(), [this, id, era = era_] {
    if (era == era_ && job_ && !pause_.is_on()) step(rdzv::ProcessEnded{id});
  });
}

void SimCoordinator::job_began() {
  if (is_stored()) job_->gate().keep_at(core::RecordKeeper::kFile);
}

void SimCoordinator::step(const core::JobEvent& event) {
  std::vector<core::JobAction> actions;
  const bool was_over = is_over();
  checker_.step(&*job_, event, clock_->now(), &actions);
  follow(was_over, actions);
  // After Tick no deadline may still be due.
  const auto next = job_->next_deadline();
  const auto* statement = std::get_if<core::RendezvousEvent>(&event);
  const bool is_tick = statement != nullptr && std::holds_alternative<rdzv::Tick>(*statement);
  if (is_tick && next && *next <= clock_->now()) {
    fault_ = "a deadline is still due after Tick: " + describe();
  }
  watch_deadline();
}

void SimCoordinator::in_force(std::uint64_t number) {
  std::vector<core::JobAction> actions;
  const bool was_over = is_over();
  checker_.in_force(&*job_, number, clock_->now(), &actions);
  follow(was_over, actions);
  acknowledge_leaves();
  watch_deadline();
}

void SimCoordinator::follow(bool was_over, const std::vector<core::JobAction>& actions) {
  if (checker_.rounds_seen() > rounds_began_.size()) rounds_began_.push_back(clock_->now());
  newest_generation_ = std::max(newest_generation_, rendezvous().record().generation);
  if (!was_over && is_over()) note("job is closed: " + rendezvous().result()->message);
  carry_out(actions);
  propose();
  store_later();
}

// ---- The file.

SimCoordinator::Stored SimCoordinator::state() const {
  Stored state{.settings = rendezvous().settings(),
               .bytes = rendezvous().encode(),
               .round = rendezvous().record().round,
               .is_over = is_over(),
               .nodes = {}};
  for (const core::NodeStatus& one : rendezvous().nodes(clock_->now())) state.nodes.insert(one.id);
  return state;
}

void SimCoordinator::propose() {
  if (!is_stored()) return;
  if (const auto proposal = job_->take_proposal()) {
    write([this, number = proposal->number] { in_force(number); });
  }
}

// Also what the gate does not wait for, such as that a node has joined.
void SimCoordinator::store_later() {
  if (!is_stored() || std::exchange(is_storing_, true)) return;
  clock_->after(delay_now_, [this, era = era_] {
    if (era != era_) return;
    run([this] {
      is_storing_ = false;
      write([] {});
    });
  });
}

// On its thread, which may be stalled.
void SimCoordinator::run(const std::function<void()>& what) {
  pause_.run([this, era = era_, what] {
    if (era == era_) what();
  });
}

void SimCoordinator::write(std::function<void()> written) {
  writing_ = state();
  clock_->after(delay_now_, [this, era = era_, number = ++writes_, written = std::move(written)] {
    if (era != era_) return;
    if (writing_) file_ = writing_;
    if (number == writes_) writing_.reset();
    run(written);
  });
}

std::string SimCoordinator::fault_of(const core::RendezvousAction& action) const {
  if (const auto* round = std::get_if<rdzv::Round>(&action)) {
    if (file_ && file_->round >= round->record->round) return "";
    return "R3: round " + std::to_string(round->record->round) + " was sent and is in no file";
  }
  const bool is_result = std::holds_alternative<rdzv::Closed>(action) && is_over();
  if (!is_result || (file_ && file_->is_over)) return "";
  return "R3: the result was sent and is in no file";
}

void SimCoordinator::acknowledge(const NodeId& id, Session* session, Instant sent) {
  if (left_.contains(id) && !is_over() && (!file_ || file_->nodes.contains(id))) {
    fault_ = "R6: a leave was acknowledged that is in no file";
  }
  SimService::acknowledge(id, session, sent);
}

bool SimCoordinator::send(const core::RendezvousAction& action) {
  if (is_stored() && fault_.empty()) fault_ = fault_of(action);
  // Only a coordinator that has lost its state may give a number to another round.
  const auto* round = std::get_if<rdzv::Round>(&action);
  if (round != nullptr && is_stored() && fault_.empty()) fault_ = records_.sent(*round->record);
  return SimService::send(action);
}

}  // namespace elastic::test
