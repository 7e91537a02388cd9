#pragma once

// Visitors of a value's fields: one list of fields, a function template that takes the visitor,
// serves both directions. FieldWriter appends what it visits to a string, FieldReader fills it from
// bytes. What is not a template is in fields.cc: it is called thousands of times in a codec, and
// inlined there it would be most of its code.
//
//     template <typename Visitor>
//     void fields(Visitor& v, Point& point) { v.number(point.x); v.number(point.y); }

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/bytes.h"
#include "elastic/status.h"
#include "elastic/time.h"

namespace elastic::core {

enum class Lines;  // text.h

inline constexpr Duration kFar = std::chrono::hours(24 * 365 * 50);  // longer times are cut to this

// Appends what it visits to a string, and changes nothing of it.
class FieldWriter {
 public:
  static constexpr bool kIsWriter = true;
  // `cuts_lists`: a list is cut at its limit, as a text, so that the reader refuses no message of
  // this process. Not for records: with a part of a list a record says something else.
  explicit FieldWriter(std::string* out, bool cuts_lists = false)
      : writer_(out), cuts_lists_(cuts_lists) {}

  template <typename Integer>
  void number(Integer& value) {
    writer_.integer(value);
  }
  void flag(bool& value);
  // A name or an address: one line. Cut at the limit and made printable, as a text, so that the
  // reader refuses no name or text of this process.
  void name(std::string& value, std::size_t limit);
  void text(std::string& value, std::size_t limit);
  // The exact name of a job or of a voter's address: a changed name could denote a different one.
  void exact_name(std::string& value, std::size_t limit);
  // Not a text, and not cut: the caller compares the size of the value with the limit.
  void bytes(std::string& value, std::size_t limit);
  void bytes(SharedBytes& value, std::size_t limit);
  // For the kernel: a NUL follows the text, which contains none. Read as a view of the bytes.
  void c_string(std::string_view& value);
  template <typename Enum>
  void choice(Enum& value, Enum) {
    writer_.integer(value);
  }
  // Which alternative a variant has; its fields follow.
  template <typename Variant>
  void alternative(Variant& value) {
    writer_.integer(static_cast<std::uint8_t>(value.index()));
  }
  // The reader fails if it is false.
  void check(bool) {}
  void duration(Duration& value);
  void instant(Instant& value);
  template <typename List, typename Each>
  void list(List& values, std::size_t limit, Each each) {
    std::size_t left = cuts_lists_ ? std::min<std::size_t>(values.size(), limit) : values.size();
    writer_.size(left);
    for (auto& value : values) {
      if (left-- == 0) break;
      each(value);
    }
  }
  template <typename Value, typename Each>
  void optional(std::optional<Value>& value, Each each) {
    writer_.flag(value.has_value());
    if (value) each(*value);
  }
  template <typename Value, typename Each>
  void shared(std::shared_ptr<const Value>& value, Each each) {
    each(const_cast<Value&>(*value));
  }
  // A later version may append fields, which are ignored.
  void ignore_rest() {}
  // A field that not every version knows, behind all others: a tag, a length and the value.
  template <typename Value, typename Each>
  void extension(std::uint8_t tag, std::optional<Value>& value, Each each) {
    if (!value) return;
    std::string bytes;
    FieldWriter inner(&bytes, cuts_lists_);
    each(inner, *value);
    writer_.integer(tag);
    writer_.text(bytes);
  }

 private:
  void printable(const std::string& value, Lines lines, std::size_t limit);

  ByteWriter writer_;
  const bool cuts_lists_;
};

// A variant with its alternative of this index, default-constructed. An index that is too great
// gives the last one.
template <typename Variant, std::size_t Index = 0>
Variant alternative_of(std::size_t index) {
  if constexpr (Index + 1 < std::variant_size_v<Variant>) {
    if (index != Index) return alternative_of<Variant, Index + 1>(index);
  }
  return Variant(std::in_place_index<Index>);
}

// A reader that does not know the extension must refuse the message, instead of skipping it.
inline constexpr std::uint8_t kRequiredExtension = 128;

// Fills what it visits; ok() tells at the end whether all of it was there and possible.
class FieldReader {
 public:
  static constexpr bool kIsWriter = false;
  explicit FieldReader(std::string_view bytes) : reader_(bytes) {}

