// A node that runs a round, and a coordinator that sends it whatever it likes over a real
// connection, with and without a token. Here are the session and what it opens: connections, name
// look-ups, voters, a coordinator of its own. core/session/hostile_coordinator_test.cc has more
// conversations, with the machines alone.

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/random.h"
#include "host/auth/token_source.h"
#include "host/coordinator/session_peer.h"
#include "host/membership/session.h"
#include "host/store/store_service.h"
#include "os/loop/thread.h"
#include "os/net/tls.h"
#include "support/hostile_member.h"
#include "support/loop_group.h"

namespace elastic::host {
namespace {

using namespace std::chrono_literals;

constexpr const char* kSecret = "0123456789abcdef0123456789abcdef";

// The server's end: it identifies itself as a coordinator, and `sink` receives what nodes send.
class FalseCoordinator {
 public:
  using Sink = std::function<void(const session::ClientMessage&)>;

  FalseCoordinator(bool has_token, Sink sink)
      : sink_(std::move(sink)), pending_(1000, PendingConnections::kNoLimit) {
    thread_->call([&] {
      store_ = *StoreService::open(&thread_->loop(), {.host = "127.0.0.1", .port = 0});
      context_ = std::make_unique<SessionContext>(&thread_->loop(), 10s, 64 << 20, 256 << 20);
      if (has_token) context_->tokens = *TokenSource::open({.text = kSecret}, [](const auto&) {});
      context_->pending = &pending_;
      context_->on_message = [this](SessionPeer* peer, session::ClientMessage& message) {
        speaker_ = peer;
        sink_(message);
        return Status();
      };
      context_->on_fault = [](SessionPeer*, const Status&, bool) {};
      context_->on_secured = [](SessionPeer*) {};
      context_->on_refusal = [](SessionPeer*, std::string_view) {};
      context_->on_closed = [this](SessionPeer* peer) {
        if (speaker_ == peer) speaker_ = nullptr;
        std::erase_if(peers_, [peer](const auto& one) { return one.get() == peer; });
      };
      store_->accept_sessions(
          [this](os::DetachedStream connection) {
            auto peer = SessionPeer::create(context_.get(), std::move(connection));
            if (peer.ok()) peers_.push_back(*std::move(peer));
          },
          has_token);
    });
  }
  ~FalseCoordinator() {
    thread_->call([this] {
      peers_.clear();
      store_.reset();
      context_.reset();
    });
  }

  std::uint16_t port() const { return store_->port(); }
  // To the session that has sent something last.
  bool send(std::string frame) {
    if (speaker_ == nullptr || !speaker_->is_open()) return false;
    speaker_->send_shared(std::make_shared<const std::string>(std::move(frame)));
    return true;
  }
  void close_all() {
    thread_->call([this] {
      speaker_ = nullptr;
      for (const auto& peer : peers_) peer->close();
      peers_.clear();
    });
  }

 private:
  const Sink sink_;
  const std::unique_ptr<os::LoopThread> thread_ =
      *os::LoopThread::start("coordinator", support::LoopGroup::current());
  PendingConnections pending_;
  std::unique_ptr<StoreService> store_;
  std::unique_ptr<SessionContext> context_;
  std::vector<std::unique_ptr<SessionPeer>> peers_;
  SessionPeer* speaker_ = nullptr;
};

class Member final : public test::ModelledAgent {
 public:
  struct Mode {
    bool has_token = false;
    bool is_in_place = false;
    bool is_prepared = false;
    bool has_voters = false;
  };

  explicit Member(const Mode& mode)
      : ModelledAgent(mode.is_in_place, mode.is_prepared),
        mode_(mode),
        coordinator_(mode.has_token, [this](const auto& message) { on_client(message); }) {
    RendezvousOptions options;
    options.settings = options_.policy.settings;
    options.endpoint_host = "127.0.0.1";
    options.endpoint_port = coordinator_.port();
    options.is_host = false;
    options.voters = mode.has_voters ? 0 : 1;
    if (mode.has_token) options.token.text = kSecret;
    thread_->call([&] {
      timer_ = std::make_unique<os::Timer>(&thread_->loop(), [this] {
        agent_step(core::PolicyTick{});
        run();
      });
      session_ = *Session::open(&thread_->loop(), options, "job",
                                [this](const MembershipEvent& event) { on_event(event); });
    });
  }
  ~Member() override {
    thread_->call([this] {
      session_.reset();
      timer_.reset();
    });
  }

