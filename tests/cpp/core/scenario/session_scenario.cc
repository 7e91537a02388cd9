// The session of one node with its coordinator. The story begins at zero on the node's clock.

#include <map>
#include <memory>
#include <sstream>

#include "core/base/text.h"
#include "core/scenario/scenario.h"
#include "core/session/session_machine_harness.h"

namespace elastic::scenario {
namespace {

using core::SessionMachine;
namespace session_test = core::session_machine_test;

class SessionAdapter : public StoryAdapter<SessionAdapter> {
  friend StoryAdapter;
  static constexpr const char* kFirst = "node";

  void begin(Command& command) {
    std::vector<std::string> endpoints = command.words();
    if (endpoints.empty()) endpoints = {"node1:29400"};
    machine_ = std::make_unique<SessionMachine>(session_test::settings(), endpoints, 7);
    std::vector<SessionMachine::Action> actions;
    machine_->begin(now_, &actions);
    print(actions);
  }
  void step(const SessionMachine::Event& event) {
    std::vector<SessionMachine::Action> actions;
    machine_->step(event, now_, &actions);
    print(actions);
  }
  void print(const std::vector<SessionMachine::Action>& actions) {
    std::string line;
    for (const SessionMachine::Action& action : actions) {
      if (const auto* beat = std::get_if<SessionMachine::SendHeartbeat>(&action)) {
        last_heartbeat_ = beat->sent;
        if (is_beating_) continue;
      }
      line += (line.empty() ? "" : ", ") + session_test::text_of(action, now_) + details(action);
    }
    if (!line.empty()) trace_->line(line);
  }
  // What a story may be about, beyond the kind of a message.
  std::string details(const SessionMachine::Action& action) const {
    if (const auto* hello = std::get_if<SessionMachine::SendHello>(&action)) {
      return " " + std::to_string(hello->attempt) +
             (hello->term > 1 ? " after term " + std::to_string(hello->term) : "");
    }
    if (const auto* connect = std::get_if<SessionMachine::Connect>(&action)) {
      return connect->endpoint == 0 || !connect->address.empty()
                 ? ""
                 : " to endpoint " + std::to_string(connect->endpoint);
    }
    const auto* sent = std::get_if<SessionMachine::Send>(&action);
    if (sent == nullptr) return "";
    std::string text;
    const core::NodeInfo* node = nullptr;
    const FailureReport* failure = nullptr;
    if (const auto* join = std::get_if<rdzv::Join>(&sent->event)) node = &join->node;
    if (const auto* failed = std::get_if<rdzv::Failed>(&sent->event)) failure = &failed->failure;
    if (const auto* resume = std::get_if<rdzv::Resume>(&sent->event)) {
      node = &resume->node;
      if (resume->failure) failure = &*resume->failure;
      if (resume->last) text += " as rank " + std::to_string(resume->last->group_rank);
    }
    if (node != nullptr && node->previous_rank >= 0) {
      text += " (last rank " + std::to_string(node->previous_rank) + ")";
    }
    if (failure != nullptr) {
      text += " at " + core::duration_text(failure->at - kBegin);
    }
    return text;
  }

