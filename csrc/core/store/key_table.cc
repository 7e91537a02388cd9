#include "core/store/key_table.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

// Theory of operation. Linear hashing: buckets are split one by one, in order, one for each key
// that is added, so that there are as many buckets as keys and no insertion ever moves more than
// one bucket's keys. (A table that doubles all at once would block every client for a tenth of a
// second at some millions of keys.) With n buckets, a key is in bucket `hash mod 2^k` for the least
// 2^k >= n, or, if that bucket does not exist yet, in the bucket that it will be split from: the
// same number without its highest bit.
//
// An entry is one allocation: header, key, value, and the bytes that the allocator adds by rounding
// up. A value that fits there is overwritten in place, so counters and values of constant length
// cost no allocation.

namespace elastic {
namespace {

constexpr std::size_t kAllocatorGrain = 16;    // glibc's chunk sizes are multiples of this
constexpr std::size_t kAllocatorOverhead = 8;  // glibc's own header in each chunk
constexpr std::size_t kBucketBytes = sizeof(void*);

// The usable bytes of an allocation of `bytes`.
constexpr std::size_t usable(std::size_t bytes) {
  const std::size_t chunk =
      (bytes + kAllocatorOverhead + kAllocatorGrain - 1) / kAllocatorGrain * kAllocatorGrain;
  return chunk - kAllocatorOverhead;
}

}  // namespace

void KeyTable::Entry::write(std::size_t offset, std::string_view data) {
  if (!data.empty()) std::memcpy(bytes() + key_size + offset, data.data(), data.size());
  value_size = offset + data.size();
}

KeyTable::KeyTable(std::uint64_t seed, MemoryBudget* budget) : hash_(seed), budget_(budget) {}

KeyTable::~KeyTable() { clear(); }

std::size_t KeyTable::bytes_of(std::size_t key_size, std::size_t value_size) {
  return usable(sizeof(Entry) + key_size + value_size) + kAllocatorOverhead + kBucketBytes;
}

std::size_t KeyTable::charge(const Entry& entry) {
  return sizeof(Entry) + entry.key_size + entry.value_capacity + kAllocatorOverhead + kBucketBytes;
}

KeyTable::Entry* KeyTable::allocate(std::uint32_t hash, std::string_view key,
                                    std::size_t allocation) {
  const std::size_t capacity = allocation - sizeof(Entry) - key.size();
  void* const memory = std::malloc(allocation);
  if (memory == nullptr) throw std::bad_alloc();
  auto* entry =
      new (memory) Entry{nullptr, 0, capacity, hash, static_cast<std::uint32_t>(key.size())};
  if (!key.empty()) std::memcpy(entry->bytes(), key.data(), key.size());
  return entry;
}

KeyTable::Entry** KeyTable::bucket_of(std::uint32_t hash) {
  const std::size_t bucket = hash & mask_;
  return &buckets_[bucket < buckets_.size() ? bucket : bucket & (mask_ >> 1)];
}

KeyTable::Position KeyTable::locate(std::string_view key) {
  const auto hash = static_cast<std::uint32_t>(hash_(key));
  Entry** link = bucket_of(hash);
  while (*link != nullptr && ((*link)->hash != hash || (*link)->key() != key)) {
    link = &(*link)->next;
  }
  return {hash, link};
}

std::string_view KeyTable::value(Position position) const { return (*position.link_)->value(); }

bool KeyTable::assign(Position position, std::string_view key, std::string_view value,
                      std::size_t room) {
  Entry* const old = *position.link_;
  const std::size_t wanted = std::max(value.size(), room);
  // In place, unless that would keep a large allocation for a small value.
  if (old != nullptr && value.size() <= old->value_capacity &&
      old->value_capacity / 2 <= wanted + kAllocatorGrain) {
    old->write(0, value);
    return true;
  }
  const std::size_t old_charge = old == nullptr ? 0 : charge(*old);
  if (!budget_->exchange(old_charge, bytes_of(key.size(), wanted))) return false;
  Entry* entry = allocate(position.hash_, key, usable(sizeof(Entry) + key.size() + wanted));
  entry->write(0, value);
  insert(position, entry);
  return true;
}

bool KeyTable::append(Position position, std::string_view key, std::string_view suffix) {
  Entry* const old = *position.link_;
  if (old == nullptr) return assign(position, key, suffix);
  const std::size_t size = old->value_size + suffix.size();
  if (size > old->value_capacity) {
    // Grow by half, so that many small appends take time linear in the result; if that exceeds the
    // budget, grow by the required amount only.
    std::size_t room = size + size / 2;
    if (!budget_->exchange(charge(*old), bytes_of(key.size(), room))) {
      room = size;
      if (!budget_->exchange(charge(*old), bytes_of(key.size(), room))) return false;
    }
    // The kernel moves the pages of a large value, and copies nothing.
    const std::size_t allocation = usable(sizeof(Entry) + key.size() + room);
    auto* const entry = static_cast<Entry*>(std::realloc(old, allocation));
    if (entry == nullptr) throw std::bad_alloc();
    entry->value_capacity = allocation - sizeof(Entry) - key.size();
    *position.link_ = entry;
    entry->write(entry->value_size, suffix);
    return true;
  }
  old->write(old->value_size, suffix);
  return true;
}

// Inserts a new entry at `position`, or replaces the existing one.
void KeyTable::insert(Position position, Entry* entry) {
  Entry* const old = *position.link_;
  *position.link_ = entry;
  if (old != nullptr) {
    entry->next = old->next;
    std::free(old);
    return;
  }
  ++size_;
  key_bytes_ += entry->key_size;
  if (size_ > buckets_.size()) split_one_bucket();
}

void KeyTable::split_one_bucket() {
  // A 32-bit hash cannot address more buckets.
  if (buckets_.size() > std::numeric_limits<std::uint32_t>::max()) return;
  const std::size_t added = buckets_.size();
  if (added > mask_) mask_ = 2 * mask_ + 1;
  buckets_.push_back(nullptr);
  Entry** kept = &buckets_[added & (mask_ >> 1)];
  Entry** moved = &buckets_[added];
  for (Entry* entry = *kept; entry != nullptr; entry = entry->next) {
    Entry**& tail = (entry->hash & mask_) == added ? moved : kept;
    *tail = entry;
    tail = &entry->next;
  }
  *kept = nullptr;
  *moved = nullptr;
}

// The reverse of split_one_bucket().
void KeyTable::merge_last_bucket() {
  Entry* entry = buckets_.back();
  buckets_.pop_back();
  Entry** tail = &buckets_[buckets_.size() & (mask_ >> 1)];
  while (*tail != nullptr) tail = &(*tail)->next;
  *tail = entry;
  if (buckets_.size() == (mask_ >> 1) + 1) mask_ >>= 1;
  if (buckets_.size() < buckets_.capacity() / 4) buckets_.shrink_to_fit();
}

// A bucket is part of the charge of an entry: there are at most twice as many as entries.
void KeyTable::erase(Position position) {
  remove(position);
  for (int i = 0; i < 2 && buckets_.size() > std::max<std::size_t>(2 * size_, 1); ++i) {
    merge_last_bucket();
  }
}

void KeyTable::remove(Position position) {
  Entry* const old = *position.link_;
  *position.link_ = old->next;
  budget_->give_back(charge(*old));
  --size_;
  key_bytes_ -= old->key_size;
  std::free(old);
}

void KeyTable::clear() {
  for (Entry*& head : buckets_) {
    while (head != nullptr) remove(Position(head->hash, &head));
  }
  std::vector<Entry*>{nullptr}.swap(buckets_);
  mask_ = 0;
}

}  // namespace elastic
