#include "sim/sim_coordinator.h"

#include <algorithm>
#include <utility>

#include "core/rendezvous/rendezvous_events.h"
#include "core/session/coordinator_watch.h"

namespace elastic::test {

void SimCoordinator::start() {
  if (is_up_) return;
  is_up_ = true;
  started_at_ = clock_->now();
  const bool has_state = !stored_.empty();
  note_(lives_ == 0 ? "coordinator starts"
        : has_state ? "coordinator is restarted with its stored state"
                    : "coordinator is restarted without state");
  if (lives_++ > 0) checker_.machine_restarted();
  delay_now_ = dice_->between(Duration(1), 2 * std::max(store_delay_, Duration(1)));
  if (!has_state) return;
  machine_.emplace(stored_settings_, clock_->now());
  const Status restored = machine_->restore(stored_, clock_->now());
  if (!restored.ok()) fault_ = std::string(restored.message());
  note_(machine_->describe(clock_->now()));
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
  note_(is_host_dead ? "the coordinator's host dies" : "coordinator ends");
  is_up_ = false;
  ++era_;
  ++alarm_;
  alarm_at_ = Instant::max();
  machine_.reset();
  is_storing_ = false;
  is_stalled_ = false;
  unread_.clear();
  sessions_.clear();
  for (const auto& link : std::exchange(links_, {})) {
    if (is_host_dead) link->vanish();
    link->close(Side::kServer);
  }
}

void SimCoordinator::stall() {
  if (!is_up_ || is_stalled_) return;
  note_("coordinator stalls");
  is_stalled_ = true;
  stalled_at_ = clock_->now();
}

void SimCoordinator::unstall() {
  if (!is_stalled_) return;
  note_("coordinator continues");
  is_stalled_ = false;
  time_stalled_ += clock_->now() - stalled_at_;
  if (machine_) step(rdzv::ClockGap{clock_->now() - stalled_at_});
  while (!unread_.empty()) {
    const auto what = std::move(unread_.front());
    unread_.pop_front();
    what();
  }
  if (machine_) step(rdzv::Tick{});
}

std::shared_ptr<SimLink> SimCoordinator::connect(SimAgent* agent) {
  if (!is_up_ || !agent->path()->is_open()) return nullptr;
  auto link = std::make_shared<SimLink>(clock_, dice_, agent->path());
  links_.push_back(link);
  const std::uint64_t era = era_;
  const auto guard = [this, era](const std::function<void()>& what) {
    if (era != era_) return;
    if (is_stalled_) {
      unread_.push_back([this, era, what] {
        if (era == era_) what();
      });
    } else {
      what();
    }
  };
  const int side = static_cast<int>(Side::kServer);
  std::weak_ptr<SimLink> weak = link;
  link->on_message[side] = [this, guard, weak](const SimLink::Message& message) {
    guard([this, weak, message] {
      if (const auto strong = weak.lock()) receive(strong, message);
    });
  };
  link->on_closed[side] = [this, guard, weak] {
    guard([this, weak] {
      if (const auto strong = weak.lock()) closed(strong);
    });
  };
  return link;
}

void SimCoordinator::receive(const std::shared_ptr<SimLink>& link,
                             const SimLink::Message& message) {
  if (std::holds_alternative<SimLink::Question>(message)) {
    link->send(Side::kServer, SimLink::Answer{});
    return;
  }
  if (const auto* hello = std::get_if<SimLink::Hello>(&message)) {
    Session& session = sessions_[hello->node];
    if (session.link != nullptr) session.link->close(Side::kServer);  // replaced, not lost
    session = {link};
    link->send(Side::kServer, SimLink::HelloReply{era_, clock_->now()});
    return;
  }
  const auto session = session_of(link);
  if (session == sessions_.end()) return;  // the session has a newer link
  if (const auto* heartbeat = std::get_if<SimLink::Heartbeat>(&message)) {
    link->send(Side::kServer, SimLink::HeartbeatReply{heartbeat->sent, clock_->now()});
    if (session->second.has_joined) step(rdzv::Heartbeat{session->first});
    return;
  }
  serve(session->first, std::get<core::RendezvousEvent>(message));
}

void SimCoordinator::serve(const NodeId& id, const core::RendezvousEvent& event) {
  const auto* join = std::get_if<rdzv::Join>(&event);
  const auto* resume = std::get_if<rdzv::Resume>(&event);
  if (join != nullptr || resume != nullptr) {
    sessions_[id].has_joined = true;
    if (!machine_) {
      const Duration hold = std::max(started_at_ + core::kStartHold - clock_->now(), Duration(0));
      machine_.emplace(join != nullptr ? join->settings : resume->settings, clock_->now(), hold);
    }
  } else if (std::holds_alternative<rdzv::Leave>(event)) {
    sessions_[id].has_joined = false;
  }
  if (!machine_) return;
  step(event);
  if (has_timings_ && (join != nullptr || resume != nullptr)) send_timings(id);
}

void SimCoordinator::send_timings(const NodeId& id) {
  Session& session = sessions_[id];
  const std::uint32_t current = machine_->record().generation;
  if (std::exchange(session.timings_of, current) == current) return;
  session.link->send(Side::kServer, SimLink::Timings{machine_->settings()});
}

SimCoordinator::Sessions::iterator SimCoordinator::session_of(
    const std::shared_ptr<SimLink>& link) {
  return std::find_if(sessions_.begin(), sessions_.end(),
                      [&](const auto& one) { return one.second.link == link; });
}

void SimCoordinator::closed(const std::shared_ptr<SimLink>& link) {
  std::erase(links_, link);
  const auto session = session_of(link);
  if (session == sessions_.end()) return;
  const NodeId id = session->first;
  sessions_.erase(session);
  // Like the real coordinator, it gives a slow path more than a short reconnect_grace.
  const Duration least_grace =
      has_timings_ ? core::kRoundTripsToResume * link->longest_round_trip() : Duration(0);
  if (machine_) step(rdzv::SessionLost{id, least_grace});
  // Half of the nodes have a liveness port. The connection to it takes a round trip.
  if (id.low % 2 != 0 || !link->path().has_ended) return;
  clock_->after(link->longest_round_trip(), [this, id, era = era_] {
    if (era == era_ && machine_ && !is_stalled_) step(rdzv::ProcessEnded{id});
  });
}

void SimCoordinator::step(const core::RendezvousEvent& event) {
  ++steps_;
  std::vector<core::RendezvousAction> actions;
  const bool was_closed = machine_->phase() == RendezvousPhase::kClosed;
  checker_.step(&*machine_, event, clock_->now(), &actions);
  record_rounds();
  newest_generation_ = std::max(newest_generation_, machine_->record().generation);
  if (!was_closed && machine_->phase() == RendezvousPhase::kClosed) {
    note_("job is closed: " + machine_->result()->message);
  }
  for (const core::RendezvousAction& action : actions) send(action);
  store_later();
  // After Tick no deadline may still be due.
  const auto next = machine_->next_deadline();
  if (std::holds_alternative<rdzv::Tick>(event) && next && *next <= clock_->now()) {
    fault_ = "a deadline is still due after Tick: " + machine_->describe(clock_->now());
  }
  watch_deadline();
}

void SimCoordinator::store_later() {
  if (store_delay_ == Duration::zero() || std::exchange(is_storing_, true)) return;
  clock_->after(delay_now_, [this, era = era_] {
    if (era != era_) return;
    is_storing_ = false;
    stored_ = machine_->encode();
    stored_settings_ = machine_->settings();
  });
}

void SimCoordinator::send(const core::RendezvousAction& action) {
  const auto session = sessions_.find(addressee(action));
  if (session == sessions_.end()) return;
  if (core::is_of_a_round(action) && !session->second.has_joined) return;
  if (core::removes_node(action)) session->second.has_joined = false;
  session->second.link->send(Side::kServer, action);
}

void SimCoordinator::watch_deadline() {
  const auto next = machine_->next_deadline();
  if (!next || (alarm_at_ > clock_->now() && *next >= alarm_at_)) return;
  alarm_at_ = *next;
  clock_->at(*next, [this, alarm = ++alarm_] {
    if (alarm != alarm_) return;
    alarm_at_ = Instant::max();
    if (is_stalled_) return;
    // The loop may wake early.
    const auto due = machine_->next_deadline();
    if (due && *due <= clock_->now()) {
      step(rdzv::Tick{});
    } else {
      watch_deadline();
    }
  });
}

}  // namespace elastic::test
