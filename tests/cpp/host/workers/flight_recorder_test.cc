// Replies of torch's flight recorder, of several versions, and what is no reply.

#include "worker/flight_recorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace elastic::worker {
namespace {

// As torch 2.13 writes them for gloo; the raw tab in a description, too.
const std::string kReply =
    R"({"comm_lib_version":"","entries":[{"collective_seq_id":1,"input_dtypes":["Float"],)"
    R"("input_sizes":[[4]],"is_p2p":false,"op_id":1,"output_dtypes":["Float"],)"
    R"("output_sizes":[[4]],"p2p_seq_id":0,"pg_id":0,"process_group":["0","default_pg"],)"
    R"("profiling_name":"gloo:all_reduce","record_id":0,"retired":true,"state":"scheduled",)"
    R"("thread_id":"139916290255744","thread_name":"python","time_created_ns":1795871297354289255,)"
    R"("time_discovered_completed_ns":0,"timeout_ms":1800000},)"
    R"({"collective_seq_id":1,"input_sizes":[],"is_p2p":false,"process_group":["1","d\"p)"
    "\t"
    R"(0"],"profiling_name":"gloo:barrier","retired":true,"state":"scheduled",)"
    R"("time_created_ns":1795871297355458252},)"
    R"({"collective_seq_id":2,"input_sizes":[[4, 2]],"is_p2p":false,)"
    R"("process_group":["0","default_pg"],"profiling_name":"gloo:all_reduce","retired":false,)"
    R"("state":"scheduled","time_created_ns":1795871297355651099}],"nccl_comm_state":{},)"
    R"("pg_config":{"":{"desc":"","name":"","ranks":"[]"}},)"
    R"("pg_status":{"0":{"last_completed_collective":"1"}},"version":"2.10"})";

std::string condensed(const std::string& json, std::size_t size = 8192) {
  std::string out(size, '\0');
  out.resize(condense(json.data(), json.size(), out.data(), out.size()));
  return out;
}

// One operation; `fields` replaces what it has.
std::string reply_of(const std::string& fields) {
  return R"({"entries":[{"process_group":["0","default_pg"],)" + fields + "}]}";
}

TEST(FlightRecorder, EachGroupIsALine) {
  EXPECT_EQ(condensed(kReply),
            "0\tdefault_pg\t2\t2\t1795871297355651099\tall_reduce\t[[4,2]]\n"
            "1\td\"p?0\t1\t0\t1795871297355458252\tbarrier\t[]\n");
}

TEST(FlightRecorder, TheFirstOperationThatIsNotOverCounts) {
  std::string entries;
  for (int i = 1; i <= 5; ++i) {
    entries += (i > 1 ? "," : "") +
               std::string(R"({"process_group":["0",""],"profiling_name":"op)") +
               std::to_string(i) + R"(","collective_seq_id":)" + std::to_string(i) +
               R"(,"retired":)" + (i < 3 ? "true" : "false") + "}";
  }
  EXPECT_EQ(condensed(R"({"entries":[)" + entries + "]}"), "0\t\t5\t3\t0\top3\t\n");
}

// What all ranks must have in common, with its type.
TEST(FlightRecorder, SizesAreThoseThatRanksHaveInCommon) {
  struct Row {
    std::string name, inputs, outputs, types, sizes;
  };
  const std::vector<Row> rows = {
      {"all_reduce", "[[4, 2]]", "[[4, 2]]", R"(["Float"])", "[[4,2]] Float"},
      {"all_reduce", "[[4],[8]]", "[[4],[8]]", R"(["Float","Float"])", "12 elements Float"},
      {"all_reduce", "[[4],[8]]", "[]", R"(["Float","Long"])", "12 elements Float,Long"},
      {"all_reduce", "[[]]", "[[]]", R"(["Long"])", "[[]] Long"},
      {"all_gather", "[[4]]", "[[4],[4],[4]]", R"(["Byte"])", "12 elements Byte"},
      {"_all_gather_base", "[[4]]", "[[12]]", R"(["Byte"])", "12 elements Byte"},
      {"reduce_scatter", "[[4],[4],[4]]", "[[4]]", R"(["Half","Half","Half"])", "12 elements Half"},
      {"broadcast", "[[4]]", "[[4]]", R"(["Float"])", "[[4]] Float"},
      {"broadcast", "[[4],[5]]", "[[4],[5]]", R"(["Float","Float"])", "[[4],[5]]"},
      {"scatter", "[]", "[[4]]", "[]", "[]"},
      {"gather", "[[4]]", "[]", R"(["Float"])", "[[4]]"},
      {"all_to_all", "[[7]]", "[[3]]", R"(["Float"])", "[[7]]"},
      {"all_reduce", "[[4]]", "[[4]]", "[]", "[[4]] "},
      {"all_reduce", "[[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,3]]", "[]",
       R"(["Float"])", "3 elements Float"},
  };
  for (const Row& row : rows) {
    const std::string reply =
        reply_of(R"("collective_seq_id":7,"retired":false,"profiling_name":"nccl:)" + row.name +
                 R"(","input_sizes":)" + row.inputs + R"(,"output_sizes":)" + row.outputs +
                 R"(,"input_dtypes":)" + row.types);
    EXPECT_EQ(condensed(reply), "0\tdefault_pg\t7\t7\t0\t" + row.name + "\t" + row.sizes + "\n");
  }
}

