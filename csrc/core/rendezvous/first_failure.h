#pragma once

// Which failure of a round is the first: the one place that decides it, for the result of the job,
// for its history, and on the node whose workers failed. Pure.

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "elastic/rendezvous_types.h"
#include "elastic/time.h"

namespace elastic::core {

bool is_lost_peer(std::string_view error);  // text.h

// The lesser one is first: by time; but that a peer was lost follows the failure of the peer, whose
// exit may be known later, because a process that is killed closes its connections before its
// memory is freed.
//
// Weak point: is_lost_peer() reads the text of the error. If a version of torch or NCCL words it
// differently, a rank that only lost its peer is first when its exit is known earlier.
inline std::pair<bool, Instant> failure_order(std::string_view error, Instant at) {
  return {is_lost_peer(error), at};
}

// Why workers are stopped after this failure.
inline StopReason worker_stop_reason(int rank, std::string node, int exit_code,
                                     const std::optional<FailureEvidence>& evidence,
                                     std::string text) {
  StopReason why{StopCause::kWorkerFailed,  rank,           std::move(node), exit_code,
                 FailureClass::kUserWorker, std::move(text)};
  if (evidence) why.failure_class = evidence->failure_class;
  if (evidence && evidence->cause == FailureCause::kHang) why.cause = StopCause::kHang;
  return why;
}

// The first of the failures that nodes have reported about one round.
struct FirstFailure {
  std::optional<FailureReport> report;
  NodeId node;       // zero without a report
  std::string name;  // of the node: no more than a text, as several nodes may have the same

  // `at`: the time of the evidence, as the owner believes it. True: this report is the first one
  // now, or a later report about the worker that was first.
  bool note(const NodeId& from, const std::string& from_name, const FailureReport& failure,
            Instant at) {
    if (report) {
      const bool is_update = node == from && report->rank == failure.rank;
      if (!is_update && order(failure, at) >= order(*report, report->at)) return false;
      if (is_update) at = std::min(at, report->at);
    }
    report = failure;
    report->at = at;
    node = from;
    name = from_name;
    return true;
  }

 private:
  static std::pair<bool, Instant> order(const FailureReport& failure, Instant at) {
    return failure_order(failure.evidence ? failure.evidence->error : std::string_view(), at);
  }
};

}  // namespace elastic::core
