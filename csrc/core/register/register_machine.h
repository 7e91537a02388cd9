#pragma once

// One node's part of its job's replicated register: it votes, stands as a candidate when the
// coordinator is lost, and proposes records while it is the coordinator. docs/rendezvous.md has the
// rules and the reasons.
//
// Pure: time comes with each call and chance from a seed, and the same calls give the same actions.
// Timers only decide when something is tried; no answer depends on them. Not thread-safe. The owner
// carries the actions out in order.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/random.h"
#include "core/base/transitions.h"
#include "core/register/register_types.h"
#include "elastic/time.h"

namespace elastic::reg {

// ---- The rules that a test can delete, one by one, to show that its simulator notices.
//
// The machine takes the set of rules as a type. In the library that type is AllRules, whose answer
// is a constant: the checks cost nothing, and no setting can disable a rule in production. The test
// program instantiates the same source with a type that leaves one rule out.
// Each has here what happens without it; docs/rendezvous.md has the rules.
enum class Rule : std::uint8_t {
  kOneLineage,          // R1: a node that changed jobs accepts a record of the former one
  kDistinctHosts,       // R2: the loss of one host takes the majority
  kStrictMajority,      // R3: half is enough, so two coordinators
  kOldMajority,         // R3: a candidate that knows only the replaced record does not find it
  kNewMajority,         // R3: the loss of a minority of the new voters loses it
  kAcceptPromises,      // R3: a late record of an earlier term replaces it
  kTellInForce,         // R3: a later coordinator contradicts what was delivered
  kRefuseLowerTerm,     // R4: a late record of an earlier term replaces a newer one
  kPromiseOnce,         // R4: two coordinators of one term
  kBothSets,            // R4: the former set of voters continues without the new one
  kFollowNewer,         // R4: a candidate with an old record is elected by former voters
  kAdoptNewest,         // R4: a record in force is dropped
  kTermBeforeSequence,  // R4: a proposal that was overtaken comes back
  kReproposeFirst,      // R4: it builds on a record that is not in force
  kLostIncumbent,       // R4: one bad link ends the authority
  kAskFirst,            // R4: one bad link burns a term
  kStartApart,          // R4: candidates outvote each other for ever
  kReplaceVoters,       // R5: losses one after the other leave no majority
  kJudgeAcceptance,     // R5: a voter that answers and accepts nothing blocks every round
  kExpire,              // R5: members of a coordinator without a majority wait for ever
  kKeepEarlyPromise,    // R10: both the old and the new coordinator continue
};
inline constexpr std::size_t kRules = 21;
static_assert(static_cast<std::size_t>(Rule::kKeepEarlyPromise) + 1 == kRules);

struct AllRules {
  static constexpr bool has(Rule) { return true; }
};

// ---- What a node does with a message, by its role: the table that the machine runs and that
// docs/rendezvous.md shows.

enum class Role : std::uint8_t {
  kFollower,     // votes, if a record names it
  kAsking,       // a candidate that asks whether it would be elected
  kPreparing,    // a candidate that collects promises
  kReproposing,  // elected; the newest accepted record is not yet in force under its term
  kCoordinator,  // proposes records
};
inline constexpr std::size_t kRoles = 5;

enum class Response : std::uint8_t {
  kAnswer,   // reports whether it would promise; changes nothing
  kPromise,  // promises, if the rules allow it
  kAccept,   // accepts the record, unless it promised a later term
  kCount,    // counts the vote; a reply with a later term ends the attempt or the authority
  kLearn,    // the accepted record is in force
  kStand,    // asks for promises at once
  kSupply,   // sends the record that it has accepted, if that is the one
  kIgnore,
};

// The messages, in the order of Body.
enum class MessageKind : std::uint8_t {
  kAsk,
  kAskReply,
  kPrepare,
  kPromise,
  kAccept,
  kAccepted,
  kInForce,
  kHandOver,
  kFetch,
  kFetched,
};
inline constexpr std::size_t kMessages = 10;
static_assert(static_cast<std::size_t>(MessageKind::kFetched) + 1 == kMessages);

struct ResponseTable {
  using M = MessageKind;
  using R = Response;
  using enum Role;

