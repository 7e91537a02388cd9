#include "core/store/store.h"

#include <charconv>
#include <optional>
#include <system_error>
#include <utility>

#include "core/base/check.h"

// Theory of operation. Keys and queues are two separate name spaces; a wait is for names, and a
// name is present when a key of that name exists or a queue of that name is not empty.
//
// A wait records the names that are missing when it begins, each once, and counts them down: the
// first write to a name, or a push to it, removes the name from the wait, even if the key is
// deleted again. The wait ends when no name is left. Each awaited name has a list of links, oldest
// wait first; a write removes the name from every wait in the list, a push from one wait after
// another until one of them ends. A client has at most one open wait: a new WAIT or BARRIER
// replaces the previous one, which is then never answered (PyTorch's server, too, sends one byte
// for both).
//
// Every error (a limit, a value that is not a number) is detected before anything changes, so a
// request is executed completely or not at all; this includes MULTI_SET.

namespace elastic {
namespace {

constexpr const char* kOverBudget = "the store is full: total_bytes_max is reached";
constexpr const char* kReplyTooLong = "a reply is longer than output_bytes_max";
constexpr const char* kNotANumber = "the value to add to is not a number";

// Decimal digits of an int64 with its sign: counters reserve this much when they are created.
constexpr std::size_t kNumberBytes = 20;
// What a queue's element, a queue and an awaited name cost in addition to their strings: nodes of
// the standard library's containers, with the allocator's overhead.
constexpr std::size_t kQueueNodeBytes = 80;
constexpr std::size_t kQueueBytes = 128;
constexpr std::size_t kAwaitedNameBytes = 160;

// As strtoll with base 10: leading white space, a sign, digits; what follows is ignored.
std::optional<std::int64_t> parse_number(std::string_view text) {
  const std::size_t start = text.find_first_not_of(" \t\n\v\f\r");
  if (start == std::string_view::npos) return std::nullopt;
  text.remove_prefix(start);
  if (text[0] == '+') {
    text.remove_prefix(1);
    if (text.starts_with('-')) return std::nullopt;  // from_chars would accept "+-1"
  }
  std::int64_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc()) return std::nullopt;
  return number;
}

// Counters wrap around, as they do in PyTorch's server.
std::int64_t add_wrapping(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

std::size_t queue_element_bytes(std::string_view value) { return kQueueNodeBytes + value.size(); }
std::size_t queue_bytes(std::string_view name) { return kQueueBytes + name.size(); }

}  // namespace

StoreTable::StoreTable(const StoreLimits& limits, MemoryBudget* budget, std::uint64_t seed)
    : limits_(limits),
      budget_(budget),
      keys_(seed, budget),
      queues_(0, SipHash(seed)),
      awaited_(0, SipHash(seed)) {}

StoreTable::~StoreTable() { clear(); }

void StoreTable::clear() {
  while (!awaited_.empty()) end_wait(awaited_.begin()->second.head->waiter);
  for (const auto& [name, queue] : queues_) {
    for (const std::string& value : queue) budget_->give_back(queue_element_bytes(value));
    budget_->give_back(queue_bytes(name));
  }
  queues_.clear();
  keys_.clear();
}

const char* StoreTable::serve(const wire::Request& request, Waiter* client, std::string* reply,
                              Released* released) {
  using wire::Opcode;
  switch (request.opcode) {
    case Opcode::kValidate: return nullptr;
    case Opcode::kPing: wire::append_integer(reply, request.nonce); return nullptr;
    case Opcode::kSet: return set(request.key, request.value, released);
    case Opcode::kCompareSet: return compare_set(request, reply, released);
    case Opcode::kGet: return get(request.key, reply);
    case Opcode::kAdd: return add(request, reply, released);
    case Opcode::kCheck:
      reply->push_back(all_present(request.items) ? wire::kReady : wire::kNotReady);
      return nullptr;
    case Opcode::kWait: return wait(request.items, client, reply);
    case Opcode::kNumKeys:
      wire::append_integer<std::int64_t>(reply, static_cast<std::int64_t>(keys_.size()));
      return nullptr;
    case Opcode::kDeleteKey: delete_key(request.key, reply); return nullptr;
    case Opcode::kAppend: return append(request, released);
    case Opcode::kMultiGet: return multi_get(request.items, reply);
    case Opcode::kMultiSet: return multi_set(request.items, released);
    case Opcode::kCancelWait:
      client->cancel();
      reply->push_back(wire::kWaitCanceled);
      return nullptr;
    case Opcode::kQueuePush: return queue_push(request, released);
    case Opcode::kQueuePop: return queue_pop(request.key, reply);
    case Opcode::kQueueLen:
      wire::append_integer(reply, static_cast<std::int64_t>(queue_size(request.key)));
      return nullptr;
    case Opcode::kListKeys: return list_keys(reply);
    case Opcode::kBarrier: return barrier(request, client, reply, released);
  }
  return "unknown opcode";
}

// Keys.

const char* StoreTable::set(std::string_view key, std::string_view value, Released* released) {
  if (!keys_.assign(keys_.locate(key), key, value)) return kOverBudget;
  wake_all(key, released);
  return nullptr;
}

const char* StoreTable::compare_set(const wire::Request& request, std::string* reply,
                                    Released* released) {
  const KeyTable::Position position = keys_.locate(request.key);
  // A missing key equals only an empty expected value; any other expected value is returned.
  const std::string_view current = position.found()           ? keys_.value(position)
                                   : request.expected.empty() ? std::string_view()
                                                              : request.expected;
  const bool matches = position.found() ? current == request.expected : request.expected.empty();
  const std::string_view answer = matches ? request.value : current;
  if (!reply_fits(*reply, answer.size())) return kReplyTooLong;
  if (matches && !keys_.assign(position, request.key, request.value)) return kOverBudget;
  wire::append_bytes(reply, answer);
  if (matches) wake_all(request.key, released);
  return nullptr;
}

const char* StoreTable::get(std::string_view key, std::string* reply) {
  const KeyTable::Position position = keys_.locate(key);
  const std::string_view value = position.found() ? keys_.value(position) : std::string_view();
  if (!reply_fits(*reply, value.size())) return kReplyTooLong;
  wire::append_bytes(reply, value);
  return nullptr;
}

const char* StoreTable::increment(std::string_view key, std::int64_t delta, std::int64_t* sum) {
  const KeyTable::Position position = keys_.locate(key);
  std::optional<std::int64_t> number = 0;
  if (position.found()) number = parse_number(keys_.value(position));
  if (!number) return kNotANumber;
  *sum = add_wrapping(*number, delta);
  char text[kNumberBytes];
  const auto end = std::to_chars(text, text + sizeof text, *sum).ptr;
  const std::string_view digits(text, static_cast<std::size_t>(end - text));
  return keys_.assign(position, key, digits, kNumberBytes) ? nullptr : kOverBudget;
}

const char* StoreTable::add(const wire::Request& request, std::string* reply, Released* released) {
  std::int64_t sum = 0;
  const char* const refusal = increment(request.key, request.number, &sum);
  if (refusal != nullptr) return refusal;
  wire::append_integer(reply, sum);
  wake_all(request.key, released);
  return nullptr;
}

const char* StoreTable::append(const wire::Request& request, Released* released) {
  if (!keys_.append(keys_.locate(request.key), request.key, request.value)) return kOverBudget;
  wake_all(request.key, released);
  return nullptr;
}

const char* StoreTable::multi_get(const wire::ItemList& keys, std::string* reply) {
  // Compute the length of the reply first: a small request could otherwise produce a terabyte.
  std::size_t bytes = 0;
  auto cursor = keys.begin();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const KeyTable::Position position = keys_.locate(cursor.next());
    bytes += sizeof(std::uint64_t) + (position.found() ? keys_.value(position).size() : 0);
    if (!reply_fits(*reply, bytes)) return kReplyTooLong;
  }
  reply->reserve(reply->size() + bytes);
  cursor = keys.begin();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const KeyTable::Position position = keys_.locate(cursor.next());
    wire::append_bytes(reply, position.found() ? keys_.value(position) : std::string_view());
  }
  return nullptr;
}

