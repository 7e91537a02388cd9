#include "sim/sim_session.h"

#include <utility>

namespace elastic::test {

using namespace std::chrono_literals;

namespace {
constexpr Duration kDrainLimit = 10s;
}  // namespace

SimSession::SimSession(const JobSettings& settings, Host host)
    : host_(std::move(host)), machine_(settings, {"coordinator:29400"}, host_.seed) {}

void SimSession::begin() {
  std::vector<Machine::Action> actions;
  machine_.begin(host_.clock->now(), &actions);
  carry_out(actions);
}

void SimSession::send(const core::NodeStatement& statement) { feed(Machine::Submit{statement}); }

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
  machine_.step(event, host_.clock->now(), &actions);
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
  } else if (std::holds_alternative<Machine::Disconnect>(action)) {
    const auto link = link_;
    lose_link();
    if (link != nullptr) link->close(Side::kAgent);
  } else if (std::holds_alternative<Machine::CancelAttempt>(action)) {
    ++attempts_;
    if (attempt_ != nullptr) attempt_->close(Side::kAgent);
    attempt_ = nullptr;
  } else if (const auto* hello = std::get_if<Machine::SendHello>(&action)) {
    SimLink::Hello message{hello->node, hello->term};
    if (host_.succession.hello) message.succession = host_.succession.hello();
    link_->send(Side::kAgent, message);
  } else if (const auto* send_action = std::get_if<Machine::Send>(&action)) {
    host_.log_progress(std::string("sends ") + name_of(send_action->event));
    link_->send(Side::kAgent, send_action->event);
  } else if (const auto* heartbeat = std::get_if<Machine::SendHeartbeat>(&action)) {
    link_->send(Side::kAgent, SimLink::Heartbeat{heartbeat->sent});
  } else if (const auto* delivered = std::get_if<Machine::Deliver>(&action)) {
    host_.deliver(delivered->action);
  } else if (const auto* noted = std::get_if<Machine::Log>(&action)) {
    host_.log_progress(noted->message);
  } else if (const auto* lost = std::get_if<Machine::Lost>(&action)) {
    host_.log_progress(lost->message);
    if (lost->message.find(leaving_) == std::string::npos) {
      fault_ = "lost the coordinator without its reason (" + leaving_ + "): " + lost->message;
    }
    host_.lost();
  } else if (std::holds_alternative<Machine::EndCoordinator>(action) ||
             std::holds_alternative<Machine::ReleaseRecord>(action)) {
    feed(Machine::EndStepDone{});  // there are none in this process
  } else if (std::holds_alternative<Machine::Ended>(action)) {
    host_.later(0s, on_drained_);
  }
}

void SimSession::follow(const std::string& address) { feed(Machine::CoordinatorMoved{address}); }

void SimSession::displace(const std::string& address) {
  watch_.displaced();
  feed(Machine::Displaced{address, "the job runs already"});
}

void SimSession::lose_link() {
  link_ = nullptr;
  watch_.closed(machine_.settings(), Duration(0), host_.clock->now());
  watch_loss();
}

void SimSession::watch_loss() {
  const auto due = watch_.next_deadline();
  if (!due || !host_.succession.lost) return;
  host_.later(std::max(*due - host_.clock->now(), Duration(0)), [this] {
    if (watch_.tick(host_.clock->now())) host_.succession.lost();
  });
}

void SimSession::attempt(const std::string& address) {
  const std::uint64_t number = ++attempts_;
  host_.later(100us, [this, number, address] {
    if (number != attempts_) return;
    attempt_ = host_.connect(address);
    if (attempt_ == nullptr) {
      feed(Machine::AttemptFailed{Status(StatusCode::kUnavailable, "refused"), std::nullopt});
      return;
    }
    listen(attempt_);
    attempt_->send(Side::kAgent, SimLink::Question{});
    host_.later(machine_.attempt_limit(), [this, number] {
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
    host_.now([this, weak, message] {
      const auto from = weak.lock();
      if (from == nullptr) return;
      if (from == link_) {
        receive(message);
      } else if (from == attempt_) {
        const auto old = std::exchange(link_, std::exchange(attempt_, nullptr));
        feed(Machine::Connected{});
        if (old != nullptr) old->close(Side::kAgent);
      }
    });
  };
  link->on_closed[side] = [this, weak] {
    host_.now([this, weak] {
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
  host_.log_progress(std::string("session ") + why);
  lose_link();
  feed(Machine::ConnectionLost{Status(StatusCode::kUnavailable, why)});
}

void SimSession::receive(const SimLink::Message& message) {
  const bool has_returned = watch_.active(host_.clock->now());
  if (has_returned && host_.succession.returned) host_.succession.returned();
  if (const auto* hello = std::get_if<SimLink::HelloReply>(&message)) {
    leaving_.clear();
    if (watch_.opened(hello->incarnation) && host_.succession.returned) host_.succession.returned();
    feed(Machine::HelloReceived{hello->incarnation, hello->time, hello->term});
  } else if (const auto* incumbent = std::get_if<session::Incumbent>(&message)) {
    if (incumbent->displaced) {
      if (host_.succession.displaced) host_.succession.displaced(incumbent->incumbent);
      displace(incumbent->incumbent.address);
    } else if (incumbent->is_elsewhere) {
      feed(Machine::CoordinatorMoved{incumbent->incumbent.address});
    } else {
      host_.succession.informed(incumbent->incumbent);
    }
  } else if (const auto* reply = std::get_if<SimLink::HeartbeatReply>(&message)) {
    feed(Machine::HeartbeatAcknowledged{reply->sent, reply->time, reply->alone});
  } else if (const auto* timings = std::get_if<SimLink::Timings>(&message)) {
    feed(Machine::TimingsReceived{timings->settings});
  } else if (const auto* leaving = std::get_if<SimLink::Leaving>(&message)) {
    leaving_ = leaving->reason;
    feed(Machine::CoordinatorLeaves{leaving->reason});
  } else if (const auto* action = std::get_if<core::RendezvousAction>(&message)) {
    feed(Machine::Received{*action});
  }
}

void SimSession::watch_deadline() {
  const auto next = machine_.next_deadline();
  const std::uint64_t alarm = ++alarms_;
  if (!next) return;
  host_.later(std::max(*next - host_.clock->now(), Duration(0)), [this, alarm] {
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
