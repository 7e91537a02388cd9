#pragma once

// A node with a session of its own, for tests that send what they want and wait for the answers.

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host/base/event_queue.h"
#include "host/membership/session.h"
#include "os/loop/clock.h"
#include "os/loop/loop_thread.h"

namespace elastic::host {

inline constexpr Duration kTestTimeout = std::chrono::seconds(60);

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

// A node with a session on its own loop, which sends only what the test sends.
class TestNode {
 public:
  TestNode(const RendezvousOptions& options, std::uint64_t id, const std::string& job = "job")
      : options_(options),
        events_(*os::Notifier::create()),
        thread_(*os::LoopThread::start("test-node")) {
    info_.id = {id, id};
    info_.name = "node" + std::to_string(id);
    info_.store_port = static_cast<std::uint16_t>(10000 + id);
    thread_->call([&] {
      session_ = *Session::open(&thread_->loop(), options_, job,
                                [this](const MembershipEvent& event) { events_.push(event); });
    });
  }
  ~TestNode() { crash(); }

  void crash() {
    thread_->call([this] { session_.reset(); });
  }
  void send(const NodeStatement& statement) {
    thread_->call([&] { session_->send(statement); });
  }
  void join() {
    if (info_.address.empty()) info_.address = expect<MembershipReady>().address;
    send(rdzv::Join{info_, options_.settings});
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
    thread_->call([&] { session_->observe(report); });
  }
  void done() { send(rdzv::Done{info_.id, record_.round}); }
  // False: it took longer than the test's timeout.
  bool drain(Duration limit = kTestTimeout) {
    auto drained = std::make_shared<std::promise<void>>();
    thread_->call([&] { session_->drain(limit, [drained] { drained->set_value(); }); });
    return drained->get_future().wait_for(kTestTimeout) == std::future_status::ready;
  }

  // The next event of this kind; messages are skipped, other events are failures.
  template <typename Event>
  Event expect() {
    const Instant deadline = os::monotonic_now() + kTestTimeout;
    while (auto event = events_.pop(deadline, {})) {
      if (auto* wanted = std::get_if<Event>(&*event)) return *wanted;
      if (const auto* log_progress = std::get_if<MembershipProgress>(&*event)) {
        notes_.push_back(log_progress->message);
      } else if (!std::holds_alternative<rdzv::Waiting>(*event) &&
                 !std::holds_alternative<MembershipCoordinatorLog>(*event) &&
                 !std::holds_alternative<MembershipCoordinator>(*event)) {
        ADD_FAILURE() << info_.name << " received another event, number " << event->index();
        return {};
      }
    }
    ADD_FAILURE() << info_.name << " received nothing in time";
    return {};
  }

  // Collects progress messages. A restart or an eviction is a failure.
  bool receives_nothing_for(Duration time) {
    const Instant deadline = os::monotonic_now() + time;
    while (auto event = events_.pop(deadline, {})) {
      const auto* log_progress = std::get_if<MembershipProgress>(&*event);
      if (log_progress == nullptr) return false;
      notes_.push_back(log_progress->message);
    }
    return true;
  }

  NodeInfo& info() { return info_; }
  const RoundRecord& record() const { return record_; }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  const RendezvousOptions options_;
  NodeInfo info_;
  RoundRecord record_;
  std::vector<std::string> notes_;
  EventQueue<MembershipEvent> events_;
  std::unique_ptr<os::LoopThread> thread_;
  std::unique_ptr<Session> session_;
};

}  // namespace elastic::host
