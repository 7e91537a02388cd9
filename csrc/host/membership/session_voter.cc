#include "host/membership/session_voter.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/join_address.h"
#include "core/base/text.h"
#include "core/succession/meeting.h"
#include "elastic/agent.h"
#include "os/loop/event_loop.h"
#include "os/net/address.h"

// Theory of operation. The succession machine decides; this class reports to it when the session
// has lost the coordinator (core/session/coordinator_loss.h), and executes what concerns this
// process: a coordinator that starts or ends here, and the address to which the session connects.
// The session itself keeps trying the endpoint meanwhile, so that a coordinator that answers
// again is found in any case.
//
// A job with one voter is handed over (core/session/coordinator_loss.h).

namespace elastic::host {
namespace {

// By core::CoordinatorWatch::Cause.
constexpr std::array kCauseNames = {"connection_closed", "silent", "handed_over"};
constexpr std::array kCauseTexts = {"closed its connections", "did not answer", "handed it over"};

}  // namespace

SessionVoter::SessionVoter(os::EventLoop* loop, const RendezvousOptions& options,
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
  if (!is_enabled()) return;
  hosting_->set_feed([this](succession::Event event) { feed(std::move(event)); });
}

Status SessionVoter::begin(Start start) {
  tokens_ = std::move(start.tokens);
  if (options_.backend == nullptr) {
    find_witness(std::move(start.ready));
    return {};
  }
  if (Status status = open_keeper(std::move(start.address)); !status.ok()) return status;
  start.ready();
  return {};
}

void SessionVoter::find_witness(std::function<void()> ready) {
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

Status SessionVoter::open_keeper(std::function<std::string(const std::string&)> address) {
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

void SessionVoter::introduce(const core::NodeInfo& node, const JobSettings& settings) {
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
  if (!is_enabled()) return early_.clear();
  auto voter =
      JobVoter::open(loop_, port_, [this](const succession::Action& action) { on_action(action); });
  if (!voter.ok()) {
    sink_.log("this node cannot keep the job's record: " + std::string(voter.status().message()));
    return;
  }
  voter_ = *std::move(voter);
  if (!witness_.empty()) voter_->feed(succession::Witnesses{{witness_}});
  if (hosting_->is_host()) {
    voter_->feed(succession::CoordinatorStarted{hosting_->address(port_.address), true});
  }
  for (succession::Event& event : std::exchange(early_, {})) voter_->feed(std::move(event));
}

void SessionVoter::hosting_began() {
  if (voter_ == nullptr || keeper_ != nullptr) return;  // otherwise introduce() does it
  feed(succession::CoordinatorStarted{hosting_->address(port_.address), true});
}

std::optional<std::string> SessionVoter::recorded_address() const {
  if (keeper_ == nullptr) return std::nullopt;
  return keeper_->coordinator_address();
}

Status SessionVoter::why_unrecorded() const {
  return {StatusCode::kUnavailable, keeper_->explain()};
}

void SessionVoter::release(std::function<void()> done) {
  if (keeper_ == nullptr) return done();
  keeper_->release(std::move(done));
}

void SessionVoter::coordinator_absent(const std::string& address, bool is_reported) {
  if (keeper_ == nullptr) return;
  feed(succession::Unreachable{address, true, is_reported || watch_.is_closed()});
}

void SessionVoter::session_connected() {
  const bool is_recorded = keeper_ != nullptr;
  watch_.connected(is_recorded, loop_->now());
  await_loss();
  if (is_recorded) feed(succession::IncumbentReturned{});
}

// It may have been silent for so long that it counted as lost, and answer on the old connection.
void SessionVoter::session_active() {
  if (watch_.active(loop_->now())) feed(succession::IncumbentReturned{});
}

void SessionVoter::feed(succession::Event event) {
  if (voter_ != nullptr) {
    voter_->feed(std::move(event));
  } else if (!was_introduced_) {
    early_.push_back(std::move(event));
  } else if (const auto* met = std::get_if<succession::Met>(&event)) {
    // Without a machine the job has no record.
    const bool is_theirs =
        succession::meet(std::nullopt, met->incumbent) == succession::Meeting::kTheirs;
    if (is_theirs) on_action(succession::Displaced{met->incumbent});
  }
}

void SessionVoter::complete(session::ClientHello* hello) const {
  hello->successor = hand_over_.named();
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

std::optional<session::TakenOver> SessionVoter::session_opened(std::uint64_t incarnation,
                                                               std::uint64_t term,
                                                               const std::string& address) {
  // A coordinator with several voters names itself in its next message.
  if (coordinator_ == nullptr || coordinator_->lineage.empty()) {
    report_coordinator({.address = address, .lineage = {}, .term = term, .voters = {}});
  }
  carry_out(hand_over_.connected(watch_.is_last(incarnation)));
  if (watch_.opened(incarnation, loop_->now())) feed(succession::IncumbentReturned{});
  await_loss();
  return repeat_taken_over();
}

void SessionVoter::set_timings(Duration node_timeout, Duration store_grace) {
  feed(succession::Timings{node_timeout, store_grace});
}

void SessionVoter::informed(const succession::Incumbent& incumbent) {
  report_coordinator(succession::describe(incumbent));
  watch_.settled();
  feed(succession::Informed{incumbent});
  log_survival(false);
}

// A machine belongs to one lineage: the next job begins with a new machine.
void SessionVoter::displaced(const succession::Incumbent& by) {
  if (keeper_ != nullptr) return;  // the store has one job of an id
  hosting_->displaced();
  watch_.displaced();
  await_loss();
  coordinator_.reset();
  early_.clear();
  if (voter_ == nullptr) return;
  if (const auto& incumbent = voter_->incumbent()) {
    former_lineages_.insert(incumbent->lineage);
  }
  voter_->restart(by.lineage);
  if (!witness_.empty()) voter_->feed(succession::Witnesses{{witness_}});
  if (!former_lineages_.contains(by.lineage)) return;
  loop_->defer([retired = std::shared_ptr<JobKeeper>(std::move(voter_))] {});
}

void SessionVoter::report_coordinator(CoordinatorInfo now) {
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

std::string SessionVoter::sent_elsewhere(const session::Incumbent& successor,
                                         bool is_from_coordinator) {
  if (is_from_coordinator) watch_.handed_over(loop_->now());
  auto directed = hand_over_.directed(successor.incumbent, is_from_coordinator);
  carry_out(directed.order);
  const bool is_named = directed.order == core::HandOverMember::Order::kRun;
  if (is_named && successor.left) hosting_->note_left(*successor.left);
  return std::move(directed.address);
}

void SessionVoter::session_closed(const JobSettings& settings, Duration round_trip) {
  carry_out(hand_over_.closed());
  if (voter_ == nullptr) return;
  watch_.closed(settings, round_trip, loop_->now());
  await_loss();
}

void SessionVoter::session_silent(const JobSettings& settings) {
  if (voter_ == nullptr) return;
  watch_.silent(settings);
  await_loss();
}

void SessionVoter::await_loss() {
  if (const auto due = watch_.next_deadline()) {
    loss_timer_.arm(*due);
  } else {
    loss_timer_.disarm();
  }
}

void SessionVoter::judge_loss() {
  const bool is_lost = watch_.tick(loop_->now());
  await_loss();
  if (is_lost && !voter_->is_coordinator()) feed(succession::IncumbentLost{});
}

// ---- A job with one voter, whose coordinator ends.

std::optional<session::TakenOver> SessionVoter::take_over(const session::TakeOver& offer) {
  const bool has_lineage = hosting_->is_serving() || (voter_ != nullptr && voter_->incumbent());
  auto answer = hand_over_.asked(offer, {.is_ending = is_ending_, .has_lineage = has_lineage});
  if (auto* const reply = std::get_if<session::TakenOver>(&answer)) return std::move(*reply);
  if (const auto* start = std::get_if<succession::StartCoordinator>(&answer)) {
    const auto runs =
        hosting_->keep_offer(*start, port_.bind_host, port_.node, [this] { run_taken_over(); });
    if (!runs.ok()) return session::TakenOver{.error = std::string(runs.status().message())};
    const succession::Successor job{start->lineage, start->term};
    hand_over_.kept(job, *runs);
    if (*runs) announce_taken_over(job);
  }
  return repeat_taken_over();
}

std::optional<session::TakenOver> SessionVoter::repeat_taken_over() const {
  if (!hand_over_.job()) return std::nullopt;
  return session::TakenOver{.address = hosting_->address(port_.address)};
}

void SessionVoter::carry_out(core::HandOverMember::Order order) {
  using Order = core::HandOverMember::Order;
  if (order == Order::kRun) {
    run_taken_over();
    hand_over_.settle();
  } else if (order == Order::kDrop) {
    if (!hosting_->drop_offer()) return;
    hand_over_.settle();
    sink_.log("this node does not run the job's coordinator: the former one has ended without it");
  } else if (order == Order::kLogWait) {
    sink_.log(
        "this node was asked to run the job's coordinator: it waits until the former one, or "
        "a node that was sent here, confirms that");
  }
}

// This node was named as the successor.
void SessionVoter::run_taken_over() {
  const auto job = hand_over_.begin();
  if (!job) return;
  hosting_->begin_offer();
  announce_taken_over(*job);
}

void SessionVoter::announce_taken_over(const succession::Successor& job) {
  if (voter_ == nullptr) {  // only to announce the coordinator at the endpoints
    JobVoter::Options without_port = port_;
    without_port.address.clear();
    without_port.voters = 1;
    auto voter = JobVoter::open(loop_, without_port,
                                [this](const succession::Action& action) { on_action(action); });
    if (voter.ok()) voter_ = *std::move(voter);
  }
  const std::string address = hosting_->address(port_.address);
  feed(succession::CoordinatorStarted{address, true, job.lineage, job.term});
}

// ---- Actions of the machine.

void SessionVoter::on_action(const succession::Action& action) {
  if (const auto* start = std::get_if<succession::StartCoordinator>(&action)) {
    start_coordinator(*start);
  } else if (const auto* follow = std::get_if<succession::Follow>(&action)) {
    hosting_->on_succession(action);
    if (follow->incumbent.address.empty()) return;
    watch_.handed_over(loop_->now());
    sink_.move(follow->incumbent.address);
  } else if (const auto* announce = std::get_if<succession::AnnounceAtEndpoints>(&action)) {
    if (!has_ended_ && !is_ending_) caller_.announce(announce->incumbent, tokens_);
  } else if (const auto* met = std::get_if<succession::Displaced>(&action)) {
    hosting_->on_succession(action);
    sink_.displace(met->by.address, "the job runs already, with the coordinator at " +
                                        met->by.address + ", and continues there");
    displaced(met->by);
  } else if (const auto* expired = std::get_if<succession::Expired>(&action)) {
    sink_.lost(kExitCoordinatorLost, expired->reason);
  } else if (const auto* fault = std::get_if<succession::KeeperFault>(&action)) {
    sink_.lost(fault->exit_code, fault->message);
  } else if (const auto* line = std::get_if<succession::Log>(&action)) {
    if (!has_ended_) sink_.log(line->message);
  } else {
    hosting_->on_succession(action);
  }
}

void SessionVoter::round_started(const RoundRecord& record, int rank) {
  if (keeper_ != nullptr) keeper_->set_rank(rank);
  round_.nodes = record.nodes;
  round_.min_nodes = options_.settings.min_nodes;
  round_.restarts = {record.restarts, options_.settings.max_restarts};
  log_survival(true);
}

void SessionVoter::set_spares(int spares) {
  if (std::exchange(round_.spares, spares) != spares) log_survival(false);
}

// Every change is logged if the job has, or was configured for, several voters.
void SessionVoter::log_survival(bool is_round) {
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

void SessionVoter::start_coordinator(const succession::StartCoordinator& start) {
  const Status status = hosting_->succeed(start, port_.bind_host, port_.node);
  if (status.ok()) {
    feed(succession::CoordinatorStarted{hosting_->address(port_.address), false});
  } else {
    feed(succession::CoordinatorFailed{std::string(status.message())});
  }
}

}  // namespace elastic::host
