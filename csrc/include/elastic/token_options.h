#pragma once

// The token of a job: a secret that its nodes and its coordinator share (docs/security.md).
//
// With a token every session between an agent and a coordinator is encrypted, and both ends prove
// that they know it: TLS 1.3 with a pre-shared key that is derived from the token and the run id. A
// host without OpenSSL refuses a token. Plain values.

#include <string>

#include "elastic/export.h"
#include "elastic/status.h"

namespace elastic {

struct TokenOptions {
  // A file that other users cannot read. Each line is one token, or a run id, a space and the token
  // of that job. A node uses the first line for its job; a coordinator accepts all of them. A
  // changed file is read again at the next connection, so a token can be replaced while jobs run.
  std::string file = {};
  // The content itself, if `file` is "".
  std::string text = {};

  bool is_set() const { return !file.empty() || !text.empty(); }
};

// Whether a node of this job can use the token ("": any job, for a coordinator). kInvalidArgument:
// the file, its permissions, or its content; kFailedPrecondition: this host has no OpenSSL.
// REQUIRES: options.is_set()
ELASTIC_EXPORT Status check_token(const TokenOptions& options, const std::string& run_id);

// A token for observers of the job, which can read its state and change nothing. It is derived from
// the job's token, so coordinators accept it without configuration.
ELASTIC_EXPORT Result<std::string> observer_token(const TokenOptions& options,
                                                  const std::string& run_id);

}  // namespace elastic
