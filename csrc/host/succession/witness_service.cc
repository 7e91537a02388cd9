#include "host/succession/witness_service.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>
#include <vector>

#include "os/base/process.h"
#include "os/loop/event_loop.h"
#include "os/loop/loop_object.h"

namespace elastic::host {
namespace {

constexpr std::size_t kJobsMax = 4096;

VoterLinkLimits witness_limits() {
  VoterLinkLimits limits;
  limits.accepted_per_address_max = 256;
  limits.accepted_max = 4096;
  limits.pending_max = 512;
  return limits;
}

}  // namespace

WitnessService::WitnessService(os::EventLoop* loop, const WitnessOptions& options,
                               std::shared_ptr<Tokens> tokens)
    : loop_(loop),
      options_(options),
      refusals_(options.log),
      links_(loop, "", std::move(tokens), witness_limits(),
             {.on_frame = [this](VoterLinks::ConnectionId from, const std::string&,
                                 std::string_view frame) { on_frame(from, frame); },
              .on_lost = {},
              .log = [this](const std::string& message) { log(message); },
              .on_ended = [this](VoterLinks::ConnectionId connection) { on_ended(connection); }}),
      timer_(loop, [this] { tick(); }) {}

Result<std::unique_ptr<WitnessService>> WitnessService::open(os::EventLoop* loop,
                                                             const WitnessOptions& options) {
  auto tokens = open_tokens(options.token, options.log);
  if (!tokens.ok()) return tokens.status();
  std::unique_ptr<WitnessService> self(new WitnessService(loop, options, *std::move(tokens)));
  Status status = self->links_.listen(options.host, {options.port, options.port});
  if (!status.ok()) return status;
  return self;
}

void WitnessService::on_frame(VoterLinks::ConnectionId from, std::string_view frame) {
  const std::string id = links_.job_of(from);
  if (find_or_add(id, links_.host_of(from)) == nullptr) return;
  const auto job = jobs_.find(id);
  std::vector<succession::Action> actions;
  job->second.job.receive({from, std::string(frame)}, loop_->now(), &actions);
  execute(id, actions);
  stepped(job);
  arm();
}

void WitnessService::on_ended(VoterLinks::ConnectionId connection) {
  const auto job = jobs_.find(links_.job_of(connection));
  if (job == jobs_.end()) return;
  job->second.job.connection_ended({connection}, loop_->now());
  stepped(job);
  arm();
}

void WitnessService::stepped(Jobs::iterator job) {
  if (job->second.job.is_over()) {
    remove(job);
    return;
  }
  const Instant due = job->second.job.next_deadline().value_or(Instant::max());
  if (job->second.due == due) return;
  due_.erase({job->second.due, job->first});
  if (due != Instant::max()) due_.emplace(due, job->first);
  job->second.due = due;
}

WitnessService::Jobs::iterator WitnessService::remove(Jobs::iterator job) {
  due_.erase({job->second.due, job->first});
  return jobs_.erase(job);
}

// Without a token any process can name jobs: one address may use a quarter of the limit.
succession::WitnessedJob* WitnessService::find_or_add(const std::string& id,
                                                      const std::string& beginner) {
  const auto found = jobs_.find(id);
  if (found != jobs_.end()) return &found->second.job;
  if (id.empty()) return nullptr;
  const auto of_address =
      static_cast<std::size_t>(std::count_if(jobs_.begin(), jobs_.end(), [&](const auto& one) {
        return one.second.beginner == beginner;
      }));
  const bool has_token = options_.token.is_set();
  const bool has_place = (jobs_.size() < kJobsMax || remove_idle_job("")) &&
                         (has_token || of_address < kJobsMax / 4 || remove_idle_job(beginner));
  if (!has_place) {
    refusals_.report(beginner,
                     "a job has no vote of this witness: it has " + std::to_string(jobs_.size()) +
                         " jobs, " + std::to_string(of_address) + " of them from that address",
                     loop_->now());
    return nullptr;
  }
  const Entry entry{succession::WitnessedJob(id, os::random_seed()), beginner, ++jobs_begun_};
  return &jobs_.emplace(id, entry).first->second.job;
}

// The oldest one that has never voted. `beginner`: "" stands for any.
bool WitnessService::remove_idle_job(const std::string& beginner) {
  auto oldest = jobs_.end();
  for (auto one = jobs_.begin(); one != jobs_.end(); ++one) {
    const Entry& entry = one->second;
    if (entry.job.has_voted() || (!beginner.empty() && entry.beginner != beginner)) continue;
    if (oldest == jobs_.end() || entry.serial < oldest->second.serial) oldest = one;
  }
  if (oldest == jobs_.end()) return false;
  remove(oldest);
  return true;
}

void WitnessService::execute(const std::string& id,
                             const std::vector<succession::Action>& actions) {
  for (const succession::Action& action : actions) {
    if (const auto* frame = std::get_if<succession::Send>(&action)) {
      links_.send(frame->connection, "", frame->frame);
    } else if (const auto* line = std::get_if<succession::Log>(&action)) {
      log("job " + id + ": " + line->message);
    }
  }
}

void WitnessService::tick() {
  std::vector<std::string> due;
  for (const auto& [at, id] : due_) {
    if (at > loop_->now()) break;
    due.push_back(id);
  }
  for (const std::string& id : due) {
    const auto job = jobs_.find(id);
    std::vector<succession::Action> actions;
    job->second.job.tick(loop_->now(), &actions);
    execute(id, actions);
    stepped(job);
  }
  arm();
}

void WitnessService::arm() {
  if (due_.empty()) return timer_.disarm();
  timer_.arm(due_.begin()->first);
}

}  // namespace elastic::host

namespace elastic {

class Witness::Impl {
 public:
  std::unique_ptr<os::LoopObject<host::WitnessService>> service;
};

Witness::Witness(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Witness::~Witness() = default;

Result<std::unique_ptr<Witness>> Witness::start(const WitnessOptions& options) {
  auto service = os::LoopObject<host::WitnessService>::start(
      "elastic-witness",
      [&](os::EventLoop* loop) { return host::WitnessService::open(loop, options); });
  if (!service.ok()) return service.status();
  return std::unique_ptr<Witness>(new Witness(std::make_unique<Impl>(Impl{*std::move(service)})));
}

std::uint16_t Witness::port() const { return impl_->service->object().port(); }
const std::string& Witness::host() const { return impl_->service->object().host(); }

}  // namespace elastic