  void begin() {
    expect(group_.run_until([this] { return works(); }, 1min), "the first round runs");
    is_hostile_ = true;
  }
  void receive(const std::string& frame) {
    session::ServerMessage message;
    const auto decoded = session::decode(frame, &message);
    trace("frame of kind " +
          std::to_string(frame.size() > 4 ? static_cast<unsigned char>(frame[4]) : 0) + ": " +
          std::string(decoded.error.message()));
    const bool is_message = decoded.status == session::DecodeStatus::kMessage;
    // A node that begins, here or in another job, takes bytes that it cannot read for those of
    // another version.
    const bool decides = is_message ? is_decision(message) : held_.round == 0;
    if (coordinator_.send(frame)) is_decided_ |= decides;
    group_.settle();
    check();
  }
  void lose_connection() {
    coordinator_.close_all();
    group_.settle();
    check();
  }
  void wait(Duration duration) {
    group_.advance(duration);
    check();
  }
  void check_recovery() {
    is_hostile_ = false;
    lose_connection();
    if (is_decided_) return group_.advance(10s);
    const auto is_back = [this] { return works() && has_joined_; };
    // A node with voters may have been made the coordinator of its job.
    const bool is_found = group_.run_until(is_back, 5min) || mode_.has_voters;
    expect(is_found, "it works in a round of the true coordinator");
    check();
  }
  std::uint64_t round() const { return held_.round; }

 private:
  bool works() const { return agent_.state() == AgentState::kHealthy; }
  void check() const {
    expect(agent_.state() != AgentState::kUnknown, "the agent knows its state");
    expect(is_decided_ || (!is_finished_ && !is_lost_), "no frame ends it");
  }

  // ---- The coordinator.

  void reply(const session::ServerMessage& message) {
    std::string frame;
    session::append(&frame, message);
    coordinator_.send(std::move(frame));
  }
  void on_client(const session::ClientMessage& message) {
    std::visit([this](const auto& one) { answer(one); }, message);
  }
  void answer(const session::ClientHello&) {
    reply(session::ServerHello{.incarnation = ++incarnation_, .time = now()});
  }
  void answer(const session::Heartbeat& heartbeat) {
    reply(session::HeartbeatReply{.sent = heartbeat.sent, .time = now()});
  }
  void answer(const rdzv::Join& join) {
    if (!is_hostile_) form_round(std::max(record_.round, join.node.highest_round) + 1);
  }
  void answer(const rdzv::Resume& resume) {
    if (is_hostile_) return;
    const std::uint64_t highest = std::max(record_.round, resume.node.highest_round);
    if (resume.phase == rdzv::NodePhase::kJoined) return form_round(highest + 1);
    reply(rdzv::Restart{kSelf, highest, rdzv::RestartCause::kMemberLost, "a node was lost", 5s});
  }
  template <typename Other>
  void answer(const Other&) {}
  void form_round(std::uint64_t number) {
    has_joined_ = true;
    record_ = {};
    record_.round = number;
    record_.nodes = 1;
    record_.world_size = kWorkers;
    reply(rdzv::Round{kSelf,
                      std::make_shared<RoundRecord>(record_),
                      {.local_world_size = kWorkers, .role_world_size = kWorkers}});
  }

  // ---- The node.

