#pragma once

// Judges the progress of a job: whether it hangs, which rank is suspected, which ranks lag, and
// whether ranks still run long after others have exited.
//
// Pure: the same calls in the same order give the same actions. Not thread-safe. One object for one
// job; it runs beside the rendezvous machine and does not depend on it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/parts.h"
#include "core/base/round_events.h"
#include "core/hang/collective_verdict.h"
#include "core/hang/hang_types.h"
#include "core/hang/mismatch_watch.h"
#include "core/hang/stack_text.h"
#include "core/hang/stall_watch.h"
#include "elastic/rendezvous_types.h"
#include "elastic/time.h"

namespace elastic::core {

// The progress of all nodes of a round, with what is asked about all of them in order, so that one
// report of one of many nodes costs no visit of the others.
class JobProgress {
 public:
  struct Node {
    std::string name;
    hang::NodeProgress progress;
    Instant progressed;                  // by the caller's clock
    Instant slowest_progressed;          // its slowest rank
    std::optional<Instant> waits_since;  // a worker, in a collective operation
    bool has_replied = false;            // to the current request for stacks
    std::int32_t straggler = -1;         // the rank that was reported; -1: none lags
  };

  // The node, which is added if it is new.
  Node& add(const NodeId& id);
  void remove(const NodeId& id);
  void clear();
  Node* find(const NodeId& id);  // null: it is unknown
  const std::map<NodeId, Node>& nodes() const { return nodes_; }

  // The times are by the caller's clock.
  void update(const NodeId& id, const hang::NodeProgress& progress, Instant progressed,
              Instant slowest_progressed, std::optional<Instant> waits_since = {});
  void shift(Duration gap);

  void forget_replies();
  void note_reply(const NodeId& id);
  bool all_have_replied() const { return num_replies_ == nodes_.size(); }

  // The last progress of any rank that reports; nullopt: no rank does.
  std::optional<Instant> last_progress() const;
  // Since when the rank waits that waits for longest in a collective operation; nullopt: none does.
  std::optional<Instant> waits_since() const;
  Duration given_limit() const;    // the shortest one; zero: none is given
  Duration section_limit() const;  // the longest one; zero: no section with a limit is open

  // Divides the nodes with ranks that report: the slowest rank of a node that lags has made no
  // progress since the threshold. Returns the nodes that begin to lag; nodes that stop lagging no
  // longer have a straggler.
  std::vector<Node*> divide(Instant threshold);
  // In the order of nodes.
  std::vector<const Node*> lagging() const;
  std::size_t num_lagging() const { return lagging_.size(); }

 private:
  using ByAge = std::set<std::pair<Instant, NodeId>>;  // by the progress of the slowest rank

  void add_to_order(const NodeId& id, const Node& node);
  void remove_from_order(const NodeId& id, const Node& node);

