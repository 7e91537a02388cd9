#include "host/succession/job_voter.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/join_address.h"
#include "os/base/process.h"
#include "os/loop/event_loop.h"

namespace elastic::host {
namespace {

VoterLinkLimits limits_of(const JobVoter::Options& options) {
  VoterLinkLimits limits;
  limits.silence_max = options.node_timeout;
  return limits;
}

}  // namespace

JobVoter::JobVoter(os::EventLoop* loop, const Options& options, Sink sink)
    : JobKeeper(loop, std::move(sink)),
      links_(loop, options.job_id, options.tokens, limits_of(options),
             {.on_frame =
                  [this](VoterLinks::ConnectionId from, const std::string& address,
                         std::string_view frame) {
                    feed(succession::Received{from, std::string(frame), address});
                  },
              .on_lost = [this](const std::string& address,
                                const Status&) { feed(succession::Unreachable{address}); },
              .log = [this](const std::string& message) { pass_on(succession::Log{message}); },
              .on_ended =
                  [this](VoterLinks::ConnectionId connection) {
                    feed(succession::ConnectionEnded{connection});
                  }}) {}

JobVoter::~JobVoter() = default;

Result<std::unique_ptr<JobVoter>> JobVoter::open(os::EventLoop* loop, const Options& options,
                                                 Sink sink) {
  std::unique_ptr<JobVoter> self(new JobVoter(loop, options, std::move(sink)));
  const bool has_port = !options.address.empty();
  if (has_port) {
    Status opened = self->links_.listen(options.bind_host, options.ports);
    if (!opened.ok()) return opened.with_context("cannot open the voter port");
    self->address_ = core::join_address(options.address, self->links_.port());
  }
  succession::Settings& settings = self->settings_;
  settings.job_id = options.job_id;
  settings.self = {options.node, self->address_};
  settings.is_standalone = !has_port;
  settings.reg.voters = options.voters;
  settings.reg.store_grace = options.store_grace;
  settings.node_timeout = options.node_timeout;
  self->begin();
  return self;
}

void JobVoter::restart(const reg::LineageId& lineage) {
  settings_.lineage = lineage;
  begin();
}

void JobVoter::describe(succession::SurvivalFacts* facts) const {
  facts->unreached = machine_->unreached_voters();
  facts->unreached_witnesses = machine_->unreached_witnesses();
  facts->has_witness = machine_->has_witness();
  facts->lost = std::min(machine_->num_lost_voters(), facts->voters);
}

void JobVoter::begin() {
  forget_steps();  // about the former job
  machine_ = std::make_unique<succession::VoterKeeper>(settings_, os::random_seed());
}

void JobVoter::feed(succession::Event event) {
  if (const auto* timings = std::get_if<succession::Timings>(&event)) {
    links_.set_silence_max(timings->node_timeout);
  }
  JobKeeper::feed(std::move(event));
}

void JobVoter::execute(const succession::Action& action) {
  if (const auto* frame = std::get_if<succession::Send>(&action)) {
    links_.send(frame->connection, frame->address, frame->frame);
  } else {
    pass_on(action);
  }
}

}  // namespace elastic::host
