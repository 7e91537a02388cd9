#include "host/membership/endpoint_caller.h"

#include <algorithm>
#include <utility>

#include "os/loop/event_loop.h"

namespace elastic::host {
namespace {

constexpr std::size_t kCallBytesMax = 1 << 20;

}  // namespace

EndpointCaller::EndpointCaller(os::EventLoop* loop, std::vector<Endpoint> endpoints,
                               std::string job_id, Sink sink, Duration call_timeout)
    : loop_(loop),
      job_id_(std::move(job_id)),
      sink_(std::move(sink)),
      call_timeout_(call_timeout),
      group_(std::make_shared<PeerGroup>(loop, kCallBytesMax, 2 * kCallBytesMax)) {
  for (Endpoint& one : endpoints) {
    auto call = std::make_unique<Call>();
    call->endpoint = std::move(one);
    call->timeout = std::make_unique<os::Timer>(loop, [this, raw = call.get()] { end(raw); });
    calls_.push_back(std::move(call));
  }
}

EndpointCaller::~EndpointCaller() {
  // Not retired: what is left of an attempt names this object until it is destroyed.
  for (const auto& call : calls_) {
    if (call->link != nullptr) call->link->close();
  }
}

void EndpointCaller::announce(const succession::Incumbent& incumbent,
                              std::shared_ptr<Tokens> tokens) {
  incumbent_ = incumbent;
  for (const auto& one : calls_) {
    Call* const call = one.get();
    if (call->attempt != nullptr || call->link != nullptr) continue;
    call->timeout->arm(loop_->now() + call_timeout_);
    call->attempt = std::make_unique<SessionAttempt>(
        group_.get(),
        SessionAttempt::Options{.host = call->endpoint.host,
                                .port = call->endpoint.port,
                                .limit = call_timeout_,
                                .node_timeout = call_timeout_,
                                .tokens = tokens,
                                .job_id = job_id_},
        SessionAttempt::Sink{
            .route = [this, call](const auto& found) { return route(call, found); },
            .on_delay = [](const Status&) {},
            .done = [this, call](auto outcome) { connected(call, std::move(outcome)); }});
  }
}

std::variant<SessionAttempt::Addresses, SessionAttempt::Failure> EndpointCaller::route(
    Call* call, const Result<SessionAttempt::Addresses>& found) {
  if (!found.ok()) return SessionAttempt::Failure{found.status(), std::nullopt};
  SessionAttempt::Addresses others = *found;
  std::erase_if(others, [&](const auto& one) { return call->own.contains(one.text()); });
  call->num_others = others.size();
  if (others.empty()) {
    return SessionAttempt::Failure{Status(StatusCode::kUnavailable, "it is here"), std::nullopt};
  }
  const os::SocketAddress& address = others[call->turn++ % others.size()];
  call->address = address.text();
  return SessionAttempt::Addresses{address};
}

void EndpointCaller::connected(Call* call,
                               std::variant<os::DetachedStream, SessionAttempt::Failure> outcome) {
  if (!std::holds_alternative<os::DetachedStream>(outcome)) return end(call);
  auto link = SessionLink::open(
      group_.get(), std::get<os::DetachedStream>(std::move(outcome)),
      {.on_message = [this, call](const auto& message) { replied(call, message); },
       .on_lost = [this, call](const Status&) { end(call); }});
  if (!link.ok()) return end(call);
  call->link = *std::move(link);
  call->link->send(session::ClientHello{.term = incumbent_.term,
                                        .job_id = job_id_,
                                        .node = incumbent_.node,
                                        .announced = incumbent_});
}

void EndpointCaller::replied(Call* call, const session::ServerMessage& message) {
  const auto* reply = std::get_if<session::Incumbent>(&message);
  if (reply == nullptr) return;
  const succession::Incumbent met = reply->incumbent;
  const bool is_own = !reply->is_elsewhere && met.node == incumbent_.node;
  if (is_own && call->own.insert(call->address).second) --call->num_others;
  end(call);
  if (!is_own) return sink_.met(met);
  const bool are_all_here = std::all_of(calls_.begin(), calls_.end(), [](const auto& one) {
    return !one->own.empty() && one->num_others == 0;
  });
  if (are_all_here) sink_.all_are_here();
}

void EndpointCaller::end(Call* call) {
  call->timeout->disarm();
  if (call->link != nullptr) call->link->close();
  retire(group_, std::move(call->attempt));
  retire(group_, std::move(call->link));
}

}  // namespace elastic::host
