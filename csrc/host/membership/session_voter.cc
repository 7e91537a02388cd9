#include "host/membership/session_voter.h"

#include <algorithm>
#include <utility>

#include "core/base/duration_text.h"
#include "host/membership/node_identity.h"
#include "os/net/address.h"

// Theory of operation. The succession machine decides; this class tells it when the session has
// lost the coordinator, and executes what concerns this process: a coordinator that starts or ends
// here, and the address to which the session connects. The session itself goes on trying the
// endpoint meanwhile, so that a coordinator that answers again is found in any case.

namespace elastic::host {
namespace {

// Detecting the loss, connecting, identifying the server, hello: three round trips and a margin.
constexpr int kRoundTripsToResume = 6;

}  // namespace

SessionVoter::SessionVoter(os::EventLoop* loop, const RendezvousOptions& options,
                           std::string run_id, Hosting* hosting, Sink sink)
    : loop_(loop),
      options_(options),
      run_id_(std::move(run_id)),
      hosting_(hosting),
      sink_(std::move(sink)),
      loss_timer_(loop, [this] { judge_loss(); }) {}

void SessionVoter::open(const NodeInfo& node, const JobSettings& settings,
                        std::shared_ptr<TokenSource> tokens) {
  if (!is_enabled(options_) || std::exchange(was_opened_, true)) return;
  node_ = node.id;
  address_ = node.address;
  bind_host_ = store_host(options_, node.address);
  auto voter = JobVoter::open(loop_,
                              {.job_id = run_id_,
                               .node = node.id,
                               .address = node.address,
                               .bind_host = bind_host_,
                               .ports = options_.voter_ports,
                               .voters = static_cast<std::size_t>(options_.voters),
                               .node_timeout = settings.node_timeout,
                               .store_grace = settings.store_grace,
                               .tokens = std::move(tokens)},
                              [this](const succession::Action& action) { on_action(action); });
  if (!voter.ok()) {
    sink_.log("this node cannot keep the job's record: " + std::string(voter.status().message()));
    return;
  }
  voter_ = *std::move(voter);
  if (hosting_->is_host()) {
    voter_->feed(succession::CoordinatorStarted{hosting_->address(address_), true});
  }
  for (succession::Event& event : std::exchange(early_, {})) voter_->feed(std::move(event));
}

void SessionVoter::feed(succession::Event event) {
  if (voter_ != nullptr) {
    voter_->feed(std::move(event));
  } else if (!was_opened_) {
    early_.push_back(std::move(event));
  }
}

std::optional<session::SuccessionHello> SessionVoter::hello() const {
  if (voter_ == nullptr) return std::nullopt;
  session::SuccessionHello hello{.voter_address = voter_->address()};
  if (const auto& incumbent = voter_->machine().incumbent()) {
    hello.lineage = incumbent->lineage;
    hello.is_replicated = incumbent->is_replicated();
  }
  return hello;
}

// ---- The session with the coordinator.

void SessionVoter::session_opened(std::uint64_t incarnation) {
  is_closed_ = false;
  loss_timer_.disarm();
  const bool is_same = std::exchange(incarnation_, incarnation) == incarnation;
  if (std::exchange(is_lost_, false) && is_same) feed(succession::IncumbentReturned{});
}

void SessionVoter::session_closed(const JobSettings& settings, Duration round_trip) {
  if (voter_ == nullptr) return;
  is_closed_ = true;
  ended_ = loop_->now();
  const Duration grace = std::max(settings.reconnect_grace, round_trip * kRoundTripsToResume);
  loss_timer_.arm(add_saturating(loop_->now(), grace));
}

void SessionVoter::session_silent(const JobSettings& settings) {
  if (voter_ == nullptr || is_closed_ || loss_timer_.armed()) return;
  silence_max_ = settings.node_timeout;
  loss_timer_.arm(add_saturating(last_active_, silence_max_));
}

void SessionVoter::judge_loss() {
  if (!is_closed_) {
    const Instant due = add_saturating(last_active_, silence_max_);
    if (loop_->now() < due) return;  // it has answered; a further silence arms the timer again
    ended_ = last_active_;
  }
  if (std::exchange(is_lost_, true) || voter_->machine().is_coordinator()) return;
  feed(succession::IncumbentLost{});
}

// ---- Actions of the machine.

void SessionVoter::on_action(const succession::Action& action) {
  if (const auto* start = std::get_if<succession::StartCoordinator>(&action)) {
    start_coordinator(*start);
  } else if (const auto* follow = std::get_if<succession::Follow>(&action)) {
    hosting_->on_succession(action);
    if (follow->incumbent.address.empty()) return;
    log_move(follow->incumbent);
    sink_.move(follow->incumbent.address);
  } else if (const auto* expired = std::get_if<succession::Expired>(&action)) {
    sink_.lost(expired->reason);
  } else if (const auto* line = std::get_if<succession::Log>(&action)) {
    if (!has_ended_) sink_.log(line->message);
  } else {
    hosting_->on_succession(action);
    if (std::holds_alternative<succession::Inform>(action)) log_survival();
  }
}

void SessionVoter::log_move(const succession::Incumbent& incumbent) const {
  const std::string why =
      !is_lost_ ? "it was handed over"
                : std::string(is_closed_ ? "the former one closed its connections "
                                         : "the last message of the former one arrived ") +
                      core::duration_text(loop_->now() - ended_) + " ago";
  sink_.log("the coordinator of the job is at " + incumbent.address + " now (term " +
            std::to_string(incumbent.term) + "): " + why);
}

void SessionVoter::log_survival() {
  if (voter_ == nullptr || !hosting_->is_serving()) return;
  const std::string text = voter_->machine().describe_survival();
  if (std::exchange(survival_, text) != text) sink_.log(text);
}

void SessionVoter::start_coordinator(const succession::StartCoordinator& start) {
  const Status status = hosting_->succeed(start, bind_host_, node_);
  if (status.ok()) {
    feed(succession::CoordinatorStarted{hosting_->address(address_), false});
  } else {
    feed(succession::CoordinatorFailed{std::string(status.message())});
  }
}

}  // namespace elastic::host
