#pragma once

// The wire protocol of PyTorch's TCPStore: one codec for server and client.
//
// A request is one opcode byte and its arguments in sequence; integers are little endian; `bytes`
// is a u64 length and that many bytes; a list is a u64 count and that many `bytes`. There is no
// frame length: a request is complete when its last argument is. docs/protocol.md has the grammar.
//
// Pure. Decoding allocates nothing: decoded strings are views into the caller's buffer.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/bytes.h"
#include "elastic/store_server.h"

namespace elastic::wire {

enum class Opcode : std::uint8_t {
  kValidate = 0,
  kSet = 1,
  kCompareSet = 2,
  kGet = 3,
  kAdd = 4,
  kCheck = 5,
  kWait = 6,
  kNumKeys = 7,
  kDeleteKey = 8,
  kAppend = 9,
  kMultiGet = 10,
  kMultiSet = 11,
  kCancelWait = 12,
  kPing = 13,
  kQueuePush = 14,
  kQueuePop = 15,
  kQueueLen = 16,
  kListKeys = 17,
  kBarrier = 18,
};
inline constexpr std::uint8_t kOpcodeLast = 18;

inline constexpr std::uint32_t kMagic = 0x3C85F7CE;

// Replies of CHECK and WAIT/BARRIER/CANCEL_WAIT.
inline constexpr char kReady = 0;
inline constexpr char kNotReady = 1;
inline constexpr char kStopWaiting = 0;
inline constexpr char kWaitCanceled = 1;

using core::append_integer;
using core::load_integer;

// Consecutive length-prefixed strings in a decoded frame.
// REQUIRES: the decoder has checked them.
class ItemList {
 public:
  ItemList() = default;
  ItemList(std::size_t count, const char* bytes) : count_(count), bytes_(bytes) {}
  std::size_t size() const { return count_; }

  class Cursor {
   public:
    explicit Cursor(const char* bytes) : bytes_(bytes) {}
    std::string_view next() {
      const auto length = load_integer<std::uint64_t>(bytes_);
      const std::string_view item(bytes_ + sizeof length, length);
      bytes_ += sizeof length + length;
      return item;
    }

   private:
    const char* bytes_;
  };
  Cursor begin() const { return Cursor(bytes_); }

 private:
  std::size_t count_ = 0;
  const char* bytes_ = nullptr;
};

// One request. The opcode determines which members are set; the decoder does not change the others.
struct Request {
  Opcode opcode = Opcode::kValidate;
  std::uint32_t nonce = 0;    // PING
  std::int64_t number = 0;    // ADD: delta; BARRIER: world size
  std::string_view key;       // also the queue's name
  std::string_view value;     // SET, APPEND, QUEUE_PUSH; COMPARE_SET: desired
  std::string_view expected;  // COMPARE_SET
  ItemList items;             // CHECK, WAIT, MULTI_GET: keys; MULTI_SET: key, value, …
                              // (size() counts strings: twice the pairs)
};

enum class DecodeStatus : std::uint8_t { kRequest, kNeedMore, kViolation };

struct DecodeResult {
  DecodeStatus status;
  std::size_t bytes;      // kRequest: size of the frame. kNeedMore: size needed to continue
  const char* violation;  // kViolation: the error, a phrase in lower case
};

// Splits a byte stream into requests. Pass a buffer that begins at a frame; after kNeedMore pass
// the same frame again with more bytes: decoding continues where it stopped, so that a frame that
// arrives byte by byte costs no more than one that arrives whole. The first frame must be VALIDATE
// with the right magic, and no later frame may be VALIDATE. VALIDATE is returned like any request.
class RequestDecoder {
 public:
  explicit RequestDecoder(const StoreLimits& limits) : limits_(&limits) {}
  DecodeResult decode(std::string_view bytes, Request* request);
  bool is_validated() const { return validated_; }  // VALIDATE was decoded

 private:
  DecodeResult decode_items(std::string_view bytes, Request* request, std::size_t strings_per_item);

  const StoreLimits* limits_;  // outlives the decoder
  bool validated_ = false;
  // Progress inside a list, so that its items are not walked again: the first unread byte (0: not
  // in a list yet) and the number of missing strings.
  std::size_t scanned_ = 0;
  std::size_t strings_left_ = 0;
};

// Appends one request to `out`. The caller checks the lengths (StoreLimits).
void append_validate(std::string* out);
void append_ping(std::string* out, std::uint32_t nonce);
// GET, DELETE_KEY, QUEUE_POP, QUEUE_LEN.
void append_key_request(std::string* out, Opcode opcode, std::string_view key);
// SET, APPEND, QUEUE_PUSH.
void append_key_value_request(std::string* out, Opcode opcode, std::string_view key,
                              std::string_view value);
void append_compare_set(std::string* out, std::string_view key, std::string_view expected,
                        std::string_view desired);
// ADD, BARRIER.
void append_number_request(std::string* out, Opcode opcode, std::string_view key,
                           std::int64_t number);
// NUM_KEYS, LIST_KEYS, CANCEL_WAIT.
void append_bare_request(std::string* out, Opcode opcode);
// CHECK, WAIT, MULTI_GET, MULTI_SET: the opcode and the count; then `count` items (MULTI_SET:
// pairs) follow, each by append_bytes.
void append_list_header(std::string* out, Opcode opcode, std::uint64_t count);

// A u64 length and the bytes: an argument of a list, or a reply.
void append_bytes(std::string* out, std::string_view bytes);

}  // namespace elastic::wire
