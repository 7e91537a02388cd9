#pragma once

// The tokens of a token file, and the keys and identities that are derived from them.
//
// Each token has two keys: one for nodes, and one for observers, from which the nodes' key cannot
// be computed. The key of a session is derived from one of them and the run id. The identity that a
// client sends names the protocol, its role, a fingerprint of the key, and the run id:
// "elastic/1 node 0f1e2d3c4b5a6978 my-run". It is visible on the network.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "elastic/status.h"
#include "host/base/tokens.h"
#include "os/net/tls.h"

namespace elastic::host {

class TokenList {
 public:
  static constexpr std::size_t kBytesMax = std::size_t{1} << 20;  // of the text

  TokenList() = default;
  // One token a line, as elastic/token_options.h describes; blank lines and lines that begin with
  // '#' are ignored. kInvalidArgument names the line; kFailedPrecondition: TLS cannot be used.
  static Result<TokenList> parse(std::string_view text);

  struct ClientKey {
    std::string identity;
    os::TlsKey key;
  };
  // For a client that takes part in the job: of the first token of the job. An observer's token
  // makes the client an observer. kInvalidArgument: no line is for this job.
  Result<ClientKey> client_key(const std::string& job_id) const;
  // For a server: the key that the client of this identity has. nullopt: no token matches it.
  std::optional<os::TlsKey> find(std::string_view identity) const;

  // The token of observers that belongs to the first token of the job.
  Result<std::string> observer_token(const std::string& job_id) const;

 private:
  struct RoleKey {
    os::TlsKey key{};
    std::string fingerprint;
  };
  struct Token {
    std::string job_id;           // "": of every job
    std::optional<RoleKey> node;  // nullopt: a token of observers
    RoleKey observer;

    bool is_for(std::string_view job) const { return job_id.empty() || job_id == job; }
  };

  static Result<Token> read_line(std::string_view line);
  static Result<RoleKey> role_key(const os::TlsKey& key);
  const Token* first_of(const std::string& job_id) const;

  std::vector<Token> tokens_;
};

// The role and the job of an identity; nullopt: it is not one of ours.
std::optional<PeerIdentity> read_identity(std::string_view identity);

}  // namespace elastic::host