  static constexpr core::EnumSet<Role> kAny = {kFollower, kAsking, kPreparing, kReproposing,
                                               kCoordinator};
  static constexpr core::EnumSet<Role> kUnelected = {kFollower, kAsking, kPreparing};
  // A pair without a row: kIgnore.
  static constexpr core::Transition<Role, M, R> kRows[] = {
      {.in = kAny, .on = {M::kAsk}, .run = R::kAnswer},
      {.in = {kAsking}, .on = {M::kAskReply}, .run = R::kCount},
      {.in = kAny, .on = {M::kPrepare}, .run = R::kPromise},
      {.in = {kPreparing}, .on = {M::kPromise}, .run = R::kCount},
      {.in = kAny, .on = {M::kAccept}, .run = R::kAccept},
      {.in = {kReproposing, kCoordinator}, .on = {M::kAccepted}, .run = R::kCount},
      {.in = {kFollower, kAsking, kPreparing, kReproposing}, .on = {M::kInForce}, .run = R::kLearn},
      {.in = kUnelected, .on = {M::kHandOver}, .run = R::kStand},
      {.in = kAny, .on = {M::kFetch}, .run = R::kSupply},
      {.in = {kPreparing}, .on = {M::kFetched}, .run = R::kCount},
  };
};
inline constexpr auto kResponses =
    core::make_responses<kRoles, kMessages>(ResponseTable::kRows, Response::kIgnore);

constexpr Response response_to(Role role, std::size_t message) {
  return kResponses[static_cast<std::size_t>(role)][message];
}

static_assert(static_cast<std::size_t>(Role::kCoordinator) + 1 == kRoles);

struct RegisterSettings {
  // How many voters; 0: by the number of hosts.
  std::size_t voters = 0;
  // False for a witness: it votes, and never becomes the coordinator.
  bool is_candidate = true;
  // Between the first attempts of two candidates: longer than a round trip.
  Duration candidate_interval = std::chrono::milliseconds(15);
  // How long a candidate waits for votes before it tries again; longer with a large record.
  Duration election_timeout = std::chrono::milliseconds(150);
  // When a message without a reply is sent again; later repetitions wait longer.
  Duration retry_interval = std::chrono::milliseconds(50);
  // A voter that has not accepted a record for so long counts as unreachable, whatever answers at
  // its address.
  Duration accept_timeout = std::chrono::seconds(5);
  // How long a coordinator keeps its authority without a majority of the voters.
  Duration store_grace = std::chrono::seconds(60);
};

// ---- Events.

// The job's first round is formed here: a lineage begins, in term 1.
struct Begin {
  LineageId lineage;
  Content content;
};
// The node has joined the job of this lineage. Ignored if it belongs to one already: a node that
// joins another lineage begins with another machine, and may not return under the same id.
struct Joined {
  LineageId lineage;
};
// REQUIRES: can_propose().
struct Propose {
  Content content;
};
// The nodes that could vote, whenever that has changed at the coordinator; also before Begin.
struct CandidatesChanged {
  std::vector<VoterCandidate> candidates;
};
// This node's session with the coordinator ended and was not resumed, or was silent for too long.
struct IncumbentLost {
  NodeId node;
};
struct IncumbentReturned {
  NodeId node;
};
// The coordinator ends in order, and this node succeeds it. Ignored by other roles.
struct Resign {
  Voter successor;
};
// Another node is known to be the coordinator of this term. Ends the authority of a lower one.
struct LaterTerm {
  std::uint64_t term = 0;
};
// This node cannot do what it was elected for. Its voters lose it as they lose any coordinator.
struct StepDown {};
struct Received {
  Message message;
};
struct Tick {};
using Event = std::variant<Begin, Joined, Propose, CandidatesChanged, IncumbentLost,
                           IncumbentReturned, Resign, LaterTerm, StepDown, Received, Tick>;

// ---- Actions.

// An empty address: reply where the voter's message came from.
struct Send {
  std::string address;
  Message message;
};
// This node is the coordinator. The record is in force; nothing newer can be.
struct Elected {
  Record record;
};
// A proposed record is in force: its content may be delivered. Also sent for a change of voters.
struct Deliver {
  Record record;
};
// This node is no longer the coordinator. What was proposed and not delivered is undecided.
struct Deposed {
  std::string reason;
};
// The coordinator cannot reach a majority of its voters, or can again.
struct MajorityLost {
  std::vector<Voter> unreachable;
};
struct MajorityRegained {};
// There was no majority for store_grace: the members stop their workers. Follows Deposed.
struct AuthorityExpired {};
// The voter was reached, and has not accepted a record for accept_timeout.
struct VoterSilent {
  Voter voter;
};
using Action = std::variant<Send, Elected, Deliver, Deposed, MajorityLost, MajorityRegained,
                            AuthorityExpired, VoterSilent>;

template <typename Rules>
class BasicRegister {
 public:
  // `self`: of this life of the node; a node that is started again has another id.
  BasicRegister(Voter self, const RegisterSettings& settings, std::uint64_t seed, Rules rules = {})
      : self_(std::move(self)), settings_(settings), rules_(rules), rng_(seed) {}

