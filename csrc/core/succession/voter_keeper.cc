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
// node_timeout counts as lost too.

#include "core/succession/voter_keeper.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/earliest.h"
#include "core/base/text.h"
#include "core/succession/meeting.h"

namespace elastic::succession {

VoterKeeper::VoterKeeper(Settings settings, std::uint64_t seed)
    : Machine(settings.self.node, {.node_timeout = settings.node_timeout,
                                   .store_grace = settings.reg.store_grace,
                                   .handover_timeout = settings.handover_timeout}),
      settings_(std::move(settings)),
      register_(settings_.self, register_settings(), seed),
      rng_(seed ^ 0x9E3779B97F4A7C15ULL),
      first_lineage_{rng_.next(), rng_.next()} {
  if (!settings_.lineage) return;
  std::vector<reg::Action> none;
  register_.step(reg::Joined{*settings_.lineage}, now_, &none);
}

reg::RegisterSettings VoterKeeper::register_settings() const {
  reg::RegisterSettings all = settings_.reg;
  all.accept_timeout = limits_.node_timeout;
  all.is_candidate &= !settings_.is_standalone;
  return all;
}

void VoterKeeper::receive(const Event& event) {
  std::visit([this](const auto& one) { on(one); }, event);
}

std::optional<Instant> VoterKeeper::keeper_deadline() const {
  Instant next = core::earliest({register_.next_deadline(), ask_at_, peers_.announce_at,
                                 peers_.majority_log_at, stranded_log_at_})
                     .value_or(Instant::max());
  if (peers_.resigning && !own_.ending) next = std::min(next, peers_.resigning->until);
  for (const auto& [node, one] : peers_.probed) {
    if (!one.is_done) next = std::min(next, one.next);
  }
  if (!peers_.announced.empty()) next = std::min(next, peers_.announce_next);
  if (own_.is_started && peers_.resume_until != Instant::min())
    next = std::min(next, peers_.resume_until);
  if (own_.is_started) {
    for (const auto& [address, witness] : witnesses_) next = std::min(next, witness.next);
  }
  if (next == Instant::max()) return std::nullopt;
  return next;
}

// ---- Events of the session.

void VoterKeeper::on(const Informed& event) {
  note_incumbent(event.incumbent);
  const Incumbent& named = event.incumbent;
  const bool is_it =
      !incumbent_ || (incumbent_->lineage == named.lineage && incumbent_->node == named.node);
  if (!is_it) return;
  session_with_ = event.incumbent.node;
  set_lost(false);
  follow_until_.reset();
  if (incumbent_) incumbent_->voters = event.incumbent.voters;
  feed(reg::IncumbentReturned{event.incumbent.node});
}

void VoterKeeper::on(const IncumbentLost&) {
  if (!incumbent_ || session_with_ == NodeId{}) return;
  set_lost(true);
  feed(reg::IncumbentLost{session_with_});
  if (incumbent_->node != session_with_ && !follow_until_) await_session();
}

void VoterKeeper::on(const IncumbentReturned&) {
  if (session_with_ == NodeId{} || !incumbent_ || incumbent_->node != session_with_) return;
  set_lost(false);
  feed(reg::IncumbentReturned{session_with_});
}

void VoterKeeper::set_lost(bool is_lost) {
  if (std::exchange(is_lost_, is_lost) == is_lost) return;
  ask_wait_ = settings_.repeat_interval;
  ask_at_.reset();
  stranded_log_at_.reset();
  if (!is_lost) return;
  ask_at_ = add_saturating(now_, ask_wait_);
  stranded_log_at_ = add_saturating(now_, limits_.node_timeout);
}

void VoterKeeper::ask_voters() {
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

void VoterKeeper::note_incumbent(const Incumbent& incumbent) {
  if (!incumbent_ && incumbent.term > 0) feed(reg::Joined{incumbent.lineage});
  learn(incumbent);
}

// The own session goes to the incumbent, once for each term.
void VoterKeeper::follow() {
  if (settings_.is_standalone || incumbent_->address.empty()) return;
  if (session_with_ == incumbent_->node && !is_lost_) return;
  if (std::exchange(followed_, incumbent_->term) == incumbent_->term) return;
  direct_session();
}

// Elections take less than node_timeout.
void VoterKeeper::log_stranded() {
  if (!stranded_log_at_ || now_ < *stranded_log_at_) return;
  stranded_log_at_.reset();
  const auto& known = register_.known();
  if (is_coordinator() || !known) return;
  if (!reg::names(known->record, settings_.self.node)) return;
  emit(Log{"no coordinator is elected, because no majority of the job's voters answers (" +
           list_of(known->record.voters) + ")"});
}

// ---- Frames.

void VoterKeeper::on(const Received& event) {
  const Result<VoterFrame> frame = decode_frame(event.frame);
  if (!frame.ok() || frame->job_id != settings_.job_id || frame->from == settings_.self.node) {
    return;
  }
  if (frame->to != NodeId{} && frame->to != settings_.self.node) return;
  connections_.note(frame->from, event.connection);
  const auto* reply = std::get_if<ProbeReply>(&frame->body);
  if (reply != nullptr && witnesses_.contains(event.address)) {
    if (reply->lineage == own_lineage()) receive_from_witness(event.address, frame->from);
    return;
  }
  std::visit([&](const auto& body) { receive(*frame, body); }, frame->body);
}

void VoterKeeper::on(const ConnectionEnded& event) { connections_.end(event.connection); }

void VoterKeeper::receive(const VoterFrame& frame, const reg::Message& message) {
  if (message.from == frame.from) feed(reg::Received{message});
}

// The lineage to which this process belongs, or the lineage of the job that it begins.
std::optional<reg::LineageId> VoterKeeper::own_lineage() const {
  if (register_.lineage()) return register_.lineage();
  if (own_.is_started) return first_lineage_;
  return std::nullopt;
}

void VoterKeeper::receive(const VoterFrame& frame, const Probe& message) {
  const auto& own = register_.lineage();
  if (!own || *own == message.lineage) send(frame.from, {}, ProbeReply{message.lineage});
}

void VoterKeeper::receive(const VoterFrame&, const Announce& message) { follow(message.incumbent); }

void VoterKeeper::follow(const Incumbent& incumbent) {
  if (incumbent.node == settings_.self.node) return;
  note_incumbent(incumbent);
  if (!incumbent_ || incumbent_->lineage != incumbent.lineage) return;
  if (incumbent_->term != incumbent.term || incumbent_->node != incumbent.node) return;
  feed(reg::LaterTerm{incumbent.term});
  follow();
}

void VoterKeeper::receive(const VoterFrame& frame, const Query& message) {
  if (!incumbent_ || incumbent_->address.empty() || is_lost_) return;
  if (incumbent_->term >= message.term) send(frame.from, {}, Announce{*incumbent_});
}

void VoterKeeper::on(const Unreachable& event) {
  bool has_changed = event.address == former_address_ && std::exchange(is_former_there_, false);
  const auto witness = witnesses_.find(event.address);
  if (witness != witnesses_.end() && std::exchange(witness->second.is_reachable, false)) {
    witness->second.next = now_;
    witness->second.wait = settings_.repeat_interval;
    has_changed = true;
  }
  for (auto& [node, one] : peers_.probed) {
    if (one.address != event.address || !one.is_done) continue;
    one = repeated(event.address);
    one.next = add_saturating(now_, one.wait);
    has_changed = true;
  }
  if (has_changed) update_candidates();
}

void VoterKeeper::on(const Timings& event) {
  register_.set_timings(event.node_timeout, event.store_grace);
}

// ---- The coordinator of this process.

void VoterKeeper::on(const CoordinatorStarted& event) {
  own_.is_started = true;
  own_.address = event.address;
  for (auto& [address, witness] : witnesses_) witness.next = now_;
  probe_witnesses();
  if (event.is_first || !is_coordinator()) return;
  incumbent_->address = event.address;
  // Announced to the record's nodes, including this process's own session.
  const auto record = decode_record(register_.known()->record.content.bytes);
  if (record.ok()) announce_to(*record);
  inform();
  follow();
  announce_at_endpoints();
}

void VoterKeeper::announce_to(const JobRecord& record) {
  // At most so many are dialed at once, while the nodes that have found this coordinator resume.
  constexpr int kAnnouncedAtOnce = 64;
  constexpr Duration kAnnouncePace = std::chrono::milliseconds(10);
  peers_.announced.clear();
  announce_until_ = add_saturating(now_, limits_.store_grace);
  for (const RecordedNode& one : record.nodes) {
    if (one.node == settings_.self.node) continue;
    const int turn = static_cast<int>(peers_.announced.size()) / kAnnouncedAtOnce;
    Repeated announced = repeated(one.voter_address);
    announced.next = add_saturating(now_, turn * kAnnouncePace);
    peers_.announced[one.node] = std::move(announced);
  }
  // Its node may have left the job; its process waits for the address to direct clients to. Without
  // a voter port it is answered on the connection on which it has handed the job over.
  if (former_incumbent_ != NodeId{}) {
    peers_.announced[former_incumbent_] = repeated(former_address_);
  }
  peers_.announce_next = repeat(peers_.announced, Announce{*incumbent_});
}

void VoterKeeper::on(const CoordinatorFailed& event) {
  own_.is_started = false;
  emit(Log{"the coordinator that this node was elected to run could not be started: " +
           event.reason});
  feed(reg::StepDown{});
}

void VoterKeeper::on(const Propose& event) {
  // One of an earlier term of this process may arrive late.
  if (register_.known() && (!incumbent_ || incumbent_->term != event.term)) return;
  own_.open = event;
  if (!register_.known()) return begin(event);
  propose();
}

// Unless the register has a content under way: its Deliver follows. Or it has lost the authority,
// and StopCoordinator follows.
void VoterKeeper::propose() {
  if (own_.open && register_.can_propose()) feed(reg::Propose{own_.open->content});
}

void VoterKeeper::begin(const Propose& event) {
  incumbent_ = Incumbent{.lineage = first_lineage_,
                         .term = 1,
                         .node = settings_.self.node,
                         .address = own_.address,
                         .voters = {settings_.self}};
  session_with_ = settings_.self.node;
  feed(reg::CandidatesChanged{{{.voter = settings_.self,
                                .host = {},
                                .topology = {},
                                .kind = reg::VoterCandidate::Kind::kMember,
                                .is_reachable = true}}});
  feed(reg::Begin{first_lineage_, event.content});
  feed(reg::CandidatesChanged{candidates()});
}

void VoterKeeper::on(const LaterTermSeen& event) { feed(reg::LaterTerm{event.term}); }

void VoterKeeper::on(const Resign& event) {
  if (!peers_.resigning) peers_.resigning = {add_saturating(now_, 2 * limits_.handover_timeout)};
  peers_.resigning->awaits_nodes = event.awaits_nodes;
}

// One that is lost before the record names it is replaced by the next one that answers.
void VoterKeeper::resign() {
  if (!peers_.resigning || register_.has_successor()) return;
  if (const auto successor = choose_successor(); is_coordinator() && successor) {
    emit(Log{"the coordinator hands the job over to the voter at " + successor->address});
    feed(reg::Resign{*successor});
    end_soon("the coordinator ended in order");
    return;
  }
  if (own_.ending) return;  // it has handed over, or waits for another one to answer
  const bool may_answer =
      std::any_of(peers_.probed.begin(), peers_.probed.end(), [this](const auto& one) {
        return !one.second.is_done && !peers_.silent.contains(one.first);
      });
  const bool waits = is_coordinator() && (peers_.resigning->awaits_nodes || may_answer);
  if (waits && now_ < peers_.resigning->until) return;
  stop("the coordinator ended");
  if (!register_.known()) incumbent_.reset();  // no other node knows of it
}

// ---- What the register decides.

// An action may feed a further event, whose actions follow those of the first one.
void VoterKeeper::feed(const reg::Event& event) {
  std::vector<reg::Action> actions;
  register_.step(event, now_, &actions);
  std::move(actions.begin(), actions.end(), std::back_inserter(register_actions_));
  if (std::exchange(is_executing_, true)) return;
  while (!register_actions_.empty()) {
    reg::Action action = std::move(register_actions_.front());
    register_actions_.pop_front();
    std::visit([this](auto& one) { execute(one); }, action);
  }
  is_executing_ = false;
  watch_elected();
}

// A coordinator whose record this voter has accepted announces itself, unless it is lost before.
void VoterKeeper::watch_elected() {
  const auto& elected = register_.incumbent();
  if (!elected || elected->node == settings_.self.node || register_.has_lost_incumbent()) return;
  // One that was lost may have been elected again.
  if (elected->node == session_with_ && !is_lost_) return;
  const Watched now{elected->node, register_.known()->record.newness.term};
  if (std::exchange(watched_, now) == now) return;
  await_session();
}

void VoterKeeper::execute(reg::Send& action) {
  const NodeId to = action.message.to;
  send(to, action.address, std::move(action.message));
}

void VoterKeeper::execute(const reg::Elected& action) {
  const reg::Record& record = action.record;
  auto job = decode_record(record.content.bytes);
  if (!job.ok()) {
    emit(Log{std::string(job.status().message())});
    feed(reg::StepDown{});
    return;
  }
  // A deposed coordinator that waits for its successor's address, and is elected itself.
  stop("this node was elected again, in a later term");
  NodeId former = register_.handed_over_by();
  const bool is_known = incumbent_ && incumbent_->node != settings_.self.node;
  if (former == NodeId{} && is_known) former = incumbent_->node;
  incumbent_ = Incumbent{.lineage = record.lineage,
                         .term = record.newness.term,
                         .node = settings_.self.node,
                         .address = {},
                         .voters = record.voters};
  emit(Log{"this node was elected to run the job's coordinator (term " +
           std::to_string(record.newness.term) + ")"});
  start_elected(record, *std::move(job), former, is_lost_ ? former : NodeId{});
}

// `lost`: as in StartCoordinator.
void VoterKeeper::start_elected(const reg::Record& record, JobRecord job, const NodeId& former,
                                const NodeId& lost) {
  const Timings timings{job.settings.node_timeout, job.settings.store_grace};
  note(timings);
  on(timings);
  former_incumbent_ = former;
  former_address_.clear();
  is_former_there_ = lost != former;
  for (const auto* voters : {&record.voters, &record.previous_voters}) {
    for (const reg::Voter& voter : *voters) {
      if (voter.node == former) former_address_ = voter.address;
    }
  }
  resumed_.clear();
  peers_.resume_until = add_saturating(now_, limits_.node_timeout);
  was_turned_on_ = true;
  start({incumbent_->lineage, incumbent_->term, std::move(job), lost});
  update_candidates();
}

void VoterKeeper::execute(const reg::Deliver& action) {
  const reg::Record& record = action.record;
  incumbent_->voters = record.voters;
  in_force(record.content);
  propose();
  if (!incumbent_->address.empty()) inform();
}

void VoterKeeper::execute(const reg::Deposed& action) {
  if (!own_.is_started) return;
  const std::string reason = own_.ending ? own_.ending->reason : action.reason;
  emit(Log{"the coordinator in this process has no authority any more: " + reason});
  end_soon(reason);
  if (successor()) stop(reason);
}

// Logged when it lasts: voters that resume one by one after an election do not.
void VoterKeeper::execute(const reg::MajorityLost& action) {
  unreachable_ = list_of(action.unreachable);
  peers_.majority_log_at = add_saturating(now_, settings_.repeat_interval);
  lose_majority(action.unreachable);
}

void VoterKeeper::execute(const reg::MajorityRegained&) {
  if (!std::exchange(peers_.majority_log_at, std::nullopt)) {
    emit(Log{"the coordinator reaches a majority of its voters again"});
  }
  regain_majority();
}

void VoterKeeper::execute(const reg::AuthorityExpired&) {
  expire(
      "the coordinator reached no majority of its voters for store_grace: the other hosts may "
      "go on without this one");
}

void VoterKeeper::execute(const reg::VoterSilent& action) {
  emit(Log{"the voter at " + action.voter.address +
           " answers, but has not accepted the job's record for " +
           core::duration_text(limits_.node_timeout) + ": it counts as unreachable"});
}

// ---- Announcements at the endpoints, and what they meet there (R8).

// Nodes that start after the election know the endpoints only.
void VoterKeeper::announce_at_endpoints() {
  peers_.announce_at = add_saturating(now_, kAnnounceInterval);
  // The nodes of a job that has ended are not to be joined by those of the next one.
  if (own_.has_majority && !has_result()) emit(AnnounceAtEndpoints{*incumbent_});
}

bool VoterKeeper::has_result() const {
  const auto& known = register_.known();
  return known && known->is_in_force && known->record.content.is_result;
}

void VoterKeeper::on(const EndpointsAreHere&) { peers_.announce_at.reset(); }

bool VoterKeeper::has_record() const { return register_.known().has_value(); }

// ---- Time.

void VoterKeeper::on(const Tick&) {
  feed(reg::Tick{});
  if (peers_.majority_log_at && now_ >= *peers_.majority_log_at) {
    peers_.majority_log_at.reset();
    emit(Log{"the coordinator cannot reach a majority of its voters (" + unreachable_ +
             "): no round begins until it does"});
  }
  if (own_.is_started && now_ >= peers_.resume_until && peers_.resume_until != Instant::min()) {
    peers_.resume_until = Instant::min();
    update_candidates();
  }
  if (ask_at_ && now_ >= *ask_at_) ask_voters();
  log_stranded();
  probe_nodes();
  probe_witnesses();
  if (peers_.announce_at && now_ >= *peers_.announce_at) announce_at_endpoints();
  if (!peers_.announced.empty() && incumbent_ && now_ >= peers_.announce_next) {
    peers_.announce_next = repeat(peers_.announced, Announce{*incumbent_});
  }
  if (now_ >= announce_until_) peers_.announced.clear();
}

void VoterKeeper::follow_failed() {
  const auto elected = register_.incumbent();
  if (incumbent_ && incumbent_->node != settings_.self.node) set_lost(true);
  if (elected) feed(reg::IncumbentLost{elected->node});
}

VoterKeeper::Repeated VoterKeeper::repeated(std::string address) const {
  return {std::move(address), false, now_, settings_.repeat_interval};
}

// Returns when the next one is due.
Instant VoterKeeper::repeat(RepeatedTo& all, const VoterBody& body) {
  Instant next = Instant::max();
  for (auto& [node, one] : all) {
    if (one.is_done) continue;
    if (now_ >= one.next) {
      one.next = add_saturating(now_, one.wait);
      one.wait = std::min(2 * one.wait, settings_.repeat_interval_max);
      send(node, one.address, body);
    }
    next = std::min(next, one.next);
  }
  return next;
}

// Without an address: a reply.
void VoterKeeper::send(const NodeId& to, const std::string& address, VoterBody body) {
  emit(Send{address.empty() ? connections_.last_of(to) : 0, address,
            encode_frame({settings_.job_id, settings_.self.node, to, std::move(body)})});
}

}  // namespace elastic::succession
