#include "core/succession/kept_record.h"

#include "core/register/register_codec.h"
#include "core/succession/job_record.h"
#include "core/succession/succession_fields.h"

namespace elastic::succession {
namespace {

constexpr std::uint32_t kKeptMagic = 0x50454B45;  // "EKEP"
// The formats of this value and of the content in it.
std::uint64_t format() { return (std::uint64_t{1} << 32) | record_format(); }

template <typename Visitor>
void visit_kept(Visitor& v, KeptRecord& record) {
  visit(v, record.lineage);
  v.number(record.term);
  v.number(record.version);
  v.number(record.nonce);
  visit(v, record.holder);
  visit(v, record.node);
  v.name(record.address, kNodeTextBytesMax);
  v.number(record.challenge);
  v.number(record.content.generation);
  v.number(record.content.round);
  v.flag(record.content.is_result);
  v.bytes(record.content.bytes, reg::kContentBytesMax);
}

bool is_sound(const KeptRecord& record) {
  const bool is_owned = record.lineage != reg::LineageId{} && record.term > 0;
  const bool has_holder = record.holder != NodeId{};
  return is_owned && (has_holder || record.address.empty()) && record.term <= reg::kNumberMax &&
         record.version <= reg::kNumberMax;
}

}  // namespace

std::string encode_kept(const KeptRecord& record) {
  std::string bytes;
  core::ByteWriter head(&bytes);
  head.integer(kKeptMagic);
  head.integer(format());
  core::FieldWriter fields(&bytes);
  visit_kept(fields, const_cast<KeptRecord&>(record));  // the writer changes nothing of it
  return bytes;
}

Result<KeptRecord> decode_kept(std::string_view bytes) {
  const auto refused = [](const std::string& why) {
    return Status(StatusCode::kPeerViolation, "the stored bytes " + why);
  };
  core::ByteReader head(bytes);
  if (head.integer<std::uint32_t>() != kKeptMagic) {
    return refused("are not the record of a job: there is another value under this key");
  }
  const auto found = head.integer<std::uint64_t>();
  if (!head.ok()) return refused("are damaged");
  if (found != format()) {
    return refused("are of another version of elastic (format " + std::to_string(found) +
                   ", this one reads " + std::to_string(format()) +
                   "): give the job another --rdzv-id, or remove them");
  }
  KeptRecord record;
  core::FieldReader fields(head.take(head.left()));
  visit_kept(fields, record);
  if (!fields.ok() || !is_sound(record)) return refused("are damaged" + fields.reason());
  return record;
}

std::optional<Incumbent> incumbent_of(const KeptRecord& record) {
  if (record.address.empty()) return std::nullopt;
  return Incumbent{.lineage = record.lineage,
                   .term = record.term,
                   .node = record.holder,
                   .address = record.address,
                   .voters = {{record.holder, record.address}}};
}

}  // namespace elastic::succession
