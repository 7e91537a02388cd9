#include "core/base/fields.h"

#include <algorithm>

#include "core/base/text.h"

namespace elastic::core {

void FieldWriter::flag(bool& value) { writer_.flag(value); }

void FieldWriter::name(std::string& value, std::size_t limit) {
  printable(value, Lines::kOne, limit);
}

void FieldWriter::text(std::string& value, std::size_t limit) {
  printable(value, Lines::kMany, limit);
}

void FieldWriter::exact_name(std::string& value, std::size_t) { writer_.text(value); }

void FieldWriter::bytes(std::string& value, std::size_t) { writer_.text(value); }

void FieldWriter::bytes(SharedBytes& value, std::size_t) { writer_.text(value); }

void FieldWriter::c_string(std::string_view& value) {
  writer_.text(value);
  writer_.integer('\0');
}

void FieldWriter::duration(Duration& value) {
  writer_.integer(static_cast<std::int64_t>(value.count()));
}

void FieldWriter::instant(Instant& value) {
  writer_.integer(static_cast<std::int64_t>(value.time_since_epoch().count()));
}

void FieldWriter::printable(const std::string& value, Lines lines, std::size_t limit) {
  const bool is_clean = value.size() <= limit && is_printable(value, lines);
  writer_.text(is_clean ? value : to_printable(value, lines, limit));
}

void FieldReader::flag(bool& value) { value = reader_.flag(); }

void FieldReader::name(std::string& value, std::size_t limit) {
  printable(value, Lines::kOne, limit);
}

void FieldReader::text(std::string& value, std::size_t limit) {
  printable(value, Lines::kMany, limit);
}

void FieldReader::exact_name(std::string& value, std::size_t limit) { name(value, limit); }

void FieldReader::bytes(std::string& value, std::size_t limit) { value = reader_.text(limit); }

void FieldReader::bytes(SharedBytes& value, std::size_t limit) { value = reader_.text(limit); }

void FieldReader::c_string(std::string_view& value) {
  const auto length = reader_.integer<std::uint32_t>();
  const std::string_view bytes = reader_.take(std::size_t{length} + 1);
  check(bytes.find('\0') == length);
  value = reader_.ok() ? bytes.substr(0, length) : "";
}

void FieldReader::duration(Duration& value) {
  value = std::clamp(Duration(reader_.integer<std::int64_t>()), -kFar, kFar);
}

void FieldReader::instant(Instant& value) {
  Duration since{};
  duration(since);
  value = Instant(since);
}

std::optional<std::uint8_t> FieldReader::skip_extensions() {
  read_extensions();
  for (const Extension& one : extensions_) {
    if (one.tag >= kRequiredExtension) return one.tag;
  }
  return std::nullopt;
}

std::string FieldReader::reason() const {
  return has_unprintable_ ? ": a name or text in it is not printable UTF-8" : "";
}

void FieldReader::printable(std::string& value, Lines lines, std::size_t limit) {
  value = reader_.text(limit);
  if (is_printable(value, lines)) return;
  has_unprintable_ = true;
  fail();
  value.clear();
}

void FieldReader::read_extensions() {
  while (reader_.ok() && !reader_.at_end()) {
    const auto tag = reader_.integer<std::uint8_t>();
    const std::string_view bytes = reader_.take(reader_.integer<std::uint32_t>());
    extensions_.push_back({tag, bytes});
  }
}

// The bytes of the extension, if it is there. It can be there more than once: the first one counts.
std::optional<std::string_view> FieldReader::take_extension(std::uint8_t tag) {
  read_extensions();
  const auto has_tag = [tag](const Extension& one) { return one.tag == tag; };
  const auto found = std::find_if(extensions_.begin(), extensions_.end(), has_tag);
  if (found == extensions_.end()) return std::nullopt;
  const std::string_view bytes = found->bytes;
  std::erase_if(extensions_, has_tag);
  return bytes;
}

void FieldReader::end_extension(const FieldReader& inner) {
  has_unprintable_ = has_unprintable_ || inner.has_unprintable_;
  if (!inner.reader_.ok()) fail();
}

Status newer_version(const std::string& what, std::uint16_t version, std::uint16_t newest) {
  return Status(StatusCode::kFailedPrecondition,
                what + " a newer version (format " + std::to_string(version) +
                    ", this one reads up to " + std::to_string(newest) + ")");
}

Status other_version(const std::string& what, std::uint16_t version, std::uint16_t own) {
  return Status(StatusCode::kFailedPrecondition,
                what + (version > own ? " a newer" : " an older") + " version (format " +
                    std::to_string(version) + ", this one reads " + std::to_string(own) + ")");
}

}  // namespace elastic::core
