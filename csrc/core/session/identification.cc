#include "core/session/identification.h"

#include <algorithm>

#include "core/session/session_wire.h"
#include "core/store/wire.h"
#include "elastic/agent.h"

namespace elastic::session {
namespace {

// Contains two line ends: servers of line-based protocols answer it, which identifies them.
constexpr std::string_view kNonce = "\r\n\r\n";
constexpr std::size_t kQuoteBytesMax = 24;  // of a foreign greeting

// The reply of a foreign server, in printable form.
std::string quote(std::string_view bytes) {
  std::string text = "\"";
  for (const char c : bytes.substr(0, kQuoteBytesMax)) {
    text += c >= ' ' && c < '\x7f' && c != '"' ? c : '.';
  }
  return text + '"';
}

}  // namespace

std::string Identification::request() const {
  std::string bytes;
  wire::append_validate(&bytes);
  wire::append_ping(&bytes, wire::load_integer<std::uint32_t>(kNonce.data()));
  wire::append_list_header(&bytes, wire::Opcode::kCheck, 1);
  wire::append_bytes(&bytes, kReservedKey);
  if (!has_token_) return bytes;
  wire::append_list_header(&bytes, wire::Opcode::kCheck, 1);
  wire::append_bytes(&bytes, kTokenKey);
  return bytes;
}

std::size_t Identification::reply_bytes() const { return kNonce.size() + (has_token_ ? 2 : 1); }

std::size_t Identification::receive(std::string_view bytes) {
  const std::size_t used = std::min(bytes.size(), reply_bytes() - reply_.size());
  reply_.append(bytes.substr(0, used));
  return used;
}

Identification::Server Identification::server() const {
  const std::string_view echo = std::string_view(reply_).substr(0, kNonce.size());
  const std::string_view checks = std::string_view(reply_).substr(echo.size());
  const bool is_store =
      kNonce.starts_with(echo) && std::all_of(checks.begin(), checks.end(), [](char check) {
        return check == wire::kReady || check == wire::kNotReady;
      });
  if (!is_store) return Server::kForeign;
  if (reply_.size() < reply_bytes()) return Server::kUnknown;
  if (checks.front() == wire::kNotReady) return Server::kPlainStore;
  return checks.back() == wire::kNotReady ? Server::kWithoutToken : Server::kCoordinator;
}

core::SessionMachine::AttemptFailed Identification::rejection(const std::string& peer,
                                                              const std::string& token_name) const {
  switch (server()) {
    case Server::kPlainStore:
      return {Status(StatusCode::kPeerViolation,
                     peer + " is a plain TCPStore, not a coordinator: use another endpoint, or "
                            "share the job's state through that store (--rdzv-backend=tcpstore)"),
              kExitRejected, true};
    case Server::kWithoutToken:
      return {Status(StatusCode::kPeerViolation,
                     "the coordinator at " + peer + " has no token, and this node has one (" +
                         token_name + "): give the coordinator the same token, or remove it here"),
              kExitRejected};
    default:
      return {Status(StatusCode::kPeerViolation,
                     peer + " speaks another protocol and is not a coordinator: it sent " +
                         quote(reply_)),
              kExitRejected, true};
  }
}

}  // namespace elastic::session