  // `now` must not be earlier than in any previous call.
  void step(const Event& event, Instant now, std::vector<Action>* actions);
  std::optional<Instant> next_deadline() const;

  void set_timings(Duration accept_timeout, Duration store_grace) {
    settings_.accept_timeout = accept_timeout;
    settings_.store_grace = store_grace;
  }

  Role role() const { return role_; }
  bool can_propose() const { return role_ == Role::kCoordinator && !is_content_open(); }
  // The coordinator as far as this node knows: the proposer of the newest record.
  const std::optional<Voter>& incumbent() const { return incumbent_; }
  const std::optional<LineageId>& lineage() const { return lineage_; }
  // The newest record that this node knows of; without bytes while only another node's vote names
  // it.
  const std::optional<KnownRecord>& known() const { return known_; }
  // The highest term that this node knows of.
  std::uint64_t highest_term() const {
    const std::uint64_t known = known_ ? known_->record.newness.term : 0;
    return std::max({promised_, highest_promise_, term_, known});
  }
  // Whether this node would promise a later term: it has no coordinator, or is one that reaches no
  // majority.
  bool has_lost_incumbent() const;
  // The coordinator, where it has named a successor that has not got its promise yet.
  bool has_successor() const { return successor_.has_value(); }
  // Which of the candidates vote, where `current` do so far.
  std::vector<Voter> choose(std::span<const VoterCandidate> candidates,
                            std::span<const Voter> current) const {
    return choose_voters(candidates, current, self_.node,
                         {settings_.voters, has(Rule::kDistinctHosts)});
  }
  // The node answers, and has not been silent when it was sent a record.
  bool is_reachable(const NodeId& node) const;
  // The coordinator that has handed over to this node, in its last attempt; zero: none.
  const NodeId& handed_over_by() const { return handed_over_by_; }

 private:
  struct Proposal {
    Record record;
    std::set<NodeId> accepted_by;
    bool has_content = false;  // not only a change of voters
  };
  // What a voter was sent and has not answered.
  struct Unanswered {
    Instant since;
    int sent = 0;
    bool is_silent = false;  // for accept_timeout
  };

  void on(const Begin& event);
  void on(const Joined& event);
  void on(const Propose& event);
  void on(const CandidatesChanged& event);
  void on(const IncumbentLost& event);
  void on(const IncumbentReturned& event);
  void on(const Resign& event);
  void on(const LaterTerm& event);
  void on(const StepDown& event);
  void on(const Received& event);
  void on(const Tick& event);

  // The voter.
  void answer(const NodeId& from, const Ask& message);
  void promise(const NodeId& from, const Prepare& message);
  void accept(const NodeId& from, const Accept& message);
  void learn(const NodeId& from, const InForce& message);
  void supply(const NodeId& from, const Fetch& message);
  bool may_promise(std::uint64_t term, const NodeId& handed_over_by) const;
  bool is_other_candidate_at_work(const NodeId& candidate) const;
  std::optional<KnownRecord> vote() const;
  bool enter_lineage(const Record& record);
  void promise_to(const NodeId& candidate, std::uint64_t term);
  bool accept_here(const KnownRecord& proposal);
  void know(const KnownRecord& record);

