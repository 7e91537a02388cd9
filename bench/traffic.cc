#include "traffic.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <unistd.h>

#include "common.h"
#include "core/store/wire.h"

namespace bench {

namespace {

using elastic::wire::Opcode;

constexpr std::size_t kKeys = 1000;
constexpr std::string_view kValue = "0123456789abcdef0123456789abcdef";
constexpr std::uint32_t kNonce = 7;

[[noreturn]] void unknown(const std::string& name) {
  std::fprintf(stderr, "unknown name: %s\n", name.c_str());
  std::exit(2);
}

// ADD needs separate keys: the other keys contain text.
std::string key_name(Kind kind, std::size_t key) {
  char name[32];
  std::snprintf(name, sizeof name, "/%s/%010zu", kind == Kind::kAdd ? "count" : "value", key);
  return name;
}

std::string tcpstore_request(Kind kind, std::string_view key) {
  namespace wire = elastic::wire;
  std::string out;
  switch (kind) {
    case Kind::kPing: wire::append_ping(&out, kNonce); break;
    case Kind::kSet: wire::append_key_value_request(&out, Opcode::kSet, key, kValue); break;
    case Kind::kGet: wire::append_key_request(&out, Opcode::kGet, key); break;
    case Kind::kAdd: wire::append_number_request(&out, Opcode::kAdd, key, 1); break;
    case Kind::kCheck:
      wire::append_list_header(&out, Opcode::kCheck, 1);
      wire::append_bytes(&out, key);
      break;
  }
  return out;
}

std::size_t tcpstore_reply_bytes(Kind kind) {
  switch (kind) {
    case Kind::kPing: return sizeof kNonce;
    case Kind::kSet: return 0;
    case Kind::kGet: return sizeof(std::uint64_t) + kValue.size();
    case Kind::kAdd: return sizeof(std::int64_t);
    case Kind::kCheck: return 1;
  }
  return 0;
}

std::string redis_bulk(std::string_view bytes) {
  std::string out;
  out.append("$").append(std::to_string(bytes.size())).append("\r\n");
  return out.append(bytes).append("\r\n");
}

std::string redis_command(std::initializer_list<std::string_view> words) {
  std::string out;
  out.append("*").append(std::to_string(words.size())).append("\r\n");
  for (const std::string_view word : words) out += redis_bulk(word);
  return out;
}

std::string redis_request(Kind kind, std::string_view key) {
  switch (kind) {
    case Kind::kPing: return redis_command({"PING"});
    case Kind::kSet: return redis_command({"SET", key, kValue});
    case Kind::kGet: return redis_command({"GET", key});
    case Kind::kAdd: return redis_command({"INCR", key});
    case Kind::kCheck: return redis_command({"EXISTS", key});
  }
  return "";
}

template <typename Integer>
std::string as_bytes(Integer value) {
  std::string out;
  elastic::wire::append_integer(&out, value);
  return out;
}

}  // namespace

Protocol protocol_named(const std::string& name) {
  if (name == "tcpstore") return Protocol::kTcpStore;
  if (name == "redis") return Protocol::kRedis;
  if (name == "echo") return Protocol::kEcho;
  unknown(name);
}

Kind kind_named(const std::string& name) {
  if (name == "ping") return Kind::kPing;
  if (name == "set") return Kind::kSet;
  if (name == "get") return Kind::kGet;
  if (name == "add") return Kind::kAdd;
  if (name == "check") return Kind::kCheck;
  unknown(name);
}

std::string set_request(Protocol protocol, std::string_view key) {
  return protocol == Protocol::kRedis ? redis_request(Kind::kSet, key)
                                      : tcpstore_request(Kind::kSet, key);
}

Traffic::Traffic(Protocol protocol, Kind kind, std::size_t pipeline)
    : protocol_(protocol), kind_(kind) {
  for (std::size_t first = 0; first < kKeys; first += pipeline) {
    Batch batch;
    for (std::size_t i = 0; i < pipeline; ++i) {
      batch.bytes += request(kind, (first + i) % kKeys);
      batch.reply_units += reply_units(kind);
    }
    if (protocol == Protocol::kTcpStore && kind == Kind::kSet) {
      batch.bytes += request(Kind::kPing, 0);
      batch.reply_units += reply_units(Kind::kPing);
    }
    batches_.push_back(std::move(batch));
  }
}

int Traffic::connect(std::uint16_t port) const {
  if (protocol_ == Protocol::kTcpStore) return connect_to_tcpstore(port);
  const int fd = connect_to_loopback(port);
  if (protocol_ == Protocol::kEcho) {
    const auto request_bytes = static_cast<std::uint32_t>(request(kind_, 0).size());
    const auto reply_bytes = static_cast<std::uint32_t>(reply_units(kind_));
    send_all(fd, as_bytes(request_bytes) + as_bytes(reply_bytes));
  }
  return fd;
}

void Traffic::prepare(std::uint16_t port) const {
  const int fd = connect(port);
  if (protocol_ != Protocol::kEcho) {
    const std::size_t set_reply_bytes = expected_reply(Kind::kSet).size();
    for (std::size_t key = 0; key < kKeys; ++key) {
      send_all(fd, request(Kind::kSet, key));
      receive(fd, set_reply_bytes);
    }
    const std::string expected = expected_reply(kind_);
    send_all(fd, request(kind_, 0));
    if (receive(fd, expected.size()) != expected && kind_ != Kind::kAdd) {
      std::fprintf(stderr, "the server's reply violates its protocol\n");
      std::exit(1);
    }
  }
  close(fd);
}

std::size_t Traffic::count_units(std::string_view reply) const {
  if (protocol_ != Protocol::kRedis) return reply.size();
  return static_cast<std::size_t>(std::count(reply.begin(), reply.end(), '\n'));
}

std::string Traffic::request(Kind kind, std::size_t key) const {
  const std::string name = key_name(kind, key);
  return protocol_ == Protocol::kRedis ? redis_request(kind, name) : tcpstore_request(kind, name);
}

std::size_t Traffic::reply_units(Kind kind) const {
  if (protocol_ == Protocol::kRedis) return kind == Kind::kGet ? 2 : 1;
  return tcpstore_reply_bytes(kind);
}

std::string Traffic::expected_reply(Kind kind) const {
  const bool redis = protocol_ == Protocol::kRedis;
  switch (kind) {
    case Kind::kPing: return redis ? "+PONG\r\n" : as_bytes(kNonce);
    case Kind::kSet: return redis ? "+OK\r\n" : "";
    case Kind::kGet:
      return redis ? redis_bulk(kValue) : as_bytes(std::uint64_t{kValue.size()}).append(kValue);
    case Kind::kAdd: return redis ? ":1\r\n" : as_bytes(std::int64_t{1});
    case Kind::kCheck: return redis ? ":1\r\n" : std::string(1, elastic::wire::kReady);
  }
  return "";
}

}  // namespace bench
