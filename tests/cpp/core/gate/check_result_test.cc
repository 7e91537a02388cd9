#include "core/gate/check_result.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <string>

#include "core/workers/worker_exits.h"

namespace elastic::gate {
namespace {

CheckResult of(int code, const std::string& output = "") {
  return result_of({.exit = core::exited(code), .output = output});
}

TEST(CheckResult, ACodeSaysGoodBadOrUnknown) {
  struct Row {
    int code;
    Verdict verdict;
  };
  for (const Row& row : {Row{0, Verdict::kGood}, Row{1, Verdict::kBad}, Row{2, Verdict::kBad},
                         Row{3, Verdict::kUnknown}, Row{4, Verdict::kUnknown},
                         Row{127, Verdict::kUnknown}, Row{205, Verdict::kUnknown}}) {
    EXPECT_EQ(of(row.code).verdict, row.verdict) << row.code;
  }
}

TEST(CheckResult, WhatDidNotRunToItsEndIsUnknownWhateverItPrinted) {
  const std::string bad = R"({"verdict": "bad", "reason": "x"})";
  EXPECT_EQ(result_of({.exit = core::killed(SIGSEGV), .output = bad}),
            (CheckResult{Verdict::kUnknown, "it was killed by signal 11 (SIGSEGV)"}));
  EXPECT_EQ(result_of({.exit = {}, .limit = std::chrono::seconds(60), .output = bad}),
            (CheckResult{Verdict::kUnknown, "it did not end within 1 min"}));
  EXPECT_EQ(result_of({.exit = {}, .error = "pipe: no descriptor"}),
            (CheckResult{Verdict::kUnknown, "pipe: no descriptor"}));
}

TEST(CheckResult, TheLastLineIsTheReason) {
  EXPECT_EQ(of(1, "first\nGPU 3 is lost\n\n").reason, "GPU 3 is lost");
  EXPECT_EQ(of(1).reason, "it exited with code 1");
  EXPECT_EQ(
      of(1, "ERROR:  nhc:  Health check failed:  check_fs_mount:  /data not mounted\n").reason,
      "check_fs_mount:  /data not mounted");
  EXPECT_EQ(of(1, "bell \x07 and \xff\n").reason, "bell \xEF\xBF\xBD and \xEF\xBF\xBD");
  EXPECT_LE(of(1, std::string(kOutputBytesMax, 'x')).reason.size(), kReasonBytesMax);
}

TEST(CheckResult, AVerdictInJsonPrecedesTheCode) {
  struct Row {
    const char* output;
    Verdict verdict;
    const char* reason;
  };
  const Row kRows[] = {
      {R"({"verdict": "bad", "reason": "row remap of GPU 2 is pending"})", Verdict::kBad,
       "row remap of GPU 2 is pending"},
      {R"({"verdict": "good"})", Verdict::kGood, "its verdict is good"},
      {R"({"verdict": "odd"})", Verdict::kUnknown, "its verdict is odd"},
      {R"({"overall_severity": "CRITICAL", "nodes": [{"fail_count": 0}]})", Verdict::kBad,
       "overall_severity is CRITICAL"},
      {R"({"overall_severity": "WARNING"})", Verdict::kGood, "overall_severity is WARNING"},
      {R"({"overall_severity": "UNKNOWN", "message": "no sensor"})", Verdict::kUnknown,
       "no sensor"},
      {R"({"fail_count": 0, "failed_checks": []})", Verdict::kGood, "it exited with code 1"},
      {R"({"fail_count": 2, "failed_checks": ["ib", {"name": "x"}, "ecc"]})", Verdict::kBad,
       "failed checks: ib, ecc"},
      {R"({"fail_count": 1})", Verdict::kBad, "fail_count is above 0"},
      // The code decides.
      {R"({"fail_count": null})", Verdict::kBad, R"({"fail_count": null})"},
      {R"({"inner": {"verdict": "good"}})", Verdict::kBad, R"({"inner": {"verdict": "good"}})"},
      {"[]", Verdict::kBad, "[]"},
      {R"({"verdict": "good")", Verdict::kBad, R"({"verdict": "good")"},
      {R"(text {"verdict": "good"})", Verdict::kBad, R"(text {"verdict": "good"})"},
  };
  for (const Row& row : kRows) {
    EXPECT_EQ(of(1, row.output), (CheckResult{row.verdict, row.reason})) << row.output;
  }
}

TEST(CheckResult, TheLastObjectWithAVerdictCountsAndMayHaveSeveralLines) {
  const std::string output =
      "starting\n{\"verdict\": \"good\"}\n{\n  \"verdict\": \"bad\",\n  \"reason\": \"a\\u00e9\\n"
      "\\\"b\\\"\"\n}\n{\"other\": 1}\ndone\n";
  EXPECT_EQ(of(0, output), (CheckResult{Verdict::kBad, "a\xC3\xA9 \"b\""}));
}

TEST(CheckResult, HostileOutputIsReadInLimitedTime) {
  std::string deep;
  for (int i = 0; i < 10'000; ++i) deep += "{\"a\":\n";
  EXPECT_EQ(verdict_in(deep), std::nullopt);
  EXPECT_EQ(verdict_in(std::string(kOutputBytesMax, '{')), std::nullopt);
  EXPECT_EQ(verdict_in("{\"verdict\": \"\\ud800\\u12"), std::nullopt);
  EXPECT_EQ(verdict_in("{\"fail_count\": 1e999}"), std::nullopt);
}

}  // namespace
}  // namespace elastic::gate
