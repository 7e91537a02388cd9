#include "core/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/store/wire.h"

namespace elastic {
namespace {

using testing::IsEmpty;
using testing::UnorderedElementsAre;
using wire::Opcode;
using Keys = std::vector<std::string>;

std::string number(std::int64_t value) {
  std::string out;
  wire::append_integer(&out, value);
  return out;
}

std::string bytes(std::string_view value) {
  std::string out;
  wire::append_bytes(&out, value);
  return out;
}

const std::string kByte0(1, '\0');
const std::string kByte1(1, '\1');

// A store and its clients. Each call sends one request through the codec and returns what the
// client then receives; "closed: …" is an error. Wake-ups are collected by client.
class Store {
 public:
  static constexpr int kClients = 6;

  explicit Store(StoreLimits limits = {})
      : limits_(limits), budget_(limits.total_bytes_max), table_(limits_, &budget_, 42) {
    for (int i = 0; i < kClients; ++i) waiters_.push_back(std::make_unique<StoreTable::Waiter>());
  }

  std::string send(int client, const std::string& frame) {
    wire::RequestDecoder decoder(limits_);
    wire::Request request;
    std::string stream;
    wire::append_validate(&stream);
    EXPECT_EQ(decoder.decode(stream, &request).status, wire::DecodeStatus::kRequest);
    const wire::DecodeResult decoded = decoder.decode(frame, &request);
    EXPECT_EQ(decoded.status, wire::DecodeStatus::kRequest);
    EXPECT_EQ(decoded.bytes, frame.size());
    std::string reply;
    std::vector<StoreTable::Waiter*> released;
    const char* const refusal = table_.serve(request, waiter(client), &reply, &released);
    for (StoreTable::Waiter* waiter : released) woken_.push_back(index_of(waiter));
    if (refusal == nullptr) return reply;
    EXPECT_EQ(reply, "") << "an error has no reply";
    EXPECT_THAT(released, IsEmpty());
    return std::string("closed: ") + refusal;
  }

  std::string key(int client, Opcode opcode, std::string_view name) {
    std::string frame;
    wire::append_key_request(&frame, opcode, name);
    return send(client, frame);
  }
  std::string pair(int client, Opcode opcode, std::string_view name, std::string_view value) {
    std::string frame;
    wire::append_key_value_request(&frame, opcode, name, value);
    return send(client, frame);
  }
  std::string list(int client, Opcode opcode, const Keys& items) {
    std::string frame;
    wire::append_list_header(&frame, opcode,
                             opcode == Opcode::kMultiSet ? items.size() / 2 : items.size());
    for (const std::string& item : items) wire::append_bytes(&frame, item);
    return send(client, frame);
  }
  std::string count(int client, Opcode opcode, std::string_view name, std::int64_t value) {
    std::string frame;
    wire::append_number_request(&frame, opcode, name, value);
    return send(client, frame);
  }
  std::string bare(int client, Opcode opcode) {
    std::string frame;
    wire::append_bare_request(&frame, opcode);
    return send(client, frame);
  }
  std::string set(std::string_view name, std::string_view value) {
    return pair(0, Opcode::kSet, name, value);
  }
  std::string get(std::string_view name) { return key(0, Opcode::kGet, name); }
  std::string add(std::string_view name, std::int64_t delta) {
    return count(0, Opcode::kAdd, name, delta);
  }
  std::string compare_set(std::string_view name, std::string_view expected,
                          std::string_view desired) {
    std::string frame;
    wire::append_compare_set(&frame, name, expected, desired);
    return send(0, frame);
  }
  std::string check(const Keys& names) { return list(0, Opcode::kCheck, names); }
  std::string wait(int client, const Keys& names) { return list(client, Opcode::kWait, names); }
  std::string push(std::string_view queue, std::string_view value) {
    return pair(0, Opcode::kQueuePush, queue, value);
  }
  std::string barrier(int client, std::string_view name, std::int64_t size) {
    return count(client, Opcode::kBarrier, name, size);
  }

  // The clients that were woken since the last call, in order.
  std::vector<int> woken() { return std::exchange(woken_, {}); }
  void disconnect(int client) {
    waiters_[static_cast<std::size_t>(client)] = std::make_unique<StoreTable::Waiter>();
  }
  StoreTable::Waiter* waiter(int client) {
    return waiters_[static_cast<std::size_t>(client)].get();
  }
  StoreTable& table() { return table_; }
  std::size_t used() const { return budget_.used(); }

