// The store against a naive model: random requests of several clients, the same replies and
// wake-ups.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/store/store.h"
#include "core/store/wire.h"

namespace elastic {
namespace {

using wire::Opcode;

constexpr std::size_t kClients = 5;

// The effect of one request: the reply to its client, and the woken clients in order.
struct Effect {
  std::string reply;
  bool refused = false;
  std::vector<std::size_t> woken;
  bool operator==(const Effect&) const = default;
};

struct Step {
  std::size_t client = 0;
  Opcode opcode = Opcode::kGet;
  std::vector<std::string> words;  // names and values, in the order of the frame
  std::int64_t number = 0;
};

// The same behaviour as the store, implemented with maps and a linear list of waits.
//
// PyTorch's server differs in waits for queues: it counts a queue as missing in a WAIT for several
// names though it is not empty; two pushes release a wait for a queue and a key; and a client that
// a push has woken stays in the queue's list, so that a later push ends its next wait, whatever it
// waits for.
class Model {
 public:
  Effect serve(const Step& step) {
    Effect effect;
    const std::string& name = step.words.empty() ? empty_ : step.words[0];
    switch (step.opcode) {
      case Opcode::kSet: write(name, step.words[1], &effect); break;
      case Opcode::kAppend: write(name, keys_[name] + step.words[1], &effect); break;
      case Opcode::kMultiSet:
        for (std::size_t i = 0; i < step.words.size(); i += 2) {
          write(step.words[i], step.words[i + 1], &effect);
        }
        break;
      case Opcode::kGet: wire::append_bytes(&effect.reply, value(name)); break;
      case Opcode::kMultiGet:
        for (const auto& key : step.words) wire::append_bytes(&effect.reply, value(key));
        break;
      case Opcode::kDeleteKey:
        wire::append_integer<std::int64_t>(&effect.reply, keys_.erase(name) == 1 ? 1 : 0);
        break;
      case Opcode::kNumKeys:
        wire::append_integer(&effect.reply, static_cast<std::int64_t>(keys_.size()));
        break;
      case Opcode::kCompareSet: compare_set(step, &effect); break;
      case Opcode::kAdd: add(step, &effect); break;
      case Opcode::kBarrier: barrier(step, &effect); break;
      case Opcode::kCheck:
        effect.reply.push_back(
            std::all_of(step.words.begin(), step.words.end(), [&](auto& w) { return present(w); })
                ? wire::kReady
                : wire::kNotReady);
        break;
      case Opcode::kWait: wait(step, &effect); break;
      case Opcode::kCancelWait:
        drop(step.client);
        effect.reply.push_back(wire::kWaitCanceled);
        break;
      case Opcode::kQueuePush: push(step, &effect); break;
      case Opcode::kQueuePop: pop(name, &effect); break;
      case Opcode::kQueueLen:
        wire::append_integer(&effect.reply, static_cast<std::int64_t>(queues_[name].size()));
        break;
      case Opcode::kValidate:
      case Opcode::kPing:
      case Opcode::kListKeys: ADD_FAILURE() << "not modelled"; break;
    }
    return effect;
  }

  void drop(std::size_t client) {
    std::erase_if(waits_, [client](const Wait& wait) { return wait.client == client; });
  }
  std::size_t waiting() const { return waits_.size(); }

 private:
  struct Wait {
    std::size_t client;
    std::set<std::string> missing;
  };

  std::string value(const std::string& key) const {
    const auto found = keys_.find(key);
    return found == keys_.end() ? "" : found->second;
  }
  bool present(const std::string& name) { return keys_.contains(name) || !queues_[name].empty(); }