  // The candidate.
  void schedule_attempt(Duration wait);
  void stand();
  void prepare(std::uint64_t term, const NodeId& handed_over_by);
  void count(const NodeId& from, const AskReply& message);
  void count(const NodeId& from, const Promise& message);
  void count(const Fetched& message);
  void stand_for(const NodeId& from, const HandOver& message);
  void judge_votes();
  void repropose();
  void give_up_attempt();
  bool may_stand() const;
  void request_votes();
  void fetch();
  bool lacks_bytes() const;
  Duration attempt_time() const;
  void consider(const NodeId& from, const std::optional<KnownRecord>& accepted);

  // The coordinator.
  void count(const NodeId& from, const Accepted& message);
  void propose(Record record, bool has_content);
  void propose_next(Content content, std::vector<Voter> voters, bool has_content);
  void propose_waiting();
  void send_accept(const Voter& voter, const KnownRecord& record);
  void judge_silence();
  void forget_old_silence();
  void judge_proposal();
  void go_on();
  void judge_voters();
  void confirm_returned_voters(std::span<const VoterCandidate> before);
  void hand_over();
  void depose(std::string reason);
  void announce(const NodeId& to);
  void repeat();

  bool is_majority(std::span<const Voter> voters, const std::set<NodeId>& votes) const;
  bool is_elected(const std::set<NodeId>& votes) const;
  bool is_newer(const Newness& left, const Newness& right) const;
  bool is_content_open() const {
    return waiting_.has_value() || (proposal_.has_value() && proposal_->has_content);
  }
  bool is_leaving(const NodeId& node) const;
  bool is_silent(const NodeId& node) const;
  void repeat_later();
  std::vector<Voter> chosen_voters() const;
  std::vector<Voter> voters_of(const Record& record) const;  // all, without this node
  bool has(Rule rule) const { return rules_.has(rule); }
  void send(const NodeId& to, Body body);
  void send(const Voter& to, Body body);
  template <typename A>
  void emit(A action) {
    out_->emplace_back(std::in_place_type<A>, std::move(action));
  }

  const Voter self_;
  RegisterSettings settings_;  // constant after construction, but for the job's timings
  [[no_unique_address]] Rules rules_;

  Rng rng_;
  Instant now_;
  std::vector<Action>* out_ = nullptr;
  Role role_ = Role::kFollower;
  std::optional<LineageId> lineage_;
  std::optional<KnownRecord> known_;

  // The voter.
  std::uint64_t promised_ = 0;
  NodeId promised_to_;
  Instant promised_at_;
  std::optional<KnownRecord> accepted_;
  std::optional<Voter> incumbent_;
  bool is_incumbent_lost_ = false;

  // The candidate.
  std::optional<Instant> attempt_at_;
  std::optional<Instant> attempt_ends_;
  std::uint64_t attempts_ = 0;
  std::uint64_t highest_promise_ = 0;
  std::set<NodeId> votes_;
  std::optional<KnownRecord> attempt_base_;  // what it knew when the attempt began
  std::vector<NodeId> reporters_;  // voters whose vote named known_, which lacks its bytes
  std::size_t fetches_ = 0;
  NodeId handed_over_by_;

  // The coordinator.
  std::uint64_t term_ = 0;
  std::vector<VoterCandidate> candidates_;
  std::optional<Proposal> proposal_;
  std::optional<Content> waiting_;  // until a change of voters is in force, or is late
  std::map<NodeId, Unanswered> unanswered_;
  std::set<NodeId> unconfirmed_;     // voters that may not know that the record is in force
  std::set<NodeId> record_holders_;  // voters that accepted it
  std::optional<Voter> successor_;
  std::optional<Voter> handed_over_to_;  // until it asks for the promise that it was given
  std::optional<Instant> no_majority_since_;
  std::optional<Instant> repeat_at_;
  Duration repeat_wait_{};
};

using Register = BasicRegister<AllRules>;

}  // namespace elastic::reg