const char* StoreTable::multi_set(const wire::ItemList& pairs, Released* released) {
  // Every key is counted as new, so that one pass decides whether all pairs fit.
  std::size_t bytes = 0;
  auto cursor = pairs.begin();
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    const std::size_t key_size = cursor.next().size();
    bytes += KeyTable::bytes_of(key_size, cursor.next().size());
  }
  if (!budget_->fits(bytes)) return kOverBudget;
  cursor = pairs.begin();
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    const std::string_view key = cursor.next();
    const char* const refusal = set(key, cursor.next(), released);
    ELASTIC_CHECK(refusal == nullptr);
  }
  return nullptr;
}

void StoreTable::delete_key(std::string_view key, std::string* reply) {
  const KeyTable::Position position = keys_.locate(key);
  wire::append_integer<std::int64_t>(reply, position.found() ? 1 : 0);
  if (position.found()) keys_.erase(position);
}

const char* StoreTable::list_keys(std::string* reply) {
  const std::size_t bytes = sizeof(std::uint64_t) * (1 + keys_.size()) + keys_.key_bytes();
  if (!reply_fits(*reply, bytes)) return kReplyTooLong;
  reply->reserve(reply->size() + bytes);
  wire::append_integer<std::int64_t>(reply, static_cast<std::int64_t>(keys_.size()));
  keys_.for_each_key([reply](std::string_view key) { wire::append_bytes(reply, key); });
  return nullptr;
}

