// The authority of a coordinator over its jobs: which sessions begin here, what keeps the records
// of the jobs, and how the authority ends: succession, hand-over, drain.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/session/coordinator_state.h"
#include "core/succession/admission.h"
#include "core/succession/succession_events.h"
#include "host/coordinator/coordinator_service.h"
#include "host/succession/file_keeper.h"
#include "host/succession/job_voters.h"
#include "os/file/file.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

using succession::Admission;
using succession::Reaction;
using succession::Standing;

namespace {

// How long other nodes have to take over the jobs of a coordinator that ends: longer than the
// machines that hand them over wait.
constexpr Duration kHandOverLimit = std::chrono::seconds(6);
// How long clients have to read why the coordinator ends, and to close.
constexpr Duration kAnnouncementTimeout = std::chrono::milliseconds(500);

constexpr const char* kMovedAway = "the coordinator of the job is at another address now";
// The state of the largest possible job; a larger file is not a state file.
constexpr std::size_t kStateBytesMax = std::size_t{1} << 30;

// The standing of a job that this process coordinates; nullopt: it does not.
std::optional<Admission::Here> standing_of(const CoordinatorJob* job) {
  if (job == nullptr) return std::nullopt;
  const bool has_joins = job->rendezvous() != nullptr;
  const auto standing = [&] {
    if (has_joins && job->is_over()) return Standing::kOver;
    if (job->is_kept()) return Standing::kStored;
    if (!has_joins) return Standing::kEmpty;
    return job->has_succession() ? Standing::kReplicated : Standing::kRunning;
  }();
  return Admission::Here{standing, job->incumbent()};
}

}  // namespace

struct CoordinatorService::Succession {
  Succession(CoordinatorService* service, bool is_standby, std::shared_ptr<Tokens> tokens)
      : admission(service->host_job_, is_standby),
        voters(&service->loop_, service->options_.voters, std::move(tokens), service->options_.log,
               [service](const std::string& job, const succession::Action& action) {
                 service->on_succession(job, action);
               }) {}

  Admission admission;
  JobVoters voters;
  std::optional<os::FileLock> state_lock;   // of the state file
  std::unique_ptr<FileKeeper> file_keeper;  // null: without a state file
};

std::shared_ptr<CoordinatorService::Succession> CoordinatorService::make_succession(
    bool is_standby, std::shared_ptr<Tokens> tokens) {
  return std::make_shared<Succession>(this, is_standby, std::move(tokens));
}

// ---- Which sessions begin here.

CoordinatorService::Placement CoordinatorService::place_node(const session::ClientHello& hello) {
  Admission::Call call{.job = hello.job_id};
  if (hello.succession && hello.succession->is_replicated) {
    call.lineage = hello.succession->lineage;
  }
  CoordinatorJob* const job = find_job(hello.job_id);
  if (job != nullptr) job->note_term(hello);
  const auto answer = succession_->admission.answer(call, standing_of(job), loop_.now());
  if (answer.reaction == Reaction::kSend || answer.reaction == Reaction::kSearch) {
    return {.elsewhere = answer.incumbent};
  }
  return {.hold = answer.hold};
}

CoordinatorService::Placement CoordinatorService::place_observer(const session::ClientHello& hello,
                                                                 const CoordinatorJob* job) {
  const auto answer =
      succession_->admission.answer({.job = hello.job_id, .from = Admission::Call::From::kObserver},
                                    standing_of(job), loop_.now());
  if (answer.reaction == Reaction::kSend) return {.elsewhere = answer.incumbent};
  return {};
}

// This process does not coordinate the job: the client tries the incumbent's address, or, if that
// is not known, continues its search.
void CoordinatorService::direct(SessionPeer* peer, const succession::Incumbent& incumbent) {
  peer->greeted();
  peer->end(session::Incumbent{incumbent, true});
}

// The machine of the host's own job runs in the agent; a job of other agents has one here. A
// separate program with one voter is started again at its address, where the nodes wait for it.
SuccessionFeed CoordinatorService::begin_succession(const std::string& id) {
  succession_->admission.began(id);
  if (id == host_job_) return host_feed_;
  if (host_job_.empty() && options_.voters == 1) return {};
  return succession_->voters.open(id, context_.address);
}

void CoordinatorService::end_succession(const std::string& id) { succession_->voters.close(id); }

void CoordinatorService::direct_to(const std::string& address) {
  succession_->admission.set_own({.address = address});
}

// ---- The state file.

