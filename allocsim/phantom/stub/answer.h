// Final state of an allocator, written as JSON in the golden form.
#pragma once

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <string>

// Streams of scripts are numbered; like real handles, their handles have zero low bits.

struct Json {
  FILE* file;

  void text(const std::string& value) {
    fputc('"', file);
    for (unsigned char c : value)
      if (c == '"' || c == '\\') fprintf(file, "\\%c", c);
      else if (c < 0x20 || c > 0x7e) fprintf(file, "\\u%04x", c);
      else fputc(c, file);
    fputc('"', file);
  }

  template <class Range, class One>
  void list(const Range& range, One one) {
    const char* separator = "[";
    for (const auto& item : range) {
      fputs(separator, file);
      one(item);
      separator = ",\n";
    }
    fputs(*separator == '[' ? "[]" : "]", file);
  }

  template <class Stat>
  void stat(const std::string& key, const Stat& s) {
    fprintf(file, "\"%s\":[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "],\n", key.c_str(),
            int64_t(s.current), int64_t(s.peak), int64_t(s.allocated), int64_t(s.freed));
  }

  template <class StatArray>
  void array(const std::string& key, const StatArray& stats) {
    stat(key + ".all", stats[0]);
    stat(key + ".small_pool", stats[1]);
    stat(key + ".large_pool", stats[2]);
  }

  void number(const char* key, int64_t value, const char* separator = ",\n") {
    fprintf(file, "\"%s\":%" PRId64 "%s", key, value, separator);
  }
  void flag(const char* key, bool value) {
    fprintf(file, "\"%s\":%s,\n", key, value ? "true" : "false");
  }
};

// A template, so that members that a release lacks are only looked up, not required.
template <class Stats>
void tell_stats(Json& json, const Stats& stats) {
  fputs("\"stats\":{", json.file);
  json.array("allocation", stats.allocation);
  json.array("segment", stats.segment);
  json.array("active", stats.active);
  json.array("inactive_split", stats.inactive_split);
  json.array("allocated_bytes", stats.allocated_bytes);
  json.array("reserved_bytes", stats.reserved_bytes);
  json.array("active_bytes", stats.active_bytes);
  json.array("inactive_split_bytes", stats.inactive_split_bytes);
  json.array("requested_bytes", stats.requested_bytes);
  if constexpr (requires { stats.reserved_bytes_by_private_pools; })
    for (const auto& [id, bytes] : stats.reserved_bytes_by_private_pools) {
      const auto name = std::to_string(id.first) + "_" + std::to_string(id.second);
      json.array("reserved_bytes_by_private_pools." + name, bytes);
    }
  json.stat("oversize_allocations", stats.oversize_allocations);
  json.stat("oversize_segments", stats.oversize_segments);
  json.number("num_alloc_retries", stats.num_alloc_retries);
  json.number("num_ooms", stats.num_ooms);
  if constexpr (requires { stats.num_sync_all_streams; }) {
    json.number("num_sync_all_streams", stats.num_sync_all_streams);
    json.number("num_device_alloc", stats.num_device_alloc);
    json.number("num_device_free", stats.num_device_free);
  }
  if constexpr (requires { stats.num_oom_rejections; })
    json.number("num_oom_rejections", stats.num_oom_rejections);
  json.number("max_split_size", stats.max_split_size, "},\n");
}

inline int64_t stream_handle(const void* stream) {
  return int64_t(reinterpret_cast<uintptr_t>(stream));
}

template <class Segment>
void tell_segment(Json& json, const Segment& segment) {
  fputc('{', json.file);
  json.number("address", int64_t(segment.address));
  json.number("total_size", int64_t(segment.total_size));
  json.number("requested_size", int64_t(segment.requested_size));
  json.number("allocated_size", int64_t(segment.allocated_size));
  json.number("active_size", int64_t(segment.active_size));
  json.number("stream", stream_handle(segment.stream));
  json.flag("is_large", segment.is_large);
  json.flag("is_expandable", segment.is_expandable);
  json.number("pool", int64_t(segment.owner_private_pool_id.second));
  fputs("\"blocks\":", json.file);
  json.list(segment.blocks, [&](const auto& block) {
    fprintf(json.file, "[%zu,%zu,\"%s\"]", size_t(block.size), size_t(block.requested_size),
            block.allocated ? "active_allocated"
            : block.active  ? "active_pending_free"
                            : "inactive");
  });
  fputc('}', json.file);
}

inline const char* action_name(int action) {
  static const char* const names[] = {"alloc",         "free_requested", "free_completed",
                                      "segment_alloc", "segment_free",   "segment_map",
                                      "segment_unmap", "snapshot",       "oom",
                                      "annotate"};
  return names[action];
}
