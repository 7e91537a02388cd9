#include "host/coordinator/job_observers.h"
#include "os/loop/event_loop.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>
#include <variant>

namespace elastic::host {
namespace {

constexpr Duration kRefreshDelay = std::chrono::milliseconds(20);
// A refresh that took t is followed by a pause of this many t.
constexpr int kPauseFactor = 200;
// A page ends with the node that reaches this, so that it fits into a frame.
constexpr std::size_t kWorkersPerPage = 8192;
// Requests of one observer that wait for an answer.
constexpr std::size_t kUnansweredMax = 16;
constexpr const char* kTooManyRequests =
    "too many requests of this observer wait for an answer: wait for one of them";
constexpr Duration kBeatsInterval = std::chrono::seconds(2);

// Without the silence, which changes all the time and has its own message.
bool is_same(const ObservedNode& a, const ObservedNode& b) {
  return a.phase == b.phase && a.rank == b.rank && a.is_suspect == b.is_suspect &&
         a.hosts_coordinator == b.hosts_coordinator && a.local_world_size == b.local_world_size &&
         a.name == b.name && a.address == b.address && a.role == b.role && a.report == b.report;
}

}  // namespace

Status no_such_job(const std::string& id, const std::vector<std::string>& jobs) {
  std::string ids;
  for (const std::string& one : jobs) {
    if (ids.size() > kMessageBytesMax) break;
    ids += (ids.empty() ? "" : ", ") + one;
  }
  return {StatusCode::kFailedPrecondition,
          (id.empty() ? "choose one of the coordinator's jobs by its id"
                      : "the coordinator has no job " + id) +
              (ids.empty() ? "; it has no jobs" : "; its jobs: " + ids)};
}

JobSnapshots::JobSnapshots(os::EventLoop* loop, Source source)
    : loop_(*loop),
      source_(std::move(source)),
      refresh_timer_(loop, [this] { refresh(); }),
      beats_timer_(loop, [this] {
        is_changed_ = true;
        request_refresh();
      }) {}

void JobSnapshots::add(SessionPeer* peer, const session::ObserverRequest& request) {
  observers_.push_back({.peer = peer, .has_workers = request.workers});
  if (request.workers && num_watching_++ == 0) source_.watch_workers(true);
  beats_timer_.arm_after(kBeatsInterval);
  job_changed();
}

void JobSnapshots::remove(SessionPeer* peer) {
  const Observer* const observer = find(peer);
  if (observer == nullptr) return;
  const bool ends_watch = observer->has_workers && --num_watching_ == 0;
  observers_.erase(observers_.begin() + (observer - observers_.data()));
  if (ends_watch) {
    reports_.clear();
    source_.watch_workers(false);
  }
}

JobSnapshots::Observer* JobSnapshots::find(const SessionPeer* peer) {
  const auto found = std::find_if(observers_.begin(), observers_.end(),
                                  [peer](const Observer& one) { return one.peer == peer; });
  return found == observers_.end() ? nullptr : &*found;
}

Status JobSnapshots::on_message(SessionPeer* peer, const session::ClientMessage& message) {
  if (const auto* beat = std::get_if<session::Heartbeat>(&message)) {
    peer->send(session::HeartbeatReply{beat->sent, loop_.read_clock()});
    return {};
  }
  Observer* const observer = find(peer);
  if (observer == nullptr || !std::holds_alternative<session::ObserverReady>(message)) {
    return Status(StatusCode::kPeerViolation, "an observer may send no messages of a node");
  }
  observer->is_ready = true;
  serve(observer);
  return {};
}

void JobSnapshots::job_changed() {
  is_changed_ = true;
  request_refresh();
}

void JobSnapshots::on_report(const NodeId& node, WorkerReport report) {
  reports_[node] = std::move(report);
  job_changed();
}

void JobSnapshots::request_refresh() {
  if (refresh_timer_.armed()) return;
  refresh_timer_.arm(std::max(next_refresh_, loop_.now() + kRefreshDelay));
}

void JobSnapshots::refresh() {
  const Instant begun = loop_.read_clock();
  if (std::exchange(is_changed_, false)) {
    facts_ = source_.facts();
    ++facts_number_;
    update_table();
  }
  forget_removed();
  for (Observer& observer : observers_) serve(&observer);
  const Instant now = loop_.read_clock();
  next_refresh_ = now + (now - begun) * kPauseFactor;
  beats_timer_.arm(std::max(next_refresh_, now + kBeatsInterval));
}

void JobSnapshots::update_table() {
  std::vector<ObservedNode> nodes = source_.nodes();
  auto old = table_.begin();
  const auto remove_until = [&](const NodeId* id) {
    for (; old != table_.end() && (id == nullptr || old->first < *id); ++old) {
      if (std::exchange(old->second.is_removed, true)) continue;
      old->second.changed = ++changes_;
    }
  };
  for (ObservedNode& node : nodes) {
    const auto reported = reports_.find(node.id);
    if (reported != reports_.end()) node.report = reported->second;
    remove_until(&node.id);
    if (old == table_.end() || old->first != node.id) {
      old = table_.emplace_hint(old, node.id, Entry{});
    }
    Entry& entry = old->second;
    if (entry.changed == 0 || entry.is_removed || !is_same(entry.node, node)) {
      entry.changed = ++changes_;
    }
    entry.is_removed = false;
    entry.node = std::move(node);
    ++old;
  }
  remove_until(nullptr);
}

// Nodes that are no longer there, and of which every observer has been notified.
void JobSnapshots::forget_removed() {
  std::uint64_t seen = changes_;
  for (const Observer& observer : observers_) seen = std::min(seen, observer.has_until);
  for (auto entry = table_.begin(); entry != table_.end();) {
    const bool is_obsolete = entry->second.is_removed && entry->second.changed <= seen;
    if (is_obsolete) reports_.erase(entry->first);
    entry = is_obsolete ? table_.erase(entry) : std::next(entry);
  }
}

void JobSnapshots::serve(Observer* observer) {
  if (!observer->is_ready || facts_number_ == 0) return;
  if (!observer->pass_until) {
    const bool has_nodes = observer->has_table && observer->has_until == changes_;
    if (has_nodes && observer->facts_sent == facts_number_) return;
    if (std::exchange(observer->facts_sent, facts_number_) != facts_number_) {
      observer->peer->send(session::JobFacts{facts_});
    }
    if (has_nodes) return send_beats(observer);
    observer->pass_until = changes_;
    observer->position.reset();
  }
  send_page(observer);
}

void JobSnapshots::send_page(Observer* observer) {
  session::NodePage page;
  std::size_t workers = 0;
  auto entry = observer->position ? table_.upper_bound(*observer->position) : table_.begin();
  for (; entry != table_.end(); ++entry) {
    if (workers >= kWorkersPerPage || page.nodes.size() == session::kNodesPerPage ||
        page.removed.size() == session::kNodesPerPage) {
      break;
    }
    observer->position = entry->first;
    if (entry->second.changed <= observer->has_until) continue;
    if (entry->second.is_removed) {
      page.removed.push_back(entry->first);
      continue;
    }
    page.nodes.push_back(entry->second.node);
    std::optional<WorkerReport>& report = page.nodes.back().report;
    if (!observer->has_workers) report.reset();
    if (report) workers += report->workers.size();
  }
  page.is_last = entry == table_.end();
  if (page.is_last) {
    observer->has_table = true;
    observer->has_until = *std::exchange(observer->pass_until, std::nullopt);
  }
  observer->is_ready = false;
  observer->peer->send(page);
}

void JobSnapshots::send_beats(Observer* observer) {
  session::Beats beats;
  beats.silence_ms.reserve(table_.size());
  for (const auto& [id, entry] : table_) {
    if (entry.is_removed) continue;
    const auto silence =
        std::chrono::duration_cast<std::chrono::milliseconds>(entry.node.silence).count();
    beats.silence_ms.push_back(static_cast<std::uint32_t>(
        std::clamp<std::int64_t>(silence, 0, std::numeric_limits<std::uint32_t>::max())));
  }
  observer->is_ready = false;
  observer->peer->send(beats);
}

void JobSnapshots::end(const std::string& reason) {
  refresh_timer_.disarm();
  beats_timer_.disarm();
  const session::JobFacts last{source_.facts()};
  for (const Observer& observer : std::exchange(observers_, {})) {
    observer.peer->observed = nullptr;
    observer.peer->send(last);
    observer.peer->end(session::Leaving{reason});
    observer.peer->flush();
  }
}

void JobObservers::add(SessionPeer* peer, const session::ObserverRequest& request) {
  peer->observed = this;
  if (snapshots_ == nullptr) snapshots_ = std::make_unique<JobSnapshots>(loop_, job_.source);
  snapshots_->add(peer, request);
}

void JobObservers::remove(SessionPeer* peer) {
  peer->observed = nullptr;
  std::erase_if(stacks_asked_, [peer](const auto& asked) { return asked.second == peer; });
  std::erase_if(drain_asked_, [peer](const auto& asked) { return asked.second == peer; });
  std::erase_if(host_asked_, [peer](const auto& asked) { return asked.second == peer; });
  snapshots_->remove(peer);
  if (snapshots_->empty()) snapshots_.reset();
}

Status JobObservers::on_message(SessionPeer* peer, const session::ClientMessage& message) {
  if (std::holds_alternative<session::RequestStacks>(message)) {
    if (num_asked(peer) >= kUnansweredMax) {
      peer->send(session::StacksReport{kTooManyRequests});
      return {};
    }
    stacks_asked_[++requests_] = peer;
    job_.request_stacks(requests_);
    return {};
  }
  if (const auto* request = std::get_if<session::RequestDrain>(&message)) {
    return on(peer, *request);
  }
  if (const auto* request = std::get_if<session::RequestHost>(&message)) return on(peer, *request);
  return snapshots_->on_message(peer, message);
}

std::size_t JobObservers::num_asked(const SessionPeer* peer) const {
  const auto is_of_peer = [peer](const auto& asked) { return asked.second == peer; };
  return static_cast<std::size_t>(
      std::count_if(stacks_asked_.begin(), stacks_asked_.end(), is_of_peer) +
      std::count_if(drain_asked_.begin(), drain_asked_.end(), is_of_peer) +
      std::count_if(host_asked_.begin(), host_asked_.end(), is_of_peer));
}

Status JobObservers::on(SessionPeer* peer, const session::RequestDrain& request) {
  if (const std::string why = why_refused(*peer); !why.empty()) {
    peer->send(session::DrainReport{false, why});
    return {};
  }
  drain_asked_[++requests_] = peer;
  job_.request_drain(request, requests_);
  return {};
}

Status JobObservers::on(SessionPeer* peer, const session::RequestHost& request) {
  if (const std::string why = why_refused(*peer); !why.empty()) {
    peer->send(session::HostReport{false, why});
    return {};
  }
  host_asked_[++requests_] = peer;
  job_.request_host(request, requests_);
  return {};
}

std::string JobObservers::why_refused(const SessionPeer& peer) const {
  if (peer.role() != PeerRole::kNode) {
    return "this is a token of observers, which only reads: use the token of the job";
  }
  return num_asked(&peer) >= kUnansweredMax ? kTooManyRequests : "";
}

void JobObservers::reply(const core::gate_action::Inform& answer) {
  const auto found = host_asked_.find(answer.observer);
  if (found == host_asked_.end()) return;
  found->second->send(session::HostReport{answer.is_done, answer.text});
  host_asked_.erase(found);
}

void JobObservers::reply(std::uint64_t request, std::string stacks) {
  const auto found = stacks_asked_.find(request);
  if (found == stacks_asked_.end()) return;
  found->second->send(session::StacksReport{std::move(stacks)});
  stacks_asked_.erase(found);
}

void JobObservers::reply(const core::drain_action::Inform& answer) {
  const auto found = drain_asked_.find(answer.observer);
  if (found == drain_asked_.end()) return;
  found->second->send(session::DrainReport{answer.is_agreed, answer.text});
  drain_asked_.erase(found);
}

void JobObservers::job_changed() {
  if (snapshots_ != nullptr) snapshots_->job_changed();
}

void JobObservers::on_report(const NodeId& node, WorkerReport report) {
  snapshots_->on_report(node, std::move(report));
}

void JobObservers::end(const std::string& reason) {
  if (snapshots_ == nullptr) return;
  stacks_asked_.clear();
  drain_asked_.clear();
  host_asked_.clear();
  snapshots_->end(reason);
  snapshots_.reset();
}

}  // namespace elastic::host
