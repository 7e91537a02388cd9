#pragma once

// An agent that runs a round, and a coordinator that sends it whatever it likes: what the bytes of
// a fuzzer, or of a seeded generator, choose.
//
// The member is made of the machines that production runs: the decoder of its session, its session,
// its agent, and its parts in a succession. Workers and connections are modelled.
//
// The invariants. No frame ends a member that runs a round, unless it is a decision about the job:
// the result, a final refusal, an agreed step, a verdict. No frame makes it send or connect without
// an end, or wait at one time for ever. When the true coordinator is back, the member takes part in
// its next round.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/agent/agent_machine.h"
#include "core/session/coordinator_loss.h"
#include "core/session/session_fields.h"
#include "core/session/session_machine.h"
#include "core/succession/succession_machine.h"
#include "support/field_filler.h"

namespace elastic::test {

using namespace std::chrono_literals;

class HostileMember {
 public:
  HostileMember(bool is_in_place, bool is_prepared)
      : options_(options(is_in_place, is_prepared)),
        agent_(options_),
        session_(options_.policy.settings, {"10.0.0.1:29400"}, 1),
        succession_({.job_id = "job", .self = {kSelf, "10.0.0.2:4711"}}, 1) {}

  // The true coordinator forms a round, and its workers run; or a hostile one is there first.
  void begin(bool is_hostile) {
    is_hostile_ = is_hostile;
    std::vector<Session::Action> actions;
    session_.begin(now_, &actions);
    execute(actions);
    agent_step(core::PolicyEvent(core::RendezvousReady{"node2", "10.0.0.2"}));
    wait(1s);
    if (!is_hostile) expect(agent_.state() == AgentState::kHealthy, "the first round runs");
    is_hostile_ = true;
  }

  // A whole frame of the coordinator, which may be malformed.
  void receive(std::string_view frame) {
    if (!is_open_ || is_lost_) return;
    session::ServerMessage message;
    const auto decoded = session::decode(frame, &message);
    trace("frame of kind " +
          std::to_string(frame.size() > 4 ? static_cast<unsigned char>(frame[4]) : 0) + ": " +
          std::string(decoded.error.message()));
    if (decoded.status == session::DecodeStatus::kViolation) {
      is_open_ = false;
      is_decided_ |= held_.record.round == 0;  // another version, for a node that begins
      session_step(Session::ConnectionLost{decoded.error});
    } else if (decoded.status == session::DecodeStatus::kMessage) {
      is_decided_ |= is_hostile_ && is_decision(message);
      session_receive(message);
    }
    run();
    check();
  }
  void lose_connection() {
    if (!std::exchange(is_open_, false)) return;
    session_step(Session::ConnectionLost{Status(StatusCode::kUnavailable, "closed")});
    run();
    check();
  }
  void wait(Duration duration) {
    const Instant until = now_ + duration;
    int ticks = 0;  // at one time
    while (const auto next = next_deadline()) {
      if (*next > until) break;
      expect(++ticks < 200, "time passes");
      if (*next > now_) ticks = 0;
      now_ = std::max(now_, *next);
      tick();
      check();
    }
    now_ = until;
  }

  // The true coordinator is back: the member works in a round of it.
  void check_recovery() {
    is_hostile_ = has_answered_ = false;
    lose_connection();
    if (is_decided_) return wait(10s);
    const auto is_back = [this] {
      return is_open_ && has_answered_ && agent_.state() == AgentState::kHealthy &&
             held_.record.round == record_.round;
    };
    for (const Instant end = now_ + 2min; now_ < end && !is_back();) wait(1s);
    expect(is_back(), "it works in a round of the true coordinator");
  }
  std::uint64_t round() const { return held_.record.round; }

 private:
  using Session = core::SessionMachine;
  static constexpr NodeId kSelf{2, 2};
  static constexpr int kWorkers = 2;

  static core::AgentMachineOptions options(bool is_in_place, bool is_prepared) {
    core::AgentMachineOptions options;
    options.host_name = "node2";
    options.policy.node.id = kSelf;
    options.policy.node.local_world_size = kWorkers;
    options.policy.settings.max_nodes = 4;
    options.policy.settings.store_grace = 10min;
    if (is_in_place) options.policy.agent.inplace_grace = 5s;
    if (is_in_place && is_prepared) options.policy.agent.inplace_prepare = 60s;
    return options;
  }