Status CoordinatorService::load() {
  const std::string& path = options_.state_file;
  if (path.empty()) return {};
  context_.store = [this](const std::string& job, std::function<void()> written) {
    succession_->file_keeper->propose(job, std::move(written));
  };
  auto lock = lock_state_file(path);
  if (!lock.ok()) return lock.status();
  succession_->state_lock = *std::move(lock);
  auto bytes = os::read_file(path, kStateBytesMax);
  if (!bytes.ok()) return state_file_error(bytes.status(), path);
  if (*bytes) {
    core::StoredHosts hosts;
    auto stored = core::decode_jobs(**bytes, &hosts);
    if (!stored.ok()) return state_file_error(stored.status(), path);
    if (Status fault = context_.hosts.load(hosts, loop_.now()); !fault.ok()) {
      return state_file_error(fault, path);
    }
    for (const core::StoredJob& one : *stored) {
      auto& job = jobs_[one.id];
      job = std::make_unique<CoordinatorJob>(&context_, one.id, begin_succession(one.id));
      if (Status fault = job->load(one); !fault.ok()) {
        return state_file_error(fault, path);
      }
    }
    num_jobs_.set(jobs_.size());
  }
  auto keeper = FileKeeper::open(
      &loop_, path, [this] { return encode(); }, options_.log);
  if (!keeper.ok()) return keeper.status();
  succession_->file_keeper = *std::move(keeper);
  return {};
}

void CoordinatorService::store_jobs() {
  if (succession_->file_keeper != nullptr) succession_->file_keeper->store();
}

void CoordinatorService::store_jobs_later() {
  if (succession_->file_keeper != nullptr) succession_->file_keeper->store_later();
}

std::string CoordinatorService::encode() const {
  std::vector<core::StoredJob> stored;
  for (const auto& [id, job] : jobs_) {
    if (job->rendezvous() == nullptr || job->is_recorded()) continue;
    if (succession_->file_keeper != nullptr && succession_->file_keeper->is_releasing(id)) continue;
    stored.push_back(job->stored());
  }
  return core::encode_jobs(std::move(stored), context_.hosts.stored(loop_.now()));
}

// ---- A job continues here.

Status CoordinatorService::succeed(const succession::StartCoordinator& start, const NodeId& self) {
  if (jobs_.contains(host_job_)) remove_job(host_job_, kMovedAway);
  auto& job = jobs_[host_job_];
  job = std::make_unique<CoordinatorJob>(&context_, host_job_, begin_succession(host_job_));
  num_jobs_.set(jobs_.size());
  Status status = job->succeed(start, self);
  if (!status.ok()) {
    jobs_.erase(host_job_);
    num_jobs_.set(jobs_.size());
  }
  return status;
}

void CoordinatorService::on_succession(const std::string& job_id,
                                       const succession::Action& action) {
  if (const auto* follow = std::get_if<succession::Follow>(&action)) {
    Admission& admission = succession_->admission;
    if (job_id == host_job_ && admission.has_own()) admission.set_own(follow->incumbent);
    return;
  }
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end()) return;
  CoordinatorJob& job = *found->second;
  std::visit([&](const auto& one) { this->follow(job_id, &job, one); }, action);
}

void CoordinatorService::follow(const std::string&, CoordinatorJob* job,
                                const succession::InForce& action) {
  job->in_force(action.number);
}
void CoordinatorService::follow(const std::string& id, CoordinatorJob* job,
                                const succession::Inform& action) {
  job->inform(action.incumbent);
  succession_->voters.log_survival(id);
}
void CoordinatorService::follow(const std::string&, CoordinatorJob* job,
                                const succession::MajorityLost&) {
  job->set_majority(false);
}
void CoordinatorService::follow(const std::string&, CoordinatorJob* job,
                                const succession::MajorityRegained&) {
  job->set_majority(true);
}
void CoordinatorService::follow(const std::string& id, CoordinatorJob*,
                                const succession::Displaced& action) {
  displace_job(id, action.by);
}
void CoordinatorService::follow(const std::string& id, CoordinatorJob* job,
                                const succession::Log& action) {
  if (options_.log && !job->is_over()) options_.log("job " + id + ": " + action.message);
}

// Until the file shows it no more, the job has one voter.
void CoordinatorService::follow(const std::string& id, CoordinatorJob*,
                                const succession::BeginRecord&) {
  if (succession_->file_keeper == nullptr) return jobs_.at(id)->begin_record();
  succession_->file_keeper->release(id, [this, id] {
    if (const auto found = jobs_.find(id); found != jobs_.end()) found->second->begin_record();
  });
}

void CoordinatorService::follow(const std::string& id, CoordinatorJob*,
                                const succession::StopCoordinator& stop) {
  jobs_.at(id)->observers().end(kMovedAway);  // with the last facts
  if (is_handing_over_ && stop.successor) {
    const Duration grace = std::min(jobs_.at(id)->time_to_return(), drain_limit_);
    returns_until_ = std::max(returns_until_, add_saturating(loop_.now(), grace));
  }
  const bool has_ended = is_handing_over_ && !stop.successor && !end_.reason.empty();
  jobs_.at(id)->stop({has_ended ? end_.reason : stop.reason, stop.successor});
  remove_job(id, kMovedAway);
  if (id != host_job_) end_succession(id);
  succession_->admission.lost(id, stop.successor, loop_.now());
  go_on_handing_over();
}

// Destroyed at the end of the iteration: a message that its timer has read may remove a job.
void CoordinatorService::remove_job(const std::string& id, const std::string& why) {
  const auto found = jobs_.find(id);
  found->second->observers().end(why);
  std::erase(has_changes_, found->second.get());
  removed_.push_back(std::move(found->second));
  jobs_.erase(found);
  num_jobs_.set(jobs_.size());
  loop_.defer([this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.lock() != nullptr) removed_.clear();
  });
}