  template <typename Integer>
  void number(Integer& value) {
    value = reader_.integer<Integer>();
  }
  void flag(bool& value);
  void name(std::string& value, std::size_t limit);
  void text(std::string& value, std::size_t limit);
  void exact_name(std::string& value, std::size_t limit);
  void bytes(std::string& value, std::size_t limit);
  void bytes(SharedBytes& value, std::size_t limit);
  void c_string(std::string_view& value);
  template <typename Enum>
  void choice(Enum& value, Enum last) {
    value = reader_.enumerator(last);
  }
  template <typename Variant>
  void alternative(Variant& value) {
    const auto index = reader_.integer<std::uint8_t>();
    check(index < std::variant_size_v<Variant>);
    if (reader_.ok()) value = alternative_of<Variant>(index);
  }
  void check(bool is_valid) {
    if (!is_valid) fail();
  }
  // Cut at kFar, so that sums of what was read do not overflow.
  void duration(Duration& value);
  void instant(Instant& value);
  template <typename List, typename Each>
  void list(List& values, std::size_t limit, Each each) {
    const std::size_t size = reader_.size(limit);
    values.clear();
    for (std::size_t i = 0; i < size && reader_.ok(); ++i) each(values.emplace_back());
  }
  template <typename Value, typename Each>
  void optional(std::optional<Value>& value, Each each) {
    value.reset();
    if (reader_.flag()) each(value.emplace());
  }
  template <typename Value, typename Each>
  void shared(std::shared_ptr<const Value>& value, Each each) {
    auto read = std::make_shared<Value>();
    each(*read);
    value = std::move(read);
  }
  void ignore_rest() { reader_.take(reader_.left()); }
  template <typename Value, typename Each>
  void extension(std::uint8_t tag, std::optional<Value>& value, Each each) {
    value.reset();
    const std::optional<std::string_view> bytes = take_extension(tag);
    if (!bytes) return;
    FieldReader inner(*bytes);
    each(inner, value.emplace());
    end_extension(inner);
  }
  // Skips the extensions that were not requested. The tag of one that must not be skipped, or
  // nullopt. The last call before ok().
  std::optional<std::uint8_t> skip_extensions();
  void fail() { reader_.fail(); }
  bool ok() const { return reader_.ok() && reader_.at_end(); }
  // A suffix for the error message: the reason, or "".
  std::string reason() const;

 private:
  struct Extension {
    std::uint8_t tag = 0;
    std::string_view bytes;
  };
  void printable(std::string& value, Lines lines, std::size_t limit);
  void read_extensions();
  std::optional<std::string_view> take_extension(std::uint8_t tag);
  void end_extension(const FieldReader& inner);

  ByteReader reader_;
  bool has_unprintable_ = false;
  std::vector<Extension> extensions_;  // that were read and not asked for yet
};

// The two halves of an identifier.
template <typename Visitor, typename Id>
void visit_id(Visitor& v, Id& id) {
  v.number(id.high);
  v.number(id.low);
}

// That bytes have a format which this version cannot read. `what`: the beginning of the sentence.
// This version reads all formats up to `newest`.
Status newer_version(const std::string& what, std::uint16_t version, std::uint16_t newest);
// It reads `own` alone.
Status other_version(const std::string& what, std::uint16_t version, std::uint16_t own);

// A flag that not every version knows. It is sent only if it is set.
template <typename Visitor>
void extend_flag(Visitor& v, std::uint8_t tag, bool& flag) {
  std::optional<bool> sent = flag ? std::optional(true) : std::nullopt;
  v.extension(tag, sent, [](auto& inner, bool& value) { inner.flag(value); });
  flag = sent.value_or(false);
}

// The same for a value: it is sent only if it is not `none`.
template <typename Visitor, typename Value, typename Each>
void extend_value(Visitor& v, std::uint8_t tag, Value& value, Each each, Value none = {}) {
  std::optional<Value> sent = value == none ? std::nullopt : std::optional(std::move(value));
  v.extension(tag, sent, each);
  value = sent ? *std::move(sent) : std::move(none);
}

}  // namespace elastic::core