  // Whether the message may end the part of this node in the job.
  bool is_decision(const session::ServerMessage& message) const {
    if (const auto* refused = std::get_if<rdzv::Refused>(&message)) {
      const StatusCode code = refused->error.code();
      const bool may_pass = code == StatusCode::kResourceExhausted ||
                            code == StatusCode::kUnavailable || code == StatusCode::kPeerViolation;
      return !may_pass || agent_.state() != AgentState::kHealthy;
    }
    // No coordinator could count on from these.
    constexpr std::uint64_t kLast = core::kRoundMax / 2;
    if (const auto* round = std::get_if<rdzv::Round>(&message)) {
      return round->record->round > kLast ||
             (round->own.local_world_size != kWorkers && agent_.state() == AgentState::kInit);
    }
    if (const auto* restart = std::get_if<rdzv::Restart>(&message)) return restart->round > kLast;
    if (const auto* evicted = std::get_if<rdzv::Evicted>(&message)) return evicted->round > kLast;
    if (const auto* timings = std::get_if<session::Timings>(&message)) {
      const JobSettings& job = timings->settings;
      return std::min(job.store_grace, job.join_timeout) < 3min;  // a job may have that
    }
    const auto* const reply = std::get_if<session::HeartbeatReply>(&message);
    return std::holds_alternative<rdzv::Closed>(message) ||
           std::holds_alternative<rdzv::TimedOut>(message) ||
           std::holds_alternative<drain::Order>(message) ||
           std::holds_alternative<hang::Verdict>(message) || (reply != nullptr && reply->alone);
  }

  void expect(bool is_true, const char* what) const {
    if (is_true) return;
    for (const std::string& line : trace_) std::fprintf(stderr, "%s\n", line.c_str());
    std::fprintf(stderr, "broken: %s\n", what);
    std::abort();
  }
  void trace(const std::string& what) {
    constexpr std::size_t kLines = 200;
    trace_.push_back(std::to_string((now_ - Instant(1000s)).count()) +
                     " ns: " + what.substr(0, 500));
    if (trace_.size() > kLines) trace_.pop_front();
  }

  void check() const {
    expect(agent_.state() != AgentState::kUnknown, "the agent knows its state");
    expect(is_decided_ || (!is_finished_ && !is_lost_), "no frame ends it");
  }

  std::optional<Instant> next_deadline() const {
    std::optional<Instant> next = connected_at_;
    for (const auto& one :
         {session_.next_deadline(), agent_.next_deadline(), succession_.next_deadline()}) {
      if (one && (!next || *one < *next)) next = one;
    }
    return next;
  }
  void tick() {
    if (connected_at_ && now_ >= *connected_at_) {
      connected_at_.reset();
      is_open_ = true;
      session_step(Session::Connected{});
    }
    session_step(Session::Tick{});
    agent_step(core::PolicyEvent(core::PolicyTick{}));
    succession_step(succession::Tick{});
    run();
  }

  // ---- The session.