  std::map<NodeId, Node> nodes_;
  std::size_t num_replies_ = 0;
  std::multiset<Instant> progressed_;  // of nodes with ranks that report
  std::multiset<Instant> waits_;       // of nodes with ranks that wait
  std::multiset<Duration> limits_;     // those that are given
  std::multiset<Duration> section_limits_;
  ByAge timely_;
  ByAge lagging_;
};

namespace hang_event {
struct Finished {
  hang::RankFinished finished;
};
struct StacksReceived {
  NodeId node;
  hang::NodeStacks stacks;
};
struct SignaturesReceived {
  NodeId node;
  hang::NodeSignatures signatures;
};
// Somebody asks for the stacks of a running job.
struct Requested {
  std::uint64_t observer = 0;
};
}  // namespace hang_event

using HangEvent =
    std::variant<round_event::Began, round_event::Ended, round_event::Over, round_event::Leaving,
                 round_event::Left, round_event::Progressed, hang_event::Finished,
                 hang_event::StacksReceived, hang_event::SignaturesReceived, hang_event::Requested,
                 PartTick, round_event::ClockGap>;

namespace hang_action {
// To every member of the round.
struct Ask {
  hang::StacksWanted wanted;
};
struct Publish {
  hang::Verdict verdict;
};
struct Reply {
  std::uint64_t observer = 0;
  std::string text;
};
// The job ends with this result, although workers run.
struct Close {
  JobResult result;
};
}  // namespace hang_action

using HangAnswer =
    std::variant<hang_action::Ask, hang_action::Publish, hang_action::Reply, hang_action::Close>;

// The learned limit: at least this, and this multiple of the longest recent pause between steps.
inline constexpr Duration kLearnedLimitMin = std::chrono::seconds(60);
inline constexpr int kLearnedLimitFactor = 20;
// Until the job has advanced so often, the length of its steps is unknown, and the limit is longer.
inline constexpr int kLearnedAdvances = 5;
inline constexpr Duration kUnlearnedLimit = std::chrono::minutes(10);
// While more nodes than this have a rank that lags, one report stands for all of them.
inline constexpr std::size_t kStragglersPublished = 8;
// The time for the nodes to send their stacks.
inline constexpr Duration kStacksTimeout = std::chrono::milliseconds(1800);
// Requests that follow a collection sooner receive its result: every collection interrupts the
// workers.
inline constexpr Duration kStacksInterval = std::chrono::seconds(10);

namespace hang_state {
// A rank has exited with 0.
struct PartialExit {
  std::uint64_t round = 0;
  std::int32_t rank = -1;  // the first one
  Instant finished;
  Instant deadline;  // for all other ranks
};
// What the stacks are for. Observers may wait for them in any case.
enum class Purpose : std::uint8_t { kObserver, kLook, kStall, kHang, kPartialExit };
// One request for stacks.
struct Collection {
  std::uint64_t request = 0;
  Instant began;
  Instant deadline;
  Purpose purpose = Purpose::kObserver;
  Duration idle{};           // kHang: without progress; kPartialExit: since that rank's exit
  std::int32_t exited = -1;  // kPartialExit: the rank that exited first
  std::vector<std::uint64_t> observers;
  StackGroups received;
  std::vector<hang::StackGroup> groups;  // once all were received
  CollectiveJudge collectives;
  std::vector<std::int32_t> idle_ranks;  // kLook
  CollectiveVerdict verdict;             // of these, once all were received
  // Of the first rank of each node's groups: a place with one rank is that of the first one.
  std::vector<std::pair<std::int32_t, std::string>> hosts;
};
}  // namespace hang_state

// A part of core::Job.
class HangWatch {
 public:
  using Event = HangEvent;
  using Out = std::vector<HangAnswer>;

  void step(const HangEvent& event, Instant now, std::vector<HangAnswer>* out);
  // When step(Tick{}) must be called; nullopt: no worker reports steps, and none has exited.
  std::optional<Instant> next_deadline() const;

  // At most one rank of each node, in the order of nodes.
  std::vector<hang::Straggler> stragglers() const;
  std::size_t num_stragglers() const { return hang_ ? 0 : job_.num_lagging(); }
  // nullopt: a rank makes progress, or the limit has not passed.
  std::optional<hang::Hang> hang() const;
  // nullopt: no rank waits, or it has not been found out for whom.
  std::optional<hang::Stall> stall() const { return stall_.stall(); }
  // One sentence: ranks have called operations of different sizes or types; "": none is known.
  const std::string& mismatch() const { return mismatches_.last(); }
  // nullopt: no rank of the round has reported a step.
  std::optional<hang::Pace> pace() const;
  // The limit that applies now.
  Duration limit() const;
  // What observers see has changed since the last call.
  bool take_changed();

 private:
  using Node = JobProgress::Node;
  using Collection = hang_state::Collection;
  using Purpose = hang_state::Purpose;

