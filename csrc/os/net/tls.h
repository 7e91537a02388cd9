#pragma once

// TLS 1.3 with pre-shared keys: both ends prove that they know a key, and the bytes between them
// are encrypted. There are no certificates.
//
// A TlsSession converts bytes; os/net/stream.h owns the socket, the buffers and the deadlines. One
// thread at a time. No type of the TLS library is visible here. check_tls() reports
// whether the host has one.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "elastic/status.h"

namespace elastic::os {

inline constexpr std::size_t kTlsKeyBytes = 32;
using TlsKey = std::array<unsigned char, kTlsKeyBytes>;

// Whether TLS can be used; otherwise one sentence that names what is missing.
Status check_tls();

// HKDF-SHA256 (RFC 5869): a key for the purpose `info`, from a secret of any length. Different
// purposes give independent keys, and a key does not reveal the secret.
Result<TlsKey> derive_key(std::string_view secret, std::string_view salt, std::string_view info);

// One end of a connection: from the handshake on, encrypted bytes to plain ones and back.
class TlsSession {
 public:
  // The key that belongs to an identity, on the server; nullopt: unknown. The client chooses the
  // identity, which is sent in clear.
  using FindKey = std::function<std::optional<TlsKey>(std::string_view identity)>;

  static Result<std::unique_ptr<TlsSession>> connect(std::string identity, const TlsKey& key);
  // `find_key` is called while received bytes are handled, at most once for a connection.
  static Result<std::unique_ptr<TlsSession>> accept(FindKey find_key);
  // The approximate memory of a session, with the library's part, for limits.
  static constexpr std::size_t kHandshakeBytes = 48 << 10;
  static constexpr std::size_t kEstablishedBytes = 12 << 10;

  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;
  ~TlsSession();

  // Both ends have proved that they know the key.
  bool is_established() const;
  // The identity of the key that is used. Empty on a server that has not received one.
  const std::string& identity() const;

  // Handles received bytes, and appends the plain ones to `plain`. Bytes to be sent are added to
  // output(), an alert for a peer that failed included. False: the session has failed; see error().
  bool receive(std::string_view bytes, std::string* plain);
  // Encrypts all of it into output(). REQUIRES: is_established()
  bool send(std::string_view plain);
  // Encrypted bytes to be sent; the owner removes them.
  std::string& output();

  enum class Error : std::uint8_t {
    kNone,
    kUnknownIdentity,  // the server has no key for the client's identity
    kRejectedByPeer,   // the peer sent an alert
    kOther,            // not TLS, changed bytes, a wrong key, another version
  };
  Error error() const;
  bool is_rejected_by_peer() const { return error() == Error::kRejectedByPeer; }
  // The library's words for the failure: "bad record mac".
  const std::string& error_text() const;

 private:
  class Impl;
  friend Status check_tls();
  explicit TlsSession(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elastic::os
