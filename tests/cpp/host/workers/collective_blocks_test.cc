// Signatures of operations that are over: which blocks are chosen, and what is equal on all ranks.

#include "worker/collective_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/hang/signature.h"

namespace elastic::worker::blocks {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Ne;

struct Op {
  std::uint64_t sequence = 0;
  std::string name = "gloo:all_reduce";
  std::string inputs = "[[4]]";
  std::string outputs = "[[4]]";
  std::string types = R"(["Float"])";
  std::string rest = R"("retired":true)";
};

std::string text_of(const Op& op) {
  return R"({"process_group":["0","default_pg"],"collective_seq_id":)" +
         std::to_string(op.sequence) + R"(,"profiling_name":")" + op.name + R"(","input_sizes":)" +
         op.inputs + R"(,"output_sizes":)" + op.outputs + R"(,"input_dtypes":)" + op.types + "," +
         op.rest + "}";
}

std::string reply_of(const std::vector<Op>& ops) {
  std::string entries;
  for (const Op& op : ops) entries += (entries.empty() ? "" : ",") + text_of(op);
  return R"({"entries":[)" + entries + "]}";
}

std::vector<Op> range(std::uint64_t first, std::uint64_t last) {
  std::vector<Op> ops;
  for (std::uint64_t i = first; i <= last; ++i) ops.push_back({.sequence = i});
  return ops;
}

std::string signed_text(const std::string& reply, std::size_t size = 8192) {
  std::string out(size, '\0');
  out.resize(sign_blocks(reply.data(), reply.size(), {7, 1}, out.data(), out.size()));
  return out;
}

std::vector<std::string> fields_of(std::string_view line) {
  std::vector<std::string> fields(1);
  for (const char byte : line) {
    if (byte == '\t') {
      fields.emplace_back();
    } else {
      fields.back().push_back(byte);
    }
  }
  return fields;
}

// The numbers with which the chosen blocks begin.
std::vector<std::string> firsts(const std::vector<Op>& ops) {
  std::vector<std::string> found;
  const std::string text = signed_text(reply_of(ops));
  for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    found.push_back(fields_of(std::string_view(text).substr(at, text.find('\n', at) - at)).at(4));
  }
  return found;
}

// The sign of this operation as number 5 of a block that is complete.
std::string sign_of(Op op) {
  std::vector<Op> ops = range(1, 40);
  op.sequence = 5;
  ops[4] = op;
  const std::string text = signed_text(reply_of(ops));
  return text.substr(text.rfind('\t') + 1).substr(5 * hang::kSignBytes, hang::kSignBytes);
}

TEST(CollectiveBlocks, ABlockIsALine) {
  const std::string text = signed_text(reply_of(range(1, 40)));
  EXPECT_EQ(text.back(), '\n');
  const std::vector<std::string> fields = fields_of(text.substr(0, text.size() - 1));
  const std::string& signature = fields.back();
  EXPECT_THAT(fields, ElementsAre("7", "1", "0", "default_pg", "0", signature));
  EXPECT_EQ(signature.size(), hang::kSignatureBytes);
  EXPECT_EQ(signature.substr(0, 6), "-----r");
  EXPECT_EQ(signature.substr(5, 5), signature.substr(hang::kSignatureBytes - 5));
}

TEST(CollectiveBlocks, OnlyCompleteBlocksAreChosen) {
  EXPECT_THAT(firsts(range(1, 31)), IsEmpty());  // the next operation was not seen
  EXPECT_THAT(firsts(range(1, 32)), ElementsAre("0"));
  EXPECT_THAT(firsts(range(1, 100)), ElementsAre("0", "64"));
  EXPECT_THAT(firsts(range(50, 100)), ElementsAre("64"));  // the recorder has lost the others
  EXPECT_THAT(firsts(range(65, 95)), IsEmpty());
  std::vector<Op> ops = range(1, 100);
  ops[69].rest = R"("retired":false)";
  EXPECT_THAT(firsts(ops), ElementsAre("0", "32"));
}

TEST(CollectiveBlocks, RecordersThatOverlapChooseTheSameBlocks) {
  for (std::uint64_t late = 0; late < 200; late += 20) {
    const auto one = firsts(range(10001, 12000));
    const auto other = firsts(range(10001 + late, 12000 + late));
    bool has_common = false;
    for (const std::string& first : one) {
      has_common |= std::find(other.begin(), other.end(), first) != other.end();
    }
    EXPECT_TRUE(has_common) << late;
  }
}

