// One list of fields serves both directions: visit() is called with a writer or a reader.
//
// A message has its lineage once: its record is of the same one. What a decoder accepts, the
// machine can work with: a record has voters, no voter twice, and no number is near its end.

#include "core/register/register_codec.h"

#include <optional>
#include <set>
#include <variant>
#include <vector>

#include "core/base/fields.h"
#include "core/register/register_machine.h"

namespace elastic::reg {
namespace {

static_assert(std::variant_size_v<Body> == kMessages);

bool are_distinct(const std::vector<Voter>& voters) {
  std::set<NodeId> nodes;
  for (const Voter& voter : voters) nodes.insert(voter.node);
  return nodes.size() == voters.size();
}

// A term, or another number that is counted on from.
template <typename Visitor>
void count(Visitor& v, std::uint64_t& value) {
  v.number(value);
  v.check(value <= kNumberMax);
}

template <typename Visitor>
void visit(Visitor& v, Newness& newness) {
  count(v, newness.term);
  count(v, newness.sequence);
  v.check(newness.term > 0 && newness.sequence > 0);
}

template <typename Visitor>
void visit(Visitor& v, Voter& voter) {
  core::visit_id(v, voter.node);
  v.exact_name(voter.address, kAddressBytesMax);
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
  v.list(record.voters, kVotersMax, visit_voter);
  v.list(record.previous_voters, kVotersMax, visit_voter);
  v.check(!record.voters.empty());
  v.check(are_distinct(record.voters) && are_distinct(record.previous_voters));
  count(v, record.content.generation);
  count(v, record.content.round);
  v.flag(record.content.is_result);
  if (bytes == Bytes::kIncluded) v.bytes(record.content.bytes, kContentBytesMax);
  v.flag(known.is_in_force);
}

template <typename Visitor>
void visit(Visitor& v, std::optional<KnownRecord>& known, const LineageId& lineage, Bytes bytes) {
  v.optional(known, [&](KnownRecord& value) { visit(v, value, lineage, bytes); });
}

template <typename Visitor>
void visit(Visitor& v, Ask& message, const LineageId& lineage) {
  count(v, message.attempt);
  count(v, message.term);
  visit(v, message.known, lineage, Bytes::kLeftOut);
}

template <typename Visitor>
void visit(Visitor& v, AskReply& message, const LineageId& lineage) {
  count(v, message.attempt);
  v.flag(message.would_promise);
  count(v, message.promised);
  visit(v, message.accepted, lineage, Bytes::kLeftOut);
}

template <typename Visitor>
void visit(Visitor& v, Prepare& message, const LineageId& lineage) {
  count(v, message.term);
  visit(v, message.known, lineage, Bytes::kLeftOut);
  core::visit_id(v, message.handed_over_by);
}

template <typename Visitor>
void visit(Visitor& v, Promise& message, const LineageId& lineage) {
  count(v, message.term);
  v.flag(message.is_granted);
  count(v, message.promised);
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
  count(v, message.promised);
}

template <typename Visitor>
void visit(Visitor& v, InForce& message, const LineageId&) {
  visit(v, message.newness);
}

template <typename Visitor>
void visit(Visitor& v, HandOver& message, const LineageId& lineage) {
  count(v, message.term);
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
void visit(Visitor& v, Message& message) {
  core::visit_id(v, message.lineage);
  core::visit_id(v, message.from);
  core::visit_id(v, message.to);
  std::visit([&](auto& body) { visit(v, body, message.lineage); }, message.body);
}

}  // namespace

void append_message(std::string* out, const Message& message) {
  core::FieldWriter v(out);
  auto& fields = const_cast<Message&>(message);  // the writer changes nothing of it
  v.number(kFormatVersion);
  v.alternative(fields.body);
  visit(v, fields);
}

std::string encode_message(const Message& message) {
  std::string bytes;
  append_message(&bytes, message);
  return bytes;
}

Result<Message> decode_message(std::string_view bytes) {
  core::FieldReader v(bytes);
  std::uint16_t version = 0;
  v.number(version);
  if (version > kFormatVersion) {
    return core::newer_version("written by", version, kFormatVersion);
  }
  Message message;
  v.check(version > 0);
  v.alternative(message.body);
  visit(v, message);
  if (!v.ok()) {
    return Status(StatusCode::kPeerViolation, "this is not a message of the register");
  }
  return message;
}

}  // namespace elastic::reg
