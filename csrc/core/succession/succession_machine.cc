// Theory of operation. The register decides who coordinates; this machine connects it to a process.
//
// As the coordinator: nodes are probed at their voter ports, and those that answer are the
// register's candidates. The lineage begins with this process as its only voter, so that its first
// record is in force without a message; the register then replaces that voter by several, which
// needs both sides. The content that is open is compared with what comes into force, because a
// change of voters can carry it.
//
// As a node: who coordinates is learned from the session (Informed), from the new coordinator
// (Announce), or from a voter (the reply to Query); the highest term counts. A node that has lost
// its coordinator reports that to the register, which stands if this node is a voter, and asks the
// voters until it receives a successor. A successor that was announced and is not reached within
// follow_timeout counts as lost too.

#include "core/succession/succession_machine.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "core/succession/survival.h"

namespace elastic::succession {
namespace {

// "10.0.0.7:4711" -> "10.0.0.7", "[::1]:4711" -> "::1".
std::string host_of(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  return host.starts_with('[') ? host.substr(1, host.size() - 2) : host;
}

reg::RegisterSettings register_settings(const Settings& settings) {
  reg::RegisterSettings all = settings.reg;
  all.is_candidate = !settings.is_witness;
  return all;
}

}  // namespace

Machine::Machine(Settings settings, std::uint64_t seed)
    : settings_(std::move(settings)),
      register_(settings_.self, register_settings(settings_), seed),
      rng_(seed ^ 0x9E3779B97F4A7C15ULL) {}

void Machine::step(const Event& event, Instant now, std::vector<Action>* actions) {
  now_ = std::max(now_, now);
  out_ = actions;
  std::visit([this](const auto& one) { on(one); }, event);
  out_ = nullptr;
}

std::optional<Instant> Machine::next_deadline() const {
  Instant next = register_.next_deadline().value_or(Instant::max());
  for (const RepeatedTo* all : {&probed_, &announced_}) {
    for (const auto& [node, one] : *all) {
      if (!one.is_done) next = std::min(next, one.next);
    }
  }
  if (ending_) next = std::min(next, ending_->deadline);
  if (follow_until_) next = std::min(next, *follow_until_);
  if (ask_at_) next = std::min(next, *ask_at_);
  if (majority_log_at_) next = std::min(next, *majority_log_at_);
  if (is_started_ && resume_until_ != Instant::min()) next = std::min(next, resume_until_);
  if (lost_at_) next = std::min(next, *lost_at_);
  if (is_started_) {
    for (const auto& [address, witness] : witnesses_) next = std::min(next, witness.next);
  }
  if (next == Instant::max()) return std::nullopt;
  return next;
}

std::string Machine::unreached_voters() const {
  std::string all;
  for (const reg::VoterCandidate& one : candidates()) {
    if (one.is_reachable || one.kind == reg::VoterCandidate::Kind::kWitness) continue;
    all += (all.empty() ? "" : ", ") + one.voter.address;
  }
  return all;
}

std::string Machine::unreached_witnesses() const {
  std::string all;
  for (const auto& [address, witness] : witnesses_) {
    if (!witness.is_reachable) all += (all.empty() ? "" : ", ") + address;
  }
  return all;
}

// ---- Events of the session.

void Machine::on(const Informed& event) {
  if (!learn(event.incumbent) && incumbent_ && incumbent_->node != event.incumbent.node) return;
  session_with_ = event.incumbent.node;
  set_lost(false);
  follow_until_.reset();
  if (incumbent_) incumbent_->voters = event.incumbent.voters;
  feed(reg::IncumbentReturned{event.incumbent.node});
}

void Machine::on(const IncumbentLost&) {
  if (!incumbent_ || session_with_ == NodeId{}) return;
  set_lost(true);
  feed(reg::IncumbentLost{session_with_});
  if (incumbent_->node != session_with_ && !follow_until_) {
    follow_until_ = add_saturating(now_, settings_.follow_timeout);
  }
}

void Machine::on(const IncumbentReturned&) {
  if (session_with_ == NodeId{} || !incumbent_ || incumbent_->node != session_with_) return;
  set_lost(false);
  feed(reg::IncumbentReturned{session_with_});
}

void Machine::set_lost(bool is_lost) {
  if (std::exchange(is_lost_, is_lost) == is_lost) return;
  ask_wait_ = settings_.repeat_interval;
  ask_at_.reset();
  if (is_lost) ask_at_ = add_saturating(now_, ask_wait_);
}

void Machine::ask_voters() {
  ask_at_.reset();
  if (!is_lost_ || !incumbent_) return;
  for (const reg::Voter& voter : incumbent_->voters) {
    if (voter.node != settings_.self.node) {
      send(voter.node, voter.address, Query{incumbent_->term});
    }
  }
  ask_wait_ = std::min(2 * ask_wait_, settings_.repeat_interval_max);
  ask_at_ = add_saturating(now_, ask_wait_);
}

// Returns whether the incumbent is another one than before, or has moved.
bool Machine::learn(const Incumbent& incumbent) {
  if (incumbent.term == 0) return false;
  if (incumbent_ && incumbent_->lineage != incumbent.lineage) return false;
  if (incumbent_ && incumbent.term < incumbent_->term) return false;
  const bool is_new = !incumbent_ || incumbent.term > incumbent_->term;
  if (!incumbent_) feed(reg::Joined{incumbent.lineage});
  const bool has_address = !incumbent.address.empty();
  if (is_new) {
    incumbent_ = incumbent;
  } else {
    if (!incumbent.voters.empty()) incumbent_->voters = incumbent.voters;
    if (has_address) incumbent_->address = incumbent.address;
  }
  if (is_new && ending_ && has_address && incumbent.node != settings_.self.node) {
    stop_service(ending_->reason);
  }
  return is_new;
}

// The own session goes to the incumbent, once for each term.
void Machine::follow() {
  if (settings_.is_standalone || incumbent_->address.empty()) return;
  if (session_with_ == incumbent_->node && !is_lost_) return;
  if (std::exchange(followed_, incumbent_->term) == incumbent_->term) return;
  follow_until_ = add_saturating(now_, settings_.follow_timeout);
  emit(Follow{*incumbent_});
}

// ---- Frames.

void Machine::on(const Received& event) {
  const Result<VoterFrame> frame = decode_frame(event.frame);
  if (!frame.ok() || frame->job_id != settings_.job_id || frame->from == settings_.self.node) {
    return;
  }
  if (frame->to != NodeId{} && frame->to != settings_.self.node) return;
  last_connection_[frame->from] = event.connection;
  const bool is_reply = std::holds_alternative<ProbeReply>(frame->body);
  if (is_reply && witnesses_.contains(event.address)) {
    return receive_from_witness(event.address, frame->from);
  }
  std::visit([&](const auto& body) { receive(*frame, body); }, frame->body);
  if (settings_.is_witness) watch_incumbent(frame->from);
}

void Machine::receive(const VoterFrame& frame, const reg::Message& message) {
  if (message.from == frame.from) feed(reg::Received{message});
}

void Machine::receive(const VoterFrame& frame, const Probe&) { send(frame.from, {}, ProbeReply{}); }

void Machine::receive(const VoterFrame& frame, const ProbeReply&) {
  const auto found = probed_.find(frame.from);
  if (found == probed_.end() || std::exchange(found->second.is_done, true)) return;
  resumed_.insert(frame.from);
  update_candidates();
}

void Machine::receive(const VoterFrame&, const Announce& message) {
  const Incumbent& incumbent = message.incumbent;
  if (incumbent.node == settings_.self.node) return;
  learn(incumbent);
  if (!incumbent_ || incumbent_->lineage != incumbent.lineage) return;
  if (incumbent_->term != incumbent.term || incumbent_->node != incumbent.node) return;
  feed(reg::LaterTerm{incumbent.term});
  follow();
}

void Machine::receive(const VoterFrame& frame, const Query& message) {
  if (!incumbent_ || incumbent_->address.empty() || is_lost_) return;
  if (incumbent_->term >= message.term) send(frame.from, {}, Announce{*incumbent_});
}

void Machine::on(const Unreachable& event) {
  bool has_changed = false;
  const auto witness = witnesses_.find(event.address);
  if (witness != witnesses_.end() && std::exchange(witness->second.is_reachable, false)) {
    witness->second.next = now_;
    witness->second.wait = settings_.repeat_interval;
    has_changed = true;
  }
  for (auto& [node, one] : probed_) {
    if (one.address != event.address || !one.is_done) continue;
    one = repeated(event.address);
    one.next = add_saturating(now_, one.wait);
    has_changed = true;
  }
  if (has_changed) update_candidates();
}

// ---- The coordinator of this process.

void Machine::on(const CoordinatorStarted& event) {
  is_started_ = true;
  service_ = event.address;
  for (auto& [address, witness] : witnesses_) witness.next = now_;
  probe_witnesses();
  if (event.is_first || !is_coordinator()) return;
  incumbent_->address = event.address;
  // Announced to the record's nodes, including this process's own session.
  const auto record = decode_record(register_.known()->record.content.bytes);
  if (record.ok()) announce_to(*record);
  inform();
  follow();
}

void Machine::announce_to(const JobRecord& record) {
  announced_.clear();
  announce_until_ = add_saturating(now_, settings_.reg.store_grace);
  for (const RecordedNode& one : record.nodes) {
    if (one.node != settings_.self.node) announced_[one.node] = repeated(one.voter_address);
  }
  // Its node may have left the job; its process waits for the address to direct clients to.
  if (!former_address_.empty()) announced_[former_incumbent_] = repeated(former_address_);
  repeat(announced_, Announce{*incumbent_});
}

void Machine::on(const CoordinatorFailed& event) {
  is_started_ = false;
  emit(Log{"the coordinator that this node was elected to run could not be started: " +
           event.reason});
  feed(reg::StepDown{});
}

void Machine::on(const Nodes& event) {
  nodes_ = event.nodes;
  std::set<NodeId> present;
  for (const KnownNode& one : nodes_) {
    if (one.is_connected && announced_.contains(one.node)) announced_[one.node].is_done = true;
    if (one.node == settings_.self.node || one.voter_address.empty()) continue;
    present.insert(one.node);
    const auto found = probed_.find(one.node);
    if (found == probed_.end() || found->second.address != one.voter_address) {
      probed_[one.node] = repeated(one.voter_address);
    }
  }
  std::erase_if(probed_, [&](const auto& entry) { return !present.contains(entry.first); });
  repeat(probed_, Probe{});
  update_candidates();
}

std::vector<reg::VoterCandidate> Machine::candidates() const {
  std::vector<reg::VoterCandidate> all;
  for (const KnownNode& one : nodes_) {
    const bool is_self = one.node == settings_.self.node;
    const auto probe = probed_.find(one.node);
    const bool has_answered = probe != probed_.end() && probe->second.is_done;
    if (!is_self && !resumed_.contains(one.node) && now_ < resume_until_) continue;
    const std::string& address = is_self ? settings_.self.address : one.voter_address;
    if (address.empty()) continue;
    all.push_back(
        {.voter = {one.node, address},
         .host = one.host,
         .topology = one.topology,
         .kind = one.kind,
         // After an election a voter that answers has not resumed its session yet.
         .is_reachable = is_self || (has_answered && (one.is_connected || now_ < resume_until_))});
  }
  for (const auto& [address, witness] : witnesses_) {
    if (witness.node == NodeId{} && now_ < resume_until_) continue;
    all.push_back({.voter = {witness.node, address},
                   .host = host_of(address),
                   .topology = {},
                   .kind = reg::VoterCandidate::Kind::kWitness,
                   .is_reachable = witness.is_reachable});
  }
  if (!register_.known() || now_ >= resume_until_) return all;
  for (const reg::Voter& voter : register_.known()->record.voters) {
    if (resumed_.contains(voter.node) || voter.node == former_incumbent_) continue;
    const bool is_listed = std::any_of(
        all.begin(), all.end(), [&](const auto& one) { return one.voter.node == voter.node; });
    if (is_listed) continue;
    all.push_back({.voter = voter,
                   .host = host_of(voter.address),
                   .topology = {},
                   .kind = reg::VoterCandidate::Kind::kMember,
                   .is_reachable = true});
  }
  return all;
}

void Machine::update_candidates() {
  if (!is_started_) return;
  if (register_.known()) {
    feed(reg::CandidatesChanged{candidates()});
  } else {
    turn_on_as_needed();
  }
}

void Machine::turn_on_as_needed() {
  if (was_turned_on_) return;
  const auto voters =
      reg::choose_voters(candidates(), {}, settings_.self.node, {settings_.reg.voters, true});
  if (voters.size() < kVotersNeeded) return;
  was_turned_on_ = true;
  emit(TurnOn{});
}

void Machine::on(const Propose& event) {
  open_ = event;
  if (!register_.known()) {
    begin(event);
  } else if (register_.can_propose()) {
    feed(reg::Propose{event.content});
  }
  // Otherwise this process is not the coordinator any more, and StopCoordinator follows.
}

void Machine::begin(const Propose& event) {
  const reg::LineageId lineage{rng_.next(), rng_.next()};
  incumbent_ = Incumbent{.lineage = lineage,
                         .term = 1,
                         .node = settings_.self.node,
                         .address = service_,
                         .voters = {settings_.self}};
  session_with_ = settings_.self.node;
  feed(reg::CandidatesChanged{{{.voter = settings_.self,
                                .host = {},
                                .topology = {},
                                .kind = reg::VoterCandidate::Kind::kMember,
                                .is_reachable = true}}});
  feed(reg::Begin{lineage, event.content});
  feed(reg::CandidatesChanged{candidates()});
}

void Machine::inform() { emit(Inform{*incumbent_}); }

void Machine::on(const LaterTermSeen& event) { feed(reg::LaterTerm{event.term}); }

void Machine::on(const Resign&) {
  const auto successor = choose_successor();
  if (is_coordinator() && successor) {
    emit(Log{"the coordinator hands the job over to the voter at " + successor->address});
    feed(reg::Resign{*successor});
    ending_ =
        Ending{"the coordinator ended in order", add_saturating(now_, settings_.handover_timeout)};
  } else if (!ending_) {
    stop_service("the coordinator ended");
  }
}

std::optional<reg::Voter> Machine::choose_successor() const {
  if (!register_.known()) return std::nullopt;
  const auto all = candidates();
  for (const reg::Voter& voter : register_.known()->record.voters) {
    const bool is_reachable = std::any_of(all.begin(), all.end(), [&](const auto& one) {
      return one.voter.node == voter.node && one.is_reachable;
    });
    const bool is_witness = witnesses_.contains(voter.address);
    if (is_reachable && !is_witness && voter.node != settings_.self.node) return voter;
  }
  return std::nullopt;
}

// By value: the reason may be a part of what is reset here.
void Machine::stop_service(std::string reason) {
  ending_.reset();
  majority_log_at_.reset();
  resume_until_ = Instant::min();
  probed_.clear();
  announced_.clear();
  nodes_.clear();
  open_.reset();
  service_.clear();
  if (!std::exchange(is_started_, false)) return;
  const bool has_successor =
      incumbent_ && incumbent_->node != settings_.self.node && !incumbent_->address.empty();
  emit(StopCoordinator{std::move(reason), has_successor ? incumbent_ : std::nullopt});
}

// ---- The register.

// An action may feed a further event, whose actions follow those of the first one.
void Machine::feed(const reg::Event& event) {
  std::vector<reg::Action> actions;
  register_.step(event, now_, &actions);
  std::move(actions.begin(), actions.end(), std::back_inserter(register_actions_));
  if (std::exchange(is_executing_, true)) return;
  while (!register_actions_.empty()) {
    const reg::Action action = std::move(register_actions_.front());
    register_actions_.pop_front();
    std::visit([this](const auto& one) { execute(one); }, action);
  }
  is_executing_ = false;
  watch_elected();
}

// A coordinator whose record this voter has accepted announces itself, unless it is lost before.
void Machine::watch_elected() {
  if (settings_.is_witness) return;
  const auto& elected = register_.incumbent();
  if (!elected || elected->node == settings_.self.node || elected->node == session_with_) return;
  if (std::exchange(watched_, elected->node) == elected->node) return;
  follow_until_ = add_saturating(now_, settings_.follow_timeout);
}

void Machine::execute(const reg::Send& action) {
  send(action.message.to, action.address, action.message);
}

void Machine::execute(const reg::Persist&) { emit(Persist{}); }

void Machine::execute(const reg::Elected& action) {
  const reg::Record& record = action.record;
  auto job = decode_record(record.content.bytes);
  if (!job.ok()) {
    emit(Log{std::string(job.status().message())});
    feed(reg::StepDown{});
    return;
  }
  const bool has_former = incumbent_ && incumbent_->node != settings_.self.node;
  const NodeId former = has_former ? incumbent_->node : NodeId{};
  const NodeId lost = is_lost_ ? former : NodeId{};
  incumbent_ = Incumbent{.lineage = record.lineage,
                         .term = record.newness.term,
                         .node = settings_.self.node,
                         .address = {},
                         .voters = record.voters};
  ending_.reset();
  former_incumbent_ = former;
  former_address_.clear();
  for (const auto* voters : {&record.voters, &record.previous_voters}) {
    for (const reg::Voter& voter : *voters) {
      if (voter.node == former) former_address_ = voter.address;
    }
  }
  resumed_.clear();
  resume_until_ = add_saturating(now_, settings_.follow_timeout);
  is_started_ = was_turned_on_ = true;
  follow_until_.reset();
  emit(Log{"this node was elected to run the job's coordinator (term " +
           std::to_string(record.newness.term) + ")"});
  emit(StartCoordinator{record.lineage, record.newness.term, *std::move(job), lost});
  update_candidates();
}

void Machine::execute(const reg::Deliver& action) {
  const reg::Record& record = action.record;
  incumbent_->voters = record.voters;
  if (open_ && open_->content == record.content) {
    emit(InForce{std::exchange(open_, std::nullopt)->number});
  }
  inform();
}

void Machine::execute(const reg::Deposed& action) {
  if (!is_started_) return;
  const std::string reason = ending_ ? ending_->reason : action.reason;
  emit(Log{"the coordinator in this process has no authority any more: " + reason});
  ending_ = Ending{reason, add_saturating(now_, settings_.handover_timeout)};
  const bool has_successor = incumbent_ && incumbent_->node != settings_.self.node;
  if (has_successor && !incumbent_->address.empty()) stop_service(reason);
}

// Logged when it lasts: voters that resume one by one after an election do not.
void Machine::execute(const reg::MajorityLost& action) {
  unreachable_.clear();
  for (const reg::Voter& voter : action.unreachable) {
    unreachable_ += (unreachable_.empty() ? "" : ", ") + voter.address;
  }
  majority_log_at_ = add_saturating(now_, settings_.repeat_interval);
  emit(MajorityLost{action.unreachable});
}

void Machine::execute(const reg::MajorityRegained&) {
  if (!std::exchange(majority_log_at_, std::nullopt)) {
    emit(Log{"the coordinator reaches a majority of its voters again"});
  }
  emit(MajorityRegained{});
}

void Machine::execute(const reg::AuthorityExpired&) {
  const std::string reason =
      "the coordinator reached no majority of its voters for store_grace: the other hosts may go "
      "on "
      "without this one";
  stop_service(reason);
  emit(Expired{reason});
}

// ---- Time.

void Machine::on(const Tick&) {
  feed(reg::Tick{});
  if (ending_ && now_ >= ending_->deadline) stop_service(ending_->reason);
  if (follow_until_ && now_ >= *follow_until_) {
    follow_until_.reset();
    const auto elected = register_.incumbent();
    if (incumbent_ && incumbent_->node != settings_.self.node) set_lost(true);
    if (elected) feed(reg::IncumbentLost{elected->node});
  }
  if (majority_log_at_ && now_ >= *majority_log_at_) {
    majority_log_at_.reset();
    emit(Log{"the coordinator cannot reach a majority of its voters (" + unreachable_ +
             "): no round begins until it does"});
  }
  if (is_started_ && now_ >= resume_until_ && resume_until_ != Instant::min()) {
    resume_until_ = Instant::min();
    update_candidates();
  }
  if (ask_at_ && now_ >= *ask_at_) ask_voters();
  repeat(probed_, Probe{});
  probe_witnesses();
  judge_incumbent();
  if (!announced_.empty() && incumbent_) repeat(announced_, Announce{*incumbent_});
  if (now_ >= announce_until_) announced_.clear();
}

Machine::Repeated Machine::repeated(std::string address) const {
  return {std::move(address), false, now_, settings_.repeat_interval};
}

template <typename Body>
void Machine::repeat(RepeatedTo& all, const Body& body) {
  for (auto& [node, one] : all) {
    if (one.is_done || now_ < one.next) continue;
    one.next = add_saturating(now_, one.wait);
    one.wait = std::min(2 * one.wait, settings_.repeat_interval_max);
    send(node, one.address, body);
  }
}

// A reply goes back on the connection on which the node's last frame arrived.
void Machine::send(const NodeId& to, const std::string& address, VoterBody body) {
  const auto found = last_connection_.find(to);
  const bool is_reply = address.empty() && found != last_connection_.end();
  emit(Send{is_reply ? found->second : 0, address,
            encode_frame({settings_.job_id, settings_.self.node, to, std::move(body)})});
}

}  // namespace elastic::succession