  void session_step(const Session::Event& event) {
    if (is_lost_) return;
    std::vector<Session::Action> actions;
    session_.step(event, now_, &actions);
    expect(actions.size() < 100, "few actions");
    execute(actions);
  }
  void session_receive(const session::ServerMessage& message) {
    if (is_lost_) return;
    std::vector<Session::Action> actions;
    session_.receive(message, now_, &actions);
    expect(actions.size() < 100, "few actions");
    execute(actions);
  }
  void execute(const std::vector<Session::Action>& actions) {
    for (const Session::Action& action : actions) {
      std::visit([this](const auto& one) { execute(one); }, action);
    }
  }
  void execute(const Session::Connect& connect) {
    trace("connects " + connect.address);
    connects_.push_back(now_);
    while (connects_.front() < now_ - 1s) connects_.pop_front();
    expect(connects_.size() < 300, "it connects with pauses");
    connected_at_ = now_ + 100us;
  }
  void execute(const Session::CancelAttempt&) { connected_at_.reset(); }
  void execute(const Session::Disconnect&) { is_open_ = false; }
  void execute(const Session::SendHello&) {
    ++incarnation_;
    if (!is_hostile_) reply(session::ServerHello{.incarnation = incarnation_, .time = now_});
  }
  void execute(const Session::SendHeartbeat& heartbeat) {
    reply(session::HeartbeatReply{.sent = heartbeat.sent, .time = now_});
  }
  void execute(const Session::Send& sent) {
    expect_readable(sent.event);
    trace("sends event " + std::to_string(sent.event.index()));
    if (is_hostile_) return;
    if (const auto* join = std::get_if<rdzv::Join>(&sent.event)) {
      form_round(std::max(record_.round, join->node.highest_round) + 1);
    } else if (const auto* resume = std::get_if<rdzv::Resume>(&sent.event)) {
      const std::uint64_t highest = std::max(record_.round, resume->node.highest_round);
      const bool is_current = resume->last && resume->last->record == record_ &&
                              resume->phase == rdzv::NodePhase::kWorking;
      if (is_current && highest == record_.round) return reply(rdzv::Resumed{kSelf, highest});
      if (resume->phase == rdzv::NodePhase::kJoined) return form_round(highest + 1);
      reply(rdzv::Restart{kSelf, highest, rdzv::RestartCause::kMemberLost, "a node was lost", 5s});
    } else if (const auto* failed = std::get_if<rdzv::Failed>(&sent.event)) {
      reply(rdzv::Restart{kSelf, failed->round, rdzv::RestartCause::kWorkerFailed, "failed", 5s});
    }
  }
  void execute(const Session::SendReport& sent) { expect_readable(sent.report); }
  void execute(const Session::Deliver& delivered) {
    std::visit(
        [this](const auto& one) {
          using Action = std::decay_t<decltype(one)>;
          trace("receives action " + std::to_string(core::RendezvousAction(one).index()));
          if constexpr (std::is_same_v<Action, rdzv::Round>) held_ = {*one.record, 0};
          if constexpr (std::is_same_v<Action, rdzv::RoundOver>) {
            agent_step(one);
          } else if constexpr (std::is_constructible_v<core::PolicyEvent, Action>) {
            agent_step(core::PolicyEvent(one));
          }
        },
        delivered.action);
  }
  void execute(const Session::Log& log) {
    trace(log.message);
    expect(log.message.size() < 64 << 10, "a line is short");
  }
  void execute(const Session::Lost& lost) {
    trace("lost: " + lost.message);
    is_lost_ = true;
    agent_step(core::PolicyEvent(core::RendezvousLost{lost.exit_code, lost.message}));
  }
  void execute(const Session::EndCoordinator&) { session_step(Session::EndStepDone{}); }
  void execute(const Session::ReleaseRecord&) { session_step(Session::EndStepDone{}); }
  void execute(const Session::Ended&) { later(core::agent_event::Flushed{}); }
  void execute(const Session::CoordinatorFound&) {
    has_answered_ = true;
    hand_over_.connected(false);
  }
  void execute(const Session::CoordinatorNamed& named) {
    succession_step(succession::Informed{named.incumbent});
  }
  void execute(const Session::Directed& directed) {
    const auto direction = hand_over_.directed(directed.to.incumbent, directed.was_coordinator);
    session_step(Session::CoordinatorMoved{direction.address});
  }
  void execute(const Session::Dissolved&) { held_ = {}; }  // it begins in another job
  void execute(const Session::AskedToRun& asked) { hand_over_.asked(asked.offer, {}); }
  void execute(const Session::JobTimings& timings) {
    succession_step(succession::Timings{timings.node_timeout, timings.store_grace});
  }
  void execute(const Session::Inform& inform) {
    std::visit(
        [this](const auto& one) {
          if constexpr (std::is_constructible_v<core::AgentInput, decltype(one)>) agent_step(one);
        },
        inform.message);
  }
  void execute(const Session::CoordinatorActive&) {}
  void execute(const Session::CoordinatorEnds&) { hand_over_.coordinator_leaves(); }
  void execute(const Session::JobCounts&) {}

  // The coordinator reads what the member sends.
  template <typename Messages>
  void expect_readable(const Messages& messages) {
    std::visit(
        [this](const auto& one) {
          if constexpr (std::is_constructible_v<session::ClientMessage, decltype(one)>) {
            std::string bytes;
            session::append(&bytes, one);
            session::ClientMessage read;
            const auto decoded = session::decode(bytes, &read);
            expect(decoded.status == session::DecodeStatus::kMessage, "it sends valid messages");
          }
        },
        messages);
  }

