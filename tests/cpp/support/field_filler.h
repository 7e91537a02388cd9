#pragma once

// Visitors that fill the fields of a message, as a FieldReader does without bytes: a message of
// each kind with every list and text at its limit, or with values that a hostile peer would choose.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "core/base/fields.h"

namespace elastic::core {

// In the namespace of the readers and writers, by which the lists of fields find each other.
// `Source` chooses the values. Numbers that a decoder checks may be refused by it.
template <typename Source>
class FieldFiller {
 public:
  static constexpr bool kIsWriter = false;
  explicit FieldFiller(Source* source) : source_(*source) {}

  template <typename Integer>
  void number(Integer& value) {
    value = source_.template number<Integer>();
  }
  void flag(bool& value) { value = source_.flag(); }
  void name(std::string& value, std::size_t limit) { value = source_.text(limit); }
  void text(std::string& value, std::size_t limit) { value = source_.text(limit); }
  void exact_name(std::string& value, std::size_t limit) { value = source_.exact(limit); }
  void bytes(std::string& value, std::size_t limit) { value = source_.exact(limit); }
  void bytes(SharedBytes& value, std::size_t limit) { value = source_.exact(limit); }
  template <typename Enum>
  void choice(Enum& value, Enum last) {
    value = static_cast<Enum>(source_.index(static_cast<std::size_t>(last) + 1));
  }
  void check(bool) {}
  void duration(Duration& value) { value = source_.duration(); }
  void instant(Instant& value) { value = Instant(source_.duration()); }
  template <typename List, typename Each>
  void list(List& values, std::size_t limit, Each each) {
    values.clear();
    for (std::size_t left = source_.size(limit); left > 0; --left) each(values.emplace_back());
  }
  template <typename Value, typename Each>
  void optional(std::optional<Value>& value, Each each) {
    value.reset();
    if (source_.flag()) each(value.emplace());
  }
  template <typename Value, typename Each>
  void shared(std::shared_ptr<const Value>& value, Each each) {
    auto filled = std::make_shared<Value>();
    each(*filled);
    value = std::move(filled);
  }
  template <typename Value, typename Each>
  void extension(std::uint8_t, std::optional<Value>& value, Each each) {
    value.reset();
    if (source_.flag()) each(*this, value.emplace());
  }
  void ignore_rest() {}

 private:
  Source& source_;
};

}  // namespace elastic::core

namespace elastic::test {

// One field is above its limit, if it can be: the lists and texts of a message are counted, in the
// order in which they are visited, and `which` is the number of this one. All others are short.
class OneAboveItsLimit {
 public:
  OneAboveItsLimit(std::size_t which, std::size_t more) : which_(which), more_(more) {}
  std::size_t num_limits() const { return visited_; }

  template <typename Integer>
  Integer number() {
    return static_cast<Integer>(++numbers_ % 100 + 1);
  }
  bool flag() { return true; }
  std::string text(std::size_t limit) { return std::string(is_it() ? limit + more_ : 1, 'x'); }
  // The caller of the writer compares these with the limit.
  std::string exact(std::size_t limit) { return std::string(is_it() ? limit : 1, 'x'); }
  std::size_t size(std::size_t limit) { return is_it() ? limit + more_ : 1; }
  std::size_t index(std::size_t count) { return count - 1; }
  Duration duration() { return std::chrono::seconds(1); }

 private:
  bool is_it() { return visited_++ == which_; }

  const std::size_t which_;
  const std::size_t more_;
  std::size_t visited_ = 0;
  std::size_t numbers_ = 0;
};

// Bytes of a fuzzer, or of a seeded generator, that choose what happens.
class Choices {
 public:
  explicit Choices(std::string_view bytes) : rest_(bytes) {}

  bool is_empty() const { return rest_.empty(); }
  std::uint8_t byte() { return static_cast<std::uint8_t>(take(1)[0]); }
  // That many bytes; zeros after the end.
  std::string take(std::size_t count) {
    std::string taken(rest_.substr(0, count));
    rest_.remove_prefix(taken.size());
    taken.resize(count);
    return taken;
  }

 private:
  std::string_view rest_;
};

// What a hostile peer would choose: the ends of each range, and what is near `around`.
class HostileValues {
 public:
  HostileValues(Choices* choices, std::uint64_t around) : choices_(*choices), around_(around) {}

  template <typename Integer>
  Integer number() {
    const std::uint8_t byte = choices_.byte();
    switch (byte % 8) {
      case 0: return 0;
      case 1: return 1;
      case 2: return std::numeric_limits<Integer>::max();
      case 3: return std::numeric_limits<Integer>::min();
      case 4: return static_cast<Integer>(-1);
      case 5: return static_cast<Integer>(byte / 8);
      case 6: return core::load_integer<Integer>(choices_.take(sizeof(Integer)).data());
      default: return static_cast<Integer>(around_ + byte / 8 % 4 - 1);
    }
  }
  bool flag() { return choices_.byte() % 2 == 1; }
  std::string text(std::size_t limit) {
    const std::uint8_t byte = choices_.byte();
    if (byte % 8 == 7) return std::string(limit, 'x');
    return choices_.take(byte % 8);
  }
  std::string exact(std::size_t limit) { return text(limit); }
  std::size_t size(std::size_t limit) {
    const std::uint8_t byte = choices_.byte();
    return byte == 255 ? std::min<std::size_t>(limit, 1000) : byte % 4;
  }
  std::size_t index(std::size_t count) { return choices_.byte() % count; }
  Duration duration() {
    const std::uint8_t byte = choices_.byte();
    return byte % 4 == 0 ? std::chrono::milliseconds(byte) : Duration(number<std::int64_t>());
  }

 private:
  Choices& choices_;
  const std::uint64_t around_;
};

// The message of the variant with this index, with fields that `fields` visits.
template <typename Message, typename Source, typename Fields>
Message filled(std::size_t index, Source* source, Fields fields) {
  Message message = core::alternative_of<Message>(index);
  core::FieldFiller<Source> filler(source);
  std::visit([&](auto& one) { fields(filler, one); }, message);
  return message;
}

}  // namespace elastic::test
