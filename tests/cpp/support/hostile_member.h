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
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/session/coordinator_loss.h"
#include "core/session/session_fields.h"
#include "core/session/session_machine.h"
#include "core/succession/voter_keeper.h"
#include "support/field_filler.h"
#include "support/modelled_agent.h"

namespace elastic::test {

class HostileMember final : public ModelledAgent {
 public:
  HostileMember(bool is_in_place, bool is_prepared)
      : ModelledAgent(is_in_place, is_prepared),
        session_(options_.policy.settings, {"10.0.0.1:29400"}, 1),
        succession_({.job_id = "job", .self = {kSelf, "10.0.0.2:4711"}}, 1) {}

  // The true coordinator forms a round, and its workers run; or a hostile one is there first.
  void begin(bool is_hostile) {
    is_hostile_ = is_hostile;
    std::vector<Session::Action> actions;
    session_.begin(now_, &actions);
    execute(actions);
    agent_step(core::RendezvousReady{"node2", "10.0.0.2"});
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
    agent_step(core::PolicyTick{});
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
  void execute(const Session::SendHello& hello) {
    expect_readable(std::variant<session::ClientHello>(
        session::ClientHello{.term = hello.term, .job_id = "job", .node = hello.node}));
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
          if constexpr (core::is_alternative_of<Action, core::AgentInput>) agent_step(one);
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
    agent_step(core::RendezvousLost{lost.exit_code, lost.message});
  }
  void execute(const Session::EndCoordinator&) { session_step(Session::EndStepDone{}); }
  void execute(const Session::ReleaseRecord&) { session_step(Session::EndStepDone{}); }
  void execute(const Session::Ended&) { later(core::agent_event::Flushed{}); }
  void execute(const Session::CoordinatorFound&) {
    has_answered_ = true;
    named_.reset();
  }
  void execute(const Session::CoordinatorNamed& named) {
    succession_step(succession::Informed{named.it.incumbent});
  }
  void execute(const Session::Directed& directed) {
    const succession::Incumbent& to = directed.to.incumbent;
    session_step(Session::CoordinatorMoved{
        named_.note({to.lineage, to.term}, to.address, directed.was_coordinator)});
  }
  void execute(const Session::Dissolved&) { held_ = {}; }  // it begins in another job
  void execute(const Session::PortsWanted& wanted) {
    succession_step(succession::Informed{wanted.request.coordinator});
  }
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

  // ---- What the agent sends.

  void submit(const core::NodeStatement& statement) override {
    session_step(Session::Submit{statement});
  }
  void introduce(const core::NodeInfo& node) override { session_step(Session::Introduce{node.id}); }
  void report(const core::NodeReport& report) override { session_step(Session::Report{report}); }
  void end(Duration limit) override {
    if (is_lost_) return later(core::agent_event::Flushed{});
    session_step(Session::End{limit, "job"});
  }
  Instant now() const override { return now_; }

  // What was caused by events, after them.
  void run() {
    for (int handled = 0;; ++handled) {
      expect(handled < 1000, "its actions have an end");
      if (take_input()) continue;
      if (replies_.empty()) return;
      const session::ServerMessage message = std::move(replies_.front());
      replies_.pop_front();
      if (is_open_) session_receive(message);
    }
  }

  Session session_;
  core::NamedSuccessor named_;
  succession::VoterKeeper succession_;
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
  std::deque<session::ServerMessage> replies_;
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

// What a hostile coordinator does after `member` has begun; returns the number of frames. `Values`
// chooses the fields of its messages.
template <typename Values, typename Member>
int attack(Member* member, Choices* choices) {
  constexpr int kFramesMax = 64;
  constexpr auto kFill = [](auto& filler, auto& message) { session::fields(filler, message); };
  int frames = 0;
  for (int steps = 0; steps < kFramesMax && !choices->is_empty(); ++steps) {
    const std::uint8_t what = choices->byte();
    if (what % 16 == 0) {
      member->wait(std::chrono::milliseconds(what));
      continue;
    }
    if (what % 16 == 1) {
      member->lose_connection();
      continue;
    }
    std::string frame;
    if (what % 16 == 2) {
      core::ByteWriter(&frame).text(choices->take(choices->byte()));
    } else {
      Values values(choices, member->round());
      const std::size_t kind = choices->byte() % std::variant_size_v<session::ServerMessage>;
      auto message = filled<session::ServerMessage>(kind, &values, kFill);
      if (what % 16 != 3) make_possible(&message, what % 16 == 4 ? 1 + what / 16 : 2);
      session::append(&frame, message);
    }
    if (what % 16 == 5) {
      frame[choices->byte() % frame.size()] = static_cast<char>(choices->byte());
    }
    member->receive(frame);
    ++frames;
  }
  return frames;
}

// One conversation with a hostile coordinator.
inline void run_hostile_coordinator(std::string_view input) {
  Choices choices(input);
  const std::uint8_t mode = choices.byte();
  HostileMember member(mode % 2 == 1, mode % 4 == 3);
  member.begin(mode / 4 % 8 == 7);
  attack<HostileValues>(&member, &choices);
  member.check_recovery();
}

}  // namespace elastic::test