  void on(const round_event::Began& event, Instant now, std::vector<HangAnswer>* out);
  void on(const round_event::Ended& event, Instant now, std::vector<HangAnswer>* out);
  void on(const round_event::Over&, Instant now, std::vector<HangAnswer>* out) {
    on(round_event::Ended{}, now, out);
  }
  void on(const round_event::Leaving& event, Instant now, std::vector<HangAnswer>* out) {
    on(round_event::Left{event.node}, now, out);
  }
  void on(const round_event::Left& event, Instant now, std::vector<HangAnswer>* out);
  void on(const round_event::Progressed& event, Instant now, std::vector<HangAnswer>* out);
  void on(const hang_event::Finished& event, Instant now, std::vector<HangAnswer>* out);
  void on(const hang_event::StacksReceived& event, Instant now, std::vector<HangAnswer>* out);
  void on(const hang_event::SignaturesReceived& event, Instant now, std::vector<HangAnswer>* out);
  void on(const hang_event::Requested& event, Instant now, std::vector<HangAnswer>* out);
  void on(const PartTick& event, Instant now, std::vector<HangAnswer>* out);
  void on(const round_event::ClockGap& event, Instant now, std::vector<HangAnswer>* out);

  void collect(Purpose purpose, Duration idle, Instant now, std::vector<HangAnswer>* out);
  void finish_collection(Instant now, std::vector<HangAnswer>* out);
  void finish_look(Collection& found, Instant now, std::vector<HangAnswer>* out);
  void publish(hang::Verdict::Kind kind, std::string text, std::vector<HangAnswer>* out) const;
  void publish_stall(const CollectiveVerdict& verdict, Instant now, std::vector<HangAnswer>* out);
  void follow_waits(Instant now);
  void publish_mismatches(std::vector<HangAnswer>* out);
  void publish_hang(const Collection& found, std::string text, std::vector<HangAnswer>* out);
  void close_partial(const Collection& found, std::string text, std::vector<HangAnswer>* out) const;
  void find_stragglers(Instant now, std::vector<HangAnswer>* out);
  void publish_straggler(const Node& node, Instant now, std::vector<HangAnswer>* out);
  std::optional<Instant> look_at() const;
  bool is_reporting() const;
  std::optional<Instant> overdue_at() const;
  std::optional<Instant> idle_since() const;
  std::optional<Instant> hung_at() const;
  hang::Action action() const;
  std::string screen(const Collection& found, std::int32_t suspect) const;
  std::string headline(const Collection& found) const;
  std::string host_of(const Collection& found, std::int32_t rank) const;

  JobProgress job_;
  std::uint64_t round_ = 0;
  Instant judged_from_;  // all nodes of the round have resumed, or are lost
  std::uint64_t requests_ = 0;
  std::optional<hang::Hang> hang_;  // since then no rank has made progress
  std::optional<hang_state::PartialExit> partial_exit_;
  std::optional<Collection> collection_;
  // Was finished by the last step; what thousands of nodes have sent takes milliseconds to release.
  std::optional<Collection> spent_;
  StallWatch stall_;
  MismatchWatch mismatches_;
  struct Screen {
    Instant began;
    std::string text;
  };
  std::optional<Screen> recent_;        // of the last collection of the round
  std::array<Duration, 100> pauses_{};  // between two steps of the job, the most recent ones
  std::size_t next_pause_ = 0;
  bool has_published_many_ = false;
  std::int64_t newest_ = hang::kNoStep;  // of the round
  int advances_ = 0;                     // how often it increased; of the job
  struct Advance {
    Instant at;
    std::int64_t step = hang::kNoStep;
  };
  std::deque<Advance> recent_advances_;  // of the round, for its pace
  struct Shown {
    std::size_t stragglers = 0;
    std::optional<std::int32_t> suspect;
    std::optional<hang::Stall> stall;
    std::string mismatch;

    bool operator==(const Shown&) const = default;
  };
  Shown shown_;  // to observers
};

}  // namespace elastic::core