 private:
  int index_of(const StoreTable::Waiter* waiter) const {
    for (int i = 0; i < kClients; ++i) {
      if (waiters_[static_cast<std::size_t>(i)].get() == waiter) return i;
    }
    ADD_FAILURE() << "a destroyed waiter was released";
    return -1;
  }

  StoreLimits limits_;
  MemoryBudget budget_;
  StoreTable table_;
  std::vector<std::unique_ptr<StoreTable::Waiter>> waiters_;
  std::vector<int> woken_;
};

TEST(Store, SetGetAndDeleteOfAnyBytes) {
  Store store;
  for (const std::string& name : {std::string(), std::string("/k"), std::string("/a\0b", 4)}) {
    for (const std::string& value : {std::string("v"), std::string(), std::string("\0\xff\n", 3)}) {
      EXPECT_EQ(store.set(name, value), "");
      EXPECT_EQ(store.get(name), bytes(value));
      EXPECT_EQ(store.check({name}), kByte0) << "an empty value is a value";
    }
    EXPECT_EQ(store.key(0, Opcode::kDeleteKey, name), number(1));
    EXPECT_EQ(store.key(0, Opcode::kDeleteKey, name), number(0));
    EXPECT_EQ(store.get(name), bytes("")) << "missing reads as empty";
    EXPECT_EQ(store.check({name}), kByte1);
  }
  EXPECT_EQ(store.used(), 0u);
}

TEST(Store, PingEchoesItsNonce) {
  Store store;
  std::string frame;
  wire::append_ping(&frame, 0x01020304);
  EXPECT_EQ(store.send(0, frame), "\x04\x03\x02\x01");
}

TEST(Store, AddReadsNumbersAsStrtollDoes) {
  constexpr std::int64_t kMax = INT64_MAX;
  constexpr std::int64_t kMin = INT64_MIN;
  const struct {
    const char* value;
    std::int64_t delta;
    std::int64_t sum;
  } rows[] = {
      {"0", 5, 5},
      {"5", -7, -2},
      {" +12abc", 1, 13},
      {"\t\n\v\f\r-3", 1, -2},
      {"1.5", 1, 2},
      {"0x10", 1, 1},
      {"007", 0, 7},
      {"-0", 0, 0},
      {"9223372036854775807", 1, kMin},
      {"-9223372036854775808", -1, kMax},
      {"9223372036854775807", kMax, -2},
  };
  for (const auto& row : rows) {
    Store store;
    store.set("/c", row.value);
    EXPECT_EQ(store.add("/c", row.delta), number(row.sum)) << row.value;
    EXPECT_EQ(store.get("/c"), bytes(std::to_string(row.sum))) << row.value;
  }
}

TEST(Store, AddAndBarrierRejectNonNumbersAndChangeNothing) {
  for (const char* value : {"abc", "", " ", "-", "+", "+-1", "--1", "9223372036854775808",
                            "-9223372036854775809", "99999999999999999999999"}) {
    Store store;
    store.set("/x", value);
    store.wait(1, {"/x", "/y"});
    EXPECT_EQ(store.add("/x", 1), "closed: the value to add to is not a number") << value;
    EXPECT_EQ(store.barrier(2, "/x", 2), "closed: the value to add to is not a number") << value;
    EXPECT_EQ(store.get("/x"), bytes(value));
    EXPECT_FALSE(store.waiter(2)->waiting());
  }
}

TEST(Store, KeysAreCountedAndListedAndQueuesAreNot) {
  Store store;
  store.set("/a", "1");
  store.add("init/", 1);
  store.push("/q", "x");
  store.barrier(1, "/b", 2);
  EXPECT_EQ(store.bare(0, Opcode::kNumKeys), number(3));
  const std::string listed = store.bare(0, Opcode::kListKeys);
  ASSERT_EQ(listed.substr(0, 8), number(3));
  auto cursor = wire::ItemList(3, listed.data() + 8).begin();
  const Keys names{std::string(cursor.next()), std::string(cursor.next()),
                   std::string(cursor.next())};
  EXPECT_THAT(names, UnorderedElementsAre("/a", "init/", "/b"));
  EXPECT_EQ(listed.size(), 8u + 3 * 8 + 2 + 5 + 2);
}

TEST(Store, CancelAndDisconnectRemoveTheWait) {
  Store store;
  store.wait(1, {"/a", "/b", "/shared"});
  store.wait(2, {"/c", "/shared"});
  EXPECT_EQ(store.bare(1, Opcode::kCancelWait), kByte1);
  store.disconnect(2);
  EXPECT_EQ(store.used(), 0u);
  store.list(0, Opcode::kMultiSet, {"/a", "", "/b", "", "/c", "", "/shared", ""});
  EXPECT_THAT(store.woken(), IsEmpty());
  EXPECT_EQ(store.bare(1, Opcode::kCancelWait), kByte1) << "also without an open wait";
}

TEST(Store, ClearRemovesKeysQueuesAndWaits) {
  Store store;
  store.set("/k", "v");
  store.push("/q", "x");
  store.wait(1, {"/a", "/b"});
  store.barrier(2, "/bar", 2);
  store.table().clear();
  EXPECT_EQ(store.used(), 0u);
  EXPECT_FALSE(store.waiter(1)->waiting());
  EXPECT_EQ(store.check({"/k"}), kByte1);
  EXPECT_EQ(store.key(0, Opcode::kQueueLen, "/q"), number(0));
  store.set("/a", "");
  store.set("/b", "");
  EXPECT_THAT(store.woken(), IsEmpty());
}

TEST(Store, FullStoreRejectsRequestsAndChangesNothing) {
  Store store(StoreLimits{.total_bytes_max = 2000});
  const std::string big(1500, 'x');
  const std::string half(600, 'x');
  ASSERT_EQ(store.set("/k", half), "");
  ASSERT_EQ(store.push("/q", "x"), "");
  const std::size_t used = store.used();
  const std::string full = "closed: the store is full: total_bytes_max is reached";
  EXPECT_EQ(store.set("/new", big), full);
  EXPECT_EQ(store.set("/k", std::string(3000, 'y')), full);
  EXPECT_EQ(store.pair(0, Opcode::kAppend, "/k", big), full);
  EXPECT_EQ(store.compare_set("/new", "", big), full);
  EXPECT_EQ(store.push("/q", big), full);
  EXPECT_EQ(store.push("/other", big), full);
  EXPECT_EQ(store.list(0, Opcode::kMultiSet, {"/a", "1", "/b", big}), full);
  EXPECT_EQ(store.wait(1, {"/" + big}), full);
  EXPECT_EQ(store.barrier(1, "/" + big, 2), full);
  EXPECT_EQ(store.used(), used);
  EXPECT_EQ(store.check({"/a"}), kByte1) << "MULTI_SET stores all pairs or none";
  EXPECT_EQ(store.get("/k"), bytes(half));
  EXPECT_EQ(store.key(0, Opcode::kQueueLen, "/q"), number(1));
}

TEST(Store, ReplyOverTheLimitIsRejectedBeforeItIsBuilt) {
  Store store(StoreLimits{.output_bytes_max = 1000});
  const std::string value(600, 'v');
  const std::string refusal = "closed: a reply is longer than output_bytes_max";
  ASSERT_EQ(store.set("/k", value), "");
  ASSERT_EQ(store.push("/q", value + value), "");
  EXPECT_EQ(store.get("/k"), bytes(value));
  EXPECT_EQ(store.list(0, Opcode::kMultiGet, {"/k", "/k"}), refusal);
  EXPECT_EQ(store.key(0, Opcode::kQueuePop, "/q"), refusal);
  EXPECT_EQ(store.key(0, Opcode::kQueueLen, "/q"), number(1));
  ASSERT_EQ(store.pair(0, Opcode::kAppend, "/k", value), "");
  EXPECT_EQ(store.get("/k"), refusal);
  EXPECT_EQ(store.compare_set("/k", "x", "y"), refusal);
  for (int i = 0; i < 100; ++i) store.set("/key-" + std::to_string(i), "");
  EXPECT_EQ(store.bare(0, Opcode::kListKeys), refusal);
}

}  // namespace
}  // namespace elastic
