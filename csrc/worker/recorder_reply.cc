#include "worker/recorder_reply.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>

// Theory of operation. The reader goes by keys, skips what it does not know, and takes numbers as
// strings, too: versions of torch differ in both. Gloo's operations are over when they are
// "retired"; NCCL's also when their state is "completed".

namespace elastic::worker {
namespace {

constexpr int kDepthMax = 16;

// A position in the text. Once it is not ok, every further step does nothing.
struct Cursor {
  const char* at;
  const char* end;
  bool ok = true;

  bool fail() {
    ok = false;
    return false;
  }
  void skip_space() {
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')) ++at;
  }
  bool take(char byte) {
    skip_space();
    if (!ok || at >= end || *at != byte) return false;
    ++at;
    return true;
  }
  char next() {
    skip_space();
    return ok && at < end ? *at : '\0';
  }
};

bool is_plain(char byte) { return byte >= ' ' && byte <= '~'; }

// A string, cut at the size; other bytes than printable ones are replaced. Escapes are kept as they
// are written, but for their backslash.
bool read_string(Cursor* from, char* out, size_t size) {
  if (!from->take('"')) return from->fail();
  size_t length = 0;
  while (from->at < from->end && *from->at != '"') {
    if (*from->at == '\\' && ++from->at == from->end) break;
    const char byte = *from->at++;
    if (length + 1 < size) out[length++] = is_plain(byte) ? byte : '?';
  }
  if (size > 0) out[length] = '\0';
  return from->take('"') || from->fail();
}

bool skip_value(Cursor* from, int depth = 0) {
  if (depth > kDepthMax) return from->fail();
  const char first = from->next();
  if (first == '"') return read_string(from, nullptr, 0);
  if (first == '{' || first == '[') {
    const char last = first == '{' ? '}' : ']';
    ++from->at;
    if (from->take(last)) return true;
    do {
      if (first == '{' && (!read_string(from, nullptr, 0) || !from->take(':'))) {
        return from->fail();
      }
      if (!skip_value(from, depth + 1)) return false;
    } while (from->take(','));
    return from->take(last) || from->fail();
  }
  const char* const begin = from->at;
  while (from->at < from->end && std::strchr(",]} \n\t\r", *from->at) == nullptr) ++from->at;
  return from->at > begin || from->fail();
}

// The text of a value as it is written.
bool copy_value(Cursor* from, char* out, size_t size) {
  from->skip_space();
  const char* const begin = from->at;
  if (!skip_value(from)) return false;
  size_t length = 0;
  for (const char* byte = begin; byte < from->at && length + 1 < size; ++byte) {
    if (is_plain(*byte) && *byte != ' ' && *byte != '"') out[length++] = *byte;
  }
  out[length] = '\0';
  return true;
}

// A number, or one that is written as a string.
template <typename Number>
bool read_number(Cursor* from, Number* out) {
  char text[32];
  if (!copy_value(from, text, sizeof text)) return false;
  char* last = nullptr;
  const auto number = std::strtoull(text, &last, 10);
  if (last != text) *out = static_cast<Number>(number);
  return true;
}

// Calls on_key(key) at each value of an object, which consumes it.
template <typename OnKey>
bool read_object(Cursor* from, OnKey on_key) {
  if (!from->take('{')) return from->fail();
  if (from->take('}')) return true;
  do {
    char key[40];
    if (!read_string(from, key, sizeof key) || !from->take(':')) return from->fail();
    if (!on_key(key)) return from->fail();
  } while (from->take(','));
  return from->take('}') || from->fail();
}

template <typename OnItem>
bool read_array(Cursor* from, OnItem on_item) {
  if (!from->take('[')) return from->fail();
  if (from->take(']')) return true;
  do {
    if (!on_item()) return from->fail();
  } while (from->take(','));
  return from->take(']') || from->fail();
}

bool is_key(const char* key, const char* wanted) { return std::strcmp(key, wanted) == 0; }

// "gloo:all_reduce" -> "all_reduce"
void cut_backend(char* operation) {
  const char* const colon = std::strchr(operation, ':');
  if (colon != nullptr) std::memmove(operation, colon + 1, std::strlen(colon + 1) + 1);
}

// [name, description]
bool read_group(Cursor* from, Operation* operation) {
  int index = 0;
  return read_array(from, [&] {
    const int part = index++;
    if (part > 1 || from->next() != '"') return skip_value(from);
    return part == 0 ? read_string(from, operation->group, sizeof operation->group)
                     : read_string(from, operation->description, sizeof operation->description);
  });
}

// [[4, 2], [8]], at the position of a copy: the caller skips the value.
Tensors tensors_at(Cursor from) {
  Tensors tensors;
  tensors.is_known = read_array(&from, [&] {
    if (from.next() != '[') return false;
    uint64_t elements = 1;
    const bool is_read = read_array(&from, [&] {
      uint64_t size = 0;
      if (!read_number(&from, &size)) return false;
      elements *= size;
      return true;
    });
    tensors.elements += elements;
    ++tensors.count;
    return is_read;
  });
  return tensors;
}

bool read_operation(Cursor* from, Operation* operation) {
  return read_object(from, [&](const char* key) {
    if (is_key(key, "process_group") && from->next() == '[') return read_group(from, operation);
    if (is_key(key, "collective_seq_id")) return read_number(from, &operation->sequence);
    if (is_key(key, "time_created_ns")) return read_number(from, &operation->created);
    if (is_key(key, "profiling_name") && from->next() == '"') {
      const bool is_read = read_string(from, operation->name, sizeof operation->name);
      cut_backend(operation->name);
      return is_read;
    }
    if (is_key(key, "input_sizes")) {
      operation->inputs = tensors_at(*from);
      return copy_value(from, operation->sizes, sizeof operation->sizes);
    }
    if (is_key(key, "output_sizes")) {
      operation->outputs = tensors_at(*from);
      return skip_value(from);
    }
    if (is_key(key, "input_dtypes")) {
      return copy_value(from, operation->types, sizeof operation->types);
    }
    const bool tells_end = is_key(key, "retired") || is_key(key, "state");
    const bool is_flag = tells_end || is_key(key, "is_p2p");
    if (!is_flag) return skip_value(from);
    char text[16];
    if (!copy_value(from, text, sizeof text)) return false;
    const bool is_set = is_key(text, "true") || is_key(text, "completed");
    if (tells_end) operation->is_over |= is_set;
    if (!tells_end) operation->is_point_to_point = is_set;
    return true;
  });
}

}  // namespace

bool read_operations(const char* json, size_t bytes, OnOperation on_operation, void* context) {
  Cursor from{json, json + bytes};
  return read_object(&from, [&](const char* key) {
    if (!is_key(key, "entries") || from.next() != '[') return skip_value(&from);
    return read_array(&from, [&] {
      Operation operation{};
      if (!read_operation(&from, &operation)) return false;
      on_operation(context, operation);
      return true;
    });
  });
}

}  // namespace elastic::worker
