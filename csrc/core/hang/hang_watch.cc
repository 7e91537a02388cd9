#include "core/hang/hang_watch.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/describe.h"
#include "core/base/earliest.h"
#include "core/base/text.h"
#include "elastic/agent.h"

// Theory of operation. A node sends its progress when it has changed, so the age of the newest
// message, plus the idle time in it, is the time without progress. Nothing is judged before a rank
// has reported a step, nor after the round has ended. Without any step the longest wait in a
// collective operation is that time, but only where a limit was given, since nothing can be
// learned, and once StallWatch has found that the cause does nothing: a rank that prepares the data
// for all others works.
//
// The job hangs when no rank of any node has made progress for the limit. One rank that stops alone
// while the others advance is only slow, and is reported as such, once: in a synchronous job the
// others soon wait for it, and then the job hangs. A node sends only its slowest rank, so that its
// message has a constant size. Each report goes to every node, so of many slow ranks few are
// reported: a part of a large job may stop at once.
//
// A verdict needs evidence: the nodes are asked for the stacks of their workers and have a short
// time to reply. What has arrived then is grouped and published to all nodes.
//
// A partial exit needs no steps: a rank has exited with 0, and the limit of its node has passed.
// The stacks are collected in the same way, and the job is closed. A worker that ended meanwhile
// has no stack; if no worker has one, all ranks have ended, and the result of the job is on its
// way.
//
// Ranks that wait in collective operations need no steps either: StallWatch decides when the nodes
// are asked for what their workers do, and whether that is a line. Such a look interrupts no
// worker.
//
// A coordinator that follows a lost one receives all of this again, with their ages: the exit
// perhaps before the round is known, the progress of a node when the node has resumed. It judges
// when all nodes have had the time to resume.

