#pragma once

// What a node reports to the extensions of its coordinator, and what of it is sent again to one
// that begins without.
//
// Pure. Not thread-safe. A part of SessionMachine.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "core/drain/drain_types.h"
#include "core/hang/hang_types.h"
#include "core/session/session_wire.h"
#include "elastic/time.h"

namespace elastic::core {

using NodeReport = std::variant<hang::NodeProgress, hang::NodeStacks, hang::RankFinished,
                                drain::Reply, drain::Notice, gate::Finding, hang::NodeSignatures,
                                snapshot::CopyReport, gate::ProbeReport>;

// Findings that were made while the coordinator was not reached; the oldest are dropped.
inline constexpr std::size_t kFindingsKept = 16;
// Replies to a coordinator that does not answer at the moment; the oldest are dropped.
inline constexpr std::size_t kRepliesHeld = 16;

enum class Delivery : std::uint8_t {
  kSent,     // to the coordinator that said hello last
  kHeld,     // it is silent, and the connection to it is open
  kDropped,  // no coordinator is connected
};

// What a node reports about its workers, kept for a coordinator that follows the one to which it
// was sent. Times of reports are relative, so that every coordinator can place them on its own
// clock; what is sent again has aged by then.
class KeptReports {
 public:
  // The last report of a kind replaces the former one. Replies are kept only while they are held.
  void keep(const NodeReport& report, Delivery delivery, Instant now);
  // The notice of an order: one for nodes that join is kept, too, and only until the next round.
  void note(const session::AboutWorkers& message, Instant now);
  void begin_round() {
    joining_.reset();
    copies_.reset();
  }

  // A coordinator has replied with this incarnation. One that has another incarnation than the last
  // one knows no progress.
  void coordinator_replied(std::uint64_t incarnation);

  // What follows the next message of a coordinator that was silent, and has received nothing since:
  // no Resume follows.
  std::vector<NodeReport> after_silence(Instant now);
  // Another connection is used: its coordinator asks again.
  void forget_held();

  // What follows a Resume. A coordinator receives these again after each reconnect.
  std::vector<NodeReport> after_resume(Instant now) const;
  // What follows a Join or a Resume: the findings that were not sent.
  std::vector<gate::Finding> take_findings(Instant now);
  // What follows a Join: the node's own notice, while it has time left and no order has answered
  // it. The coordinator to which it was sent may not have known the node.
  std::optional<drain::Notice> after_join(Instant now) const;
  // What follows the reply that the round continues: before it the coordinator does not know the
  // round.
  std::optional<hang::NodeProgress> after_resumed(Instant now);

 private:
  template <typename Report>
  struct Kept {
    Report report;
    Instant at;
  };
  void keep_one(const hang::NodeProgress& progress, Delivery delivery, Instant now);
  void keep_one(const hang::RankFinished& finished, Delivery delivery, Instant now);
  void keep_one(const snapshot::CopyReport& copies, Delivery delivery, Instant now);
  void keep_one(const drain::Notice& notice, Delivery delivery, Instant now);
  void keep_one(const gate::Finding& finding, Delivery delivery, Instant now);
  template <typename Reply>
  void keep_one(const Reply& reply, Delivery delivery, Instant now);
  static drain::Notice aged(const Kept<drain::Notice>& kept, Instant now);

  bool has_held_ = false;
  std::vector<NodeReport> replies_;  // that are held
  std::optional<Kept<hang::RankFinished>> finished_;
  std::optional<snapshot::CopyReport> copies_;
  std::optional<Kept<drain::Notice>> notice_;
  bool is_unanswered_ = false;  // notice_ is this node's own, not an order's
  std::optional<Kept<drain::Notice>> joining_;
  std::vector<Kept<gate::Finding>> findings_;
  std::optional<Kept<hang::NodeProgress>> progress_;
  bool is_progress_known_ = false;
  std::uint64_t incarnation_ = 0;
};

}  // namespace elastic::core
