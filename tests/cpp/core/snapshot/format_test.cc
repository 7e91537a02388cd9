#include "core/snapshot/format.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/snapshot/crc32c.h"

namespace elastic::snapshot {
namespace {

// A file with a complete snapshot.
struct File {
  std::vector<std::uint64_t> words;
  Header header;
  std::uint32_t digest = 0;

  explicit File(const std::vector<std::string>& parts, std::size_t room = 0) {
    std::vector<Entry> entries;
    for (const std::string& part : parts) entries.push_back({.bytes = part.size()});
    header.size = lay_out(entries.data(), entries.size());
    header.state = State::kComplete;
    header.sequence = 7;
    header.step = 1204;
    header.world = 4;
    header.rank = 3;
    header.parts = static_cast<std::uint32_t>(parts.size());
    words.resize((header.size + 7) / 8 + room);
    std::memcpy(bytes(), &header, sizeof header);
    if (!entries.empty()) {
      std::memcpy(bytes() + kPage, entries.data(), entries.size() * sizeof(Entry));
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      std::memcpy(bytes() + entries[i].offset, parts[i].data(), parts[i].size());
    }
    digest = digest_of(header, bytes());
  }
  char* bytes() { return reinterpret_cast<char*>(words.data()); }
  const Entry* open(std::uint64_t size) {
    Header found;
    return open_snapshot(bytes(), size, digest, &found);
  }
};

File some_file() { return File({"blob", "", std::string(100, 'a'), std::string(64, 'b')}); }

TEST(SnapshotDigest, IsThatOfTheStandard) {
  // RFC 3720, B.4.
  const std::string zeros(32, '\0');
  const std::string ones(32, '\xff');
  std::string rising;
  for (char byte = 0; byte < 32; ++byte) rising.push_back(byte);
  const std::string falling(rising.rbegin(), rising.rend());
  const std::pair<std::string, std::uint32_t> vectors[] = {
      {zeros, 0x8A9136AA},   {ones, 0x62A8AB43},        {rising, 0x46DD794E},
      {falling, 0x113FDB5C}, {"123456789", 0xE3069283}, {"", 0}};
  for (const auto& [bytes, digest] : vectors) {
    EXPECT_EQ(crc32c(0, bytes.data(), bytes.size()), digest);
    EXPECT_EQ(crc32c_by_table(0, bytes.data(), bytes.size()), digest);
  }
}

TEST(SnapshotDigest, DoesNotDependOnHowTheBytesAreDivided) {
  std::string bytes;
  for (unsigned i = 0; i < 1000; ++i) bytes.push_back(static_cast<char>(i * i * 31 + i));
  const std::uint32_t whole = crc32c(0, bytes.data(), bytes.size());
  EXPECT_EQ(crc32c_by_table(0, bytes.data(), bytes.size()), whole);
  for (std::size_t cut = 0; cut <= bytes.size(); cut += 13) {
    const std::uint32_t first = crc32c(0, bytes.data(), cut);
    EXPECT_EQ(crc32c(first, bytes.data() + cut, bytes.size() - cut), whole) << cut;
    EXPECT_EQ(crc32c_by_table(first, bytes.data() + cut, bytes.size() - cut), whole) << cut;
  }
}

TEST(SnapshotFormat, ReturnsWhatWasWritten) {
  File file = some_file();
  const Entry* const entries = file.open(file.header.size);
  ASSERT_NE(entries, nullptr);
  EXPECT_EQ(entries[0].offset, 2 * kPage);
  EXPECT_EQ(std::string(file.bytes() + entries[0].offset, entries[0].bytes), "blob");
  EXPECT_EQ(entries[1].bytes, 0U);
  EXPECT_EQ(entries[2].offset % kAlignment, 0U);
  EXPECT_EQ(std::string(file.bytes() + entries[3].offset, 64), std::string(64, 'b'));
}

TEST(SnapshotFormat, MayBeEmptyOrInALargerFile) {
  File empty(std::vector<std::string>{});
  EXPECT_NE(empty.open(empty.header.size), nullptr);
  File roomy({"a", "b"}, 1000);
  EXPECT_NE(roomy.open(roomy.words.size() * 8), nullptr);
}

TEST(SnapshotFormat, RefusesEveryCut) {
  File file = some_file();
  for (std::uint64_t size = 0; size < file.header.size; ++size) {
    ASSERT_EQ(file.open(size), nullptr) << size;
  }
}

TEST(SnapshotFormat, RefusesEveryChangedByte) {
  File file = some_file();
  for (std::uint64_t at = 0; at < file.header.size; ++at) {
    if (at == sizeof(Header)) at = kPage;  // the rest of the header's page is not the snapshot's
    for (const char change : {'\x01', '\x80', '\xff'}) {
      file.bytes()[at] ^= change;
      ASSERT_EQ(file.open(file.header.size), nullptr) << at;
      file.bytes()[at] ^= change;
    }
  }
  EXPECT_NE(file.open(file.header.size), nullptr);
}

TEST(SnapshotFormat, RefusesOneThatWasBeingWritten) {
  File file = some_file();
  file.header.state = State::kWriting;
  std::memcpy(file.bytes(), &file.header, sizeof file.header);
  file.digest = digest_of(file.header, file.bytes());
  EXPECT_EQ(file.open(file.header.size), nullptr);
}

// A digest may fit by chance, or by a defect of the writer: no number is followed without a check.
TEST(SnapshotFormat, ChecksTheIndexEvenIfTheDigestFits) {
  const Entry good = *some_file().open(some_file().header.size);
  for (const Entry& bad :
       {Entry{.offset = good.offset + 1, .bytes = 4},
        Entry{.offset = std::numeric_limits<std::uint64_t>::max(), .bytes = 4},
        Entry{.offset = good.offset, .bytes = 1 << 20},
        Entry{.offset = good.offset, .bytes = std::numeric_limits<std::uint64_t>::max()},
        Entry{.offset = good.offset, .bytes = 4, .kind = Kind{5}},
        Entry{.offset = 0, .bytes = 4}}) {
    File file = some_file();
    std::memcpy(file.bytes() + kPage, &bad, sizeof bad);
    file.digest = digest_of(file.header, file.bytes());
    EXPECT_EQ(file.open(file.header.size), nullptr) << bad.offset << " " << bad.bytes;
  }
}

TEST(SnapshotFormat, RefusesImpossibleHeaders) {
  const File good = some_file();
  Header read;
  const auto is_read = [&](const Header& header) {
    std::vector<char> page(kPage);
    std::memcpy(page.data(), &header, sizeof header);
    return read_header(page.data(), good.header.size, &read);
  };
  EXPECT_TRUE(is_read(good.header));
  Header bad = good.header;
  bad.step = -1;
  EXPECT_FALSE(is_read(bad));
  bad = good.header;
  bad.rank = bad.world;
  EXPECT_FALSE(is_read(bad));
  bad = good.header;
  bad.parts = kPartsMax + 1;
  EXPECT_FALSE(is_read(bad));
  bad = good.header;
  bad.parts = kPartsMax;  // the index would be behind the end
  EXPECT_FALSE(is_read(bad));
  bad = good.header;
  bad.size = good.header.size + 1;
  EXPECT_FALSE(is_read(bad));
  bad = good.header;
  bad.size = 100;
  EXPECT_FALSE(is_read(bad));
}

TEST(SnapshotFormat, IsNotLaidOutIfItIsTooLarge) {
  Entry huge[2] = {{.bytes = kBytesMax - 4 * kPage}, {.bytes = kBytesMax / 2}};
  EXPECT_NE(lay_out(huge, 1), 0U);
  EXPECT_EQ(lay_out(huge, 2), 0U);
  huge[0].bytes = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(lay_out(huge, 1), 0U);
  EXPECT_EQ(lay_out(nullptr, std::uint64_t{kPartsMax} + 1), 0U);
}

TEST(SnapshotFormat, FindsWhatIsNotANumber) {
  const auto check = [](Kind kind, auto number, auto infinity, auto nan) {
    std::vector<decltype(number)> numbers(1300, number);
    const std::size_t bytes = numbers.size() * sizeof number;
    numbers[700] = infinity;
    EXPECT_FALSE(has_nan(kind, numbers.data(), bytes));
    for (const std::size_t at : {std::size_t{0}, std::size_t{511}, std::size_t{1299}}) {
      numbers[at] = nan;
      EXPECT_TRUE(has_nan(kind, numbers.data(), bytes)) << at;
      EXPECT_FALSE(has_nan(Kind::kBytes, numbers.data(), bytes));
      numbers[at] = number;
    }
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  check(Kind::kFloat32, 1.0F, -std::numeric_limits<float>::infinity(), -nan);
  check(Kind::kFloat64, 1.0, std::numeric_limits<double>::infinity(), double{nan});
  check(Kind::kFloat16, std::uint16_t{0x3C00}, std::uint16_t{0xFC00}, std::uint16_t{0xFE00});
  check(Kind::kBFloat16, std::uint16_t{0x3F80}, std::uint16_t{0x7F80}, std::uint16_t{0x7F81});
  EXPECT_FALSE(has_nan(Kind::kFloat32, &nan, 0));
}

}  // namespace
}  // namespace elastic::snapshot
