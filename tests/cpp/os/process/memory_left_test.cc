#include "os/process/memory_left.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace elastic::os {
namespace {

constexpr std::uint64_t kUnit = 1 << 20;

using Files = std::vector<std::pair<std::string, std::string>>;

struct Row {
  std::string name;
  Files files;  // with sizes in MiB: each number has " MiB" behind it
  std::uint64_t left = 0;
  std::string of;
};

// "100 MiB" as a number of bytes.
std::string in_bytes(std::string text) {
  const std::string unit = " MiB";
  for (std::size_t end = 0; (end = text.find(unit)) != text.npos;) {
    const std::size_t begin = text.find_last_not_of("0123456789", end - 1) + 1;
    const std::uint64_t value = std::stoull(text.substr(begin, end - begin)) * kUnit;
    text.replace(begin, end + unit.size() - begin, std::to_string(value));
  }
  return text;
}

const std::string kV1 = "/sys/fs/cgroup/memory";
const std::string kV2 = "/sys/fs/cgroup";

Files version1(const std::string& path, const std::string& limit, const std::string& usage,
               const std::string& statistics = "") {
  return {{kV1 + path + "/memory.limit_in_bytes", limit + "\n"},
          {kV1 + path + "/memory.usage_in_bytes", usage + "\n"},
          {kV1 + path + "/memory.stat", statistics}};
}

Files version2(const std::string& path, const std::string& limit, const std::string& usage,
               const std::string& statistics = "") {
  return {{kV2 + path + "/memory.max", limit + "\n"},
          {kV2 + path + "/memory.current", usage + "\n"},
          {kV2 + path + "/memory.stat", statistics}};
}

Files group(const std::string& text) { return {{"/proc/self/cgroup", text}}; }

Files all(const std::vector<Files>& parts) {
  Files files;
  for (const Files& one : parts) files.insert(files.end(), one.begin(), one.end());
  return files;
}

const std::string kOfHost = "on this host";

std::string of_limit(const std::string& size) { return "of the control group's limit of " + size; }

const std::vector<Row> kRows = {
    {"NoGroup", {}, 9000, kOfHost},
    {"Version2", all({group("0::/job\n"), version2("/job", "400 MiB", "100 MiB", "anon 1\n")}), 300,
     of_limit("400.0 MiB")},
    {"Version2WithCachedFiles",
     all({group("0::/job\n"), version2("/job", "400 MiB", "100 MiB",
                                       "anon 7\ninactive_file 60 MiB\nactive_file 20 MiB\n")}),
     360, of_limit("400.0 MiB")},
    {"Version2WithoutLimit", all({group("0::/job\n"), version2("/job", "max", "100 MiB")}), 9000,
     kOfHost},
    {"Version2OfTheParent",
     all({group("0::/slice/job\n"), version2("/slice/job", "max", "100 MiB"),
          version2("/slice", "1000 MiB", "600 MiB")}),
     400, of_limit("1000.0 MiB")},
    {"Version2TheSmallestOfNestedOnes",
     all({group("0::/slice/job/step\n"), version2("/slice/job/step", "3000 MiB", "100 MiB"),
          version2("/slice/job", "500 MiB", "300 MiB"),
          version2("/slice", "4096 MiB", "3000 MiB")}),
     200, of_limit("500.0 MiB")},
    // In a container without a namespace of its own the path is the host's.
    {"Version2InAContainer", all({group("0::/docker/0a1b\n"), version2("", "300 MiB", "50 MiB")}),
     250, of_limit("300.0 MiB")},
    {"Version2AtTheRoot", all({group("0::/\n"), version2("", "300 MiB", "50 MiB")}), 250,
     of_limit("300.0 MiB")},
    {"Version2UsedUp", all({group("0::/job\n"), version2("/job", "300 MiB", "301 MiB")}), 0,
     of_limit("300.0 MiB")},
    {"Version1",
     all({group("5:cpu,cpuacct:/other\n4:memory:/job\n"),
          version1("/job", "2048 MiB", "1024 MiB", "inactive_file 5\ntotal_inactive_file 24 MiB\n"),
          version1("/other", "1 MiB", "0")}),
     1048, of_limit("2.0 GiB")},
    {"Version1WithoutLimit",
     all({group("4:memory:/job\n"), version1("/job", "9223372036854771712", "100 MiB")}), 9000,
     kOfHost},
    {"Version1OfTheParent",
     all({group("4:hugetlb,memory:/slice/job\n"),
          version1("/slice/job", "9223372036854771712", "100 MiB"),
          version1("/slice", "800 MiB", "100 MiB")}),
     700, of_limit("800.0 MiB")},
    {"Version1InAContainer",
     all({group("4:memory:/docker/0a1b\n"), version1("", "300 MiB", "50 MiB")}), 250,
     of_limit("300.0 MiB")},
    {"BothVersions",
     all({group("4:memory:/job\n0::/job\n"), version1("/job", "300 MiB", "50 MiB"),
          version2("/job", "max", "50 MiB")}),
     250, of_limit("300.0 MiB")},
    {"LessThanTheGroupIsLeftOnTheHost",
     all({group("0::/job\n"), version2("/job", "20000 MiB", "50 MiB")}), 9000, kOfHost},
    {"LinesThatAreNone", group("memory\n:::\nx:memory\n\n0:"), 9000, kOfHost},
};

TEST(MemoryLeft, IsTheLeastOfTheHostAndOfEachLimit) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.name);
    std::string root = std::filesystem::temp_directory_path() / "memory-left-XXXXXX";
    ASSERT_NE(::mkdtemp(root.data()), nullptr);
    Files files = row.files;
    files.push_back(
        {"/proc/meminfo", "MemTotal: 9 kB\nMemAvailable:   9216000 kB\nBuffers: 1 kB\n"});
    for (const auto& [name, text] : files) {
      std::filesystem::create_directories(std::filesystem::path(root + name).parent_path());
      std::ofstream(root + name) << in_bytes(text);
    }
    const MemoryLeft left = memory_left(root);
    EXPECT_EQ(left.bytes / kUnit, row.left);
    EXPECT_EQ(left.of, row.of);
    std::filesystem::remove_all(root);
  }
}

TEST(MemoryLeft, IsUnlimitedWhereNothingIsKnown) {
  const MemoryLeft left = memory_left("/nonexistent");
  EXPECT_EQ(left.bytes, UINT64_MAX);
  EXPECT_EQ(left.of, "");
}

}  // namespace
}  // namespace elastic::os