  // Removes `name` from waits, oldest first, until `enough` of them have ended.
  void wake(const std::string& name, std::size_t enough, Effect* effect) {
    std::size_t ended = 0;
    for (auto wait = waits_.begin(); wait != waits_.end() && ended < enough;) {
      if (wait->missing.erase(name) == 1 && wait->missing.empty()) {
        effect->woken.push_back(wait->client);
        wait = waits_.erase(wait);
        ++ended;
      } else {
        ++wait;
      }
    }
  }
  void write(const std::string& key, const std::string& text, Effect* effect) {
    keys_[key] = text;
    wake(key, kClients, effect);
  }
  void compare_set(const Step& step, Effect* effect) {
    const bool is_there = keys_.contains(step.words[0]);
    const std::string current = is_there ? keys_[step.words[0]] : step.words[1];
    const bool matches = is_there ? current == step.words[1] : step.words[1].empty();
    wire::append_bytes(&effect->reply, matches ? step.words[2] : current);
    if (matches) write(step.words[0], step.words[2], effect);
  }
  bool increment(const std::string& key, std::int64_t delta, std::int64_t* sum) {
    const std::string text = keys_.contains(key) ? keys_[key] : "0";
    char* end = nullptr;
    *sum = std::strtoll(text.c_str(), &end, 10) + delta;  // the test's numbers are small
    return end != text.c_str();
  }
  void add(const Step& step, Effect* effect) {
    std::int64_t sum = 0;
    if (!increment(step.words[0], step.number, &sum)) {
      effect->refused = true;
      return;
    }
    wire::append_integer(&effect->reply, sum);
    write(step.words[0], std::to_string(sum), effect);
  }
  void barrier(const Step& step, Effect* effect) {
    drop(step.client);
    std::int64_t arrived = 0;
    if (!increment(step.words[0], 1, &arrived)) {
      effect->refused = true;
      return;
    }
    keys_[step.words[0]] = std::to_string(arrived);
    if (arrived < step.number) {
      waits_.push_back({step.client, {step.words[0]}});
      return;
    }
    effect->reply.push_back(wire::kStopWaiting);
    wake(step.words[0], kClients, effect);
  }
  void wait(const Step& step, Effect* effect) {
    drop(step.client);
    Wait wait{step.client, {}};
    for (const auto& name : step.words) {
      if (!present(name)) wait.missing.insert(name);
    }
    if (wait.missing.empty()) {
      effect->reply.push_back(wire::kStopWaiting);
    } else {
      waits_.push_back(wait);
    }
  }
  void push(const Step& step, Effect* effect) {
    queues_[step.words[0]].push_back(step.words[1]);
    wake(step.words[0], 1, effect);
  }
  void pop(const std::string& name, Effect* effect) {
    auto& queue = queues_[name];
    wire::append_integer(&effect->reply, static_cast<std::int64_t>(queue.size()));
    if (queue.empty()) return;
    wire::append_bytes(&effect->reply, queue.front());
    queue.pop_front();
  }

  const std::string empty_;
  std::map<std::string, std::string> keys_;
  std::map<std::string, std::deque<std::string>> queues_;
  std::vector<Wait> waits_;  // oldest first
};

class Real {
 public:
  Real() {
    for (auto& waiter : waiters_) waiter = std::make_unique<StoreTable::Waiter>();
  }

  Effect serve(const Step& step) {
    const std::string frame = encode(step);
    std::string validate;
    wire::append_validate(&validate);
    wire::RequestDecoder decoder(limits_);
    wire::Request request;
    EXPECT_EQ(decoder.decode(validate, &request).status, wire::DecodeStatus::kRequest);
    EXPECT_EQ(decoder.decode(frame, &request).bytes, frame.size());
    Effect effect;
    std::vector<StoreTable::Waiter*> released;
    effect.refused =
        table_.serve(request, waiters_[step.client].get(), &effect.reply, &released) != nullptr;
    for (const StoreTable::Waiter* waiter : released) {
      for (std::size_t i = 0; i < kClients; ++i) {
        if (waiters_[i].get() == waiter) effect.woken.push_back(i);
      }
    }
    EXPECT_EQ(effect.woken.size(), released.size()) << "only connected clients are woken";
    return effect;
  }
  void drop(std::size_t client) { waiters_[client] = std::make_unique<StoreTable::Waiter>(); }
  std::size_t waiting() const {
    return static_cast<std::size_t>(std::count_if(waiters_.begin(), waiters_.end(),
                                                  [](auto& waiter) { return waiter->waiting(); }));
  }
  std::size_t used_after_clear() {
    table_.clear();
    return budget_.used();
  }

