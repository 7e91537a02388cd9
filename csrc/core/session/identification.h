#pragma once

// Whether the server at an address is a coordinator, which a client finds out before its session.
//
// A coordinator's port also speaks TCPStore's protocol, in which the client identifies the server:
// VALIDATE, PING with a number, CHECK of a key that no user can set. A coordinator replies with the
// number and "ready"; a plain store with the number and "not ready". Any other reply is from a
// foreign server. A client with a token sends a second CHECK: whether the coordinator has one too.
//
// Pure. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/session/session_machine.h"

namespace elastic::session {

class Identification {
 public:
  enum class Server : std::uint8_t {
    kUnknown,  // the reply is incomplete
    kForeign,
    kPlainStore,
    kWithoutToken,  // a coordinator, but this node has a token
    kCoordinator,
  };

  explicit Identification(bool has_token) : has_token_(has_token) {}

  std::string request() const;
  // Returns how many of the bytes belong to the reply. Those that follow belong to the session.
  std::size_t receive(std::string_view bytes);
  Server server() const;
  // Why there is no session. REQUIRES: the server is known and is not kCoordinator
  core::SessionMachine::AttemptFailed rejection(const std::string& peer,
                                                const std::string& token_name) const;

 private:
  std::size_t reply_bytes() const;

  const bool has_token_;
  std::string reply_;
};

}  // namespace elastic::session
