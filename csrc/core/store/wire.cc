#include "core/store/wire.h"

// Theory of operation. A request has at most four arguments, so decode() walks them from the start
// of the frame each time and skips at most three lengths. Lists are the exception (up to
// item_count_max strings): they keep a cursor between calls. Each length is compared with its
// limit, and with the rest of frame_bytes_max, as soon as its eight bytes have arrived, before any
// memory is allocated for it. The embedder sets the limits, up to the maximum of size_t, so lengths
// are subtracted from a limit and never added first.

namespace elastic::wire {

namespace {

constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);
constexpr const char* kFrameTooLong = "a request is longer than frame_bytes_max";

// Whether `length` bytes after the first `offset` are within `limit`.
bool fits(std::size_t offset, std::uint64_t length, std::size_t limit) {
  return offset <= limit && length <= limit - offset;
}

// Walks the arguments of one frame; the first that is incomplete or over a limit decides the
// result.
class Walker {
 public:
  Walker(std::string_view bytes, const StoreLimits& limits) : bytes_(bytes), limits_(limits) {}

  bool number(std::int64_t* out) { return integer(out); }
  bool nonce(std::uint32_t* out) { return integer(out); }
  bool key(std::string_view* out) {
    return string(out, limits_.key_bytes_max, "a key is longer than key_bytes_max");
  }
  bool value(std::string_view* out) {
    return string(out, limits_.value_bytes_max, "a value is longer than value_bytes_max");
  }

  DecodeResult result() const { return result_; }
  DecodeResult complete() const { return {DecodeStatus::kRequest, offset_, nullptr}; }

 private:
  bool need(std::size_t bytes) {
    if (offset_ + bytes <= bytes_.size()) return true;
    result_ = {DecodeStatus::kNeedMore, offset_ + bytes, nullptr};
    return false;
  }

  template <typename Integer>
  bool integer(Integer* out) {
    if (!need(sizeof *out)) return false;
    *out = load_integer<Integer>(bytes_.data() + offset_);
    offset_ += sizeof *out;
    return true;
  }

  bool string(std::string_view* out, std::size_t limit, const char* violation) {
    if (!need(kLengthBytes)) return false;
    const auto length = load_integer<std::uint64_t>(bytes_.data() + offset_);
    if (length > limit) {
      result_ = {DecodeStatus::kViolation, 0, violation};
      return false;
    }
    if (!fits(offset_ + kLengthBytes, length, limits_.frame_bytes_max)) {
      result_ = {DecodeStatus::kViolation, 0, kFrameTooLong};
      return false;
    }
    if (!need(kLengthBytes + length)) return false;
    *out = bytes_.substr(offset_ + kLengthBytes, length);
    offset_ += kLengthBytes + length;
    return true;
  }

  std::string_view bytes_;
  const StoreLimits& limits_;
  std::size_t offset_ = 1;  // after the opcode
  DecodeResult result_{DecodeStatus::kNeedMore, 0, nullptr};
};

DecodeResult violation(const char* what) { return {DecodeStatus::kViolation, 0, what}; }

}  // namespace

DecodeResult RequestDecoder::decode(std::string_view bytes, Request* request) {
  if (bytes.empty()) return {DecodeStatus::kNeedMore, 1, nullptr};
  const auto code = static_cast<std::uint8_t>(bytes[0]);
  if (code > kOpcodeLast) return violation("unknown opcode");
  const auto opcode = static_cast<Opcode>(code);
  if ((opcode == Opcode::kValidate) == validated_) {
    return violation(validated_ ? "a second VALIDATE" : "the first request is not VALIDATE");
  }
  request->opcode = opcode;

  Walker walk(bytes, *limits_);
  bool complete = true;
  switch (opcode) {
    case Opcode::kValidate: {
      std::uint32_t magic = 0;
      if (!walk.nonce(&magic)) return walk.result();
      if (magic != kMagic) return violation("wrong magic number");
      validated_ = true;
      break;
    }
    case Opcode::kPing: complete = walk.nonce(&request->nonce); break;
    case Opcode::kSet:
    case Opcode::kAppend:
    case Opcode::kQueuePush:
      complete = walk.key(&request->key) && walk.value(&request->value);
      break;
    case Opcode::kCompareSet:
      complete =
          walk.key(&request->key) && walk.value(&request->expected) && walk.value(&request->value);
      break;
    case Opcode::kGet:
    case Opcode::kDeleteKey:
    case Opcode::kQueuePop:
    case Opcode::kQueueLen: complete = walk.key(&request->key); break;
    case Opcode::kAdd:
    case Opcode::kBarrier:
      complete = walk.key(&request->key) && walk.number(&request->number);
      break;
    case Opcode::kCheck:
    case Opcode::kWait:
    case Opcode::kMultiGet: return decode_items(bytes, request, 1);
    case Opcode::kMultiSet: return decode_items(bytes, request, 2);
    case Opcode::kNumKeys:
    case Opcode::kListKeys:
    case Opcode::kCancelWait: break;
  }
  return complete ? walk.complete() : walk.result();
}

