#pragma once

// SipHash-1-3 of a byte string: a keyed hash, so that a client that does not know the seed cannot
// choose keys that collide.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace elastic {

class SipHash {
 public:
  using is_transparent = void;  // allows look-up by string_view in an unordered_map of strings

  explicit SipHash(std::uint64_t seed) : seed_(seed) {}

  std::size_t operator()(std::string_view bytes) const {
    // The initial state of the specification, with the 64-bit seed as both halves of the key.
    State state{seed_ ^ 0x736f6d6570736575u, seed_ ^ 0x646f72616e646f6du,
                seed_ ^ 0x6c7967656e657261u, seed_ ^ 0x7465646279746573u};
    const char* data = bytes.data();
    std::size_t left = bytes.size();
    for (; left >= sizeof(std::uint64_t); left -= sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, data, sizeof word);
      state.absorb(word);
      data += sizeof word;
    }
    std::uint64_t last = 0;
    if (left > 0) std::memcpy(&last, data, left);
    state.absorb(last | (std::uint64_t{bytes.size()} << 56));
    return state.finish();
  }

 private:
  struct State {
    std::uint64_t v0, v1, v2, v3;

    void round() {
      v0 += v1;
      v1 = std::rotl(v1, 13) ^ v0;
      v0 = std::rotl(v0, 32);
      v2 += v3;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 += v3;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 += v1;
      v1 = std::rotl(v1, 17) ^ v2;
      v2 = std::rotl(v2, 32);
    }
    void absorb(std::uint64_t word) {
      v3 ^= word;
      round();
      v0 ^= word;
    }
    std::uint64_t finish() {
      v2 ^= 0xff;
      round();
      round();
      round();
      return v0 ^ v1 ^ v2 ^ v3;
    }
  };

  std::uint64_t seed_;
};

}  // namespace elastic
