#include "host/succession/witness_service.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>
#include <variant>
#include <vector>

#include "core/succession/voter_wire.h"
#include "os/loop/random_seed.h"

// Theory of operation. The coordinator of a job opens a connection and probes this port again and
// again. The first frame of a job creates its machine, with a node id of its own: a machine that
// was dropped and is created again has another id, and so no vote until a record names it.

namespace elastic::host {
namespace {

constexpr std::size_t kJobsMax = 4096;
// A coordinator probes a witness several times in each node_timeout.
constexpr Duration kForgetAfter = std::chrono::minutes(10);

VoterLinkLimits witness_limits() {
  VoterLinkLimits limits;
  limits.accepted_per_address_max = 256;
  limits.accepted_max = 4096;
  limits.pending_max = 512;
  return limits;
}

}  // namespace

WitnessService::WitnessService(os::EventLoop* loop, const WitnessOptions& options,
                               std::shared_ptr<TokenSource> tokens)
    : loop_(loop),
      options_(options),
      links_(loop, "", std::move(tokens), witness_limits(),
             {.on_frame = [this](VoterLinks::ConnectionId from, const std::string&,
                                 std::string_view frame) { on_frame(from, frame); },
              .on_lost = {},
              .log = [this](const std::string& message) { log(message); },
              .on_ended =
                  [this](VoterLinks::ConnectionId connection) {
                    for (auto& [id, job] : jobs_) {
                      feed(id, &job, succession::ConnectionEnded{connection});
                    }
                    arm();
                  }}),
      timer_(loop, [this] { tick(); }) {}

Result<std::unique_ptr<WitnessService>> WitnessService::open(os::EventLoop* loop,
                                                             const WitnessOptions& options) {
  std::shared_ptr<TokenSource> tokens;
  if (options.token.is_set()) {
    auto opened = TokenSource::open(options.token, options.log);
    if (!opened.ok()) return opened.status();
    tokens = *std::move(opened);
  }
  std::unique_ptr<WitnessService> self(new WitnessService(loop, options, std::move(tokens)));
  Status status = self->links_.listen(options.host, {options.port, options.port});
  if (!status.ok()) return status;
  return self;
}

void WitnessService::on_frame(VoterLinks::ConnectionId from, std::string_view frame) {
  const std::string& id = links_.job_of(from);
  Job* const job = find_or_add(id);
  if (job == nullptr) return;
  job->last_frame = loop_->now();
  feed(id, job, succession::Received{from, std::string(frame)});
  arm();
}

WitnessService::Job* WitnessService::find_or_add(const std::string& id) {
  const auto found = jobs_.find(id);
  if (found != jobs_.end()) return &found->second;
  if (id.empty() || jobs_.size() >= kJobsMax) return nullptr;
  succession::Settings settings;
  settings.job_id = id;
  settings.self = {{os::random_seed(), os::random_seed()}, ""};
  settings.is_witness = true;
  Job& job = jobs_[id];
  job.machine = std::make_unique<succession::Machine>(std::move(settings), os::random_seed());
  return &job;
}

void WitnessService::feed(const std::string& id, Job* job, const succession::Event& event) {
  std::vector<succession::Action> actions;
  job->machine->step(event, loop_->now(), &actions);
  for (const succession::Action& action : actions) {
    if (const auto* frame = std::get_if<succession::Send>(&action)) {
      links_.send(frame->connection, "", frame->frame);
    }
  }
  const auto& known = job->machine->job_register().known();
  if (!known) return;
  const std::uint64_t term = known->record.newness.term;
  if (std::exchange(job->logged_term, term) == term) return;
  log("job " + id + ": this witness keeps its record; the coordinator of term " +
      std::to_string(term) + " is " + known->record.proposer.address);
}

void WitnessService::tick() {
  const Instant now = loop_->now();
  for (auto one = jobs_.begin(); one != jobs_.end();) {
    const auto due = one->second.machine->next_deadline();
    if (due && *due <= now) feed(one->first, &one->second, succession::Tick{});
    const bool is_over = now >= one->second.last_frame + kForgetAfter;
    one = is_over ? jobs_.erase(one) : std::next(one);
  }
  arm();
}

void WitnessService::arm() {
  Instant next = Instant::max();
  for (const auto& [id, job] : jobs_) {
    next = std::min({next, job.last_frame + kForgetAfter,
                     job.machine->next_deadline().value_or(Instant::max())});
  }
  if (next == Instant::max()) return timer_.disarm();
  timer_.arm(next);
}

}  // namespace elastic::host