  // ---- The true coordinator.

  void reply(session::ServerMessage message) { replies_.push_back(std::move(message)); }
  void form_round(std::uint64_t number) {
    record_ = {};
    record_.round = number;
    record_.nodes = 1;
    record_.world_size = kWorkers;
    reply(rdzv::Round{kSelf,
                      std::make_shared<RoundRecord>(record_),
                      {.local_world_size = kWorkers, .role_world_size = kWorkers}});
  }

  // ---- The succession.

  void succession_step(const succession::Event& event) {
    std::vector<succession::Action> actions;
    succession_.step(event, now_, &actions);
    expect(actions.size() < 100, "few actions");
  }

  // ---- The agent, as host/agent/agent_runner.cc does.

  void agent_step(const core::AgentInput& input) {
    std::vector<core::AgentAction> actions;
    agent_.step(input, now_, &actions);
    expect(actions.size() < 100, "few actions");
    for (const core::AgentAction& action : actions) {
      std::visit([this](const auto& one) { act(one); }, action);
    }
  }
  void later(core::AgentInput input) { inputs_.push_back(std::move(input)); }
  void act(const core::Report& report) { trace(report.event.message); }
  void act(const core::Send& send) { session_step(Session::Submit{send.statement}); }
  void act(const core::PrepareGroup& group) {
    session_step(Session::Introduce{group.node.id});
    later(core::agent_event::FilesOpened{});
  }
  void act(const core::StartGroup& group) {
    expect(group.round->workers.size() == kWorkers, "it has these workers");
    later(core::agent_event::FilesOpened{});
  }
  void act(const core::ContinueGroup& group) {
    expect(group.round->workers.size() == kWorkers, "it has these workers");
  }
  void act(const core::agent_action::StartWorkers&) {
    is_running_.assign(kWorkers, true);
    for (int rank = 0; rank < kWorkers; ++rank) {
      later(core::PolicyEvent(core::WorkerStarted{rank, 100 + rank, now_}));
      if (!options_.policy.agent.inplace_grace) continue;
      later(core::PolicyEvent(core::WorkerCapable{rank}));
      if (options_.policy.agent.inplace_prepare) later(core::PolicyEvent(core::WorkerLeft{rank}));
    }
  }
  void act(const core::agent_action::CancelStart&) { later(core::agent_event::StartCancelled{}); }
  void act(const core::CutGroup&) {
    for (int rank = 0; rank < kWorkers; ++rank) later(core::PolicyEvent(core::WorkerLeft{rank}));
  }
  void act(const core::agent_action::StopWorkers& stop) {
    for (int rank = 0; rank < kWorkers; ++rank) end_worker(rank, stop.how.signal, true);
  }
  void act(const core::agent_action::KillWorker& kill) {
    end_worker(kill.local_rank, SIGKILL, false);
  }
  void act(const core::agent_action::AwaitTemplate&) { later(core::agent_event::TemplateReady{}); }
  void act(const core::agent_action::OpenStore&) {
    later(core::agent_event::StoreOpened{std::uint16_t{29500}});
  }
  void act(const core::agent_action::CollectStacks&) {
    later(core::agent_event::StacksCollected{});
  }
  void act(const core::agent_action::Observe& observed) {
    std::visit([this](const auto& one) { session_step(Session::Report{one}); }, observed.message);
  }
  void act(const core::agent_action::RequestDrain& request) {
    session_step(Session::Report{request.notice});
  }
  void act(const core::agent_action::SetStopStep& set) {
    using Kind = drain::Order::Kind;
    if (set.request.kind == Kind::kWithdraw || set.request.kind == Kind::kCommit) return;
    const auto kind =
        set.request.kind == Kind::kAsk ? drain::Reply::Kind::kSteps : drain::Reply::Kind::kAccepted;
    later(drain::StopStepEvent{kind, set.request.proposal, {0, 1}, 10, 9});
  }
  void act(const core::Finish& finish) {
    trace("finishes: " + finish.result.message);
    is_finished_ = true;
    later(core::agent_event::ResultFixed{});
  }
  void act(const core::agent_action::Flush& flush) {
    if (is_lost_) return later(core::agent_event::Flushed{});
    session_step(Session::End{flush.limit, "job"});
  }
  template <typename Other>
  void act(const Other&) {}

