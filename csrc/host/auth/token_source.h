#pragma once

// The tokens of a process, read again when their file has changed, and TLS sessions with them.
//
// Loop thread only. The file is examined for every new connection (one stat), so that a replaced
// token is used at once; nothing polls. On a network file system a thread examines it, and a
// connection waits for that a moment: while the file server is away the known tokens are used.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "elastic/status.h"
#include "elastic/token_options.h"
#include "host/auth/bounded_reader.h"
#include "host/auth/token_list.h"
#include "host/base/tokens.h"
#include "os/file/file.h"
#include "os/net/tls.h"

namespace elastic::host {

class TokenSource final : public Tokens {
 public:
  // As open_tokens(). REQUIRES: options.is_set()
  static Result<std::shared_ptr<TokenSource>> open(const TokenOptions& options,
                                                   std::function<void(const std::string&)> log);
  TokenSource(const TokenSource&) = delete;
  TokenSource& operator=(const TokenSource&) = delete;

  // The current tokens, from the file if it has changed.
  const TokenList& current();
  // Whether the token can be used for this job.
  Status check(const std::string& job_id);
  Result<std::unique_ptr<os::TlsSession>> connect(const std::string& job_id) override;
  Result<std::unique_ptr<os::TlsSession>> accept() override;
  const std::string& name() const override { return name_; }

 private:
  TokenSource(const TokenOptions& options, std::function<void(const std::string&)> log);
  Status refresh();
  Result<std::optional<std::string>> read();

  const std::string name_;
  const std::function<void(const std::string&)> log_;
  const std::shared_ptr<os::PrivateFile> file_;  // shared with the reader
  const bool has_file_;
  bool is_remote_ = false;                 // on a network file system
  std::unique_ptr<BoundedReader> reader_;  // of a remote file, once it was used
  TokenList tokens_;
};

}  // namespace elastic::host
