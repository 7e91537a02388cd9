#include <csignal>
#include <utility>

#include "core/agent/agent_policy.h"
#include "core/base/describe.h"
#include "core/base/text.h"

// Workers that are kept for another round, and workers that are started before this node joins: the
// steps of the policy's table that are about them.
//
// With an inplace_grace the workers of a round that is over are kept, if all of them are well and
// have declared that they can continue. They are told to leave their collectives (a cut), and this
// node joins the next round when the last one has left: for the rendezvous their part in the round
// is over, as if they had ended. While they wait the state is INIT, and they are given the next
// round instead of being started. Any doubt on the way (one fails, or does not leave in time) ends
// in the usual stop. One that ends while it waits fails in the next round, unless it is the last:
// then that round starts new ones. If its code says that no restart follows, or that the node is
// bad, that does not wait for a round.
//
// With an inplace_prepare the workers are started before this node joins, so that no other node
// waits for their imports. When all of them wait for their first round they are a group that is
// kept, without a round before it, and the node joins. Any doubt on the way ends in a stop; then
// the node joins, and starts them with its round. No event of a worker is reported before the
// round: it has no rank.

namespace elastic::core {

// ---- Workers that are kept for another round.

void AgentPolicy::count_capable(Turn* turn) { kept_.note_capable(turn->local_rank); }

void AgentPolicy::count_left(Turn* turn) { kept_.note_left(turn->local_rank); }

bool AgentPolicy::can_cut() const {
  const bool is_running = state_ == PolicyState::kHealthy || state_ == PolicyState::kUnhealthy ||
                          state_ == PolicyState::kCutting;
  const bool is_whole = is_running && participant_.state() == ParticipantState::kWorking &&
                        failures_.empty() && ended_ == 0;
  return agent_.inplace_grace && is_whole && kept_.are_capable();
}

void AgentPolicy::cut_workers(Turn* turn) {
  const std::string reason = follow_order(turn);
  kept_.cut(without_cut(*turn->order->grace));
  deadline_ = add_saturating(turn->now, *agent_.inplace_grace);
  turn->act(CutGroup{round_->round, stop_reason_});
  turn->report(AgentEvent::Kind::kStopping, state(),
               reason + "; keeping the workers, which have " +
                   duration_text(*agent_.inplace_grace) + " to leave the round");
}

void AgentPolicy::abandon_cut(const std::string& why, Turn* turn) {
  deadline_.reset();
  stop_group(kept_.stop_grace(), why + "; stopping them", turn);
}

void AgentPolicy::abandon_late_cut(Turn* turn) {
  abandon_cut("the workers did not leave the round within " + duration_text(*agent_.inplace_grace),
              turn);
}

// The order to join again is known: it caused the cut.
void AgentPolicy::keep_workers(Turn* turn) {
  round_end_.kept = true;
  rejoin(turn);
}

// Exits of workers that ended while they waited are failures of this round: no rank takes their
// place in it.
void AgentPolicy::continue_group(Turn* turn) {
  begin_round(turn);
  turn->act(ContinueGroup{round_, end_reason_});
  for (WorkerExited& exited : kept_.take_exits()) {
    const bool is_bad = is_failure(exited.exit) && means_bad_node(exited.exit);
    turn->raised.push_back(
        {is_bad ? PolicyInput::kWaitingNodeBad : PolicyInput::kWaitingFailed, std::move(exited)});
  }
}

// One kept worker has ended, so the others are stopped; the next round starts new workers.
void AgentPolicy::note_waiting_exit(Turn* turn) {
  const WorkerExited& event = *turn->exited;
  kept_.add_exit(event);
  if (round_ != nullptr && failures_.empty() && is_failure(event.exit)) {
    WorkerFailure failure = waiting_failure_of(event);
    if (why_final(failure) != nullptr) {
      send_failure(failure, turn);
      insert_failure(std::move(failure));
    }
  }
  stop_group(failure_grace(), "a worker ended while it waited for the next round; stopping them",
             turn);
}

void AgentPolicy::drop_group(Turn* turn) {
  for (const WorkerExited& exited : kept_.take_exits()) count_one_exit(exited, turn);
  round_end_.stopped = turn->now;
  round_end_.kept = false;
  turn->report(AgentEvent::Kind::kNotice, state(),
               "the workers ended while they waited for the next round, which starts new ones");
}

// The failure of a worker that ended while it waited for a round.
WorkerFailure AgentPolicy::waiting_failure_of(const WorkerExited& event) {
  WorkerFailure failure = failure_of(event);
  if (failure.exit_code == 0) failure.exit_code = 1;
  failure.message += " while it waited for the round";
  return failure;
}

void AgentPolicy::fail_waiting(Turn* turn) {
  count_exit(turn);
  WorkerFailure failure = waiting_failure_of(*turn->exited);
  const int before = cause_rank();
  insert_failure(std::move(failure));
  send_cause_after(turn->exited->local_rank, before, turn);
  await_order(turn);
}

// ---- Workers that are started before this node joins.

void AgentPolicy::prepare_group(Turn* turn) {
  participant_.locate(turn->ready->name, turn->ready->address);
  kept_.prepare(static_cast<std::size_t>(self().local_world_size));
  deadline_ = add_saturating(turn->now, *agent_.inplace_prepare);
  turn->act(PrepareGroup{self()});
  turn->report(AgentEvent::Kind::kProgress, state(),
               "starting the workers; this node joins when they wait for their round");
}

void AgentPolicy::note_unprepared_exit(Turn* turn) {
  const WorkerExited& event = *turn->exited;
  kept_.add_exit(event);
  abandon_preparation(describe_unranked_worker(event.local_rank, event.exit.describe()) +
                          " before this node had joined",
                      turn);
}

void AgentPolicy::abandon_preparation(const std::string& why, Turn* turn) {
  deadline_.reset();
  if (is_stopping(turn->from)) return;
  if (!all_ended()) turn->act(StopGroup{SIGTERM, failure_grace()});
  turn->report(AgentEvent::Kind::kNotice, state(),
               why + "; the workers are started again with the round");
}

void AgentPolicy::abandon_late_preparation(Turn* turn) {
  abandon_preparation(
      "the workers did not wait for their round within " + duration_text(*agent_.inplace_prepare),
      turn);
}

// What they were is forgotten: a failure that repeats is one of the round.
void AgentPolicy::join_unprepared(Turn* turn) {
  ended_ = 0;
  kept_.take_exits();
  request_join(turn);
}

}  // namespace elastic::core