  void on_event(const MembershipEvent& event) {
    std::visit([this](const auto& one) { on(one); }, event);
    run();
  }
  void on(const MembershipReady& ready) {
    agent_step(core::RendezvousReady{"node2", ready.address});
  }
  void on(const MembershipProgress& progress) { trace(progress.message); }
  void on(const MembershipLost& lost) {
    trace("lost: " + lost.message);
    is_lost_ = true;
    agent_step(core::RendezvousLost{lost.exit_code, lost.message});
  }
  template <typename Event>
  void on(const Event& event) {
    if constexpr (std::is_same_v<Event, rdzv::Round>) held_ = *event.record;
    if constexpr (std::is_same_v<Event, rdzv::Evicted>) {
      if (event.is_displaced) held_ = {};
    }
    if constexpr (std::is_constructible_v<core::AgentInput, Event>) agent_step(event);
  }
  void run() {
    for (int handled = 0; take_input(); ++handled) {
      expect(handled < 1000, "its actions have an end");
    }
    const auto next = agent_.next_deadline();
    next ? timer_->arm(*next) : timer_->disarm();
  }

  void submit(const core::NodeStatement& statement) override { session_->send(statement); }
  void introduce(const core::NodeInfo& node) override { session_->introduce(node); }
  void report(const core::NodeReport& report) override { session_->report(report); }
  void end(Duration limit) override {
    session_->drain(limit, [this] {
      later(core::agent_event::Flushed{});
      run();
    });
  }
  Instant now() const override { return group_.now(); }

  support::LoopGroup& group_ = *support::LoopGroup::current();
  const Mode mode_;
  FalseCoordinator coordinator_;
  const std::unique_ptr<os::LoopThread> thread_ = *os::LoopThread::start("node", &group_);
  std::unique_ptr<os::Timer> timer_;
  std::unique_ptr<Session> session_;
  bool is_hostile_ = false;
  bool is_decided_ = false;  // by the hostile coordinator
  bool is_lost_ = false;
  bool has_joined_ = false;
  std::uint64_t incarnation_ = 0;
  RoundRecord record_;  // of the true coordinator
  RoundRecord held_;    // the last one that the agent was given
};

// Addresses that need no name server; other texts are not taken for names with a port.
class Addresses : public test::HostileValues {
 public:
  Addresses(test::Choices* choices, std::uint64_t around)
      : HostileValues(choices, around), choices_(*choices) {}
  std::string text(std::size_t limit) {
    static constexpr const char* kKnown[] = {"127.0.0.1:1", "[::1]:1", "127.0.0.2:65535",
                                             "0.0.0.0:0",   ":1",      "127.0.0.1"};
    const std::uint8_t byte = choices_.byte();
    if (byte % 16 < 6) return std::string(kKnown[byte % 16]).substr(0, limit);
    std::string text = HostileValues::text(limit);
    std::replace(text.begin(), text.end(), ':', ';');
    return text;
  }

 private:
  test::Choices& choices_;
};

class HostileSession : public testing::TestWithParam<bool> {};

// ELASTIC_HOSTILE_FRAMES sets how many frames are sent.
TEST_P(HostileSession, PropertyNoFrameEndsAMemberOrFillsItsMemory) {
  if (GetParam() && !os::check_tls().ok()) GTEST_SKIP() << os::check_tls().message();
  const char* const wanted = std::getenv("ELASTIC_HOSTILE_FRAMES");
  const int frames_min = wanted == nullptr ? 1000 : std::atoi(wanted);
  constexpr std::size_t kMemoryMax = std::size_t{64} << 20;
  const std::size_t before = ::mallinfo2().uordblks;
  int frames = 0;
  for (std::uint64_t seed = 0; frames < frames_min; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    std::string input(rng.next() % 600, '\0');
    for (char& byte : input) byte = static_cast<char>(rng.next());
    test::Choices choices(input);
    support::LoopGroup group;
    Member member({.has_token = GetParam(),
                   .is_in_place = seed % 2 == 1,
                   .is_prepared = seed % 4 == 3,
                   .has_voters = seed / 4 % 2 == 1});
    member.begin();
    frames += test::attack<Addresses>(&member, &choices);
    member.check_recovery();
    ASSERT_LT(::mallinfo2().uordblks, before + kMemoryMax);
  }
}

INSTANTIATE_TEST_SUITE_P(AndToken, HostileSession, testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "With" : "Without");
});

}  // namespace
}  // namespace elastic::host