TEST(FlightRecorder, TheLastOperationIsShownIfTheGroupWaitsInNone) {
  const auto entry = [](int number, const std::string& name) {
    return R"({"process_group":["0",""],"profiling_name":")" + name + R"(","collective_seq_id":)" +
           std::to_string(number) + R"(,"retired":true})";
  };
  EXPECT_EQ(condensed(R"({"entries":[)" + entry(3, "a") + "," + entry(4, "b") + "]}"),
            "0\t\t4\t0\t0\tb\t\n");
}

TEST(FlightRecorder, NcclOperationsAreOverWhenTheyAreCompleted) {
  const auto line = [](const std::string& state) {
    return condensed(reply_of(R"("collective_seq_id":7,"profiling_name":"nccl:barrier",)"
                              R"("retired":false,"state":")" +
                              state + "\""));
  };
  EXPECT_EQ(line("completed"), "0\tdefault_pg\t7\t0\t0\tbarrier\t\n");
  EXPECT_EQ(line("started"), "0\tdefault_pg\t7\t7\t0\tbarrier\t\n");
  EXPECT_EQ(line("scheduled"), "0\tdefault_pg\t7\t7\t0\tbarrier\t\n");
}

TEST(FlightRecorder, NumbersMayBeStringsAndUnknownKeysAreSkipped) {
  EXPECT_EQ(condensed(reply_of(R"("collective_seq_id":"7","new":{"a":[1,{"b":"}"}],"c":null},)"
                               R"("time_created_ns":"12","retired":"false")")),
            "0\tdefault_pg\t7\t7\t12\t\t\n");
}

TEST(FlightRecorder, ARingWithoutCollectivesHasNoLine) {
  EXPECT_EQ(condensed(R"({"version":"2.10","pg_status":{}})"), "");
  EXPECT_EQ(condensed(R"({"entries":[]})"), "");
  EXPECT_EQ(condensed(reply_of(R"("collective_seq_id":7,"is_p2p":true)")), "");
  EXPECT_EQ(condensed(reply_of(R"("p2p_seq_id":7)")), "");
}

TEST(FlightRecorder, WhatCannotBeReadHasNoLine) {
  for (std::size_t size = 0; size < kReply.size(); ++size) {
    EXPECT_EQ(condensed(kReply.substr(0, size)), "") << size;
  }
  std::string deep(1000, '[');
  EXPECT_EQ(condensed(R"({"x":)" + deep), "");
  EXPECT_EQ(condensed(R"({"entries":[)" + deep), "");
  for (const std::string text : {"", "[]", "null", "{", "{\"entries\":", "{\"a\" 1}", "{\"a\":}"}) {
    EXPECT_EQ(condensed(text), "") << text;
  }
}

TEST(FlightRecorder, AFullRecorderBecomesALineForEachGroup) {
  constexpr int kEntries = 2000;
  constexpr int kGroups = 32;
  std::string entries;
  for (int i = 0; i < kEntries; ++i) {
    entries += (i > 0 ? "," : "") + std::string(R"({"process_group":[")") +
               std::to_string(i % kGroups) + R"(","dp"],"collective_seq_id":)" +
               std::to_string(i / kGroups + 1) + R"(,"profiling_name":"gloo:all_reduce",)" +
               R"("input_sizes":[[4]],"retired":true})";
  }
  const std::string lines = condensed(R"({"entries":[)" + entries + "]}");
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), kGroups);
}

TEST(FlightRecorder, LinesThatDoNotFitAreLeftOut) {
  std::string entries;
  for (int i = 0; i < 100; ++i) {
    entries += (i > 0 ? "," : "") + std::string(R"({"process_group":[")") + std::to_string(i) +
               R"(","x"],"collective_seq_id":1})";
  }
  const std::string json = R"({"entries":[)" + entries + "]}";
  const std::string few = condensed(json, 64);
  EXPECT_LE(few.size(), 64U);
  EXPECT_EQ(few.back(), '\n');
  EXPECT_EQ(condensed(json, 0), "");
  const std::string name(5000, 'x');
  EXPECT_EQ(condensed(R"({"entries":[{"process_group":[")" + name + R"(","y"],)" +
                      R"("collective_seq_id":1}]})"),
            std::string(63, 'x') + "\ty\t1\t1\t0\t\t\n");
}

// "31" that is cut is another rank.
TEST(FlightRecorder, LinesThatDoNotFitAreLeftOutWhole) {
  const std::string text = "0\t0-3\n1\t0-31\n";  // of 6 and of 7 bytes
  EXPECT_EQ(whole_lines(text.c_str(), 14), 13U);
  for (std::size_t size = 7; size < 14; ++size) EXPECT_EQ(whole_lines(text.c_str(), size), 6U);
  for (std::size_t size = 0; size < 7; ++size) EXPECT_EQ(whole_lines(text.c_str(), size), 0U);
}

}  // namespace
}  // namespace elastic::worker
