#pragma once

// The store as a pure state machine: keys, queues, and the clients that wait for them.
//
// serve() executes a request and returns its reply as bytes, with the clients whose waits it ended.
// No request blocks: WAIT and BARRIER register a wait, which a later request of any client ends.
// Not thread-safe; the owner serialises calls.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/memory_budget.h"
#include "core/base/siphash.h"
#include "core/store/key_table.h"
#include "core/store/wire.h"
#include "elastic/store_server.h"

namespace elastic {

class StoreTable {
 public:
  class Waiter;

  // Memory is charged to `budget`. `limits` and `budget` outlive the table. The seed should be
  // random, so that clients cannot choose colliding keys.
  StoreTable(const StoreLimits& limits, MemoryBudget* budget, std::uint64_t seed);
  StoreTable(const StoreTable&) = delete;
  StoreTable& operator=(const StoreTable&) = delete;
  ~StoreTable();

  // Executes a request of `client`. Appends its reply to `reply`, which holds what the client has
  // not read yet, and to `released` each client (possibly `client` itself) whose wait ended: send
  // it wire::kStopWaiting. Returns nullptr, or the error as a phrase in lower case: then nothing
  // was changed or replied, and the connection must be closed.
  [[nodiscard]] const char* serve(const wire::Request& request, Waiter* client, std::string* reply,
                                  std::vector<Waiter*>* released);

  // Removes every key, queue and wait. The waiters are not released.
  void clear();

  std::size_t num_keys() const { return keys_.size(); }
  // Names that some client waits for.

 private:
  struct Link;
  // The waits for one name, oldest first.
  struct Fifo {
    Link* head = nullptr;
    Link* tail = nullptr;
  };
  using Awaited = std::unordered_map<std::string, Fifo, SipHash, std::equal_to<>>;
  // One name of one wait. Links live in their wait and do not move.
  struct Link {
    Waiter* waiter;
    Awaited::value_type* name;  // null: counted down already
    Link* newer;
    Link* older;
  };
  using Queue = std::list<std::string>;
  using Queues = std::unordered_map<std::string, Queue, SipHash, std::equal_to<>>;
  struct Wait {
    StoreTable* table;
    std::size_t charged;      // taken from the budget for this wait
    std::size_t missing = 0;  // names that are still missing
    std::vector<Link> links;
  };

 public:
  // The wait of one client: at most one is open, and it ends with the object.
  class Waiter {
   public:
    Waiter() = default;
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;
    ~Waiter() { cancel(); }
    // Drops the wait, if there is one. It is not answered.
    void cancel() {
      if (wait_ != nullptr) wait_->table->end_wait(this);
    }
    bool waiting() const { return wait_ != nullptr; }

   private:
    friend class StoreTable;
    std::unique_ptr<Wait> wait_;  // allocated on demand: most clients have no wait
  };

 private:
  using Released = std::vector<Waiter*>;

  const char* set(std::string_view key, std::string_view value, Released* released);
  const char* compare_set(const wire::Request& request, std::string* reply, Released* released);
  const char* get(std::string_view key, std::string* reply);
  const char* add(const wire::Request& request, std::string* reply, Released* released);
  const char* increment(std::string_view key, std::int64_t delta, std::int64_t* sum);
  const char* append(const wire::Request& request, Released* released);
  const char* multi_get(const wire::ItemList& keys, std::string* reply);
  const char* multi_set(const wire::ItemList& pairs, Released* released);
  const char* list_keys(std::string* reply);
  const char* queue_push(const wire::Request& request, Released* released);
  const char* queue_pop(std::string_view name, std::string* reply);
  const char* wait(const wire::ItemList& names, Waiter* client, std::string* reply);
  const char* barrier(const wire::Request& request, Waiter* client, std::string* reply,
                      Released* released);

  void delete_key(std::string_view key, std::string* reply);
  bool reply_fits(const std::string& reply, std::size_t bytes) const;
  bool present(std::string_view name);
  bool all_present(const wire::ItemList& names);
  std::size_t queue_size(std::string_view name) const;

  // The three steps of a wait. begin_wait returns false if the wait exceeds the budget.
  bool begin_wait(Waiter* client, std::size_t names, std::size_t name_bytes);
  void add_name(Waiter* client, std::string_view name);
  void end_wait(Waiter* client);
  void wake_all(std::string_view name, Released* released);
  void wake_one(std::string_view name, Released* released);
  bool count_down(Link* link, Released* released);

  const StoreLimits& limits_;
  MemoryBudget* const budget_;
  KeyTable keys_;
  Queues queues_;    // none of them empty
  Awaited awaited_;  // none of the lists empty
};

}  // namespace elastic
