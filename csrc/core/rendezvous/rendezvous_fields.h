#pragma once

// The fields of the values in elastic/rendezvous_types.h as they are stored and sent: one list for
// each, which a FieldWriter or a FieldReader visits. A field that is added to one of these lists
// changes every format that holds it (rendezvous_codec.cc, coordinator_state.cc, session_wire.h)
// and needs a new version of each. A session's message can be extended without: extension().

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/byte_io.h"
#include "core/base/utf8.h"
#include "elastic/rendezvous_types.h"

namespace elastic::core {

inline constexpr Duration kFar = std::chrono::hours(24 * 365 * 50);  // longer times are cut to this
inline constexpr std::size_t kFieldBytesMax = 4 * kMessageBytesMax;
inline constexpr std::size_t kLostNamesMax = 8;

// Appends what it visits to a string, and changes nothing of it.
class FieldWriter {
 public:
  explicit FieldWriter(std::string* out) : writer_(out) {}

  template <typename Integer>
  void number(Integer& value) {
    writer_.integer(value);
  }
  void flag(bool& value) { writer_.flag(value); }
  // A name or an address: one line. Cut at the limit and made printable, as a text, so that the
  // reader refuses no name or text of this process.
  void name(std::string& value, std::size_t limit) { printable(value, Lines::kOne, limit); }
  void text(std::string& value, std::size_t limit) { printable(value, Lines::kMany, limit); }
  // The id of a job, as it is: changed, it could be that of another one.
  void job_id(std::string& value, std::size_t) { writer_.text(value); }
  // Not a text.
  void bytes(std::string& value, std::size_t limit) {
    writer_.text(std::string_view(value).substr(0, limit));
  }
  template <typename Enum>
  void choice(Enum& value, Enum) {
    writer_.integer(value);
  }
  void duration(Duration& value) { writer_.integer(static_cast<std::int64_t>(value.count())); }
  void instant(Instant& value) {
    writer_.integer(static_cast<std::int64_t>(value.time_since_epoch().count()));
  }
  template <typename List, typename Each>
  void list(List& values, std::size_t, Each each) {
    writer_.size(values.size());
    for (auto& value : values) each(value);
  }
  // The last field of a format that did not have it at first: nothing is written if it is empty.
  template <typename List, typename Each>
  void tail(List& values, std::size_t limit, Each each) {
    if (!values.empty()) list(values, limit, each);
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
  // A field that not every version knows, behind all others: a tag, a length and the value.
  template <typename Value, typename Each>
  void extension(std::uint8_t tag, std::optional<Value>& value, Each each) {
    if (!value) return;
    std::string bytes;
    FieldWriter inner(&bytes);
    each(inner, *value);
    writer_.integer(tag);
    writer_.text(bytes);
  }

 private:
  void printable(const std::string& value, Lines lines, std::size_t limit) {
    const bool is_clean = value.size() <= limit && is_printable(value, lines);
    writer_.text(is_clean ? value : to_printable(value, lines, limit));
  }

  ByteWriter writer_;
};

// A reader that does not know the extension must refuse the message, instead of skipping it.
inline constexpr std::uint8_t kRequiredExtension = 128;

// Fills what it visits; ok() tells at the end whether all of it was there and possible.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : reader_(bytes) {}