 private:
  static std::string encode(const Step& step) {
    std::string frame;
    switch (step.opcode) {
      case Opcode::kCheck:
      case Opcode::kWait:
      case Opcode::kMultiGet:
      case Opcode::kMultiSet:
        wire::append_list_header(&frame, step.opcode,
                                 step.words.size() / (step.opcode == Opcode::kMultiSet ? 2 : 1));
        break;
      default: wire::append_bare_request(&frame, step.opcode);
    }
    for (const auto& word : step.words) wire::append_bytes(&frame, word);
    if (step.opcode == Opcode::kAdd || step.opcode == Opcode::kBarrier) {
      wire::append_integer(&frame, step.number);
    }
    return frame;
  }

  const StoreLimits limits_;
  MemoryBudget budget_{limits_.total_bytes_max};
  StoreTable table_{limits_, &budget_, 7};
  std::array<std::unique_ptr<StoreTable::Waiter>, kClients> waiters_;
};

// Few names, so that clients use the same ones; short values, sometimes numbers.
Step random_step(std::mt19937* random) {
  const auto below = [random](std::size_t bound) { return (*random)() % bound; };
  const auto name = [&] { return "/" + std::string(1, static_cast<char>('a' + below(6))); };
  const auto text = [&] {
    return below(3) == 0 ? std::to_string(below(5)) : std::string(below(4), 'x');
  };
  static constexpr Opcode kOpcodes[] = {
      Opcode::kSet,      Opcode::kCompareSet, Opcode::kGet,       Opcode::kAdd,
      Opcode::kCheck,    Opcode::kWait,       Opcode::kWait,      Opcode::kWait,
      Opcode::kNumKeys,  Opcode::kDeleteKey,  Opcode::kDeleteKey, Opcode::kDeleteKey,
      Opcode::kAppend,   Opcode::kMultiGet,   Opcode::kMultiSet,  Opcode::kCancelWait,
      Opcode::kQueuePop, Opcode::kQueuePop,   Opcode::kQueuePush, Opcode::kQueueLen,
      Opcode::kBarrier};
  Step step{below(kClients), kOpcodes[below(std::size(kOpcodes))], {}, 0};
  switch (step.opcode) {
    case Opcode::kSet:
    case Opcode::kAppend:
    case Opcode::kQueuePush: step.words = {name(), text()}; break;
    case Opcode::kCompareSet: step.words = {name(), text(), text()}; break;
    case Opcode::kCheck:
    case Opcode::kWait:
    case Opcode::kMultiGet:
      for (std::size_t i = below(4); i > 0; --i) step.words.push_back(name());
      break;
    case Opcode::kMultiSet:
      for (std::size_t i = below(3); i > 0; --i) {
        step.words.push_back(name());
        step.words.push_back(text());
      }
      break;
    case Opcode::kNumKeys:
    case Opcode::kCancelWait: break;
    default: step.words = {name()};
  }
  step.number = static_cast<std::int64_t>(below(5)) - 1;
  return step;
}

TEST(StoreModel, StoreAgreesWithTheNaiveModel) {
  for (unsigned seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    Model model;
    Real real;
    for (int i = 0; i < 2000; ++i) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", step " + std::to_string(i));
      if (random() % 40 == 0) {
        const std::size_t client = random() % kClients;
        model.drop(client);
        real.drop(client);
      }
      const Step step = random_step(&random);
      const Effect expected = model.serve(step);
      const Effect actual = real.serve(step);
      ASSERT_EQ(actual.reply, expected.reply) << "opcode " << static_cast<int>(step.opcode);
      ASSERT_EQ(actual.woken, expected.woken) << "opcode " << static_cast<int>(step.opcode);
      ASSERT_EQ(actual.refused, expected.refused);
      ASSERT_EQ(real.waiting(), model.waiting());
    }
    ASSERT_EQ(real.used_after_clear(), 0u) << "seed " << seed << ": memory was not released";
  }
}

}  // namespace
}  // namespace elastic
