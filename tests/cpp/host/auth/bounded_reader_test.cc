#include "host/auth/bounded_reader.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "support/eventually.h"

namespace elastic::host {
namespace {

using namespace std::chrono_literals;

// A file server that answers when the test lets it.
struct Server {
  std::promise<void> is_back;
  std::shared_future<void> back = is_back.get_future().share();
  std::optional<std::string> content = "first";
};

TEST(BoundedReader, EachContentIsReturnedOnce) {
  auto server = std::make_shared<Server>();
  const auto reader = BoundedReader::start(
      [server]() -> BoundedReader::Content { return std::exchange(server->content, {}); });
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(*(*reader)->read_within(1h), "first");
  EXPECT_EQ(*(*reader)->read_within(1h), std::nullopt);
}

TEST(BoundedReader, AFaultIsAnAnswer) {
  const auto reader = BoundedReader::start([]() -> BoundedReader::Content {
    return Status(StatusCode::kInvalidArgument, "cannot be read");
  });
  EXPECT_EQ((*reader)->read_within(1h).status().code(), StatusCode::kInvalidArgument);
}

TEST(BoundedReader, AReadThatBlocksIsWaitedForOnceAndItsContentIsNotLost) {
  auto server = std::make_shared<Server>();
  const auto reader = BoundedReader::start([server]() -> BoundedReader::Content {
    server->back.wait();
    return std::exchange(server->content, {});
  });
  EXPECT_EQ(*(*reader)->read_within(1ms), std::nullopt);
  EXPECT_EQ(*(*reader)->read_within(1h), std::nullopt) << "it is not waited for again";
  server->is_back.set_value();
  std::optional<std::string> late;
  EXPECT_TRUE(support::eventually([&] {
    late = *(*reader)->read_within(1h);
    return late.has_value();
  }));
  EXPECT_EQ(late, "first");
}

TEST(BoundedReader, ItsEndDoesNotWaitForAReadThatBlocks) {
  auto server = std::make_shared<Server>();
  auto reader = BoundedReader::start([server]() -> BoundedReader::Content {
    server->back.wait();
    return std::optional<std::string>();
  });
  EXPECT_EQ(*(*reader)->read_within(1ms), std::nullopt);
  reader->reset();
  server->is_back.set_value();
}

}  // namespace
}  // namespace elastic::host
