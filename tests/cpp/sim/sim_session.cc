#include "sim/sim_session.h"

#include <utility>

#include "sim/sim_agent.h"

namespace elastic::test {

using namespace std::chrono_literals;

namespace {
constexpr Duration kDrainLimit = 10s;
}  // namespace

SimSession::SimSession(SimAgent* agent, SimAgentWorld* world, const JobSettings& settings)
    : agent_(agent),
      world_(world),
      clock_(&world->clock()),
      machine_(settings, {"coordinator:29400"}, world->dice().next()) {}

void SimSession::later(Duration wait, std::function<void()> what) {
  agent_->later(wait, std::move(what));
}

void SimSession::log_progress(const std::string& what) { agent_->log_progress(what); }

void SimSession::begin() {
  std::vector<Machine::Action> actions;
  machine_.begin(clock_->now(), &actions);
  carry_out(actions);
}

void SimSession::send(const core::NodeStatement& statement) { feed(Machine::Submit{statement}); }

void SimSession::report(const core::NodeReport& report) { feed(Machine::Report{report}); }

void SimSession::drain(std::function<void()> done) {
  on_drained_ = std::move(done);
  feed(Machine::End{kDrainLimit, "job"});
}

void SimSession::end(bool is_host_dead) {
  for (auto& link : {std::exchange(link_, nullptr), std::exchange(attempt_, nullptr)}) {
    if (link == nullptr) continue;
    if (is_host_dead) link->vanish();
    link->close(Side::kAgent);
  }
  ++attempts_;
  ++alarms_;
}

void SimSession::feed(const Machine::Event& event) {
  std::vector<Machine::Action> actions;
  machine_.step(event, clock_->now(), &actions);
  carry_out(actions);
}

void SimSession::carry_out(const std::vector<Machine::Action>& actions) {
  for (const Machine::Action& action : actions) execute(action);
  watch_deadline();
}

void SimSession::execute(const Machine::Action& action) {
  if (const auto* target = std::get_if<Machine::Connect>(&action)) {
    if (link_ != nullptr) {
      watch_.silent(machine_.settings());
      watch_loss();
    }
    attempt(target->address);
  } else if (const auto* disconnect = std::get_if<Machine::Disconnect>(&action)) {
    const auto link = std::exchange(link_, nullptr);
    if (disconnect->is_loss) lose_link();
    if (link != nullptr) link->close(Side::kAgent);
  } else if (std::holds_alternative<Machine::CancelAttempt>(action)) {
    ++attempts_;
    if (attempt_ != nullptr) attempt_->close(Side::kAgent);
    attempt_ = nullptr;
  } else if (const auto* hello = std::get_if<Machine::SendHello>(&action)) {
    link_->send(Side::kAgent, SimLink::Hello{hello->node, hello->term, world_->hello(*agent_)});
  } else if (const auto* send_action = std::get_if<Machine::Send>(&action)) {
    log_progress(std::string("sends ") + name_of(send_action->event));
    link_->send(Side::kAgent, send_action->event);
  } else if (const auto* report_action = std::get_if<Machine::SendReport>(&action)) {
    link_->send(Side::kAgent, report_action->report);
  } else if (const auto* heartbeat = std::get_if<Machine::SendHeartbeat>(&action)) {
    link_->send(Side::kAgent, SimLink::Heartbeat{heartbeat->sent});
  } else if (const auto* delivered = std::get_if<Machine::Deliver>(&action)) {
    agent_->receive(delivered->action);
  } else if (const auto* noted = std::get_if<Machine::Log>(&action)) {
    log_progress(noted->message);
  } else if (const auto* lost = std::get_if<Machine::Lost>(&action)) {
    log_progress(lost->message);
    if (lost->message.find(leaving_) == std::string::npos) {
      fault_ = "lost the coordinator without its reason (" + leaving_ + "): " + lost->message;
    }
    agent_->lose_coordinator();
  } else if (std::holds_alternative<Machine::EndCoordinator>(action)) {
    was_acknowledged_ = machine_.is_flushed();
    world_->end_coordinator(*agent_, [this] { feed(Machine::EndStepDone{}); });
  } else if (std::holds_alternative<Machine::ReleaseRecord>(action)) {
    feed(Machine::EndStepDone{});  // with its coordinator
  } else if (std::holds_alternative<Machine::Ended>(action)) {
    later(0s, on_drained_);
  }
}

void SimSession::follow(const std::string& address) { feed(Machine::CoordinatorMoved{address}); }

void SimSession::displace(const std::string& address) {
  watch_.displaced();
  feed(Machine::Displaced{address, "the job runs already"});
}

void SimSession::lose_link() {
  link_ = nullptr;
  watch_.closed(machine_.settings(), Duration(0), clock_->now());
  watch_loss();
}

void SimSession::report_absent(const std::string& address, bool says_so) {
  world_->absent(*agent_, address, says_so || watch_.is_closed());
}

void SimSession::watch_loss() {
  const auto due = watch_.next_deadline();
  if (!due || !world_->has_succession()) return;
  later(std::max(*due - clock_->now(), Duration(0)), [this] {
    if (watch_.tick(clock_->now())) world_->lost(*agent_);
  });
}

void SimSession::attempt(const std::string& address) {
  const std::uint64_t number = ++attempts_;
  later(100us, [this, number, address] {
    if (number != attempts_) return;
    const std::optional<std::string> recorded = world_->recorded(*agent_);
    address_ = address.empty() ? recorded.value_or("") : address;
    if (recorded && address_.empty()) {
      feed(Machine::AttemptDelayed{Status(StatusCode::kUnavailable, "no coordinator is named")});
      return;
    }
    attempt_ = world_->connect(agent_, address_);
    if (attempt_ == nullptr) {
      if (world_->refuses(*agent_, address_)) report_absent(address_, false);
      if (number != attempts_) return;
      feed(Machine::AttemptFailed{Status(StatusCode::kUnavailable, "refused"), std::nullopt});
      return;
    }
    listen(attempt_);
    attempt_->send(Side::kAgent, SimLink::Question{});
    later(machine_.attempt_limit(), [this, number] {
      if (number != attempts_ || attempt_ == nullptr) return;
      std::exchange(attempt_, nullptr)->close(Side::kAgent);
      feed(Machine::AttemptFailed{Status(StatusCode::kUnavailable, "silent"), std::nullopt});
    });
  });
}

void SimSession::listen(const std::shared_ptr<SimLink>& link) {
  const int side = static_cast<int>(Side::kAgent);
  const std::weak_ptr<SimLink> weak = link;
  link->on_message[side] = [this, weak](const SimLink::Message& message) {
    agent_->now([this, weak, message] {
      const auto from = weak.lock();
      if (from == nullptr) return;
      if (from == link_) {
        receive(message);
      } else if (from == attempt_) {
        const auto old = std::exchange(link_, std::exchange(attempt_, nullptr));
        link_address_ = address_;
        const bool is_recorded = world_->recorded(*agent_).has_value();
        watch_.connected(is_recorded, clock_->now());
        if (is_recorded) world_->returned(*agent_);
        feed(Machine::Connected{});
        if (old != nullptr) old->close(Side::kAgent);
      }
    });
  };
  link->on_closed[side] = [this, weak] {
    agent_->now([this, weak] {
      const auto from = weak.lock();
      if (from == nullptr) return;
      if (from == link_) {
        closed("closed");
      } else if (from == attempt_) {
        attempt_ = nullptr;
        feed(Machine::AttemptFailed{Status(StatusCode::kUnavailable, "closed"), std::nullopt});
      }
    });
  };
}

void SimSession::closed(const char* why) {
  log_progress(std::string("session ") + why);
  lose_link();
  feed(Machine::ConnectionLost{Status(StatusCode::kUnavailable, why)});
}

void SimSession::receive(const SimLink::Message& message) {
  const bool has_returned = session::is_from_coordinator(message) && watch_.active(clock_->now());
  if (has_returned && world_->has_succession()) world_->returned(*agent_);
  if (const auto* hello = std::get_if<SimLink::HelloReply>(&message)) {
    leaving_.clear();
    const bool is_back = watch_.opened(hello->incarnation, clock_->now());
    if (is_back && world_->has_succession()) world_->returned(*agent_);
    feed(Machine::HelloReceived{hello->incarnation, hello->time, hello->term});
  } else if (const auto* incumbent = std::get_if<session::Incumbent>(&message)) {
    if (incumbent->displaced) {
      world_->displaced(*agent_, incumbent->incumbent);
      displace(incumbent->incumbent.address);
    } else if (incumbent->is_elsewhere) {
      watch_.handed_over(clock_->now());
      report_absent(link_address_, true);
      feed(Machine::CoordinatorMoved{incumbent->incumbent.address});
    } else {
      world_->informed(*agent_, incumbent->incumbent);
    }
  } else if (const auto* reply = std::get_if<SimLink::HeartbeatReply>(&message)) {
    feed(Machine::HeartbeatAcknowledged{reply->sent, reply->time, reply->alone});
  } else if (const auto* timings = std::get_if<SimLink::Timings>(&message)) {
    feed(Machine::TimingsReceived{timings->settings});
  } else if (const auto* leaving = std::get_if<SimLink::Leaving>(&message)) {
    leaving_ = leaving->reason;
    feed(Machine::CoordinatorLeaves{leaving->reason});
  } else if (const auto* order = std::get_if<drain::Order>(&message)) {
    feed(Machine::Informed{*order});
    agent_->obey(*order);
  } else if (const auto* action = std::get_if<core::RendezvousAction>(&message)) {
    feed(Machine::Received{*action});
  }
}

void SimSession::watch_deadline() {
  const auto next = machine_.next_deadline();
  const std::uint64_t alarm = ++alarms_;
  if (!next) return;
  later(std::max(*next - clock_->now(), Duration(0)), [this, alarm] {
    if (alarm == alarms_) tick();
  });
}

void SimSession::tick() {
  if (link_ != nullptr && link_->unacknowledged(Side::kAgent) > machine_.settings().node_timeout) {
    link_->close(Side::kAgent);
    closed("timed out");
  }
  feed(Machine::Tick{});
}

}  // namespace elastic::test