  void end_worker(int rank, int signal, bool is_stopped) {
    if (is_running_.empty() || !is_running_[static_cast<std::size_t>(rank)]) return;
    is_running_[static_cast<std::size_t>(rank)] = false;
    WorkerExit exit;
    exit.kind = ExitKind::kSignaled;
    exit.signal = signal;
    exit.stopped_by_us = is_stopped;
    exit.at = now_;
    later(core::PolicyEvent(core::WorkerExited{rank, 100 + rank, agent_.explain(rank, exit)}));
    if (std::find(is_running_.begin(), is_running_.end(), true) != is_running_.end()) return;
    is_running_.clear();
    later(core::agent_event::ProcessesEnded{});
    later(core::agent_event::FailuresExamined{});
  }

  // What was caused by events, after them.
  void run() {
    for (int handled = 0; !inputs_.empty() || !replies_.empty(); ++handled) {
      expect(handled < 1000, "its actions have an end");
      if (!inputs_.empty()) {
        const core::AgentInput input = std::move(inputs_.front());
        inputs_.pop_front();
        agent_step(input);
        continue;
      }
      const session::ServerMessage message = std::move(replies_.front());
      replies_.pop_front();
      if (is_open_) session_receive(message);
    }
  }

  const core::AgentMachineOptions options_;
  core::AgentMachine agent_;
  Session session_;
  core::HandOverMember hand_over_;
  succession::Machine succession_;
  Instant now_{1000s};
  bool is_hostile_ = false;
  bool is_decided_ = false;  // by the hostile coordinator
  bool is_open_ = false;
  bool has_answered_ = false;  // the true coordinator
  std::optional<Instant> connected_at_;
  std::deque<Instant> connects_;  // of the last second
  std::uint64_t incarnation_ = 0;
  RoundRecord record_;    // of the true coordinator
  core::HeldRound held_;  // the last one that the agent was given
  bool is_lost_ = false;
  bool is_finished_ = false;
  std::vector<bool> is_running_;  // by local rank; empty: no worker
  std::deque<core::AgentInput> inputs_;
  std::deque<session::ServerMessage> replies_;
  std::deque<std::string> trace_;  // the last lines
};

// What the agent allocates and indexes by, as a coordinator sends it.
inline void make_possible(session::ServerMessage* message, int workers) {
  auto* const round = std::get_if<rdzv::Round>(message);
  if (round == nullptr) return;
  auto record = std::make_shared<RoundRecord>(*round->record);
  record->nodes = 1;
  record->world_size = workers;
  round->own = {.local_world_size = workers, .role_world_size = workers};
  round->record = std::move(record);
}

// One conversation with a hostile coordinator.
inline void run_hostile_coordinator(std::string_view input) {
  constexpr int kFramesMax = 64;
  constexpr auto kFill = [](auto& filler, auto& message) { session::fields(filler, message); };
  Choices choices(input);
  const std::uint8_t mode = choices.byte();
  HostileMember member(mode % 2 == 1, mode % 4 == 3);
  member.begin(mode / 4 % 8 == 7);
  for (int frames = 0; frames < kFramesMax && !choices.is_empty(); ++frames) {
    const std::uint8_t what = choices.byte();
    if (what % 16 == 0) {
      member.wait(std::chrono::milliseconds(what));
      continue;
    }
    if (what % 16 == 1) {
      member.lose_connection();
      continue;
    }
    std::string frame;
    if (what % 16 == 2) {
      core::ByteWriter(&frame).text(choices.take(choices.byte()));
    } else {
      HostileValues values(&choices, member.round());
      const std::size_t kind = choices.byte() % std::variant_size_v<session::ServerMessage>;
      auto message = filled<session::ServerMessage>(kind, &values, kFill);
      if (what % 16 != 3) make_possible(&message, what % 16 == 4 ? 1 + what / 16 : 2);
      session::append(&frame, message);
    }
    if (what % 16 == 5) {
      frame[choices.byte() % frame.size()] = static_cast<char>(choices.byte());
    }
    member.receive(frame);
  }
  member.check_recovery();
}

}  // namespace elastic::test
