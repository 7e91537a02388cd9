#include "host/membership/shared_membership.h"

#include <utility>

namespace elastic::host {

Result<std::unique_ptr<Membership>> SharedMembership::open(os::EventLoop* loop,
                                                           const RendezvousOptions& options,
                                                           Sink sink) {
  std::unique_ptr<SharedMembership> self(new SharedMembership(loop, std::move(sink)));
  auto thread = SharedStateThread::start(
      options,
      [loop, sink_ptr = self->sink_](MembershipEvent event) {
        loop->post([sink_ptr, event = std::move(event)] {
          if (*sink_ptr) (*sink_ptr)(event);
        });
      },
      [loop, settled = self->on_settled_] {
        loop->post([settled] {
          if (*settled) (*settled)();
        });
      });
  if (!thread.ok()) return thread.status();
  self->thread_ = *std::move(thread);
  return std::unique_ptr<Membership>(std::move(self));
}

SharedMembership::SharedMembership(os::EventLoop* loop, Sink sink)
    : loop_(loop),
      sink_(std::make_shared<Sink>(std::move(sink))),
      on_settled_(std::make_shared<std::function<void()>>([this] { finish_drain(); })),
      drain_timer_(loop, [this] { finish_drain(); }) {}

SharedMembership::~SharedMembership() {
  *sink_ = nullptr;
  *on_settled_ = nullptr;
}

void SharedMembership::say(const NodeStatement& statement) { thread_->say(statement); }

void SharedMembership::drain(Duration limit, std::function<void()> done) {
  on_drained_ = std::move(done);
  drain_timer_.arm(add_saturating(loop_->now(), limit));
  thread_->settle();
}

void SharedMembership::finish_drain() {
  drain_timer_.disarm();
  if (const auto done = std::exchange(on_drained_, nullptr)) done();
}

}  // namespace elastic::host