namespace elastic::core {
namespace {

constexpr int kStackLinesShown = 20;
constexpr std::size_t kGroupsShown = 16;
constexpr std::size_t kSilentNodesShown = 16;
constexpr std::size_t kAdvancesOfPace = 16;  // about as many seconds, if steps are short

template <typename Value>
void erase_one(std::multiset<Value>* from, const Value& value) {
  from->erase(from->find(value));
}

bool has_slowest(const hang::NodeProgress& progress) {
  return progress.reporting > 0 && progress.slowest_rank >= 0;
}

// The first lines of a text, indented.
std::string indent_lines(std::string_view text, int lines_max) {
  std::string out;
  for (int i = 0; i < lines_max && !text.empty(); ++i) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    out.append("\n  ").append(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

Instant before(Instant now, Duration age) {
  return now - std::clamp<Duration>(age, Duration::zero(), now - Instant{});
}

// What the ranks wait in tells more than where they are.
std::int32_t suspect_of(const hang_state::Collection& found) {
  return found.verdict.suspect >= 0 ? found.verdict.suspect : find_suspect(found.groups);
}

// -1 makes the agents kill rank 0. If rank 0 has already ended, the lowest rank that still runs is
// killed instead.
std::int32_t ended_by(const std::vector<hang::StackGroup>& groups) {
  std::int32_t least = -1;
  for (const hang::StackGroup& group : groups) {
    if (least < 0 || group.ranks.front() < least) least = group.ranks.front();
  }
  return least == 0 ? -1 : least;
}

}  // namespace

JobProgress::Node& JobProgress::add(const NodeId& id) { return nodes_[id]; }

JobProgress::Node* JobProgress::find(const NodeId& id) {
  const auto found = nodes_.find(id);
  return found == nodes_.end() ? nullptr : &found->second;
}

void JobProgress::remove(const NodeId& id) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return;
  remove_from_order(id, found->second);
  num_replies_ -= found->second.has_replied ? 1 : 0;
  nodes_.erase(found);
}

void JobProgress::clear() { *this = JobProgress(); }

void JobProgress::update(const NodeId& id, const hang::NodeProgress& progress, Instant progressed,
                         Instant slowest_progressed, std::optional<Instant> waits_since) {
  Node& node = nodes_.at(id);
  remove_from_order(id, node);
  node.progress = progress;
  node.progressed = progressed;
  node.slowest_progressed = slowest_progressed;
  node.waits_since = waits_since;
  if (!has_slowest(progress)) node.straggler = -1;
  add_to_order(id, node);
}

void JobProgress::shift(Duration gap) {
  for (auto& [id, node] : nodes_) {
    remove_from_order(id, node);
    node.progressed += gap;
    node.slowest_progressed += gap;
    if (node.waits_since) *node.waits_since += gap;
    add_to_order(id, node);
  }
}

void JobProgress::add_to_order(const NodeId& id, const Node& node) {
  const hang::NodeProgress& progress = node.progress;
  if (progress.limit > Duration::zero()) limits_.insert(progress.limit);
  if (progress.section_limit > Duration::zero()) section_limits_.insert(progress.section_limit);
  if (node.waits_since) waits_.insert(*node.waits_since);
  if (progress.reporting == 0) return;
  progressed_.insert(node.progressed);
  if (!has_slowest(progress)) return;
  (node.straggler < 0 ? timely_ : lagging_).emplace(node.slowest_progressed, id);
}

void JobProgress::remove_from_order(const NodeId& id, const Node& node) {
  const hang::NodeProgress& progress = node.progress;
  if (progress.limit > Duration::zero()) erase_one(&limits_, progress.limit);
  if (progress.section_limit > Duration::zero()) {
    erase_one(&section_limits_, progress.section_limit);
  }
  if (node.waits_since) erase_one(&waits_, *node.waits_since);
  if (progress.reporting == 0) return;
  erase_one(&progressed_, node.progressed);
  timely_.erase({node.slowest_progressed, id});
  lagging_.erase({node.slowest_progressed, id});
}

void JobProgress::forget_replies() {
  for (auto& [id, node] : nodes_) node.has_replied = false;
  num_replies_ = 0;
}

void JobProgress::note_reply(const NodeId& id) {
  num_replies_ += std::exchange(nodes_.at(id).has_replied, true) ? 0 : 1;
}

std::optional<Instant> JobProgress::last_progress() const {
  if (progressed_.empty()) return std::nullopt;
  return *progressed_.rbegin();
}

std::optional<Instant> JobProgress::waits_since() const {
  if (waits_.empty()) return std::nullopt;
  return *waits_.begin();
}

Duration JobProgress::given_limit() const {
  return limits_.empty() ? Duration::zero() : *limits_.begin();
}

Duration JobProgress::section_limit() const {
  return section_limits_.empty() ? Duration::zero() : *section_limits_.rbegin();
}

std::vector<JobProgress::Node*> JobProgress::divide(Instant threshold) {
  std::vector<Node*> begun;
  while (!lagging_.empty() && lagging_.rbegin()->first > threshold) {
    const auto newest = std::prev(lagging_.end());
    nodes_.at(newest->second).straggler = -1;
    timely_.insert(lagging_.extract(newest));
  }
  while (!timely_.empty() && timely_.begin()->first <= threshold) {
    Node& node = nodes_.at(timely_.begin()->second);
    node.straggler = node.progress.slowest_rank;
    lagging_.insert(timely_.extract(timely_.begin()));
    begun.push_back(&node);
  }
  return begun;
}

std::vector<const JobProgress::Node*> JobProgress::lagging() const {
  std::set<NodeId> ids;
  for (const auto& [since, id] : lagging_) ids.insert(id);
  std::vector<const Node*> found;
  for (const NodeId& id : ids) found.push_back(&nodes_.at(id));
  return found;
}

void HangWatch::step(const HangEvent& event, Instant now, std::vector<HangAnswer>* out) {
  spent_.reset();
  std::visit([&](const auto& one) { on(one, now, out); }, event);
}

bool HangWatch::take_changed() {
  Shown shown{num_stragglers(), std::nullopt, stall(), mismatch()};
  if (hang_) shown.suspect = hang_->suspect;
  if (shown_ == shown) return false;
  shown_ = std::move(shown);
  return true;
}

void HangWatch::on(const round_event::Began& event, Instant now, std::vector<HangAnswer>* out) {
  if (event.round != round_) {
    auto early = partial_exit_;
    if (early && early->round != event.round) early.reset();
    on(round_event::Ended{}, now, out);
    round_ = event.round;
    judged_from_ = add_saturating(add_saturating(now, event.resume_limit), event.report_limit);
    partial_exit_ = early;
  }
  job_.add(event.node).name = event.name;
}

void HangWatch::on(const round_event::Ended&, Instant now, std::vector<HangAnswer>* out) {
  if (collection_ && collection_->purpose == Purpose::kLook) collection_.reset();
  if (collection_) {
    collection_->purpose = Purpose::kObserver;
    finish_collection(now, out);
  }
  stall_.clear();
  mismatches_.clear();
  partial_exit_.reset();
  recent_.reset();
  job_.clear();
  hang_.reset();
  newest_ = hang::kNoStep;
  has_published_many_ = false;
  recent_advances_.clear();
}

void HangWatch::on(const round_event::Left& event, Instant now, std::vector<HangAnswer>* out) {
  job_.remove(event.node);
  follow_waits(now);
  if (collection_ && job_.all_have_replied()) finish_collection(now, out);
}

void HangWatch::on(const round_event::Progressed& event, Instant now,
                   std::vector<HangAnswer>* out) {
  Node* const node = job_.find(event.node);
  if (node == nullptr || event.progress.round != round_) return;
  const auto progressed_before = job_.last_progress();
  // A message takes its time, so the same progress twice would be new progress.
  const bool is_known = !event.progress.has_advanced && node->progress.reporting > 0;
  std::optional<Instant> waits_since;
  if (event.progress.waiting > 0) waits_since = before(now, event.progress.waited);
  job_.update(
      event.node, event.progress, is_known ? node->progressed : before(now, event.progress.idle),
      is_known ? node->slowest_progressed : before(now, event.progress.slowest_idle), waits_since);
  follow_waits(now);
  find_stragglers(now, out);
  const std::int32_t slowest = event.progress.slowest_rank;
  if (node->straggler >= 0 && std::exchange(node->straggler, slowest) != slowest) {
    publish_straggler(*node, now, out);
  }
  if (event.progress.newest > newest_) {
    if (newest_ != hang::kNoStep) advances_ = std::min(advances_ + 1, kLearnedAdvances);
    newest_ = event.progress.newest;
    recent_advances_.push_back({before(now, event.progress.idle), newest_});
    if (recent_advances_.size() > kAdvancesOfPace) recent_advances_.pop_front();
  }
  const auto progressed = job_.last_progress();
  if (!progressed || (progressed_before && *progressed <= *progressed_before)) return;
  hang_.reset();
  if (!progressed_before) return;
  pauses_[next_pause_++ % pauses_.size()] = *progressed - *progressed_before;
}

void HangWatch::on(const hang_event::Finished& event, Instant now, std::vector<HangAnswer>*) {
  const hang::RankFinished& finished = event.finished;
  if (round_ != 0 && finished.round != round_) return;
  const Instant exited = before(now, finished.age);
  const Instant deadline = add_saturating(exited, finished.limit);
  if (!partial_exit_) {
    partial_exit_ = hang_state::PartialExit{finished.round, finished.rank, exited, deadline};
  }
  partial_exit_->deadline = std::min(partial_exit_->deadline, deadline);
}

void HangWatch::on(const hang_event::StacksReceived& event, Instant now,
                   std::vector<HangAnswer>* out) {
  const Node* const node = job_.find(event.node);
  const bool is_expected = collection_ && node != nullptr && !node->has_replied &&
                           event.stacks.request == collection_->request;
  if (!is_expected) return;
  job_.note_reply(event.node);
  for (const hang::StackGroup& group : event.stacks.groups) {
    if (group.ranks.empty()) continue;
    collection_->hosts.emplace_back(group.ranks.front(), event.stacks.host);
    collection_->received.add(group);
  }
  for (const hang::CollectiveState& state : event.stacks.collectives) {
    collection_->collectives.add(state);
  }
  collection_->idle_ranks.insert(collection_->idle_ranks.end(), event.stacks.idle.begin(),
                                 event.stacks.idle.end());
  if (job_.all_have_replied()) finish_collection(now, out);
}

void HangWatch::on(const hang_event::SignaturesReceived& event, Instant now,
                   std::vector<HangAnswer>*) {
  const bool is_expected = job_.find(event.node) != nullptr && event.signatures.round == round_;
  if (is_expected) mismatches_.add(event.signatures, now);
}

void HangWatch::on(const hang_event::Requested& event, Instant now, std::vector<HangAnswer>* out) {
  if (job_.nodes().empty()) {
    out->push_back(hang_action::Reply{event.observer, hang::kNoRound});
    return;
  }
  if (!collection_ && recent_ && now < add_saturating(recent_->began, kStacksInterval)) {
    const std::string age = duration_text(now - recent_->began);
    out->push_back(hang_action::Reply{
        event.observer, recent_->text + "\nThese stacks are " + age + " old: they are collected " +
                            "at most every " + duration_text(kStacksInterval) + "."});
    return;
  }
  if (!collection_ || collection_->purpose == Purpose::kLook) {
    collect(Purpose::kObserver, {}, now, out);
  }
  collection_->observers.push_back(event.observer);
}

void HangWatch::on(const PartTick&, Instant now, std::vector<HangAnswer>* out) {
  if (collection_ && now >= collection_->deadline) finish_collection(now, out);
  find_stragglers(now, out);
  if (mismatches_.due_at() && now >= *mismatches_.due_at()) publish_mismatches(out);
  if (auto end = stall_.take_end(now)) {
    using Kind = hang::Verdict::Kind;
    const Kind kind = end->empty() ? Kind::kNoted : Kind::kStallOver;
    publish(kind, *std::move(end), out);
  }
  // The end of the job comes before a report; a report that is being made comes first.
  const auto overdue = overdue_at();
  if (overdue && now >= *overdue && !is_reporting()) {
    const hang_state::PartialExit first = *std::exchange(partial_exit_, std::nullopt);
    collect(Purpose::kPartialExit, now - first.finished, now, out);
    collection_->exited = first.rank;
    return;
  }
  const auto hung = hung_at();
  const bool hangs = hung && now >= *hung && !is_reporting();
  const auto look = look_at();
  if (!hangs && look && now >= *look && !collection_) collect(Purpose::kLook, {}, now, out);
  if (!hangs) return;
  const Instant since = *idle_since();
  hang_ = hang::Hang{since, newest_, -1, {}};
  collect(Purpose::kHang, now - since, now, out);
}

void HangWatch::on(const round_event::ClockGap& event, Instant, std::vector<HangAnswer>*) {
  job_.shift(event.gap);
  stall_.shift(event.gap);
  mismatches_.shift(event.gap);
  judged_from_ = add_saturating(judged_from_, event.gap);
  if (hang_) hang_->progressed += event.gap;
  if (!partial_exit_) return;
  partial_exit_->finished += event.gap;
  partial_exit_->deadline = add_saturating(partial_exit_->deadline, event.gap);
}

// The stacks that an observer waits for already are recent enough for any purpose. A look has none,
// and is repeated.
void HangWatch::collect(Purpose purpose, Duration idle, Instant now, std::vector<HangAnswer>* out) {
  if (collection_ && collection_->purpose == Purpose::kLook) collection_.reset();
  if (!collection_) {
    collection_.emplace();
    collection_->request = ++requests_;
    collection_->began = now;
    collection_->deadline = now + kStacksTimeout;
    job_.forget_replies();
    out->push_back(hang_action::Ask{{collection_->request, purpose == Purpose::kLook}});
  }
  collection_->purpose = purpose;
  collection_->idle = idle;
}

std::optional<hang::Pace> HangWatch::pace() const {
  if (newest_ == hang::kNoStep) return std::nullopt;
  hang::Pace pace{.newest = newest_};
  for (const auto& [id, node] : job_.nodes()) {
    if (node.progress.reporting <= 0) continue;
    const bool is_first = pace.ranks == 0;
    pace.ranks += node.progress.reporting;
    pace.oldest = is_first ? node.progress.oldest : std::min(pace.oldest, node.progress.oldest);
  }
  if (recent_advances_.size() > 1) {
    const Advance& first = recent_advances_.front();
    const Advance& last = recent_advances_.back();
    pace.step_time = std::max(last.at - first.at, Duration::zero()) / (last.step - first.step);
  }
  return pace;
}

void HangWatch::finish_look(Collection& found, Instant now, std::vector<HangAnswer>* out) {
  std::vector<std::int32_t> all;
  for (const hang::StackGroup& group : found.groups) {
    all.insert(all.end(), group.ranks.begin(), group.ranks.end());
  }
  std::sort(all.begin(), all.end());
  std::sort(found.idle_ranks.begin(), found.idle_ranks.end());
  const bool is_stalled =
      stall_.looked(found.verdict, found.idle_ranks, all, job_.all_have_replied(), now);
  if (is_stalled && !hang_) collect(Purpose::kStall, {}, now, out);
  std::string note = stall_.take_note();
  if (note.empty()) return;
  if (job_.given_limit() == Duration::zero()) {
    note += ", which is reported only after " + duration_text(limit()) + " (--hang-timeout)";
  }
  publish(hang::Verdict::Kind::kNoted, std::move(note), out);
}

void HangWatch::publish(hang::Verdict::Kind kind, std::string text,
                        std::vector<HangAnswer>* out) const {
  hang::Verdict verdict;
  verdict.round = round_;
  verdict.kind = kind;
  verdict.text = std::move(text);
  out->push_back(hang_action::Publish{std::move(verdict)});
}

void HangWatch::publish_stall(const CollectiveVerdict& found, Instant now,
                              std::vector<HangAnswer>* out) {
  hang::Verdict verdict;
  verdict.round = round_;
  verdict.kind = hang::Verdict::Kind::kStalled;
  verdict.suspect = found.suspect;
  verdict.text = stall_.report(found, now);
  if (!verdict.text.empty()) out->push_back(hang_action::Publish{std::move(verdict)});
}

void HangWatch::publish_mismatches(std::vector<HangAnswer>* out) {
  for (Mismatch& mismatch : mismatches_.compare()) {
    hang::Verdict verdict;
    verdict.round = round_;
    verdict.kind = hang::Verdict::Kind::kMismatch;
    verdict.suspect = mismatch.suspect;
    verdict.text = std::move(mismatch.text);
    out->push_back(hang_action::Publish{std::move(verdict)});
  }
}

// While a rank makes steps the job has not stalled, whichever ranks wait.
void HangWatch::follow_waits(Instant now) {
  auto since = job_.waits_since();
  const auto progressed = job_.last_progress();
  if (since && progressed) since = std::max(*since, *progressed);
  stall_.follow(since, job_.section_limit(), now);
  const bool is_over =
      !progressed && (!since || (hang_ && *since > hang_->progressed + kSameStall));
  if (is_over) hang_.reset();
}

void HangWatch::finish_collection(Instant now, std::vector<HangAnswer>* out) {
  spent_ = std::exchange(collection_, std::nullopt);
  Collection& found = *spent_;
  found.groups = found.received.take();
  found.verdict = found.collectives.verdict(found.groups);
  if (found.purpose == Purpose::kLook) return finish_look(found, now, out);
  std::string text = screen(found, found.purpose == Purpose::kHang ? suspect_of(found) : -1);
  recent_ = {found.began, text};
  for (const std::uint64_t observer : found.observers) {
    out->push_back(hang_action::Reply{observer, text});
  }
  if (found.purpose == Purpose::kStall) publish_stall(found.verdict, now, out);
  if (found.purpose == Purpose::kHang) publish_hang(found, std::move(text), out);
  if (found.purpose == Purpose::kPartialExit) close_partial(found, std::move(text), out);
}

void HangWatch::publish_hang(const Collection& found, std::string text,
                             std::vector<HangAnswer>* out) {
  const std::int32_t suspect = suspect_of(found);
  hang::Verdict verdict;
  verdict.round = round_;
  verdict.text = std::move(text);
  verdict.suspect = suspect < 0 ? ended_by(found.groups) : suspect;
  verdict.action = action();
  verdict.cause = "hung: no rank made progress for " + duration_text(found.idle);
  for (const hang::StackGroup& group : found.groups) {
    if (suspect < 0 || !group.contains(suspect)) continue;
    verdict.cause += "; this one was " + group.label;
    if (hang_) hang_->place = group.label;
  }
  if (hang_) hang_->suspect = suspect;
  out->push_back(hang_action::Publish{std::move(verdict)});
}

void HangWatch::close_partial(const Collection& found, std::string text,
                              std::vector<HangAnswer>* out) const {
  if (found.groups.empty() && job_.all_have_replied()) return;  // all ranks have ended
  hang::Verdict report;
  report.round = round_;
  report.text = std::move(text);
  out->push_back(hang_action::Publish{std::move(report)});
  JobResult result;
  result.outcome = JobOutcome::kFailed;
  result.cause = JobCause::kRequested;
  result.exit_code = kExitPartial;
  result.message = headline(found);
  out->push_back(hang_action::Close{std::move(result)});
}

void HangWatch::find_stragglers(Instant now, std::vector<HangAnswer>* out) {
  const auto progressed = job_.last_progress();
  if (!progressed) return;
  const Duration late = limit();
  const Instant threshold = std::min(now - late, *progressed - late / 2);
  const std::vector<Node*> begun = job_.divide(threshold);
  if (num_stragglers() <= kStragglersPublished) has_published_many_ = false;
  for (const Node* const node : begun) publish_straggler(*node, now, out);
}

void HangWatch::publish_straggler(const Node& node, Instant now, std::vector<HangAnswer>* out) {
  const bool are_many = job_.num_lagging() > kStragglersPublished;
  if (are_many && std::exchange(has_published_many_, true)) return;
  hang::Verdict verdict;
  verdict.round = round_;
  verdict.kind = hang::Verdict::Kind::kStraggling;
  verdict.suspect = node.straggler;
  verdict.text = describe_worker(
      node.straggler, node.name,
      "is at step " + std::to_string(node.progress.oldest) + " and has made no progress for " +
          duration_text(now - node.slowest_progressed) + ", while other ranks advance");
  if (are_many) {
    verdict.text += "; ranks on " + std::to_string(job_.num_lagging() - 1) +
                    " more nodes have made none either";
  }
  out->push_back(hang_action::Publish{std::move(verdict)});
}

std::vector<hang::Straggler> HangWatch::stragglers() const {
  std::vector<hang::Straggler> found;
  if (hang_) return found;
  for (const Node* const node : job_.lagging()) {
    found.push_back({node->straggler, node->name, node->progress.oldest, node->slowest_progressed});
  }
  return found;
}

std::optional<hang::Hang> HangWatch::hang() const {
  std::optional<hang::Hang> found = hang_;
  // Pauses of this process have moved it.
  if (found) found->progressed = idle_since().value_or(found->progressed);
  return found;
}

std::optional<Instant> HangWatch::next_deadline() const {
  std::optional<Instant> collected;
  if (collection_) collected = collection_->deadline;
  const auto ended = earliest({stall_.end_at(), mismatches_.due_at()});
  if (is_reporting()) return earliest({collected, ended});
  const auto look = collection_ ? std::nullopt : look_at();
  return earliest({collected, ended, look, overdue_at(), hung_at()});
}

// Whether the stacks are for a report that precedes others.
bool HangWatch::is_reporting() const {
  return collection_ &&
         (collection_->purpose == Purpose::kHang || collection_->purpose == Purpose::kPartialExit);
}

// When the ranks are to be looked at; nullopt: none waits, or what they wait for was reported.
std::optional<Instant> HangWatch::look_at() const {
  const auto look = stall_.look_at();
  if (hang_ || !look) return std::nullopt;
  return std::max(*look, judged_from_);
}

// When the ranks that still run are overdue; nullopt: none has exited in the known round.
std::optional<Instant> HangWatch::overdue_at() const {
  if (!partial_exit_ || partial_exit_->round != round_) return std::nullopt;
  return std::max(partial_exit_->deadline, judged_from_);
}

// Since when nothing in the job has made progress; nullopt: that is not known.
std::optional<Instant> HangWatch::idle_since() const {
  if (const auto progressed = job_.last_progress()) return progressed;
  const bool counts = job_.given_limit() > Duration::zero() && stall_.is_reported();
  return counts ? job_.waits_since() : std::nullopt;
}

// When a job without further progress hangs; nullopt: it has made none, or the verdict was given.
std::optional<Instant> HangWatch::hung_at() const {
  const auto since = idle_since();
  if (hang_ || !since) return std::nullopt;
  return std::max(add_saturating(*since, limit()), judged_from_);
}

Duration HangWatch::limit() const {
  Duration limit = job_.given_limit();
  if (limit == Duration::zero()) {
    limit = *std::max_element(pauses_.begin(), pauses_.end()) * kLearnedLimitFactor;
    limit = std::max(limit, advances_ < kLearnedAdvances ? kUnlearnedLimit : kLearnedLimitMin);
  }
  return std::max(limit, job_.section_limit());
}

hang::Action HangWatch::action() const {
  const Duration given = job_.given_limit();
  hang::Action action = hang::Action::kReport;
  if (given == Duration::zero()) return action;
  for (const auto& [id, node] : job_.nodes()) {
    if (node.progress.limit == given) action = std::max(action, node.progress.action);
  }
  return action;
}

// The first line of the screen.
std::string HangWatch::headline(const Collection& found) const {
  if (found.purpose == Purpose::kObserver || found.purpose == Purpose::kStall) {
    return "stacks of round " + std::to_string(shown_round(round_));
  }
  if (found.purpose == Purpose::kPartialExit) {
    std::vector<std::int32_t> ranks;
    for (const hang::StackGroup& group : found.groups) {
      ranks.insert(ranks.end(), group.ranks.begin(), group.ranks.end());
    }
    std::sort(ranks.begin(), ranks.end());
    const std::string running = ranks.empty() ? "other ranks" : describe_ranks(ranks);
    return "partial exit: " + describe_worker(found.exited, "exited with 0") + ", and " +
           duration_text(found.idle) + " later still running: " + running;
  }
  std::int64_t oldest = hang::kNoStep;
  for (const auto& [id, node] : job_.nodes()) {
    if (node.progress.reporting == 0) continue;
    oldest =
        oldest == hang::kNoStep ? node.progress.oldest : std::min(oldest, node.progress.oldest);
  }
  if (oldest == hang::kNoStep) {
    return "the job hangs: ranks have waited in a collective operation for " +
           duration_text(found.idle) + " (no rank reports steps)";
  }
  return "the job hangs: no rank has made progress for " + duration_text(found.idle) +
         " (the slowest is at step " + std::to_string(oldest) + ")";
}

std::string HangWatch::host_of(const Collection& found, std::int32_t rank) const {
  const auto host =
      std::ranges::find(found.hosts, rank, &std::pair<std::int32_t, std::string>::first);
  return host == found.hosts.end() || job_.nodes().size() < 2 ? "" : " on " + host->second;
}

std::string HangWatch::screen(const Collection& found, std::int32_t suspect) const {
  std::string text = headline(found);
  for (const std::string* const one : {&found.verdict.text, &found.verdict.blindness}) {
    if (!one->empty()) text += "\n  " + *one;
  }
  std::size_t shown = 0;
  for (const hang::StackGroup& group : found.groups) {
    if (++shown > kGroupsShown) continue;
    const bool has_suspect = suspect >= 0 && group.contains(suspect);
    text += "\n  " + describe_ranks(group.ranks) +
            (group.ranks.size() == 1 ? host_of(found, group.ranks.front()) : "") + " " +
            group.label;
    if (has_suspect)
      text += ": " + (group.ranks.size() > 1 ? describe_ranks({suspect}) + " " : "") + "suspected";
  }
  if (shown > kGroupsShown) {
    text += "\n  and " + std::to_string(shown - kGroupsShown) + " more places";
  }
  std::size_t silent = 0;
  for (const auto& [id, node] : job_.nodes()) {
    if (node.has_replied || ++silent > kSilentNodesShown) continue;
    text += "\n  " + node.name + " sent no stacks in time";
  }
  if (silent > kSilentNodesShown) {
    text += "\n  and " + std::to_string(silent - kSilentNodesShown) + " more nodes";
  }
  for (const hang::StackGroup& group : found.groups) {
    if (text.size() > hang::kScreenBytesMax) break;
    const bool is_shown = found.purpose != Purpose::kHang || group.contains(suspect) ||
                          (suspect < 0 && found.groups.size() > 1);
    if (!is_shown || group.text.empty()) continue;
    text += "\nstack of rank " + std::to_string(group.ranks.front()) +
            ", the most recent call first:" + indent_lines(group.text, kStackLinesShown);
  }
  return to_printable(text, Lines::kMany, hang::kScreenBytesMax);
}

}  // namespace elastic::core
