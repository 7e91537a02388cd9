// One list of fields serves both directions: visit() is called with a writer or a reader.
//
// A message has its lineage once: its record is of the same one. What a decoder accepts, the
// machine can work with: a record has voters, no voter twice, and no number is near its end.

#include "core/register/register_codec.h"

#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/byte_io.h"
#include "core/base/siphash.h"
#include "core/base/utf8.h"
#include "core/base/variant_index.h"
#include "core/register/register_table.h"

namespace elastic::reg {
namespace {

constexpr std::uint32_t kStateMagic = 0x47455245;  // "EREG"
constexpr std::uint64_t kDigestSeed = 0;  // it guards against accidents, not against people
constexpr std::size_t kHeadBytes = sizeof kStateMagic + sizeof kFormatVersion;
constexpr std::size_t kDigestBytes = sizeof(std::uint64_t);
static_assert(std::variant_size_v<Body> == kMessages);

// Changes nothing of what it visits.
class FieldsOut {
 public:
  static constexpr bool kIsWriter = true;
  explicit FieldsOut(std::string* out) : bytes_(out) {}

  void number(std::uint64_t& value) { bytes_.integer(value); }
  void word(std::uint64_t& value) { bytes_.integer(value); }
  void flag(bool& value) { bytes_.flag(value); }
  void text(std::string& value, std::size_t) { bytes_.text(value); }
  void text(core::SharedBytes& value, std::size_t) { bytes_.text(value); }
  template <typename T, typename Visit>
  void list(std::vector<T>& values, Visit visit) {
    bytes_.size(values.size());
    for (T& value : values) visit(value);
  }
  template <typename T, typename Visit>
  void maybe(std::optional<T>& value, Visit visit) {
    bytes_.flag(value.has_value());
    if (value) visit(*value);
  }
  void check(bool) {}

 private:
  core::ByteWriter bytes_;
};

class FieldsIn {
 public:
  static constexpr bool kIsWriter = false;
  explicit FieldsIn(std::string_view bytes) : bytes_(bytes) {}

  void number(std::uint64_t& value) {
    value = bytes_.integer<std::uint64_t>();
    check(value <= kNumberMax);
  }
  void word(std::uint64_t& value) { value = bytes_.integer<std::uint64_t>(); }
  void flag(bool& value) { value = bytes_.flag(); }
  void text(std::string& value, std::size_t limit) { value = bytes_.text(limit); }
  void text(core::SharedBytes& value, std::size_t limit) { value = bytes_.text(limit); }
  template <typename T, typename Visit>
  void list(std::vector<T>& values, Visit visit) {
    values.resize(bytes_.size(kVotersMax));
    for (T& value : values) visit(value);
  }
  template <typename T, typename Visit>
  void maybe(std::optional<T>& value, Visit visit) {
    if (bytes_.flag()) visit(value.emplace());
  }
  void check(bool is_valid) {
    if (!is_valid) bytes_.fail();
  }
  bool is_complete() const { return bytes_.ok() && bytes_.at_end(); }