bool StoreTable::reply_fits(const std::string& reply, std::size_t bytes) const {
  return bytes <= limits_.output_bytes_max && reply.size() <= limits_.output_bytes_max - bytes;
}

// Queues.

std::size_t StoreTable::queue_size(std::string_view name) const {
  if (queues_.empty()) return 0;  // the common case: skips the look-up
  const auto queue = queues_.find(name);
  return queue == queues_.end() ? 0 : queue->second.size();
}

const char* StoreTable::queue_push(const wire::Request& request, Released* released) {
  auto queue = queues_.find(request.key);
  const bool is_new = queue == queues_.end();
  const std::size_t bytes =
      queue_element_bytes(request.value) + (is_new ? queue_bytes(request.key) : 0);
  if (!budget_->take(bytes)) return kOverBudget;
  if (is_new) queue = queues_.try_emplace(std::string(request.key)).first;
  queue->second.emplace_back(request.value);
  wake_one(request.key, released);
  return nullptr;
}

const char* StoreTable::queue_pop(std::string_view name, std::string* reply) {
  const auto found = queues_.find(name);
  if (found == queues_.end()) {
    wire::append_integer<std::int64_t>(reply, 0);
    return nullptr;
  }
  Queue& queue = found->second;
  const std::string& value = queue.front();
  if (!reply_fits(*reply, value.size())) return kReplyTooLong;
  wire::append_integer<std::int64_t>(reply, static_cast<std::int64_t>(queue.size()));
  wire::append_bytes(reply, value);
  budget_->give_back(queue_element_bytes(value));
  queue.pop_front();
  if (queue.empty()) {
    budget_->give_back(queue_bytes(name));
    queues_.erase(found);
  }
  return nullptr;
}

// Waits.

bool StoreTable::present(std::string_view name) {
  return keys_.contains(name) || queue_size(name) > 0;
}

bool StoreTable::all_present(const wire::ItemList& names) {
  auto cursor = names.begin();
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!present(cursor.next())) return false;
  }
  return true;
}

const char* StoreTable::wait(const wire::ItemList& names, Waiter* client, std::string* reply) {
  std::size_t missing = 0;
  std::size_t missing_bytes = 0;
  auto cursor = names.begin();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string_view name = cursor.next();
    if (present(name)) continue;
    ++missing;
    missing_bytes += name.size();
  }
  if (missing == 0) {
    client->cancel();
    reply->push_back(wire::kStopWaiting);
    return nullptr;
  }
  if (!begin_wait(client, missing, missing_bytes)) return kOverBudget;
  cursor = names.begin();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string_view name = cursor.next();
    if (!present(name)) add_name(client, name);
  }
  return nullptr;
}