  // Connected, joined, answered, and everything acknowledged.
  void joined(Command& command) {
    connected(command);
    step(SessionMachine::Submit{session_test::join()});
    step(SessionMachine::HelloReceived{1, now_});
    step(SessionMachine::HeartbeatAcknowledged{last_heartbeat_, now_});
    step(SessionMachine::Received{rdzv::Waiting{session_test::kNode, "for more"}});
  }
  void connected(Command&) { step(SessionMachine::Connected{}); }
  void attempt_failed(Command& command) {
    SessionMachine::AttemptFailed event{
        Status(StatusCode::kUnavailable, command.text("why", "refused")), std::nullopt};
    if (int exit_code = 0; command.get("exit", &exit_code)) event.exit_code = exit_code;
    command.get("others", &event.has_others);
    step(event);
  }
  void connection_lost(Command&) {
    step(SessionMachine::ConnectionLost{Status(StatusCode::kUnavailable, "reset by peer")});
  }
  void hello(Command& command) {
    const Duration ahead = command.get_or("ahead", Duration::zero());
    step(SessionMachine::HelloReceived{command.get_or<std::uint64_t>("incarnation", 1),
                                       now_ + ahead, command.get_or<std::uint64_t>("term", 1)});
  }
  void acknowledge(Command& command) {
    const Duration ahead = command.get_or("ahead", Duration::zero());
    Instant sent = last_heartbeat_;
    if (Duration earlier{}; command.get("earlier", &earlier)) sent -= earlier;
    step(SessionMachine::HeartbeatAcknowledged{sent, now_ + ahead});
  }
  void timings(Command& command) {
    JobSettings settings = session_test::settings();
    command.get("node_timeout", &settings.node_timeout);
    command.get("store_grace", &settings.store_grace);
    step(SessionMachine::TimingsReceived{settings});
  }
  void coordinator_leaves(Command& command) {
    step(SessionMachine::CoordinatorLeaves{command.word()});
  }
  void coordinator_moved(Command& command) {
    step(SessionMachine::CoordinatorMoved{command.word()});
  }
  void coordinator_expired(Command& command) {
    step(SessionMachine::CoordinatorExpired{command.word()});
  }
  void displaced(Command& command) {
    step(SessionMachine::Displaced{command.word(), "the job runs already"});
  }
  void receive(Command& command) {
    const NodeId to = session_test::kNode;
    const std::string what = command.word();
    const auto round = command.has_word() ? command.number<std::uint64_t>() : 0;
    const auto feed = [&](const core::RendezvousAction& action) {
      step(SessionMachine::Received{action});
    };
    if (what == "waiting") return feed(rdzv::Waiting{to, "for more"});
    if (what == "round") return feed(session_test::round(round));
    if (what == "restart") return feed(rdzv::Restart{to, round, {}, "why", {}});
    if (what == "evicted") return feed(rdzv::Evicted{to, round, "no sign of life"});
    if (what == "round-over") return feed(rdzv::RoundOver{to, round});
    if (what == "resumed") return feed(rdzv::Resumed{to, round});
    if (what == "refused")
      return feed(rdzv::Refused{to, Status(StatusCode::kInvalidArgument, "no")});
    if (what == "timed-out") return feed(rdzv::TimedOut{to, "too few nodes"});
    if (what == "succeeded") {
      JobResult result;
      result.outcome = JobOutcome::kSucceeded;
      return feed(rdzv::Closed{to, std::make_shared<const JobResult>(result)});
    }
    if (what == "closed") return feed(rdzv::Closed{to, std::make_shared<const JobResult>()});
    throw Fault("unknown message '" + what + "'");
  }
  void submit(Command& command) {
    const NodeId node = session_test::kNode;
    const std::string what = command.word();
    const auto round = command.has_word() ? command.number<std::uint64_t>() : 0;
    const auto feed = [&](const core::NodeStatement& statement) {
      step(SessionMachine::Submit{statement});
    };
    if (what == "join") {
      rdzv::Join join = session_test::join(round);
      command.get("previous_rank", &join.node.previous_rank);
      return feed(join);
    }
    if (what == "failed") {
      const Instant at = now_ - command.get_or("age", Duration::zero());
      return feed(rdzv::Failed{node, round, session_test::failure_at(at)});
    }
    if (what == "gone") return feed(rdzv::Gone{node, round});
    if (what == "done") return feed(rdzv::Done{node, round});
    if (what == "leave") return feed(rdzv::Leave{node, "SIGTERM"});
    if (what == "close") return feed(rdzv::Close{node, {}});
    throw Fault("unknown statement '" + what + "'");
  }
  // It joins later: its workers are being prepared.
  void introduce(Command&) { step(SessionMachine::Introduce{session_test::kNode}); }
  void end(Command& command) { step(SessionMachine::End{command.duration(), "train"}); }
  void end_step_done(Command&) { step(SessionMachine::EndStepDone{}); }
  void pass(Command& command) { now_ += command.duration(); }
  void tick(Command& command) {
    now_ += command.duration();
    step(SessionMachine::Tick{});
  }
  void gap(Command& command) {
    const Duration gap = command.duration();
    now_ += gap;
    step(SessionMachine::ClockGap{gap});
  }
  // A heartbeat a second, which is acknowledged. The coordinator has reached no majority of its
  // voters for `alone` at the beginning. Heartbeats are not shown.
  void beat(Command& command) {
    const Instant begun = now_;
    const Instant end = now_ + command.duration();
    std::optional<Instant> since;
    if (Duration alone{}; command.get("alone", &alone)) since = now_ - alone;
    is_beating_ = true;
    while (now_ < end) {
      now_ += std::chrono::seconds(1);
      Trace second;
      Trace* const all = std::exchange(trace_, &second);
      step(SessionMachine::Tick{});
      step(SessionMachine::HeartbeatAcknowledged{last_heartbeat_, now_,
                                                 since ? now_ - *since : Duration::zero()});
      trace_ = all;
      std::istringstream lines(second.text());
      bool is_first = true;
      for (std::string line; std::getline(lines, line); is_first = false) {
        if (is_first) trace_->line("after " + core::duration_text(now_ - begun));
        trace_->line(line);
      }
    }
    is_beating_ = false;
  }
  void show(Command&) {
    const auto next = machine_->next_deadline();
    trace_->line(
        std::string(machine_->is_flushed() ? "flushed" : "not flushed") +
        (next ? ", deadline in " + core::duration_text(*next - now_) : ", no deadline") +
        (machine_->clock_offset() != Duration::zero()
             ? ", the coordinator's clock is ahead by " +
                   std::to_string(machine_->clock_offset() / std::chrono::milliseconds(1)) + " ms"
             : ""));
  }

  static const Handlers& commands() {
    static const Handlers kCommands = {
        {"joined", &SessionAdapter::joined},
        {"connected", &SessionAdapter::connected},
        {"attempt-failed", &SessionAdapter::attempt_failed},
        {"connection-lost", &SessionAdapter::connection_lost},
        {"hello", &SessionAdapter::hello},
        {"acknowledge", &SessionAdapter::acknowledge},
        {"timings", &SessionAdapter::timings},
        {"coordinator-leaves", &SessionAdapter::coordinator_leaves},
        {"coordinator-moved", &SessionAdapter::coordinator_moved},
        {"coordinator-expired", &SessionAdapter::coordinator_expired},
        {"displaced", &SessionAdapter::displaced},
        {"receive", &SessionAdapter::receive},
        {"submit", &SessionAdapter::submit},
        {"introduce", &SessionAdapter::introduce},
        {"end", &SessionAdapter::end},
        {"end-step-done", &SessionAdapter::end_step_done},
        {"pass", &SessionAdapter::pass},
        {"tick", &SessionAdapter::tick},
        {"gap", &SessionAdapter::gap},
        {"beat", &SessionAdapter::beat},
        {"show", &SessionAdapter::show},
    };
    return kCommands;
  }

  std::unique_ptr<SessionMachine> machine_;
  Instant last_heartbeat_;
  bool is_beating_ = false;
};

}  // namespace

std::unique_ptr<Adapter> make_session_adapter() { return std::make_unique<SessionAdapter>(); }

}  // namespace elastic::scenario
