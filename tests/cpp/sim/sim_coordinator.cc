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
  const bool has_state = !stored_.empty();
  note(lives_ == 0 ? "coordinator starts"
       : has_state ? "coordinator is restarted with its stored state"
                   : "coordinator is restarted without state");
  if (lives_++ > 0) checker_.machine_restarted();
  delay_now_ = world_->dice().between(Duration(1), 2 * std::max(store_delay_, Duration(1)));
  if (!has_state) return;
  job_.emplace(kJobId, stored_settings_, clock_->now(), Duration(0));
  const Status restored = job_->restore(stored_, clock_->now());
  if (!restored.ok()) fault_ = std::string(restored.message());
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
  held_.clear();
  leaving_.clear();
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
  if (is_stored() && std::holds_alternative<rdzv::Leave>(event)) leaving_.insert(id);
  SimService::serve(id, event);
  const bool is_start =
      std::holds_alternative<rdzv::Join>(event) || std::holds_alternative<rdzv::Resume>(event);
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

void SimCoordinator::step(const core::JobEvent& event) {
  std::vector<core::JobAction> actions;
  const bool was_closed = rendezvous().phase() == RendezvousPhase::kClosed;
  checker_.step(&*job_, event, clock_->now(), &actions);
  if (checker_.rounds_seen() > rounds_began_.size()) rounds_began_.push_back(clock_->now());
  newest_generation_ = std::max(newest_generation_, rendezvous().record().generation);
  if (!was_closed && rendezvous().phase() == RendezvousPhase::kClosed) {
    note("job is closed: " + rendezvous().result()->message);
  }
  if (is_stored()) {
    held_.insert(held_.end(), actions.begin(), actions.end());
  } else {
    carry_out(actions);
  }
  store_later();
  // After Tick no deadline may still be due.
  const auto next = job_->next_deadline();
  const auto* statement = std::get_if<core::RendezvousEvent>(&event);
  const bool is_tick = statement != nullptr && std::holds_alternative<rdzv::Tick>(*statement);
  if (is_tick && next && *next <= clock_->now()) {
    fault_ = "a deadline is still due after Tick: " + describe();
  }
  watch_deadline();
}

void SimCoordinator::store_later() {
  if (store_delay_ == Duration::zero() || std::exchange(is_storing_, true)) return;
  clock_->after(delay_now_, [this, era = era_] {
    if (era != era_) return;
    is_storing_ = false;
    stored_ = rendezvous().encode();
    stored_settings_ = rendezvous().settings();
    carry_out(std::exchange(held_, {}));
    acknowledge_leaves();
  });
}

bool SimCoordinator::may_acknowledge(const NodeId& id, Session* session, Instant sent) {
  if (!leaving_.contains(id)) return true;
  session->unanswered = sent;
  return false;
}

void SimCoordinator::acknowledge_leaves() {
  for (const NodeId& node : std::exchange(leaving_, {})) {
    const auto session = sessions_.find(node);
    if (session == sessions_.end() || !session->second.unanswered) continue;
    const Instant sent = *std::exchange(session->second.unanswered, std::nullopt);
    session->second.link->send(Side::kServer, reply_to_heartbeat(sent));
  }
}

// Only a coordinator that has lost its state may give a number to another round.
bool SimCoordinator::send(const core::RendezvousAction& action) {
  const auto* round = std::get_if<rdzv::Round>(&action);
  if (round != nullptr && is_stored() && fault_.empty()) fault_ = records_.sent(*round->record);
  return SimService::send(action);
}

}  // namespace elastic::test
