#include "sim/sim_service.h"

#include <algorithm>
#include <utility>

#include "core/rendezvous/rendezvous_events.h"

namespace elastic::test {

std::shared_ptr<SimLink> SimService::accept(std::shared_ptr<SimPath> path) {
  auto link = std::make_shared<SimLink>(clock_, &world_->dice(), std::move(path));
  links_.push_back(link);
  using Reader = std::function<void(const std::shared_ptr<SimLink>&)>;
  const std::weak_ptr<SimLink> weak = link;
  const auto read = [this, weak, era = era_](const Reader& what) {
    if (era != era_) return;
    pause_.run([this, weak, era, what] {
      const auto from = weak.lock();
      if (era == era_ && from != nullptr) what(from);
    });
  };
  const int side = static_cast<int>(Side::kServer);
  link->on_message[side] = [this, read](const SimLink::Message& message) {
    read([this, message](const auto& from) { receive(from, message); });
  };
  link->on_closed[side] = [this, read] { read([this](const auto& from) { closed(from); }); };
  return link;
}

void SimService::end(bool is_host_dead) {
  ++era_;
  drop_job();
  pause_.cancel();
  sessions_.clear();
  for (const auto& link : std::exchange(links_, {})) {
    if (is_host_dead) link->vanish();
    link->close(Side::kServer);
  }
}

void SimService::receive(const std::shared_ptr<SimLink>& link, const SimLink::Message& message) {
  if (std::holds_alternative<SimLink::Question>(message)) {
    link->send(Side::kServer, SimLink::Answer{});
    return;
  }
  if (const auto* hello = std::get_if<SimLink::Hello>(&message)) return greet(link, *hello);
  const auto session = session_of(link);
  if (session == sessions_.end()) return;  // the session has a newer link
  const NodeId id = session->first;
  if (const auto* heartbeat = std::get_if<SimLink::Heartbeat>(&message)) {
    if (!may_acknowledge(id, &session->second, heartbeat->sent)) return;
    acknowledge(id, &session->second, heartbeat->sent);
    if (job_ && session->second.has_joined) step(rdzv::Heartbeat{id});
    return;
  }
  if (const auto* report = std::get_if<core::NodeReport>(&message)) {
    return serve_report(id, session->second.has_joined, *report);
  }
  serve(id, std::get<core::RendezvousEvent>(message));
}

void SimService::serve(const NodeId& id, const core::RendezvousEvent& event) {
  const auto* join = std::get_if<rdzv::Join>(&event);
  const auto* resume = std::get_if<rdzv::Resume>(&event);
  if (join != nullptr || resume != nullptr) {
    sessions_[id].has_joined = true;
    if (!job_) {
      job_.emplace(kJobId, join != nullptr ? join->settings : resume->settings, clock_->now(),
                   start_hold());
      job_began();
    }
  } else if (std::holds_alternative<rdzv::Leave>(event)) {
    sessions_[id].has_joined = false;
  }
  if (job_) step(event);
}

void SimService::serve_report(const NodeId& id, bool has_joined, const core::NodeReport& report) {
  if (!job_) return;
  if (const auto* progress = std::get_if<hang::NodeProgress>(&report)) {
    step(core::job_event::Progressed{id, *progress});
  } else if (const auto* reply = std::get_if<drain::Reply>(&report)) {
    step(core::job_event::StopReplied{id, *reply});
  } else if (const auto* notice = std::get_if<drain::Notice>(&report); notice && has_joined) {
    step(core::job_event::Noticed{id, *notice});
  } else if (const auto* probe = std::get_if<gate::ProbeReport>(&report)) {
    step(core::job_event::Probed{id, *probe});
  } else if (const auto* finding = std::get_if<gate::Finding>(&report)) {
    step(core::job_event::Found{id, *finding});
  }
}

bool SimService::may_acknowledge(const NodeId& id, Session* session, Instant sent) {
  if (!job_ || job_->gate().may_acknowledge(id)) return true;
  session->unanswered = sent;
  return false;
}

void SimService::acknowledge(const NodeId&, Session* session, Instant sent) {
  session->link->send(Side::kServer, SimLink::HeartbeatReply{sent, clock_->now(), alone()});
}

void SimService::acknowledge_leaves() {
  for (const NodeId& node : job_->gate().take_acknowledged()) {
    const auto session = sessions_.find(node);
    if (session == sessions_.end() || !session->second.unanswered) continue;
    acknowledge(node, &session->second, *std::exchange(session->second.unanswered, std::nullopt));
  }
}

void SimService::closed(const std::shared_ptr<SimLink>& link) {
  std::erase(links_, link);
  const auto session = session_of(link);
  if (session == sessions_.end()) return;
  const NodeId id = session->first;
  sessions_.erase(session);
  session_lost(id, *link);
}

bool SimService::send(const core::RendezvousAction& action) {
  const auto session = sessions_.find(core::addressee(action));
  if (session == sessions_.end()) return false;
  if (core::is_of_a_round(action) && !session->second.has_joined) return false;
  const bool is_removed = core::removes_node(action);
  if (is_removed) session->second.has_joined = false;
  session->second.link->send(Side::kServer, action);
  return is_removed;
}

void SimService::carry_out(const std::vector<core::JobAction>& actions) {
  for (const core::JobAction& action : actions) {
    if (const auto* one = std::get_if<core::RendezvousAction>(&action)) {
      send(*one);
    } else if (const auto* order = std::get_if<core::drain_action::Send>(&action)) {
      const auto session = sessions_.find(order->to);
      if (session != sessions_.end()) session->second.link->send(Side::kServer, order->order);
    } else if (const auto* line = std::get_if<core::drain_action::Announce>(&action)) {
      world_->trace("-  " + line->text);
    }
  }
}

SimService::Session& SimService::open(const NodeId& node, const std::shared_ptr<SimLink>& link) {
  Session& session = sessions_[node];
  if (session.link != nullptr) session.link->close(Side::kServer);  // replaced, not lost
  session = Session{};
  session.link = link;
  return session;
}

void SimService::watch_deadline() {
  const auto next = job_->next_deadline();
  if (!next) return;
  alarm_.set(clock_, *next, [this] {
    if (pause_.is_on()) return;
    // The loop may wake early.
    const auto due = job_->next_deadline();
    if (due && *due <= clock_->now()) {
      step(rdzv::Tick{});
    } else {
      watch_deadline();
    }
  });
}

void SimService::drop_job() {
  job_.reset();
  alarm_.cancel();
}

SimService::Sessions::iterator SimService::session_of(const std::shared_ptr<SimLink>& link) {
  return std::find_if(sessions_.begin(), sessions_.end(),
                      [&](const auto& one) { return one.second.link == link; });
}

}  // namespace elastic::test