  template <typename Integer>
  void number(Integer& value) {
    value = reader_.integer<Integer>();
  }
  void flag(bool& value) { value = reader_.flag(); }
  void name(std::string& value, std::size_t limit) { printable(value, Lines::kOne, limit); }
  void text(std::string& value, std::size_t limit) { printable(value, Lines::kMany, limit); }
  void job_id(std::string& value, std::size_t limit) { name(value, limit); }
  void bytes(std::string& value, std::size_t limit) { value = reader_.text(limit); }
  template <typename Enum>
  void choice(Enum& value, Enum last) {
    value = reader_.enumerator(last);
  }
  // Cut at kFar, so that sums of what was read do not overflow.
  void duration(Duration& value) {
    value = std::clamp(Duration(reader_.integer<std::int64_t>()), -kFar, kFar);
  }
  void instant(Instant& value) {
    Duration since{};
    duration(since);
    value = Instant(since);
  }
  template <typename List, typename Each>
  void list(List& values, std::size_t limit, Each each) {
    const std::size_t size = reader_.size(limit);
    values.clear();
    for (std::size_t i = 0; i < size && reader_.ok(); ++i) each(values.emplace_back());
  }
  template <typename List, typename Each>
  void tail(List& values, std::size_t limit, Each each) {
    values.clear();
    if (!reader_.ok() || reader_.at_end()) return;
    list(values, limit, each);
    if (values.empty()) fail();
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
  template <typename Value, typename Each>
  void extension(std::uint8_t tag, std::optional<Value>& value, Each each) {
    value.reset();
    read_extensions();
    const auto found = std::find_if(extensions_.begin(), extensions_.end(),
                                    [tag](const Extension& one) { return one.tag == tag; });
    if (found == extensions_.end()) return;
    FieldReader inner(found->bytes);
    each(inner, value.emplace());
    has_unprintable_ = has_unprintable_ || inner.has_unprintable_;
    if (!inner.reader_.ok()) fail();
    std::erase_if(extensions_, [tag](const Extension& one) { return one.tag == tag; });
  }
  // Skips the extensions that were not requested. The tag of one that must not be skipped, or
  // nullopt. The last call before ok().
  std::optional<std::uint8_t> skip_extensions() {
    read_extensions();
    for (const Extension& one : extensions_) {
      if (one.tag >= kRequiredExtension) return one.tag;
    }
    return std::nullopt;
  }
  void fail() { reader_.fail(); }
  bool ok() const { return reader_.ok() && reader_.at_end(); }
  // Behind a message that the bytes are refused: why, if that is known.
  std::string reason() const {
    return has_unprintable_ ? ": a name or text in it is not printable UTF-8" : "";
  }

 private:
  void printable(std::string& value, Lines lines, std::size_t limit) {
    value = reader_.text(limit);
    if (is_printable(value, lines)) return;
    has_unprintable_ = true;
    fail();
    value.clear();
  }
  struct Extension {
    std::uint8_t tag = 0;
    std::string_view bytes;
  };
  void read_extensions() {
    while (reader_.ok() && !reader_.at_end()) {
      const auto tag = reader_.integer<std::uint8_t>();
      const std::string_view bytes = reader_.take(reader_.integer<std::uint32_t>());
      extensions_.push_back({tag, bytes});
    }
  }

  ByteReader reader_;
  bool has_unprintable_ = false;
  std::vector<Extension> extensions_;  // that were read and not asked for yet
};

template <typename Visitor>
void visit(Visitor& v, NodeId& id) {
  v.number(id.high);
  v.number(id.low);
}

template <typename Visitor>
void visit(Visitor& v, NodeInfo& info) {
  visit(v, info.id);
  v.name(info.name, kNodeTextBytesMax);
  v.name(info.address, kNodeTextBytesMax);
  v.number(info.store_port);
  v.number(info.local_world_size);
  v.name(info.role, kNodeTextBytesMax);
  v.number(info.previous_rank);
  v.number(info.highest_round);
  v.number(info.static_rank);
  v.name(info.topology, kNodeTextBytesMax);
  v.duration(info.stop_grace);
  v.duration(info.failure_grace);
  v.flag(info.hosts_coordinator);
}

// What the nodes of a job must agree on.
template <typename Visitor>
void visit(Visitor& v, JobSettings& settings) {
  v.number(settings.min_nodes);
  v.number(settings.max_nodes);
  v.number(settings.max_restarts);
  v.number(settings.max_membership_changes);
  v.flag(settings.static_ranks);
  v.choice(settings.on_loss, LossPolicy::kFail);
  v.list(settings.extra, kNodeTextBytesMax, [&](auto& pair) {
    v.text(pair.first, kMessageBytesMax);
    v.text(pair.second, kMessageBytesMax);
  });
}

// The settings that are the first node's.
template <typename Visitor>
void visit_timings(Visitor& v, JobSettings& settings) {
  v.duration(settings.join_timeout);
  v.duration(settings.last_call_timeout);
  v.duration(settings.settle);
  v.duration(settings.shrink_delay);
  v.duration(settings.node_timeout);
  v.duration(settings.reconnect_grace);
  v.duration(settings.store_grace);
  v.duration(settings.restart_backoff);
}

template <typename Visitor>
void visit(Visitor& v, RoundRecord& record) {
  v.number(record.term);
  v.number(record.round);
  v.number(record.generation);
  v.number(record.nodes);
  v.number(record.world_size);
  v.name(record.master_addr, kNodeTextBytesMax);
  v.number(record.master_port);
  v.number(record.restarts);
  v.number(record.membership_changes);
  v.number(record.coordinator_rank);
  v.number(record.members_digest);
}

template <typename Visitor>
void visit(Visitor& v, NodeAssignment& assignment) {
  v.number(assignment.group_rank);
  v.number(assignment.local_world_size);
  v.number(assignment.base_rank);
  v.number(assignment.base_role_rank);
  v.number(assignment.role_world_size);
}

template <typename Visitor>
void visit(Visitor& v, HeldRound& held) {
  visit(v, held.record);
  v.number(held.group_rank);
}

template <typename Visitor>
void visit(Visitor& v, RoundMember& member) {
  visit(v, member.id);
  v.name(member.name, kNodeTextBytesMax);
  v.name(member.address, kNodeTextBytesMax);
  v.number(member.local_world_size);
  v.name(member.role, kNodeTextBytesMax);
  v.choice(member.fate, MemberFate::kLost);
}

template <typename Visitor>
void visit(Visitor& v, FailureEvidence& evidence) {
  v.name(evidence.host, kNodeTextBytesMax);
  v.number(evidence.time);
  v.text(evidence.output, kEvidenceBytesMax);
  v.choice(evidence.failure_class, FailureClass::kInfrastructure);
  v.choice(evidence.cause, FailureCause::kUnreachable);
  v.text(evidence.error, kMessageBytesMax);
  v.text(evidence.hint, kMessageBytesMax);
}

// Without its time, of which each format has its own notion.
template <typename Visitor>
void visit(Visitor& v, FailureReport& failure) {
  v.number(failure.local_rank);
  v.number(failure.rank);
  v.number(failure.exit_code);
  v.text(failure.message, kMessageBytesMax);
  v.optional(failure.evidence, [&](FailureEvidence& evidence) { visit(v, evidence); });
}

template <typename Visitor>
void visit(Visitor& v, JobResult& result) {
  v.choice(result.outcome, JobOutcome::kClosed);
  v.choice(result.cause, JobCause::kRequested);
  v.number(result.exit_code);
  v.number(result.rank);
  v.name(result.node, kNodeTextBytesMax);
  v.text(result.message, kFieldBytesMax);
  v.list(result.lost, kLostNamesMax, [&](std::string& name) { v.name(name, kNodeTextBytesMax); });
  v.optional(result.evidence, [&](FailureEvidence& evidence) { visit(v, evidence); });
}

}  // namespace elastic::core