 private:
  core::ByteReader bytes_;
};

bool are_distinct(const std::vector<Voter>& voters) {
  std::set<NodeId> nodes;
  for (const Voter& voter : voters) nodes.insert(voter.node);
  return nodes.size() == voters.size();
}

template <typename Visitor>
void visit(Visitor& v, NodeId& node) {
  v.word(node.high);
  v.word(node.low);
}

template <typename Visitor>
void visit(Visitor& v, LineageId& lineage) {
  v.word(lineage.high);
  v.word(lineage.low);
}

template <typename Visitor>
void visit(Visitor& v, Newness& newness) {
  v.number(newness.term);
  v.number(newness.sequence);
  v.check(newness.term > 0 && newness.sequence > 0);
}

template <typename Visitor>
void visit(Visitor& v, Voter& voter) {
  visit(v, voter.node);
  v.text(voter.address, kAddressBytesMax);
  v.check(core::is_printable(voter.address, core::Lines::kOne));
}

enum class Bytes : bool { kLeftOut, kIncluded };

template <typename Visitor>
void visit(Visitor& v, KnownRecord& known, const LineageId& lineage, Bytes bytes) {
  Record& record = known.record;
  auto visit_voter = [&](Voter& voter) { visit(v, voter); };
  if constexpr (!Visitor::kIsWriter) {
    record.lineage = lineage;
    record.has_bytes = bytes == Bytes::kIncluded;
  }
  visit(v, record.newness);
  visit(v, record.proposer);
  v.list(record.voters, visit_voter);
  v.list(record.previous_voters, visit_voter);
  v.check(!record.voters.empty());
  v.check(are_distinct(record.voters) && are_distinct(record.previous_voters));
  v.number(record.content.generation);
  v.number(record.content.round);
  v.flag(record.content.is_result);
  if (bytes == Bytes::kIncluded) v.text(record.content.bytes, kContentBytesMax);
  v.flag(known.is_in_force);
}

template <typename Visitor>
void visit(Visitor& v, std::optional<KnownRecord>& known, const LineageId& lineage, Bytes bytes) {
  v.maybe(known, [&](KnownRecord& value) { visit(v, value, lineage, bytes); });
}

template <typename Visitor>
void visit(Visitor& v, Ask& message, const LineageId& lineage) {
  v.number(message.attempt);
  v.number(message.term);
  visit(v, message.known, lineage, Bytes::kLeftOut);
}

template <typename Visitor>
void visit(Visitor& v, AskReply& message, const LineageId& lineage) {
  v.number(message.attempt);
  v.flag(message.would_promise);
  v.number(message.promised);
  visit(v, message.accepted, lineage, Bytes::kLeftOut);
}

template <typename Visitor>
void visit(Visitor& v, Prepare& message, const LineageId& lineage) {
  v.number(message.term);
  visit(v, message.known, lineage, Bytes::kLeftOut);
  visit(v, message.handed_over_by);
}

template <typename Visitor>
void visit(Visitor& v, Promise& message, const LineageId& lineage) {
  v.number(message.term);
  v.flag(message.is_granted);
  v.number(message.promised);
  visit(v, message.accepted, lineage, Bytes::kLeftOut);
}

template <typename Visitor>
void visit(Visitor& v, Accept& message, const LineageId& lineage) {
  visit(v, message.proposal, lineage, Bytes::kIncluded);
}

template <typename Visitor>
void visit(Visitor& v, Accepted& message, const LineageId&) {
  visit(v, message.newness);
  v.flag(message.is_accepted);
  v.flag(message.is_in_force);
  v.number(message.promised);
}

template <typename Visitor>
void visit(Visitor& v, InForce& message, const LineageId&) {
  visit(v, message.newness);
}

template <typename Visitor>
void visit(Visitor& v, HandOver& message, const LineageId& lineage) {
  v.number(message.term);
  visit(v, message.known, lineage, Bytes::kIncluded);
}

template <typename Visitor>
void visit(Visitor& v, Fetch& message, const LineageId&) {
  visit(v, message.newness);
}

template <typename Visitor>
void visit(Visitor& v, Fetched& message, const LineageId& lineage) {
  visit(v, message.accepted, lineage, Bytes::kIncluded);
}

template <typename Visitor>
void visit(Visitor& v, VoterState& state) {
  visit(v, state.lineage);
  v.number(state.promised);
  visit(v, state.promised_to);
  visit(v, state.accepted, state.lineage, Bytes::kIncluded);
}

template <typename Visitor>
void visit(Visitor& v, Message& message) {
  visit(v, message.lineage);
  visit(v, message.from);
  visit(v, message.to);
  std::visit([&](auto& body) { visit(v, body, message.lineage); }, message.body);
}

Status newer_version(std::uint16_t version) {
  return {StatusCode::kFailedPrecondition, "written by a newer version (format " +
                                               std::to_string(version) + ", this one reads up to " +
                                               std::to_string(kFormatVersion) + ")"};
}

std::uint64_t digest(std::string_view bytes) { return SipHash(kDigestSeed)(bytes); }

}  // namespace

void append_message(std::string* out, const Message& message) {
  core::ByteWriter head(out);
  head.integer(kFormatVersion);
  head.integer(static_cast<std::uint8_t>(message.body.index()));
  FieldsOut fields(out);
  visit(fields, const_cast<Message&>(message));
}

std::string encode_message(const Message& message) {
  std::string bytes;
  append_message(&bytes, message);
  return bytes;
}

Result<Message> decode_message(std::string_view bytes) {
  core::ByteReader head(bytes);
  const auto version = head.integer<std::uint16_t>();
  const auto kind = head.integer<std::uint8_t>();
  if (head.ok() && version > kFormatVersion) return newer_version(version);
  const Status invalid(StatusCode::kPeerViolation, "this is not a message of the register");
  if (!head.ok() || version == 0 || kind >= kMessages) return invalid;
  Message message;
  message.body = core::alternative_of<Body>(kind);
  FieldsIn fields(bytes.substr(bytes.size() - head.left()));
  visit(fields, message);
  if (!fields.is_complete()) return invalid;
  return message;
}

std::string encode_state(const VoterState& state) {
  std::string bytes;
  core::ByteWriter head(&bytes);
  head.integer(kStateMagic);
  head.integer(kFormatVersion);
  FieldsOut fields(&bytes);
  visit(fields, const_cast<VoterState&>(state));
  head.integer(digest(bytes));
  return bytes;
}

Result<VoterState> decode_state(std::string_view bytes) {
  core::ByteReader head(bytes);
  const bool is_ours = head.integer<std::uint32_t>() == kStateMagic;
  const auto version = head.integer<std::uint16_t>();
  if (!is_ours || !head.ok()) {
    return Status(StatusCode::kPeerViolation, "this is not the state of a voter");
  }
  if (version > kFormatVersion) return newer_version(version);
  const Status damaged(StatusCode::kPeerViolation, "the state of the voter is damaged");
  if (version == 0 || bytes.size() < kHeadBytes + kDigestBytes) return damaged;
  const std::string_view content = bytes.substr(0, bytes.size() - kDigestBytes);
  core::ByteReader tail(bytes.substr(content.size()));
  if (tail.integer<std::uint64_t>() != digest(content)) return damaged;
  VoterState state;
  FieldsIn fields(content.substr(kHeadBytes));
  visit(fields, state);
  if (!fields.is_complete()) return damaged;
  return state;
}

}  // namespace elastic::reg
