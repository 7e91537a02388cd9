#include "core/job/job.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>

#include "core/base/earliest.h"
#include "core/session/session_wire.h"
#include "core/snapshot/snapshot_plan.h"

// Theory of operation. An event of the rendezvous is one step of its machine. What the gate lets
// through of the actions is sent, and tells the parts which nodes work in which round: they know of
// a round what its nodes know of it, not what still waits for the record. What parts decide about
// the job (its end, that it does not grow, and when) are steps of the rendezvous that follow in the
// same call, after the actions before them.

namespace elastic::core {
Job::Job(std::string id, JobSettings settings, Instant now, Duration start_hold)
    : id_(std::move(id)), rendezvous_(std::move(settings), now, start_hold), gate_(id_) {
  rendezvous_.await_grow();
  rendezvous_.await_start();
  rendezvous_.set_resume_plan(snapshot::plan_resume, snapshot::plan_sources);
  rendezvous_.set_host_gate(hosts_.get());
  hosts_version_ = hosts_->version();
}

void Job::begin(Instant now, std::vector<JobAction>* out) {
  now_ = std::max(now_, now);
  out_ = out;
}

void Job::step(const JobEvent& event, Instant now, std::vector<JobAction>* out) {
  begin(now, out);
  std::visit([this](const auto& one) { on(one); }, event);
  settle();
}

void Job::in_force(std::uint64_t number, Instant now, std::vector<JobAction>* out) {
  std::vector<RendezvousAction> actions;
  if (!gate_.in_force(number, &actions)) return;
  begin(now, out);
  pass(std::move(actions));
  for (auto& waiting = waiting_actions_; !waiting.empty() && waiting.front().first <= number;
       waiting.pop_front()) {
    out_->push_back(std::move(waiting.front().second));
  }
  has_changed_ = true;
  settle();
}

void Job::close(JobResult result, Instant now, std::vector<JobAction>* out) {
  begin(now, out);
  closing_ = std::move(result);
  settle();
}

// What parts want of the rendezvous.
void Job::decide() {
  while (closing_ || is_growth_to_be_held_ || grows_) {
    if (std::exchange(is_growth_to_be_held_, false)) rendezvous_step(rdzv::HoldGrowth{});
    if (const auto grow = std::exchange(grows_, std::nullopt)) rendezvous_step(*grow);
    if (!closing_) continue;
    // In the name of no node: the machine's owner decides it.
    if (auto result = *std::exchange(closing_, std::nullopt); !is_over()) {
      rendezvous_step(rdzv::Close{{}, std::move(result)});
    }
  }
}

void Job::settle() {
  do {
    decide();
  } while (follow_growth() || follow_idle() || follow_start());
  history_.update(rendezvous_.phase(), rendezvous_.record(), now_, rendezvous_.last_rule());
  out_ = nullptr;
}

std::optional<Instant> Job::next_deadline() const {
  return earliest({rendezvous_.next_deadline(), next_watch_deadline()});
}

std::optional<Instant> Job::next_watch_deadline() const {
  return earliest({parts_deadline(), straggler_deadline()});
}

void Job::on(const RendezvousEvent& event) {
  note_report(event);
  if (const auto* leave = std::get_if<rdzv::Leave>(&event)) {
    rdzv::Leave known = *leave;
    known.is_planned = drain_.is_leaving(leave->node);
    const bool is_needed = is_needed_member(leave->node);
    feed(round_event::Leaving{leave->node});
    // The notice explains the leave, so it is no loss: every node ends with the same code.
    if (is_needed) {
      feed(drain_event::Idle{rendezvous_.name_of(leave->node) +
                             " left before a step was agreed on: " + leave->reason});
    }
    decide();  // an end that they had only waited for precedes the leave
    rendezvous_step(known);
  } else {
    rendezvous_step(event);
  }
  if (const auto* resume = std::get_if<rdzv::Resume>(&event)) note_done_member(*resume);
  if (const auto* gap = std::get_if<rdzv::ClockGap>(&event); gap && rendezvous_.is_stall(*gap)) {
    feed(round_event::ClockGap{gap->gap});
  }
  if (std::holds_alternative<rdzv::Tick>(event)) on(job_event::WatchTick{});
}

// Without it the next round needs another node.
bool Job::is_needed_member(const NodeId& node) const {
  if (rendezvous_.members_left() > rendezvous_.settings().min_nodes) return false;
  const std::vector<RoundMember>& members = rendezvous_.members();
  return std::any_of(members.begin(), members.end(), [&](const RoundMember& one) {
    return one.id == node && one.fate == MemberFate::kPresent;
  });
}

void Job::on(const job_event::WatchTick&) {
  feed_ticks();
  judge_stragglers();
}

void Job::note_report(const RendezvousEvent& event) {
  if (const auto* failed = std::get_if<rdzv::Failed>(&event)) {
    rdzv::Failed known = *failed;
    known.failure.at = std::clamp(known.failure.at, now_ - kEvidenceAgeMax, now_);
    history_.worker_failed(rendezvous_.name_of(failed->node), known);
  } else if (const auto* gone = std::get_if<rdzv::Gone>(&event)) {
    history_.workers_ended(gone->round, now_);
  } else if (const auto* done = std::get_if<rdzv::Done>(&event)) {
    history_.workers_ended(done->round, now_);
  }
}

void Job::on(const job_event::Progressed& event) {
  const bool has_steps = event.progress.reporting > 0;
  if (has_steps && history_.progressed(event.progress.round, now_)) has_changed_ = true;
  if (event.progress.saved_step >= 0 && event.progress.round == rendezvous_.record().round) {
    feed(snapshot::Saved{event.node, event.progress.saved_step, now_ - event.progress.saved_age,
                         event.progress.saved_memory});
  }
  if (has_steps && event.progress.round == rendezvous_.record().round &&
      rendezvous_.phase() == RendezvousPhase::kRunning) {
    rendezvous_.note_step(event.progress.newest);
  }
  feed(round_event::Progressed{event.node, event.progress});
}

void Job::on(const job_event::Copied& event) {
  if (rendezvous_.phase() != RendezvousPhase::kRunning || !rendezvous_.has_node(event.node)) return;
  const RoundRecord& record = rendezvous_.record();
  if (event.report.round == record.round && !event.report.own.empty()) {
    feed(snapshot::Saved{event.node, event.report.own.back().step, now_});
  }
  feed(snapshot::Copied{event.node, event.report, record.round,
                        static_cast<std::size_t>(record.nodes)});
}

void Job::rendezvous_step(const RendezvousEvent& event) {
  std::vector<RendezvousAction> actions;
  rendezvous_.step(event, now_, &actions);
  note_generation();
  const bool is_tick = std::holds_alternative<rdzv::Tick>(event);
  pass_host_actions();
  gate_.submit(rendezvous_, is_tick ? nullptr : &event, &actions);
  // A heartbeat, and a Tick, without actions change nothing.
  const bool is_quiet = is_tick || std::holds_alternative<rdzv::Heartbeat>(event);
  if (!is_quiet || !actions.empty() || rendezvous_.is_removable()) has_changed_ = true;
  pass(std::move(actions));
}

// The next job of the id knows nothing of what parts know of this one.
void Job::note_generation() {
  const std::uint32_t generation = rendezvous_.record().generation;
  if (std::exchange(generation_, generation) == generation) return;
  feed(round_event::Over{});  // the observers that wait for an answer get one
  each_part([](auto& part) {
    if constexpr (requires { part.reset(); }) part.reset();
  });
  is_network_checked_ = false;
}

void Job::pass(std::vector<RendezvousAction> actions) {
  std::vector<JobAction> consequences;
  for (RendezvousAction& action : actions) {
    std::vector<JobAction>* const out = std::exchange(out_, &consequences);
    std::visit([this](const auto& one) { follow(one); }, action);
    out_ = out;
    out_->push_back(std::move(action));
    std::move(consequences.begin(), consequences.end(), std::back_inserter(*out_));
    consequences.clear();
  }
}

void Job::follow(const rdzv::Round& action) {
  feed(began(action.to, action.record->round, action.record->nodes, {}));
}

// A coordinator that continues from a stored state learns of the round's nodes here.
void Job::follow(const rdzv::Resumed& action) {
  if (rendezvous_.phase() != RendezvousPhase::kRunning) return;
  feed(began(action.to, action.round, rendezvous_.members_left(), rendezvous_.takeover_limit()));
}

void Job::follow(const rdzv::Restart& action) {
  history_.round_ends(action, now_);
  feed(round_event::Ended{});
}

void Job::follow(const rdzv::Closed&) {
  if (!is_over()) return;  // the result of the generation before, for a node of it
  feed(round_event::Over{});
}

void Job::follow(const rdzv::Evicted& action) {
  feed(round_event::Left{action.to, rendezvous_.members_left()});
}

// Ranks may save their state, at a step of an earlier coordinator, for longer than the limit of a
// hang: after a takeover nodes have time to report that step before a hang is judged.
round_event::Began Job::began(const NodeId& node, std::uint64_t round, int nodes,
                              Duration resume_limit) const {
  return {.node = node,
          .round = round,
          .name = rendezvous_.name_of(node),
          .resume_limit = resume_limit,
          .nodes = nodes,
          .min_nodes = rendezvous_.settings().min_nodes,
          .report_limit = resume_limit > Duration::zero() ? kDrainReplyTimeout : Duration::zero()};
}

void Job::note_change(const HangWatch& hangs) {
  has_changed_ = true;
  const auto hang = hangs.hang();
  history_.hangs(hang ? std::optional(hang->progressed) : std::nullopt, now_);
}

ObservedJob describe_job(const Job* job, Instant now) {
  ObservedJob facts;
  facts.now = now;
  if (job == nullptr) {
    facts.description = "no node has joined";
    return facts;
  }
  facts.began = job->history().began();
  facts.running = job->history().running(now);
  facts.rounds = job->history().rounds();
  for (hang::Straggler& one : job->hangs().stragglers()) {
    if (facts.stragglers.size() == session::kStragglersObserved) break;
    facts.stragglers.push_back({one.rank, std::move(one.node), one.step, now - one.progressed});
  }
  if (auto hang = job->hangs().hang()) {
    facts.hang = {now - hang->progressed, hang->step, hang->suspect, std::move(hang->place)};
  }
  if (auto stall = job->hangs().stall()) {
    facts.stall = {now - stall->since, stall->suspect, std::move(stall->text),
                   std::move(stall->place)};
  }
  if (const std::string& mismatch = job->hangs().mismatch(); !mismatch.empty()) {
    facts.mismatch = mismatch;
  }
  if (const auto pace = job->hangs().pace()) {
    facts.progress = {pace->newest, pace->oldest, pace->ranks, pace->step_time};
  }
  facts.saved = job->saved(now);
  for (gate::Found& one : job->hosts().found(now, session::kFindingsObserved)) {
    facts.findings.push_back({std::move(one.host), std::move(one.text), one.age});
  }
  for (gate::Exclusion& one : job->hosts().excluded(now)) {
    facts.excluded.push_back({std::move(one.host), one.left, std::move(one.why), one.times});
  }
  const RendezvousMachine& rendezvous = job->rendezvous();
  facts.phase = rendezvous.phase();
  facts.description = rendezvous.describe(now);
  if (const std::string stop = job->describe_drain(); !stop.empty()) {
    facts.description += "; " + stop;
  }
  facts.settings = rendezvous.settings();
  facts.record = rendezvous.record();
  facts.waiting_nodes = rendezvous.waiting_nodes();
  facts.spare_nodes = rendezvous.spare_nodes();
  if (rendezvous.result() != nullptr) facts.result = *rendezvous.result();
  return facts;
}

std::vector<ObservedNode> describe_nodes(const RendezvousMachine& rendezvous, Instant now) {
  std::vector<ObservedNode> nodes;
  const std::vector<RoundMember>& members = rendezvous.members();
  for (NodeStatus& status : rendezvous.nodes(now)) {
    ObservedNode node;
    node.id = status.id;
    node.name = std::move(status.name);
    node.phase = status.phase;
    node.rank = status.rank;
    node.is_suspect = status.is_suspect;
    node.silence = status.silence;
    node.hosts_coordinator = status.hosts_coordinator;
    const auto rank = static_cast<std::size_t>(status.rank);
    if (status.rank >= 0 && rank < members.size() && members[rank].id == status.id) {
      node.address = members[rank].address;
      node.role = members[rank].role;
      node.local_world_size = members[rank].local_world_size;
    }
    nodes.push_back(std::move(node));
  }
  return nodes;
}

}  // namespace elastic::core
