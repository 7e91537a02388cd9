#include "host/auth/token_list.h"

#include <algorithm>
#include <utility>

namespace elastic::host {
namespace {

constexpr std::string_view kProtocol = "elastic/1";
constexpr std::string_view kNode = "node";
constexpr std::string_view kObserver = "observer";
constexpr std::string_view kObserverPrefix = "observer-";
constexpr std::string_view kBlank = " \t\r";
constexpr std::size_t kTokenBytesMin = 16;
constexpr std::size_t kFingerprintBytes = 8;

std::string_view trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) + 1 - begin);
}

std::string to_hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// nullopt: not a key as to_hex() writes it.
std::optional<os::TlsKey> key_of_hex(std::string_view text) {
  if (text.size() != 2 * os::kTlsKeyBytes) return std::nullopt;
  os::TlsKey key{};
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit && (c < 'a' || c > 'f')) return std::nullopt;
    const int nibble = is_digit ? c - '0' : c - 'a' + 10;
    key[i / 2] = static_cast<unsigned char>(key[i / 2] << 4 | nibble);
  }
  return key;
}

std::string_view view(const os::TlsKey& key) {
  return {reinterpret_cast<const char*>(key.data()), key.size()};
}

Result<os::TlsKey> session_key(const os::TlsKey& role_key, std::string_view job_id) {
  return os::derive_key(view(role_key), kProtocol, "session " + std::string(job_id));
}

std::string_view next_word(std::string_view* text) {
  const std::size_t end = std::min(text->find(' '), text->size());
  const std::string_view word = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return word;
}

// The parts of an identity.
struct Identity {
  PeerRole role = PeerRole::kNode;
  std::string_view fingerprint;
  std::string_view job_id;
};

std::optional<Identity> split_identity(std::string_view text) {
  if (next_word(&text) != kProtocol) return std::nullopt;
  const std::string_view role = next_word(&text);
  if (role != kNode && role != kObserver) return std::nullopt;
  const std::string_view fingerprint = next_word(&text);
  return Identity{role == kNode ? PeerRole::kNode : PeerRole::kObserver, fingerprint, text};
}

}  // namespace

std::optional<PeerIdentity> read_identity(std::string_view identity) {
  const auto parts = split_identity(identity);
  if (!parts) return std::nullopt;
  return PeerIdentity{parts->role, std::string(parts->job_id)};
}

Result<TokenList::RoleKey> TokenList::role_key(const os::TlsKey& key) {
  const Result<os::TlsKey> id = os::derive_key(view(key), kProtocol, "fingerprint");
  if (!id.ok()) return id.status();
  return RoleKey{key, to_hex(view(*id).substr(0, kFingerprintBytes))};
}

// The token is the last field of the line; a field before it is a run id.
Result<TokenList::Token> TokenList::read_line(std::string_view line) {
  Token token;
  const std::size_t blank = line.find_last_of(kBlank);
  const std::string_view secret = blank == std::string_view::npos ? line : line.substr(blank + 1);
  if (blank != std::string_view::npos) token.job_id = trim(line.substr(0, blank));
  std::optional<os::TlsKey> observer;
  if (secret.starts_with(kObserverPrefix)) {
    observer = key_of_hex(secret.substr(kObserverPrefix.size()));
    if (!observer) {
      return Status(StatusCode::kInvalidArgument, "is not a whole observer token");
    }
  } else if (secret.size() < kTokenBytesMin) {
    return Status(StatusCode::kInvalidArgument,
                  "has " + std::to_string(secret.size()) + " characters, fewer than " +
                      std::to_string(kTokenBytesMin) + ": make one with 'openssl rand -hex 32'");
  }
  if (!observer) {
    const auto node = os::derive_key(secret, kProtocol, kNode);
    const auto derived = os::derive_key(secret, kProtocol, kObserver);
    if (!node.ok()) return node.status();
    if (!derived.ok()) return derived.status();
    observer = *derived;
    Result<RoleKey> key = role_key(*node);
    if (!key.ok()) return key.status();
    token.node = *std::move(key);
  }
  Result<RoleKey> key = role_key(*observer);
  if (!key.ok()) return key.status();
  token.observer = *std::move(key);
  return token;
}

Result<TokenList> TokenList::parse(std::string_view text) {
  if (text.size() > kBytesMax) {
    return Status(StatusCode::kInvalidArgument,
                  "is longer than " + std::to_string(kBytesMax) + " bytes");
  }
  TokenList list;
  int number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.empty() || line.front() == '#') continue;
    Result<Token> token = read_line(line);
    if (!token.ok()) {
      const Status fault = token.status();
      if (fault.code() != StatusCode::kInvalidArgument) return fault;
      return Status(fault.code(),
                    "line " + std::to_string(number) + " " + std::string(fault.message()));
    }
    list.tokens_.push_back(*std::move(token));
  }
  if (list.tokens_.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "has no token: write the output of 'openssl rand -hex 32' to it");
  }
  return list;
}

const TokenList::Token* TokenList::first_of(const std::string& job_id) const {
  const auto found = std::find_if(tokens_.begin(), tokens_.end(),
                                  [&](const Token& token) { return token.is_for(job_id); });
  return found == tokens_.end() ? nullptr : &*found;
}

Result<TokenList::ClientKey> TokenList::client_key(const std::string& job_id) const {
  const Token* const token = first_of(job_id);
  if (token == nullptr) {
    return Status(StatusCode::kInvalidArgument, "has no line for job " + job_id);
  }
  const bool is_node = token->node.has_value();
  const RoleKey& own = is_node ? *token->node : token->observer;
  const Result<os::TlsKey> key = session_key(own.key, job_id);
  if (!key.ok()) return key.status();
  std::string identity(kProtocol);
  identity += " " + std::string(is_node ? kNode : kObserver) + " " + own.fingerprint + " " + job_id;
  return ClientKey{std::move(identity), *key};
}

std::optional<os::TlsKey> TokenList::find(std::string_view identity) const {
  const auto parts = split_identity(identity);
  if (!parts) return std::nullopt;
  for (const Token& token : tokens_) {
    const RoleKey* const own = parts->role == PeerRole::kObserver ? &token.observer
                               : token.node                       ? &*token.node
                                                                  : nullptr;
    if (own == nullptr || own->fingerprint != parts->fingerprint) continue;
    if (!token.is_for(parts->job_id)) continue;
    const Result<os::TlsKey> key = session_key(own->key, parts->job_id);
    return key.ok() ? std::optional(*key) : std::nullopt;
  }
  return std::nullopt;
}

Result<std::string> TokenList::observer_token(const std::string& job_id) const {
  const Token* const token = first_of(job_id);
  if (token == nullptr) {
    return Status(StatusCode::kInvalidArgument, "has no line for job " + job_id);
  }
  return std::string(kObserverPrefix) + to_hex(view(token->observer.key));
}

}  // namespace elastic::host
