#include "host/membership/local_membership.h"

#include <type_traits>
#include <utility>
#include <variant>

// Theory of operation. A statement of the node is an event of the machine; the machine's answers
// are queued and delivered in the loop's next iteration, in order, so the agent is never called
// from inside its own call.
//
// The machine's timers run only while the node waits for a round, which a restart may delay
// (restart_backoff). At other times a timer could only declare the only node lost; while the node
// waits, a heartbeat before each tick prevents that.

namespace elastic::host {
namespace {

JobSettings for_one_node(JobSettings settings) {
  settings.min_nodes = settings.max_nodes = 1;
  settings.static_ranks = false;
  return settings;
}

}  // namespace

LocalMembership::LocalMembership(os::EventLoop* loop, JobSettings settings, std::string address,
                                 Sink sink)
    : loop_(loop),
      sink_(std::move(sink)),
      job_(for_one_node(std::move(settings)), loop->now(), Duration::zero()),
      hangs_(loop, {.ask = [this](const auto& wanted) { receive(wanted); },
                    .publish = [this](const auto& verdict) { receive(verdict); },
                    .reply = [](std::uint64_t, const std::string&) {},  // no observer can connect
                    .log = [](std::string_view) {},
                    .close =
                        [this](const JobResult& result) {
                          step(rdzv::Close{node_, result});
                        }}),
      drain_(loop, {.send = [this](const NodeId&, const drain::Order& order) { receive(order); },
                    .announce = [this](const std::string& text) { receive(drain::News{text}); },
                    .close =
                        [this](const JobResult& result) {
                          step(rdzv::Close{node_, result});
                        },
                    .inform = [](const core::drain_action::Inform&) {}}),
      delivery_(loop, [this] { deliver(); }),
      tick_(loop, [this] { tick(); }) {
  receive(MembershipReady{std::move(address)});
}

void LocalMembership::send(const NodeStatement& statement) {
  RendezvousEvent event =
      std::visit([](const auto& one) { return RendezvousEvent(one); }, statement);
  if (auto* join = std::get_if<rdzv::Join>(&event)) {
    join->settings = job_.settings();
    waiting_ = node_ = join->node.id;
  }
  step(event);
}

void LocalMembership::observe(const hang::NodeProgress& progress) {
  hangs_.feed(core::hang_event::Progressed{node_, progress});
  drain_.feed(core::drain_event::Progressed{node_, progress});
}

void LocalMembership::observe(const hang::NodeStacks& stacks) {
  hangs_.feed(core::hang_event::StacksReceived{node_, stacks});
}

void LocalMembership::observe(const hang::RankFinished& finished) {
  hangs_.feed(core::hang_event::Finished{finished});
}

void LocalMembership::observe(const drain::Reply& reply) {
  drain_.feed(core::drain_event::Replied{node_, reply});
  if (drain_.is_reached()) hangs_.feed(core::hang_event::Ended{});
}

bool LocalMembership::request_drain(const drain::Notice& notice) {
  drain_.feed(core::drain_event::Noticed{notice});
  return true;
}

void LocalMembership::tick() {
  step(rdzv::Heartbeat{*waiting_});
  if (waiting_) step(rdzv::Tick{});
}

void LocalMembership::step(const RendezvousEvent& event) {
  std::vector<RendezvousAction> actions;
  job_.step(event, loop_->now(), &actions);
  for (RendezvousAction& action : actions) {
    std::visit(
        [this](auto& one) {
          using Action = std::decay_t<decltype(one)>;
          constexpr bool is_answer =
              std::is_same_v<Action, rdzv::Round> || std::is_same_v<Action, rdzv::Closed>;
          if (is_answer) waiting_.reset();
          if constexpr (std::is_same_v<Action, rdzv::Round>) {
            hangs_.feed(core::hang_event::Began{node_, one.record->round});
            drain_.feed(core::drain_event::Began{node_, one.record->round});
          }
          if constexpr (std::is_same_v<Action, rdzv::Restart> ||
                        std::is_same_v<Action, rdzv::Closed>) {
            hangs_.feed(core::hang_event::Ended{});
          }
          if constexpr (std::is_same_v<Action, rdzv::Restart>) {
            drain_.feed(core::drain_event::Ended{});
          }
          if constexpr (std::is_same_v<Action, rdzv::Closed>) {
            drain_.feed(core::drain_event::Over{});
          }
          // There is no session to resume, and the agent knows its round.
          if constexpr (std::is_constructible_v<MembershipEvent, Action>) receive(std::move(one));
        },
        action);
  }
  const auto deadline = waiting_ ? job_.next_deadline() : std::nullopt;
  if (deadline) {
    tick_.arm(*deadline);
  } else {
    tick_.disarm();
  }
}

void LocalMembership::receive(MembershipEvent event) {
  received_.push_back(std::move(event));
  delivery_.arm(loop_->now());
}

void LocalMembership::deliver() {
  // Events that are added while these are delivered wait for the next iteration.
  for (std::size_t left = received_.size(); left > 0; --left) {
    const MembershipEvent event = std::move(received_.front());
    received_.pop_front();
    sink_(event);
  }
  if (received_.empty() && drained_) std::exchange(drained_, {})();
}

void LocalMembership::drain(Duration /*limit*/, std::function<void()> done) {
  drained_ = std::move(done);
  delivery_.arm(loop_->now());
}

}  // namespace elastic::host
