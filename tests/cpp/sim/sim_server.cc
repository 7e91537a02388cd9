#include "sim/sim_server.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/rendezvous/rendezvous_events.h"

namespace elastic::test {

void SimServer::succeed(const succession::StartCoordinator& start, const NodeId& self) {
  machine_.emplace(start.record.settings, owner_.clock->now(), Duration(0));
  const Status restored = machine_->succeed(
      start.record.state, {start.term, self, start.lost_incumbent}, owner_.clock->now());
  owner_.trace("continues the job: " + (restored.ok() ? machine_->describe(owner_.clock->now())
                                                      : std::string(restored.message())));
  gate_.set_replaces(start.record.replaces);
  gate_.turn_on_restored(*machine_);
  for (const auto& node : start.record.nodes) {
    gate_.set_voter_address(node.node, node.voter_address);
  }
  watch_deadline();
}

std::shared_ptr<SimLink> SimServer::accept(std::shared_ptr<SimPath> path) {
  auto link = std::make_shared<SimLink>(owner_.clock, owner_.dice, std::move(path));
  links_.push_back(link);
  const int side = static_cast<int>(Side::kServer);
  const std::weak_ptr<SimLink> weak = link;
  const std::weak_ptr<bool> alive = alive_;
  link->on_message[side] = [this, alive, weak](const SimLink::Message& message) {
    const auto strong = weak.lock();
    if (alive.lock() && is_up_ && strong != nullptr) receive(strong, message);
  };
  link->on_closed[side] = [this, alive, weak] {
    const auto strong = weak.lock();
    if (alive.lock() && is_up_ && strong != nullptr) closed(strong);
  };
  return link;
}

void SimServer::turn_on() {
  if (!machine_) return;
  gate_.turn_on(*machine_);
  propose();
}

void SimServer::in_force(std::uint64_t number) {
  std::vector<core::RendezvousAction> actions;
  gate_.in_force(number, &actions);
  for (const core::RendezvousAction& action : actions) send(action);
  for (const NodeId& node : gate_.take_acknowledged()) {
    const auto session = sessions_.find(node);
    if (session == sessions_.end() || !session->second.unanswered) continue;
    const Instant sent = *std::exchange(session->second.unanswered, std::nullopt);
    session->second.link->send(Side::kServer, heartbeat_reply(sent));
  }
  propose();
}

SimLink::HeartbeatReply SimServer::heartbeat_reply(Instant sent) const {
  const Instant now = owner_.clock->now();
  return {sent, now, alone_since_ ? std::max(now - *alone_since_, Duration(1)) : Duration(0)};
}

void SimServer::set_majority(bool has_majority) {
  alone_since_.reset();
  if (!has_majority && owner_.deleted != ServiceRule::kSayAlone) alone_since_ = owner_.clock->now();
}

void SimServer::inform(const succession::Incumbent& incumbent) {
  informed_ = incumbent;
  for (const auto& [id, session] : sessions_) {
    session.link->send(Side::kServer, session::Incumbent{incumbent, false});
  }
}

void SimServer::stop(const succession::StopCoordinator& stop) {
  stopped_ = stop;
  machine_.reset();
  ++alarm_;
  for (const auto& [id, session] : std::exchange(sessions_, {})) {
    if (stop.successor)
      session.link->send(Side::kServer, session::Incumbent{*stop.successor, true});
    session.link->send(Side::kServer, SimLink::Leaving{stop.reason});
    session.link->close(Side::kServer);
  }
}

session::Incumbent SimServer::announce(const succession::Incumbent& theirs) {
  const bool is_over = machine_ && machine_->phase() == RendezvousPhase::kClosed;
  if (stopped_ || is_displaced_ || is_over) {
    return {announced_.add(owner_.job_id, theirs, owner_.clock->now()), true};
  }
  const session::Incumbent reply{owner_.incumbent().value_or(succession::Incumbent{}), false};
  if (machine_) {
    if (owner_.deleted != ServiceRule::kMeet) owner_.feed(succession::Met{theirs});
  } else {
    displace(theirs);
  }
  return reply;
}

// A coordinator that runs here later does so in a new server.
void SimServer::displace(const succession::Incumbent& by) {
  is_displaced_ = true;
  machine_.reset();
  ++alarm_;
  announced_.add(owner_.job_id, by, owner_.clock->now());
  for (const auto& [id, session] : std::exchange(sessions_, {})) {
    session.link->send(Side::kServer, session::Incumbent{by, true, "the job runs already"});
    session.link->close(Side::kServer);
  }
}

void SimServer::crash(bool is_host_dead) {
  is_up_ = false;
  ++alarm_;
  machine_.reset();
  sessions_.clear();
  for (const auto& link : std::exchange(links_, {})) {
    if (is_host_dead) link->vanish();
    link->close(Side::kServer);
  }
}

void SimServer::receive(const std::shared_ptr<SimLink>& link, const SimLink::Message& message) {
  if (std::holds_alternative<SimLink::Question>(message)) {
    link->send(Side::kServer, SimLink::Answer{});
    return;
  }
  if (const auto* hello = std::get_if<SimLink::Hello>(&message)) return greet(link, *hello);
  const NodeId id = node_of(link);
  if (id == NodeId{}) return;
  Session& session = sessions_[id];
  if (const auto* heartbeat = std::get_if<SimLink::Heartbeat>(&message)) {
    if (!gate_.may_acknowledge(id) && owner_.deleted != ServiceRule::kRecordLeaves) {
      session.unanswered = heartbeat->sent;
      return;
    }
    link->send(Side::kServer, heartbeat_reply(heartbeat->sent));
    if (machine_ && session.has_joined) step(rdzv::Heartbeat{id});
    return;
  }
  serve(id, std::get<core::RendezvousEvent>(message));
}

void SimServer::greet(const std::shared_ptr<SimLink>& link, const SimLink::Hello& hello) {
  const auto own = owner_.incumbent();
  const bool is_replicated = hello.succession && hello.succession->is_replicated;
  const bool is_ours = own && hello.succession && hello.succession->lineage == own->lineage;
  const auto* announced = announced_.find(owner_.job_id, owner_.clock->now());
  if ((is_displaced_ || stopped_) && announced != nullptr &&
      (!is_replicated || hello.succession->lineage == announced->lineage)) {
    link->send(Side::kServer, session::Incumbent{*announced, true});
    link->close(Side::kServer);
    return;
  }
  if (is_displaced_) return link->close(Side::kServer);
  if (stopped_ ||
      (is_replicated && !is_ours && owner_.deleted != ServiceRule::kRefuseOtherLineage)) {
    succession::Incumbent elsewhere;
    if (stopped_ && stopped_->successor) elsewhere = *stopped_->successor;
    link->send(Side::kServer, session::Incumbent{elsewhere, true});
    link->close(Side::kServer);
    return;
  }
  if (is_ours && hello.term > own->term) owner_.feed(succession::LaterTermSeen{hello.term});
  if (stopped_) return link->close(Side::kServer);
  Session& session = sessions_[hello.node];
  if (session.link != nullptr) session.link->close(Side::kServer);
  session = Session{link,
                    hello.succession ? hello.succession->voter_address : "",
                    {},
                    false,
                    hello.succession ? hello.succession->lineage : reg::LineageId{}};
  gate_.set_voter_address(hello.node, session.voter_address);
  link->send(Side::kServer, SimLink::HelloReply{1, owner_.clock->now(), own ? own->term : 1});
  if (informed_) link->send(Side::kServer, session::Incumbent{*informed_, false});
  report_nodes();
}

void SimServer::closed(const std::shared_ptr<SimLink>& link) {
  std::erase(links_, link);
  const NodeId id = node_of(link);
  if (id == NodeId{}) return;
  sessions_.erase(id);
  if (machine_) step(rdzv::SessionLost{id, Duration(0)});
  report_nodes();
}

void SimServer::serve(const NodeId& id, const core::RendezvousEvent& event) {
  const auto* join = std::get_if<rdzv::Join>(&event);
  const auto* resume = std::get_if<rdzv::Resume>(&event);
  if (resume != nullptr && is_of_another_job(id, *resume)) {
    return send(rdzv::Evicted{id, resume->last->record.round, "a round of another job"});
  }
  if (join != nullptr || resume != nullptr) {
    sessions_[id].has_joined = true;
    if (!machine_) {
      machine_.emplace(join != nullptr ? join->settings : resume->settings, owner_.clock->now());
    }
  } else if (std::holds_alternative<rdzv::Leave>(event)) {
    sessions_[id].has_joined = false;
  }
  if (machine_) step(event);
  report_nodes();
}

bool SimServer::is_of_another_job(const NodeId& id, const rdzv::Resume& resume) const {
  const auto own = owner_.incumbent();
  if (!own || own->term == 1 || !resume.last || !machine_) return false;
  if (sessions_.at(id).lineage == own->lineage) return false;
  const auto nodes = machine_->nodes(owner_.clock->now());
  return std::none_of(nodes.begin(), nodes.end(),
                      [&](const core::NodeStatus& one) { return one.id == id; });
}

void SimServer::step(const core::RendezvousEvent& event) {
  std::vector<core::RendezvousAction> actions;
  machine_->step(event, owner_.clock->now(), &actions);
  std::vector<core::RendezvousAction> all = actions;
  gate_.submit(*machine_, &event, &actions);
  if (owner_.deleted == ServiceRule::kHoldDecisions) actions = all;
  for (const core::RendezvousAction& action : actions) send(action);
  propose();
  if (!machine_) return;
  const std::size_t nodes = machine_->nodes(owner_.clock->now()).size();
  const bool has_lost = std::exchange(num_nodes_, nodes) > nodes;
  if (std::exchange(has_removed_, false) || has_lost) report_nodes();
  if (machine_) watch_deadline();
}

void SimServer::propose() {
  if (!machine_) return;
  if (auto proposal = gate_.take_proposal(*machine_)) {
    owner_.feed(succession::Propose{proposal->number, std::move(proposal->content)});
  }
}

void SimServer::send(const core::RendezvousAction& action) {
  owner_.sent(action);
  const auto session = sessions_.find(addressee(action));
  if (session == sessions_.end()) return;
  if (core::is_of_a_round(action) && !session->second.has_joined) return;
  if (core::removes_node(action)) {
    session->second.has_joined = false;
    has_removed_ = true;
  }
  session->second.link->send(Side::kServer, action);
}

void SimServer::report_nodes() {
  succession::Nodes nodes;
  // A node can be lost before it receives that: what it is sent may be held.
  std::set<NodeId> present;
  if (machine_) {
    for (const core::NodeStatus& status : machine_->nodes(owner_.clock->now()))
      present.insert(status.id);
  }
  for (const auto& [id, session] : sessions_) {
    if (!session.has_joined || !present.contains(id)) continue;
    nodes.nodes.push_back({.node = id,
                           .voter_address = session.voter_address,
                           .host = owner_.host_of(id),
                           .topology = {},
                           .kind = reg::VoterCandidate::Kind::kMember,
                           .is_connected = true});
  }
  owner_.feed(nodes);
}

NodeId SimServer::node_of(const std::shared_ptr<SimLink>& link) const {
  for (const auto& [id, session] : sessions_) {
    if (session.link == link) return id;
  }
  return {};
}

void SimServer::watch_deadline() {
  const auto next = machine_->next_deadline();
  if (!next) return;
  owner_.clock->at(*next, [this, alive = std::weak_ptr<bool>(alive_), alarm = ++alarm_] {
    if (!alive.lock() || alarm != alarm_ || !machine_) return;
    step(rdzv::Tick{});
  });
}

}  // namespace elastic::test