// Deferred, because the end of the last job destroys all sessions, and a handler of one may run.
void CoordinatorService::go_on_handing_over() {
  if (!is_handing_over_) return;
  loop_.defer([this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.lock() != nullptr && is_handing_over_ && !is_any_handed_over()) end_jobs();
  });
}

// ---- Two coordinators of one job id (core/succession/meeting.h).

Status CoordinatorService::greet_coordinator(SessionPeer* peer, const session::ClientHello& hello) {
  const succession::Incumbent& theirs = *hello.announced;
  if (theirs.term == 0 || theirs.address.empty()) {
    return Status(StatusCode::kPeerViolation, "an announced coordinator has no term or no address");
  }
  peer->greeted();
  CoordinatorJob* const job = find_job(hello.job_id);
  const auto answer = succession_->admission.answer(
      {.job = hello.job_id, .from = Admission::Call::From::kCoordinator, .announced = theirs},
      standing_of(job), loop_.now());
  peer->end(session::Incumbent{answer.incumbent, answer.reaction == Reaction::kNote});
  if (answer.reaction == Reaction::kMeet) job->meet(theirs);
  if (answer.reaction == Reaction::kGiveWay) displace_job(hello.job_id, theirs);
  return {};
}

void CoordinatorService::displace_job(const std::string& id, const succession::Incumbent& by) {
  jobs_.at(id)->observers().end(kMovedAway);
  jobs_.at(id)->displace(by);
  remove_job(id, kMovedAway);
  end_succession(id);
  succession_->admission.lost(id, by, loop_.now());
  go_on_handing_over();
}

// True: a job waits for another node to take it over.
bool CoordinatorService::is_any_handed_over() const {
  return std::any_of(jobs_.begin(), jobs_.end(),
                     [](const auto& one) { return one.second->is_resigning(); });
}

// A job with one voter of a separate program is not. Nodes that have waited for too few others in
// vain end as their host does.
bool CoordinatorService::may_hand_over(const CoordinatorJob& job) const {
  if (job.is_over()) return false;
  if (job.is_recorded()) return true;
  if (host_job_.empty()) return false;
  return !end_.gave_up || job.id() != host_job_ || job.rendezvous()->record().round > 0;
}

// ---- The end.

bool CoordinatorService::all_jobs_are_over() const {
  for (const auto& [id, job] : jobs_) {
    if (!job->is_over()) return false;
  }
  return true;
}

void CoordinatorService::drain(Duration limit, std::function<void()> done,
                               const CoordinatorEnd& end) {
  on_drained_ = std::move(done);
  drain_limit_ = limit;
  end_ = end;
  if (limit > Duration::zero()) {
    std::vector<CoordinatorJob*> jobs;
    for (const auto& [id, job] : jobs_) jobs.push_back(job.get());
    for (CoordinatorJob* job : jobs) {
      if (may_hand_over(*job)) job->resign();
    }
    is_handing_over_ = is_any_handed_over();
  }
  if (!is_handing_over_) return end_jobs();
  drain_timer_.arm(add_saturating(loop_.now(), std::min(limit, kHandOverLimit)));
}

// The jobs that no other node takes over.
void CoordinatorService::end_jobs() {
  is_handing_over_ = false;
  drain_timer_.disarm();
  const CoordinatorEnd& end = end_;
  Duration limit = drain_limit_;
  const bool is_over = all_jobs_are_over();
  if (!is_over && !end.reason.empty()) {
    for (const auto& [id, job] : jobs_) job->announce_end(end, id == host_job_);
    drain_limit_ = limit = std::min(limit, kAnnouncementTimeout);
  }
  if (limit <= Duration::zero() || (!is_over && end.reason.empty())) {
    finish_drain();
  } else if (!has_nodes()) {
    finish_drain_without_nodes();
  } else {
    drain_timer_.arm(add_saturating(loop_.now(), limit));
  }
}

void CoordinatorService::finish_drain_without_nodes() {
  if (loop_.now() >= returns_until_) return finish_drain();
  drain_timer_.arm(returns_until_);
}

void CoordinatorService::finish_drain() {
  drain_timer_.disarm();
  processing_timer_.disarm();
  // The file keeps the jobs, which are removed here.
  store_jobs();
  for (const auto& [id, job] : jobs_) job->observers().end("the coordinator has ended");
  // Not reported to the jobs: the coordinator itself ends their sessions.
  sessions_.streams.abandon();
  peers_.clear();
  has_changes_.clear();
  jobs_.clear();
  num_sessions_.set(0);
  num_jobs_.set(0);
  // Until the socket closes, the server still identifies itself as a coordinator, and closes every
  // session: a client must not take it for a plain store.
  store_->accept_sessions([](const os::DetachedStream&) {}, sessions_.tokens != nullptr);
  store_->drain(drain_limit_, std::exchange(on_drained_, nullptr));
}

}  // namespace elastic::host
