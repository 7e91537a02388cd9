#pragma once

// A node with a session of its own, in virtual time, for tests that send what they want and wait
// for the answers.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/membership/session.h"
#include "os/loop/thread.h"
#include "support/loop_group.h"

namespace elastic::host {

// Longer than every limit of a node.
inline constexpr Duration kTestTimeout = std::chrono::minutes(10);

inline RendezvousOptions options_for(std::uint16_t port, int min_nodes = 2, int max_nodes = 2) {
  RendezvousOptions options;
  options.settings.min_nodes = min_nodes;
  options.settings.max_nodes = max_nodes;
  options.settings.node_timeout = std::chrono::seconds(30);
  options.settings.reconnect_grace = std::chrono::seconds(60);
  options.settings.store_grace = std::chrono::seconds(60);
  options.settings.join_timeout = std::chrono::seconds(60);
  options.settings.last_call_timeout = std::chrono::seconds(60);  // for a node that joins late
  options.settings.settle = std::chrono::seconds(0);
  options.endpoint_host = "127.0.0.1";
  options.endpoint_port = port;
  options.is_host = false;
  return options;
}

// A node with a session on a loop of the thread's group, which sends only what the test sends.
class TestNode {
 public:
  TestNode(const RendezvousOptions& options, std::uint64_t id, const std::string& job = "job")
      : options_(options) {
    info_.id = {id, id};
    info_.name = "node" + std::to_string(id);
    info_.store_port = static_cast<std::uint16_t>(10000 + id);
    thread_->call([&] {
      session_ = *Session::open(&thread_->loop(), options_, job,
                                [this](const MembershipEvent& event) { events_.push_back(event); });
    });
  }
  ~TestNode() { crash(); }

  void crash() {
    thread_->call([this] { session_.reset(); });
  }
  void send(const core::NodeStatement& statement) {
    thread_->call([&] { session_->send(statement); });
  }
  void join() {
    if (info_.address.empty()) info_.address = expect<MembershipReady>().address;
    send(rdzv::Join{info_, options_.settings});
  }
  // As a node that joins later.
  void introduce() {
    info_.address = expect<MembershipReady>().address;
    thread_->call([this] { session_->introduce(info_); });
  }
  std::uint64_t expect_round() {
    const auto round = expect<rdzv::Round>();
    if (round.record == nullptr) return 0;
    record_ = *round.record;
    info_.highest_round = record_.round;
    return record_.round;
  }
  template <typename Report>
  void observe(const Report& report) {
    thread_->call([&] { session_->report(report); });
  }
  void done() { send(rdzv::Done{info_.id, record_.round}); }
  void begin_drain(Duration limit = kTestTimeout) {
    thread_->call([&] { session_->drain(limit, [this] { is_drained_ = true; }); });
  }
  bool is_drained() const { return is_drained_; }
  // False: it took longer than the test's timeout.
  bool drain(Duration limit = kTestTimeout) {
    begin_drain(limit);
    return group_.run_until([this] { return is_drained_; }, kTestTimeout);
  }

  // The next event of this kind; messages are skipped, other events are failures.
  template <typename Event>
  Event expect() {
    while (group_.run_until([this] { return has_event(); }, kTestTimeout)) {
      const auto event = pop();
      if (auto* wanted = std::get_if<Event>(&*event)) return *wanted;
      if (const auto* log_progress = std::get_if<MembershipProgress>(&*event)) {
        notes_.push_back(log_progress->message);
      } else if (!std::holds_alternative<rdzv::Waiting>(*event) &&
                 !std::holds_alternative<rdzv::RoundOver>(*event) &&
                 !std::holds_alternative<MembershipStoreClients>(*event) &&
                 !std::holds_alternative<MembershipCoordinatorLog>(*event) &&
                 !std::holds_alternative<MembershipCoordinator>(*event)) {
        ADD_FAILURE() << info_.name << " received another event, number " << event->index();
        return {};
      }
    }
    ADD_FAILURE() << info_.name << " received nothing in time";
    return {};
  }

  bool has_event() const { return !events_.empty(); }
  // The next event, for tests that follow whatever arrives.
  std::optional<MembershipEvent> take() {
    auto event = pop();
    if (const auto* round = event ? std::get_if<rdzv::Round>(&*event) : nullptr) {
      record_ = *round->record;
      info_.highest_round = record_.round;
    }
    return event;
  }
  // Waits for it although the clock stands, since its cause is on a thread.
  template <typename Event>
  bool awaits() {
    return group_.await([this] {
      return std::any_of(events_.begin(), events_.end(), [](const MembershipEvent& event) {
        return std::holds_alternative<Event>(event);
      });
    });
  }
  bool awaits_message(const std::string& part) {
    return group_.await([&] {
      return std::any_of(events_.begin(), events_.end(), [&](const MembershipEvent& event) {
        const auto* progress = std::get_if<MembershipProgress>(&event);
        return progress != nullptr && progress->message.find(part) != std::string::npos;
      });
    });
  }
  // Collects progress messages. A restart or an eviction is a failure.
  bool receives_nothing_for(Duration time) {
    group_.advance(time);
    while (auto event = pop()) {
      const auto* log_progress = std::get_if<MembershipProgress>(&*event);
      if (log_progress == nullptr) return false;
      notes_.push_back(log_progress->message);
    }
    return true;
  }

  core::NodeInfo& info() { return info_; }
  const RoundRecord& record() const { return record_; }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  std::optional<MembershipEvent> pop() {
    if (events_.empty()) return std::nullopt;
    std::optional<MembershipEvent> event(std::move(events_.front()));
    events_.pop_front();
    return event;
  }

  support::LoopGroup& group_ = *support::LoopGroup::current();
  const RendezvousOptions options_;
  core::NodeInfo info_;
  RoundRecord record_;
  std::vector<std::string> notes_;
  std::deque<MembershipEvent> events_;
  bool is_drained_ = false;
  const std::unique_ptr<os::LoopThread> thread_ = *os::LoopThread::start("node", &group_);
  std::unique_ptr<Session> session_;
};

}  // namespace elastic::host