DecodeResult RequestDecoder::decode_items(std::string_view bytes, Request* request,
                                          std::size_t strings_per_item) {
  constexpr std::size_t kItemsOffset = 1 + kLengthBytes;
  if (bytes.size() < kItemsOffset) return {DecodeStatus::kNeedMore, kItemsOffset, nullptr};
  const auto count = load_integer<std::uint64_t>(bytes.data() + 1);
  if (scanned_ == 0) {
    if (count > limits_->item_count_max) return violation("a list is longer than item_count_max");
    // Each string has at least its length field, so this also bounds the product below.
    if (count > limits_->frame_bytes_max / (kLengthBytes * strings_per_item)) {
      return violation(kFrameTooLong);
    }
    scanned_ = kItemsOffset;
    strings_left_ = count * strings_per_item;
  }
  while (strings_left_ > 0) {
    const bool is_key = strings_per_item == 1 || strings_left_ % 2 == 0;
    if (bytes.size() < scanned_ + kLengthBytes) {
      return {DecodeStatus::kNeedMore, scanned_ + kLengthBytes, nullptr};
    }
    const auto length = load_integer<std::uint64_t>(bytes.data() + scanned_);
    if (length > (is_key ? limits_->key_bytes_max : limits_->value_bytes_max)) {
      return violation(is_key ? "a key is longer than key_bytes_max"
                              : "a value is longer than value_bytes_max");
    }
    if (!fits(scanned_ + kLengthBytes, length, limits_->frame_bytes_max)) {
      return violation(kFrameTooLong);
    }
    const std::size_t end = scanned_ + kLengthBytes + length;
    if (bytes.size() < end) return {DecodeStatus::kNeedMore, end, nullptr};
    scanned_ = end;
    --strings_left_;
  }
  const std::size_t frame_bytes = scanned_;
  scanned_ = 0;
  request->items = ItemList(count * strings_per_item, bytes.data() + kItemsOffset);
  return {DecodeStatus::kRequest, frame_bytes, nullptr};
}

void append_bytes(std::string* out, std::string_view bytes) {
  append_integer<std::uint64_t>(out, bytes.size());
  out->append(bytes);
}

void append_bare_request(std::string* out, Opcode opcode) {
  out->push_back(static_cast<char>(opcode));
}

void append_validate(std::string* out) {
  append_bare_request(out, Opcode::kValidate);
  append_integer(out, kMagic);
}

void append_ping(std::string* out, std::uint32_t nonce) {
  append_bare_request(out, Opcode::kPing);
  append_integer(out, nonce);
}

void append_key_request(std::string* out, Opcode opcode, std::string_view key) {
  append_bare_request(out, opcode);
  append_bytes(out, key);
}

void append_key_value_request(std::string* out, Opcode opcode, std::string_view key,
                              std::string_view value) {
  append_key_request(out, opcode, key);
  append_bytes(out, value);
}

void append_compare_set(std::string* out, std::string_view key, std::string_view expected,
                        std::string_view desired) {
  append_key_value_request(out, Opcode::kCompareSet, key, expected);
  append_bytes(out, desired);
}

void append_number_request(std::string* out, Opcode opcode, std::string_view key,
                           std::int64_t number) {
  append_key_request(out, opcode, key);
  append_integer(out, number);
}

void append_list_header(std::string* out, Opcode opcode, std::uint64_t count) {
  append_bare_request(out, opcode);
  append_integer(out, count);
}

}  // namespace elastic::wire
