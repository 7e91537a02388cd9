#pragma once

// The keys of a store and their values: a hash table that spends little memory on each key.
//
// A key of 15 bytes with a value of 32 takes about 105 bytes, where std::unordered_map of strings
// takes over 190. Growth is incremental: key_table.cc has the theory of operation.
// Pure; the owner serialises calls.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/base/memory_budget.h"
#include "core/base/siphash.h"

namespace elastic {

class KeyTable {
 private:
  struct Entry;

 public:
  // Where a key is, or would be inserted; valid until the next change of the table. One look-up
  // serves a read and the write that follows it.
  class Position {
   public:
    bool found() const { return *link_ != nullptr; }

   private:
    friend class KeyTable;
    Position(std::uint32_t hash, Entry** link) : hash_(hash), link_(link) {}
    std::uint32_t hash_;
    Entry** link_;
  };

  // Memory is charged to `budget`, which outlives the table. The seed should be random and secret
  // from clients, which could otherwise choose colliding keys.
  KeyTable(std::uint64_t seed, MemoryBudget* budget);
  KeyTable(const KeyTable&) = delete;
  KeyTable& operator=(const KeyTable&) = delete;
  ~KeyTable();

  Position locate(std::string_view key);
  bool contains(std::string_view key) { return locate(key).found(); }
  // REQUIRES: position.found(). The view is valid until the next change of the table.
  std::string_view value(Position position) const;

  // Stores `value` at `key`; `position` is the key's. False: over the budget; nothing was changed.
  // `room` reserves space for longer values later.
  [[nodiscard]] bool assign(Position position, std::string_view key, std::string_view value,
                            std::size_t room = 0);
  // Appends `suffix` to the value; a missing key counts as an empty value. False: as assign.
  [[nodiscard]] bool append(Position position, std::string_view key, std::string_view suffix);
  // REQUIRES: position.found().
  void erase(Position position);
  void clear();

  std::size_t size() const { return size_; }
  std::size_t num_buckets() const { return buckets_.size(); }
  // The sum of the lengths of all keys.
  std::size_t key_bytes() const { return key_bytes_; }
  // An upper bound of what assign() of such a pair charges to the budget.
  static std::size_t bytes_of(std::size_t key_size, std::size_t value_size);

  template <typename Visitor>
  void for_each_key(Visitor visit) const {
    for (const Entry* head : buckets_) {
      for (const Entry* entry = head; entry != nullptr; entry = entry->next) visit(entry->key());
    }
  }

 private:
  // The header of one allocation; the bytes of the key and of the value follow it.
  struct Entry {
    Entry* next;
    std::size_t value_size;
    std::size_t value_capacity;
    std::uint32_t hash;
    std::uint32_t key_size;

    char* bytes() { return reinterpret_cast<char*>(this + 1); }
    const char* bytes() const { return reinterpret_cast<const char*>(this + 1); }
    std::string_view key() const { return {bytes(), key_size}; }
    std::string_view value() const { return {bytes() + key_size, value_size}; }
    void write(std::size_t offset, std::string_view data);
  };

  static Entry* allocate(std::uint32_t hash, std::string_view key, std::size_t allocation);
  static std::size_t charge(const Entry& entry);
  void insert(Position position, Entry* entry);
  Entry** bucket_of(std::uint32_t hash);
  void split_one_bucket();
  void merge_last_bucket();
  void remove(Position position);

  const SipHash hash_;
  MemoryBudget* const budget_;
  std::vector<Entry*> buckets_{nullptr};
  std::size_t mask_ = 0;  // the least 2^n - 1 that covers all bucket numbers
  std::size_t size_ = 0;
  std::size_t key_bytes_ = 0;
};

}  // namespace elastic