TEST(CollectiveBlocks, AGroupWhoseNumbersDoNotIncreaseIsLeftOut) {
  std::vector<Op> ops = range(1, 40);
  const std::vector<Op> again = range(1, 80);  // the group was formed anew
  ops.insert(ops.end(), again.begin(), again.end());
  EXPECT_THAT(firsts(ops), IsEmpty());
  ops = range(1, 40);
  ops.insert(ops.begin() + 4, {.sequence = 4});  // two operations of one number
  EXPECT_THAT(firsts(ops), IsEmpty());
}

TEST(CollectiveBlocks, WhatAllRanksMustHaveInCommonIsSigned) {
  const std::string reduced = sign_of({});
  EXPECT_EQ(reduced.front(), 'r');
  EXPECT_EQ(sign_of({.inputs = "[[2,2]]"}), reduced);  // the shape is the rank's own
  EXPECT_EQ(sign_of({.name = "nccl:all_reduce", .rest = R"("state":"completed")"}), reduced);
  EXPECT_THAT(sign_of({.inputs = "[[8]]"}), Ne(reduced));
  EXPECT_THAT(sign_of({.types = R"(["Double"])"}), Ne(reduced));
  const std::string sent = sign_of({.name = "gloo:broadcast"});
  EXPECT_EQ(sent.front(), 'b');
  EXPECT_THAT(sign_of({.name = "gloo:broadcast", .inputs = "[[8]]"}), Ne(sent));
}

// What ranks may have of their own is not signed.
TEST(CollectiveBlocks, SizesThatMayDifferAreNotSigned) {
  const auto is_equal = [](const Op& one, const Op& other) {
    return sign_of(one) == sign_of(other);
  };
  for (const char* const name :
       {"gloo:all_to_all", "nccl:all_to_all", "gloo:gather", "nccl:gather", "gloo:scatter",
        "nccl:scatter", "nccl:coalesced", "nccl:all_reduce_coalesced", "gloo:sparse_all_reduce",
        "nccl:_broadcast_oop", "nccl:_reduce_oop", "gloo:barrier"}) {
    EXPECT_TRUE(is_equal({.name = name}, {.name = name, .inputs = "[]", .outputs = "[[7],[1]]"}))
        << name;
    EXPECT_EQ(sign_of({.name = name}).front(), '.') << name;
  }
  // The ranks of an uneven all_gather contribute different sizes, and receive the same.
  EXPECT_TRUE(is_equal({.name = "nccl:all_gather", .inputs = "[[2]]", .outputs = "[[2],[3]]"},
                       {.name = "nccl:all_gather", .inputs = "[[3]]", .outputs = "[[2],[3]]"}));
  EXPECT_TRUE(is_equal({.name = "nccl:reduce_scatter", .inputs = "[[2],[3]]", .outputs = "[[2]]"},
                       {.name = "nccl:reduce_scatter", .inputs = "[[2],[3]]", .outputs = "[[3]]"}));
  EXPECT_EQ(sign_of({.name = "gloo:broadcast", .inputs = "[[4],[4]]"}).front(), '.');
  EXPECT_EQ(sign_of({.inputs = "[]"}).front(), '.');
  EXPECT_EQ(sign_of({.inputs = "\"4\""}).front(), '.');
}

TEST(CollectiveBlocks, PointToPointOperationsHaveNoNumber) {
  std::vector<Op> ops = range(1, 40);
  ops.insert(ops.begin() + 4, {.sequence = 2, .rest = R"("is_p2p":true,"retired":true)"});
  EXPECT_EQ(signed_text(reply_of(ops)), signed_text(reply_of(range(1, 40))));
}

TEST(CollectiveBlocks, OnlyWholeLinesAreWritten) {
  const std::string reply = reply_of(range(1, 200));
  const std::string all = signed_text(reply);
  for (std::size_t size = 0; size < all.size(); ++size) {
    const std::string text = signed_text(reply, size);
    ASSERT_TRUE(all.starts_with(text) && (text.empty() || text.back() == '\n')) << size;
  }
}

TEST(CollectiveBlocks, AReplyThatIsCutHasNoLine) {
  const std::string reply = reply_of(range(1, 40));
  for (std::size_t size = 0; size < reply.size(); size += 7) {
    ASSERT_EQ(signed_text(reply.substr(0, size)), "") << size;
  }
}

}  // namespace
}  // namespace elastic::worker::blocks
