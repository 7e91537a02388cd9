#include "host/membership/session_succession.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/join_address.h"
#include "core/base/text.h"
#include "elastic/agent.h"
#include "os/loop/event_loop.h"
#include "os/net/address.h"

// Theory of operation. The succession machine decides; this class reports to it when the session
// has lost the coordinator (core/session/coordinator_loss.h), and executes what concerns this
// process: a coordinator that starts or ends here, and the address to which the session connects.
// The session itself keeps trying the endpoint meanwhile, so that a coordinator that answers
// again is found in any case.
//
// With voters=1 there is a machine only where the coordinator runs, and where one that ends has
// asked for a voter port (session::OpenPorts).

namespace elastic::host {
namespace {

// By core::CoordinatorWatch::Cause.
constexpr std::array kCauseNames = {"connection_closed", "silent", "handed_over"};
constexpr std::array kCauseTexts = {"closed its connections", "did not answer", "handed it over"};

}  // namespace

SessionSuccession::SessionSuccession(os::EventLoop* loop, const RendezvousOptions& options,
                                     std::string run_id, Hosting* hosting, Sink sink)
    : loop_(loop),
      options_(options),
      run_id_(std::move(run_id)),
      hosting_(hosting),
      sink_(std::move(sink)),
      loss_timer_(loop, [this] { judge_loss(); }),
      survival_line_(loop,
                     [this](const std::string& text) {
                       if (!has_ended_ && hosting_->is_serving()) sink_.log(text);
                     }),
      caller_(loop, endpoints_of(options), run_id_,
              {.met = [this](const auto& other) { feed(succession::Met{other}); },
               .all_are_here = [this] { feed(succession::EndpointsAreHere{}); }}) {
  hosting_->set_feed([this](succession::Event event) { feed(std::move(event)); });
}

Status SessionSuccession::begin(Start start) {
  tokens_ = std::move(start.tokens);
  if (options_.backend == nullptr) {
    find_witness(std::move(start.ready));
    return {};
  }
  if (Status status = open_keeper(std::move(start.address)); !status.ok()) return status;
  start.ready();
  return {};
}

void SessionSuccession::find_witness(std::function<void()> ready) {
  if (!options_.witness || !is_enabled()) return ready();
  const Endpoint& witness = *options_.witness;
  const auto use = [this, ready = std::move(ready),
                    name = core::join_address(witness.host, witness.port)](const auto& found) {
    if (found.ok()) {
      witness_ = found->front().text();
    } else {
      sink_.log("warning: the witness " + name + " cannot be found, so this node does not name " +
                "it: " + std::string(found.status().message()));
    }
    ready();
  };
  auto lookup = os::NameLookup::start(loop_, witness.host, witness.port, use);
  if (!lookup.ok()) return use(Result<std::vector<os::SocketAddress>>(lookup.status()));
  witness_lookup_ = *std::move(lookup);
}

Status SessionSuccession::open_keeper(std::function<std::string(const std::string&)> address) {
  const auto use = [this, address = std::move(address)](const std::string& known) {
    port_.address = address(known);
    port_.bind_host = store_host(options_, port_.address);
  };
  auto keeper =
      RecordKeeper::open(loop_, options_, use, [this](const auto& action) { on_action(action); });
  if (!keeper.ok()) return keeper.status();
  keeper_ = keeper->get();
  voter_ = *std::move(keeper);
  port_.ports = options_.voter_ports;
  return {};
}

void SessionSuccession::introduce(const core::NodeInfo& node, const JobSettings& settings) {
  if (std::exchange(was_introduced_, true)) return;
  port_ = {.job_id = run_id_,
           .node = node.id,
           .address = node.address,
           .bind_host = store_host(options_, node.address),
           .ports = options_.voter_ports,
           .voters = static_cast<std::size_t>(options_.voters),
           .node_timeout = settings.node_timeout,
           .store_grace = settings.store_grace,
           .tokens = tokens_};
  if (keeper_ != nullptr) return keeper_->set_node(node.id);
  if (is_enabled()) {
    if (Status fault = open_voter(true); !fault.ok()) {
      sink_.log("this node cannot keep the job's record: " + std::string(fault.message()));
    }
  }
  if (hosting_->is_host()) hosting_began();
  for (succession::Event& event : std::exchange(early_, {})) feed(std::move(event));
}

void SessionSuccession::hosting_began() {
  if (!was_introduced_ || keeper_ != nullptr) return;  // otherwise introduce() does it
  if (voter_ == nullptr) (void)open_voter(false);      // without a port nothing can fail
  feed(succession::CoordinatorStarted{hosting_->address(port_.address), true});
}

// REQUIRES: the node was introduced
Status SessionSuccession::open_voter(bool has_port) {
  JobVoter::Options options = port_;
  if (!has_port) options.address.clear();
  auto voter = JobVoter::open(loop_, options,
                              [this](const succession::Action& action) { on_action(action); });
  if (!voter.ok()) return voter.status();
  retire_voter();
  voter_ = *std::move(voter);
  if (!witness_.empty()) voter_->feed(succession::Witnesses{{witness_}});
  return {};
}

// It may be executing an action.
void SessionSuccession::retire_voter() {
  if (voter_ == nullptr) return;
  loop_->defer([retired = std::shared_ptr<JobKeeper>(std::move(voter_))] {});
}

std::optional<std::string> SessionSuccession::recorded_address() const {
  if (keeper_ == nullptr) return std::nullopt;
  return keeper_->coordinator_address();
}

Status SessionSuccession::why_unrecorded() const {
  return {StatusCode::kUnavailable, keeper_->explain()};
}

void SessionSuccession::release(std::function<void()> done) {
  if (keeper_ == nullptr) return done();
  keeper_->release(std::move(done));
}

void SessionSuccession::coordinator_absent(const std::string& address, bool is_reported) {
  if (keeper_ == nullptr) return;
  feed(succession::Unreachable{address, true, is_reported || watch_.is_closed()});
}

void SessionSuccession::session_connected() {
  const bool is_recorded = keeper_ != nullptr;
  watch_.connected(is_recorded, loop_->now());
  await_loss();
  if (is_recorded) feed(succession::IncumbentReturned{});
}

// It may have been silent for so long that it counted as lost, and answer on the old connection.
void SessionSuccession::session_active() {
  if (watch_.active(loop_->now())) feed(succession::IncumbentReturned{});
}

void SessionSuccession::feed(succession::Event event) {
  if (voter_ != nullptr) {
    voter_->feed(std::move(event));
  } else if (!was_introduced_) {
    early_.push_back(std::move(event));
  }
}

void SessionSuccession::complete(session::ClientHello* hello) const {
  if (!witness_.empty()) hello->witness = witness_;
  if (voter_ == nullptr) return;
  session::SuccessionHello own{.voter_address = voter_->address()};
  if (const auto& incumbent = voter_->incumbent()) {
    own.lineage = incumbent->lineage;
    own.is_replicated = keeper_ != nullptr || incumbent->is_replicated();
  }
  hello->succession = std::move(own);
}

// ---- The session with the coordinator.

void SessionSuccession::session_opened(std::uint64_t incarnation, std::uint64_t term,
                                       const std::string& address) {
  // A coordinator with several voters names itself in its next message.
  if (coordinator_ == nullptr || coordinator_->lineage.empty()) {
    report_coordinator({.address = address, .lineage = {}, .term = term, .voters = {}});
  }
  named_.reset();
  if (watch_.opened(incarnation, loop_->now())) feed(succession::IncumbentReturned{});
  await_loss();
}

void SessionSuccession::set_timings(Duration node_timeout, Duration store_grace) {
  feed(succession::Timings{node_timeout, store_grace});
}

void SessionSuccession::informed(const succession::Incumbent& incumbent) {
  report_coordinator(succession::describe(incumbent));
  watch_.settled();
  note_lineage(incumbent.lineage);
  feed(succession::Informed{incumbent});
  log_survival(false);
}

// A job with one voter ends with its coordinator, and its nodes may go on in another one of the id.
void SessionSuccession::note_lineage(const reg::LineageId& lineage) {
  if (voter_ == nullptr || keeper_ != nullptr || hosting_->is_serving()) return;
  const auto& known = voter_->incumbent();
  if (known && known->lineage != lineage && !known->is_replicated()) join_lineage(lineage);
}

// A machine belongs to one lineage: the next job begins with a new machine, and this node does not
// vote again in one that it has left.
void SessionSuccession::join_lineage(const reg::LineageId& lineage) {
  if (voter_ == nullptr) return;
  if (const auto& incumbent = voter_->incumbent()) former_lineages_.insert(incumbent->lineage);
  voter_->restart(lineage);
  if (!witness_.empty()) voter_->feed(succession::Witnesses{{witness_}});
  if (former_lineages_.contains(lineage)) retire_voter();
}

void SessionSuccession::displaced(const succession::Incumbent& by) {
  if (keeper_ != nullptr) return;  // the store has one job of an id
  hosting_->displaced();
  watch_.displaced();
  await_loss();
  coordinator_.reset();
  early_.clear();
  join_lineage(by.lineage);
}

void SessionSuccession::report_coordinator(CoordinatorInfo now) {
  if (coordinator_ != nullptr && *coordinator_ == now) return;
  const std::shared_ptr<const CoordinatorInfo> former = coordinator_;
  coordinator_ = std::make_shared<CoordinatorInfo>(std::move(now));
  MembershipCoordinator report{.coordinator = coordinator_, .is_here = hosting_->is_serving()};
  if (former != nullptr && former->term < coordinator_->term) {
    const auto end = watch_.end(loop_->now());
    const Duration took = std::max(loop_->now() - end.at, Duration::zero());
    const auto cause = static_cast<std::size_t>(end.cause);
    report.moved = CoordinatorMove{former->address, kCauseNames.at(cause), took};
    report.message = "the coordinator of the job is at " + coordinator_->address + " now (term " +
                     std::to_string(coordinator_->term) + "): the former one at " +
                     former->address + " " + kCauseTexts.at(cause) + "; the move took " +
                     core::duration_text(took);
  }
  sink_.coordinator(std::move(report));
}

std::string SessionSuccession::sent_elsewhere(const succession::Incumbent& successor,
                                              bool is_from_coordinator) {
  if (is_from_coordinator) watch_.handed_over(loop_->now());
  return named_.note({successor.lineage, successor.term}, successor.address, is_from_coordinator);
}

void SessionSuccession::session_closed(const JobSettings& settings, Duration round_trip) {
  if (voter_ == nullptr) return;
  watch_.closed(settings, round_trip, loop_->now());
  await_loss();
}

void SessionSuccession::session_silent(const JobSettings& settings) {
  if (voter_ == nullptr) return;
  watch_.silent(settings);
  await_loss();
}

void SessionSuccession::await_loss() {
  if (const auto due = watch_.next_deadline()) {
    loss_timer_.arm(*due);
  } else {
    loss_timer_.disarm();
  }
}

void SessionSuccession::judge_loss() {
  const bool is_lost = watch_.tick(loop_->now());
  await_loss();
  if (is_lost && voter_ != nullptr && !voter_->is_coordinator()) feed(succession::IncumbentLost{});
}

// ---- A job with one voter, whose coordinator ends.

session::OpenedPorts SessionSuccession::open_ports(const succession::Incumbent& coordinator) {
  const auto failed = [](std::string why) { return session::OpenedPorts{.error = std::move(why)}; };
  if (is_ending_) return failed("its agent ends, too");
  note_lineage(coordinator.lineage);
  const bool has_other = voter_ != nullptr && voter_->incumbent() &&
                         voter_->incumbent()->lineage != coordinator.lineage;
  if (keeper_ != nullptr || hosting_->is_serving() || has_other ||
      former_lineages_.contains(coordinator.lineage)) {
    return failed("it belongs to another lineage of the job");
  }
  if (!was_introduced_) return failed("it has not joined the job");
  if (voter_ == nullptr || voter_->address().empty()) {
    if (Status fault = open_voter(true); !fault.ok()) return failed(std::string(fault.message()));
  }
  if (Status fault = hosting_->prepare(port_.bind_host); !fault.ok()) {
    return failed(std::string(fault.message()));
  }
  feed(succession::Informed{coordinator});
  return {.address = voter_->address()};
}

// ---- Actions of the machine.

void SessionSuccession::on_action(const succession::Action& action) {
  std::visit([this](const auto& one) { this->follow(one); }, action);
}

void SessionSuccession::follow(const succession::Follow& action) {
  hosting_->on_succession(action);
  if (action.incumbent.address.empty()) return;
  watch_.handed_over(loop_->now());
  sink_.move(action.incumbent.address);
}

void SessionSuccession::follow(const succession::AnnounceAtEndpoints& action) {
  if (!has_ended_ && !is_ending_) caller_.announce(action.incumbent, tokens_);
}

void SessionSuccession::follow(const succession::Displaced& action) {
  hosting_->on_succession(action);
  const std::string& address = action.by.address;
  sink_.displace(address, "the job runs already, with the coordinator at " + address +
                              ", and continues there");
  displaced(action.by);
}

void SessionSuccession::follow(const succession::Expired& action) {
  sink_.lost(kExitCoordinatorLost, action.reason);
}

void SessionSuccession::follow(const succession::KeeperFault& action) {
  sink_.lost(action.exit_code, action.message);
}

void SessionSuccession::follow(const succession::Log& action) {
  if (!has_ended_) sink_.log(action.message);
}

void SessionSuccession::round_started(const RoundRecord& record, int rank) {
  if (keeper_ != nullptr) keeper_->set_rank(rank);
  round_.nodes = record.nodes;
  round_.min_nodes = options_.settings.min_nodes;
  round_.restarts = {record.restarts, options_.settings.max_restarts};
  log_survival(true);
}

void SessionSuccession::set_spares(int spares) {
  if (std::exchange(round_.spares, spares) != spares) log_survival(false);
}

// Every change is logged if the job has, or was configured for, several voters.
void SessionSuccession::log_survival(bool is_round) {
  const bool has_others = options_.settings.max_nodes > 1;
  if (keeper_ != nullptr || !has_others || has_ended_ || coordinator_ == nullptr ||
      !hosting_->is_serving())
    return;
  succession::SurvivalFacts facts = round_;
  facts.wants_voters = is_enabled();
  facts.voters = coordinator_->voters.size();
  facts.host = os::host_name();
  if (voter_ != nullptr) voter_->describe(&facts);
  const std::string text = succession::describe_survival(facts);
  const bool is_news = std::exchange(survival_, text) != text;
  was_replicated_ |= facts.voters > 1;
  if (is_news && (was_replicated_ || options_.voters > 1)) {
    survival_line_.set(text);
  } else if (is_round) {
    sink_.log_detail(text);
  }
}

void SessionSuccession::follow(const succession::StartCoordinator& start) {
  const Status status = hosting_->succeed(start, port_.bind_host, port_.node);
  if (status.ok()) {
    feed(succession::CoordinatorStarted{hosting_->address(port_.address), false});
  } else {
    feed(succession::CoordinatorFailed{std::string(status.message())});
  }
}

}  // namespace elastic::host