const char* StoreTable::barrier(const wire::Request& request, Waiter* client, std::string* reply,
                                Released* released) {
  // Reserve memory for the wait before the count is raised, because the count cannot be undone.
  if (!begin_wait(client, 1, request.key.size())) return kOverBudget;
  std::int64_t arrived = 0;
  const char* const refusal = increment(request.key, 1, &arrived);
  if (refusal == nullptr && arrived < request.number) {
    add_name(client, request.key);
    return nullptr;
  }
  client->cancel();
  if (refusal != nullptr) return refusal;
  reply->push_back(wire::kStopWaiting);
  wake_all(request.key, released);
  return nullptr;
}

bool StoreTable::begin_wait(Waiter* client, std::size_t names, std::size_t name_bytes) {
  client->cancel();
  // Each name is charged to every wait for it, although they share it: then the end of one wait
  // does not change the charge of another.
  const std::size_t bytes = sizeof(Wait) + names * (sizeof(Link) + kAwaitedNameBytes) + name_bytes;
  if (!budget_->take(bytes)) return false;
  client->wait_ = std::make_unique<Wait>(Wait{this, bytes, 0, {}});
  client->wait_->links.reserve(names);
  return true;
}

void StoreTable::add_name(Waiter* client, std::string_view name) {
  auto found = awaited_.find(name);
  if (found == awaited_.end()) found = awaited_.try_emplace(std::string(name)).first;
  Fifo& fifo = found->second;
  // A wait adds its names one after the other, so for a name that it lists twice it is already the
  // newest in the list.
  if (fifo.tail != nullptr && fifo.tail->waiter == client) return;
  Wait& wait = *client->wait_;
  Link* const link = &wait.links.emplace_back(Link{client, &*found, nullptr, fifo.tail});
  (fifo.tail == nullptr ? fifo.head : fifo.tail->newer) = link;
  fifo.tail = link;
  ++wait.missing;
}

void StoreTable::end_wait(Waiter* client) {
  const std::unique_ptr<Wait> wait = std::move(client->wait_);
  for (const Link& link : wait->links) {
    if (link.name == nullptr) continue;
    Fifo& fifo = link.name->second;
    (link.older == nullptr ? fifo.head : link.older->newer) = link.newer;
    (link.newer == nullptr ? fifo.tail : link.newer->older) = link.older;
    if (fifo.head == nullptr) awaited_.erase(awaited_.find(link.name->first));
  }
  budget_->give_back(wait->charged);
}

// Removes a name from the wait of `link`, which has left its list. True: that ended the wait.
bool StoreTable::count_down(Link* link, Released* released) {
  Waiter* const waiter = link->waiter;
  link->name = nullptr;
  if (--waiter->wait_->missing > 0) return false;
  end_wait(waiter);
  released->push_back(waiter);
  return true;
}

void StoreTable::wake_all(std::string_view name, Released* released) {
  if (awaited_.empty()) return;
  const auto found = awaited_.find(name);
  if (found == awaited_.end()) return;
  Link* link = found->second.head;
  awaited_.erase(found);
  while (link != nullptr) {
    Link* const newer = link->newer;
    count_down(link, released);
    link = newer;
  }
}

// For a push: one element wakes one client. Removes the name from waits that still miss other
// names until one wait ends, so that a client that waits for this name only does not sleep while
// the queue has an element.
void StoreTable::wake_one(std::string_view name, Released* released) {
  if (awaited_.empty()) return;
  const auto found = awaited_.find(name);
  if (found == awaited_.end()) return;
  Fifo& fifo = found->second;
  bool woken = false;
  while (!woken && fifo.head != nullptr) {
    Link* const link = fifo.head;
    fifo.head = link->newer;
    (fifo.head == nullptr ? fifo.tail : fifo.head->older) = nullptr;
    woken = count_down(link, released);
  }
  if (fifo.head == nullptr) awaited_.erase(found);
}

}  // namespace elastic
