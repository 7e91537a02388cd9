// An operator's override: the majority of a job's voters is lost for good, so that no coordinator
// can be elected, and a voter that is left continues the job without them.
//
// Theory of operation. Only a majority may continue a lineage, so this voter begins a new one,
// whose first record has the content of the newest record that it knows. It surveys the other
// voters before: if a majority of them answers they can elect a coordinator, and a voter that
// answers may know a newer record. Its register of the former lineage is dropped with the last
// promise and the last accepted record, and messages of that lineage are ignored from then on: it
// never votes there again, so the remaining voters cannot continue with its vote if a lost voter
// returns. The record names the lineage that it replaces. A node of that lineage follows only if it
// has lost its coordinator and does not know that the lineage has continued in the meantime.

#include <algorithm>
#include <utility>

#include "core/base/text.h"
#include "core/succession/meeting.h"
#include "core/succession/succession_machine.h"

namespace elastic::succession {
namespace {

constexpr Duration kSurveyTimeout = std::chrono::seconds(2);
constexpr Duration kSurveyInterval = std::chrono::milliseconds(200);
// The attempt of the survey's questions, which no election counts.
constexpr std::uint64_t kSurveyAttempt = 0;
// Operators that wait for an answer.
constexpr std::size_t kCommandsMax = 8;

// These nodes can elect a coordinator that continues the record.
bool can_elect(const reg::KnownRecord& known, const std::set<NodeId>& nodes) {
  const reg::Record& record = known.record;
  if (!reg::is_majority(record.voters, nodes)) return false;
  return known.is_in_force || record.previous_voters.empty() ||
         reg::is_majority(record.previous_voters, nodes);
}

}  // namespace

bool Machine::has_lost_coordinator() const {
  if (is_coordinator()) return register_.has_lost_incumbent();
  return is_lost_ || (register_.incumbent() && register_.has_lost_incumbent());
}

// ---- The command.

void Machine::receive(const VoterFrame& frame, const Override& message) {
  if (message.is_survey) {
    if (!survey_ || !reg::names(survey_->newest.record, frame.from)) return;
    // Two voters were given the command. The one with the lesser id continues, and reports it.
    if (settings_.self.node < frame.from) return send(frame.from, {}, Override{0, true});
    survey_.reset();
    answer_override(false, "another voter was given the command, too, and goes on");
    return;
  }
  if (commands_.size() < kCommandsMax) commands_[frame.from] = message.nonce;
  if (survey_) return;
  const bool was_done = begun_ && incumbent_ && incumbent_->lineage == *begun_;
  if (was_done && office_.is_started) {
    // Otherwise it is answered when the service listens.
    if (!office_.address.empty()) {
      answer_override(true, "this node runs the job's coordinator already: " + office_.address);
    }
    return;
  }
  if (const std::string fault = override_fault(); !fault.empty()) {
    answer_override(false, fault);
  } else {
    begin_survey();
  }
}

void Machine::receive(const VoterFrame&, const OverrideReply&) {}  // for the command alone

// Why this node must not begin a lineage; "": it may.
std::string Machine::override_fault() const {
  const auto& known = register_.known();
  const std::vector<reg::Voter> voters = known        ? known->record.voters
                                         : incumbent_ ? incumbent_->voters
                                                      : std::vector<reg::Voter>();
  const bool is_voter = known && reg::names(known->record, settings_.self.node);
  if (voters.empty()) {
    return "this node knows no record of the job, so that it cannot continue it";
  }
  if (!has_lost_coordinator()) {
    return "the coordinator of the job is not lost: this node reaches it" +
           (incumbent_ && !incumbent_->address.empty() ? " at " + incumbent_->address : "");
  }
  if (!is_voter) {
    return "this node is not a voter of the job: the voters are " + list_of(voters);
  }
  return "";
}

void Machine::answer_override(bool is_done, const std::string& text) {
  for (const auto& [from, nonce] : std::exchange(commands_, {})) {
    send(from, {}, OverrideReply{nonce, is_done, text});
  }
}

// ---- The survey.

void Machine::begin_survey() {
  survey_ = Survey{.ends = add_saturating(now_, kSurveyTimeout),
                   .next = now_,
                   .answered = {settings_.self.node},
                   .newest = register_.accepted() && !register_.known()->record.has_bytes
                                 ? *register_.accepted()
                                 : *register_.known()};
  emit(Log{"an operator's override was received: the other voters of the job are asked for 2 s"});
  survey_voters();
}

// The same question that a candidate asks: a voter answers with its newest record and makes no
// promise.
void Machine::survey_voters() {
  if (!survey_) return;
  if (now_ >= survey_->ends) return judge_survey();
  if (now_ < survey_->next) return;
  survey_->next = add_saturating(now_, kSurveyInterval);
  const reg::Record& record = survey_->newest.record;
  const reg::Ask ask{kSurveyAttempt, register_.highest_term() + 1,
                     reg::without_bytes(survey_->newest)};
  std::vector<reg::Voter> voters = record.voters;
  voters.insert(voters.end(), record.previous_voters.begin(), record.previous_voters.end());
  std::set<NodeId> asked{settings_.self.node};
  for (const reg::Voter& voter : voters) {
    if (!asked.insert(voter.node).second) continue;
    send(voter.node, voter.address,
         reg::Message{record.lineage, settings_.self.node, voter.node, ask});
    if (!record.has_bytes) {
      send(voter.node, voter.address,
           reg::Message{record.lineage, settings_.self.node, voter.node,
                        reg::Fetch{record.newness}});
    }
    send(voter.node, voter.address, Query{incumbent_ ? incumbent_->term : 0});
    send(voter.node, voter.address, Override{0, true});
  }
}

void Machine::note_survived(const VoterFrame& frame,
                            const std::optional<reg::KnownRecord>& accepted) {
  if (!survey_) return;
  survey_->answered.insert(frame.from);
  if (accepted) {
    reg::KnownRecord& newest = survey_->newest;
    if (accepted->record.newness > newest.record.newness) {
      newest = *accepted;
      survey_->next = now_;  // it may have further voters
    } else if (accepted->record.newness == newest.record.newness) {
      newest.is_in_force |= accepted->is_in_force;
    }
  }
  if (!can_elect(survey_->newest, survey_->answered)) return;
  std::vector<reg::Voter> all = survey_->newest.record.voters;
  std::erase_if(all, [&](const reg::Voter& one) { return !survey_->answered.contains(one.node); });
  survey_.reset();
  answer_override(false, "a majority of the job's voters answers (" + list_of(all) +
                             "): they elect a coordinator without an override");
}

void Machine::note_fetched(const reg::Record& record) {
  if (!survey_) return;
  reg::Record& newest = survey_->newest.record;
  if (!newest.has_bytes && newest.newness == record.newness) newest = record;
}

void Machine::judge_survey() {
  std::string fault = override_fault();
  if (fault.empty() && !survey_->newest.record.has_bytes) {
    fault = "a voter of the job has a newer record and did not send it within 2 s: try again";
  }
  if (!fault.empty()) {
    survey_.reset();
    answer_override(false, fault);
    return;
  }
  begin_override();
}

// ---- The new lineage.

void Machine::begin_override() {
  const reg::KnownRecord base = std::exchange(survey_, std::nullopt)->newest;
  auto job = decode_record(base.record.content.bytes);
  if (!job.ok()) return answer_override(false, std::string(job.status().message()));
  const bool has_former = incumbent_ && incumbent_->node != settings_.self.node;
  const NodeId former = has_former ? incumbent_->node : NodeId{};
  const NodeId lost = is_lost_ ? former : NodeId{};
  const std::uint64_t term = std::max(register_.highest_term(), base.record.newness.term) + 1;
  if (job->replaces.size() >= kReplacedMax) job->replaces.erase(job->replaces.begin());
  job->replaces.push_back({base.record.lineage, base.record.newness});
  reg::Content content = base.record.content;
  content.bytes = encode_record(*job);

  stop_service("an operator has replaced the job's lost voters");
  leave_lineage();
  begun_ = reg::LineageId{rng_.next(), rng_.next()};
  incumbent_ = Incumbent{.lineage = *begun_,
                         .term = term,
                         .node = settings_.self.node,
                         .address = {},
                         .voters = {settings_.self},
                         .replaces = job->replaces};
  feed(reg::CandidatesChanged{{{.voter = settings_.self,
                                .host = {},
                                .topology = {},
                                .kind = reg::VoterCandidate::Kind::kMember,
                                .is_reachable = true}}});
  feed(reg::Begin{*begun_, std::move(content), term});
  emit(Log{"an operator's override: this node runs the job's coordinator (term " +
           std::to_string(term) + "), without the voters that are lost"});
  take_office(base.record, *std::move(job), former, lost);
}

// The node keeps its id: a machine of the former lineage does not come back in this process.
void Machine::leave_lineage() {
  register_ = reg::Register(settings_.self, register_settings(), rng_.next());
  register_actions_.clear();
  incumbent_.reset();
  begun_.reset();
  session_with_ = NodeId{};
  watched_ = {};
  followed_ = 0;
  follow_until_.reset();
  office_.open.reset();
  forget_witnesses();
}

bool Machine::may_change(const std::vector<Replaced>& replaces) const {
  const auto& own = register_.lineage();
  const Replaced* const replaced = own ? find_replaced(replaces, *own) : nullptr;
  if (replaced == nullptr || settings_.is_standalone || !has_lost_coordinator()) return false;
  // The lineage has gone on since: this node may be one of a majority that is left.
  if (incumbent_ && incumbent_->term > replaced->newest.term) return false;
  const auto& known = register_.known();
  // What this node has proposed in vain is no sign of that.
  const bool is_own_proposal =
      known && !known->is_in_force && known->record.proposer.node == settings_.self.node;
  return !known || is_own_proposal || known->record.newness <= replaced->newest;
}

void Machine::change_to(const Incumbent& incumbent) {
  survey_.reset();
  leave_lineage();
  incumbent_ = incumbent;
  emit(Log{"the coordinator of the job is at " + incumbent.address +
           " now, without the voters that are lost: an operator's override"});
  answer_override(false, "another voter was given the command: the job's coordinator is at " +
                             incumbent.address);
  stop_service("an operator has replaced the job's lost voters");
  feed(reg::Joined{incumbent.lineage});
}

// ---- Messages.

std::string Machine::override_hint() const {
  if (settings_.self.address.empty()) return "";
  return "; if their hosts are lost for good, continue without them by: elastic-launch override " +
         settings_.self.address + " --rdzv-id " + core::shell_quote(settings_.job_id);
}

// Elections take less than follow_timeout.
void Machine::log_stranded() {
  if (!stranded_log_at_ || now_ < *stranded_log_at_) return;
  stranded_log_at_.reset();
  const auto& known = register_.known();
  if (is_coordinator() || !known) return;
  if (!reg::names(known->record, settings_.self.node)) return;
  emit(Log{"no coordinator is elected, because no majority of the job's voters answers (" +
           list_of(known->record.voters) + ")" + override_hint()});
}

}  // namespace elastic::succession
