#pragma once

// The operator's command to a job whose coordinator cannot be elected, because the majority of its
// voters is lost for good (docs/high-availability.md): a remaining voter continues without them.
//
//   auto answer = elastic::override_coordinator({.host = "10.0.0.3", .port = 41234, .run_id =
//   "job"});
//
// If the voters that are taken for lost are alive behind a partition of the network, two jobs run
// from then on. The command cannot know that: its caller does.

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "elastic/export.h"
#include "elastic/status.h"
#include "elastic/time.h"
#include "elastic/token_options.h"

namespace elastic {

struct OverrideOptions {
  // The voter port of a node, as its log names it.
  std::string host;
  std::uint16_t port = 0;
  std::string run_id;
  TokenOptions token = {};  // of the job, if it has one
  // Includes the 2 s for which the voter asks the others.
  Duration timeout = std::chrono::seconds(15);
};

struct OverrideAnswer {
  bool is_done = false;  // the voter's node runs the coordinator of the job
  std::string text;      // one sentence: where, or why nothing was done
};

// Blocks. Errors: kUnavailable (the address does not answer), kFailedPrecondition (it refused: of
// another job, or the token), kDeadlineExceeded; kInterrupted if `interrupted` returned true, which
// is called now and then.
ELASTIC_EXPORT Result<OverrideAnswer> override_coordinator(
    const OverrideOptions& options, const std::function<bool()>& interrupted = {});

}  // namespace elastic
