// What a node does with each message of the other end of its session: one overload for each kind,
// which gives it to everybody whom it concerns, in order.

#include <type_traits>
#include <variant>

#include "core/session/session_machine.h"

namespace elastic::core {

void SessionMachine::receive(const session::ServerMessage& message, Instant now,
                             std::vector<Action>* actions) {
  if (is_closed()) return;
  clock_.advance(now);
  out_ = actions;
  if (session::is_from_coordinator(message)) emit(CoordinatorActive{});
  std::visit([this](const auto& one) { on(one); }, message);
  out_ = nullptr;
}

void SessionMachine::on(const session::ServerHello& message) {
  emit(CoordinatorFound{message.incarnation, message.term, message.host_job});
  on(HelloReceived{message.incarnation, message.time, message.term});
}

void SessionMachine::on(const session::Incumbent& message) {
  if (message.displaced) {
    emit(Dissolved{message});
    emit(Log{"this node joins the job elsewhere: " + *message.displaced});
    on(Displaced{message.incumbent.address, *message.displaced});
  } else if (message.is_elsewhere) {
    emit(Directed{message, connection_.has_answered()});
  } else {
    emit(CoordinatorNamed{message});
    on(Activity{});
  }
}

void SessionMachine::on(const session::HeartbeatReply& message) {
  on(HeartbeatAcknowledged{message.sent, message.time, message.alone.value_or(Duration::zero())});
}

void SessionMachine::on(const session::Timings& message) {
  emit(JobTimings{message.settings.node_timeout, message.settings.store_grace});
  on(TimingsReceived{message.settings});
}

void SessionMachine::on(const session::Counts& message) {
  emit(JobCounts{message});
  on(Activity{});
}

void SessionMachine::on(const session::Leaving& message) { on(CoordinatorLeaves{message.reason}); }

void SessionMachine::on(const session::OpenPorts& message) {
  emit(PortsWanted{message});
  on(Activity{});
}

void SessionMachine::on(const session::StoreClients& message) {
  on(Activity{});
  emit(Inform{message});
}

void SessionMachine::on(const session::WatchWorkers& message) {
  emit(Inform{message});
  on(Activity{});
}

// The rest is for the node: decisions of the rendezvous, and what is about its workers. Messages to
// observers are ignored.
template <typename Message>
void SessionMachine::on(const Message& message) {
  if constexpr (std::is_constructible_v<RendezvousAction, const Message&>) {
    on(Received{message});
  } else if constexpr (std::is_constructible_v<session::AboutWorkers, const Message&>) {
    on(Informed{message});
    emit(Inform{message});
  }
}

}  // namespace elastic::core
