// Runs one op script through the native allocator of the release it was compiled against.
//
// Usage: driver SCRIPT RESULT.  The script is text with one item per line, as script.py writes it;
// the result is one JSON object.  The allocator runs on the device of device.h.

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <unistd.h>

#include <c10/cuda/CUDAStream.h>

#include "answer.h"
#include "device.h"
#include "release.h"

// --- the script -----------------------------------------------------------------------------

constexpr size_t kExabyte = size_t{1} << 60;
constexpr const char* kRefusal = "CUDA driver error: invalid argument";
constexpr uintptr_t kStreamStep = 4096;  // between the handles of streams without a line

// Small and plain, because the timed loop reads nothing else.
struct Op {
  size_t bytes = 0;
  double fraction = 0;
  uint32_t id = 0;  // number of an allocation or a pool, or index in Script::confs
  uint32_t stream = 0;
  char kind = 0;  // letter of the script; pools: b, x (end), d (drop), v (empty), l (delete)
  bool no_split = false, use_on_oom = false;
};

struct Script {
  size_t memory = 0;
  device_policy policy = DEVICE_BUMP;
  uintptr_t base = 0;
  long repeats = 0;  // 0: run once and write all results
  uint32_t ids = 0;
  uint32_t streams = 1;
  std::vector<Op> ops;
  std::vector<std::string> confs;
  std::map<uint32_t, uintptr_t> handles;  // raw handles from the script, by stream number

  uintptr_t handle(uint32_t stream) const {
    const auto found = handles.find(stream);
    return found == handles.end() ? stream * kStreamStep : found->second;
  }
};

static Op read_op(std::istringstream& line, char kind, Script& script) {
  Op op;
  op.kind = kind;
  std::string conf;
  switch (kind) {
    case 'a': line >> op.id >> op.bytes >> op.stream; break;
    case 'f': line >> op.id; break;
    case 'r': line >> op.id >> op.stream; break;
    case 's': line >> op.stream; break;
    case 'm': line >> op.fraction; break;
    case 'b': line >> op.id >> op.no_split >> op.use_on_oom; break;
    case 'x': case 'd': case 'v': case 'l': line >> op.id; break;
    case 'c':
      std::getline(line >> std::ws, conf);
      op.id = uint32_t(script.confs.size());
      script.confs.push_back(conf);
      break;
    default: break;
  }
  if (kind == 'a' || kind == 'f' || kind == 'r') script.ids = std::max(script.ids, op.id + 1);
  script.streams = std::max(script.streams, op.stream + 1);
  return op;
}

static Script read_script(const char* path) {
  std::ifstream file(path);
  TORCH_CHECK(file.good(), "cannot read ", path);
  Script script;
  std::string text, word;
  while (std::getline(file, text)) {
    std::istringstream line(text);
    line >> word;
    if (word == "memory") line >> script.memory;
    else if (word == "firstfit") script.policy = DEVICE_FIRSTFIT;
    else if (word == "bump") script.policy = DEVICE_BUMP;
    else if (word == "base") line >> script.base;
    else if (word == "repeats") line >> script.repeats;
    else if (word == "stream") {
      uint32_t number = 0;
      line >> number;
      line >> script.handles[number];
    }
    else script.ops.push_back(read_op(line, word[0], script));
  }
  return script;
}

// --- running ops ----------------------------------------------------------------------------

static volatile sig_atomic_t current_op = -1;

// A signal handler is the only way to report where a release corrupts its heap or aborts.
static void on_crash(int signal_number) {
  char text[64];
  int n = snprintf(text, sizeof text, "\nphantom: stopped at op %d\n", int(current_op));
  if (write(2, text, size_t(n)) < 0) _exit(3);
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

struct Runner {
  const Script& script;
  std::vector<void*> live;
  std::vector<c10::cuda::CUDAStream> streams;
  std::vector<std::pair<bool, size_t>> addresses;  // (succeeded, address) by `a` op
  std::vector<std::string> messages;
  std::map<uint32_t, int> held;  // pool -> begins not yet released
  std::map<uint32_t, int> open;  // pool -> scopes not yet ended
  bool keeps_results = true;

  explicit Runner(const Script& s) : script(s), live(s.ids, nullptr) {
    streams.push_back(c10::cuda::getDefaultCUDAStream(0));
    for (uint32_t n = 1; n < s.streams; n++)
      streams.push_back(c10::cuda::getStreamFromExternal(handle(n), 0));
  }

  cudaStream_t handle(uint32_t n) const {
    return reinterpret_cast<cudaStream_t>(script.handle(n));
  }

  // From 1 EiB only allocate() refuses as users see it; it uses the current stream.
  void* request(const Op& op) {
    if (op.bytes < kExabyte)
      return allocator::raw_alloc_with_stream(op.bytes, handle(op.stream));
    c10::cuda::setCurrentCUDAStream(streams[op.stream]);
    void* pointer = allocator::get()->allocate(op.bytes).release_context();
    c10::cuda::setCurrentCUDAStream(streams[0]);
    return pointer;
  }

  void allocate(const Op& op) {
    try {
      live[op.id] = request(op);
      if (keeps_results)
        addresses.emplace_back(live[op.id] != nullptr,
                               reinterpret_cast<size_t>(live[op.id]));
    } catch (const c10::OutOfMemoryError& error) {
      cudaGetLastError();
      live[op.id] = nullptr;
      if (!keeps_results) return;
      addresses.emplace_back(false, 0);
      // 2.3 writes a NUL into its text; users see only the part before it.
      messages.emplace_back(error.msg().c_str());
    } catch (const c10::Error& error) {
      if (error.msg() != kRefusal) throw;
      live[op.id] = nullptr;
      if (!keeps_results) return;
      addresses.emplace_back(false, 0);
      messages.emplace_back(kRefusal);
    }
  }

  void record_stream(const Op& op) {
    void* pointer = live[op.id];
    if (!pointer) return;
    auto deleter = allocator::get()->raw_deleter();
    c10::DataPtr data(pointer, pointer, deleter, c10::Device(c10::DeviceType::CUDA, 0));
    allocator::recordStream(data, streams[op.stream]);
    data.release_context();
  }

  void scope(const Op& op) {
    const PoolId id{0, op.id};
    if (op.kind == 'b') {
      begin_pool(id);
      held[op.id]++, open[op.id]++;
      if (op.no_split || op.use_on_oom) mark_pool(id, op.no_split, op.use_on_oom);
    } else if (op.kind == 'x') {
      end_pool(id);
      open[op.id]--;
    } else if (op.kind == 'v') {
      empty_pool(id);
    } else {
      if (op.kind == 'l') delete_mempool(id);
      else allocator::releasePool(0, id);
      held[op.id]--;
    }
  }

  void run(const Op& op) {
    switch (op.kind) {
      case 'a': allocate(op); break;
      case 'f':
        if (live[op.id]) allocator::raw_delete(live[op.id]);
        live[op.id] = nullptr;
        break;
      case 'r': record_stream(op); break;
      case 's': device_finish(script.handle(op.stream)); break;
      case 'S': device_finish_all(); break;
      case 'e': allocator::emptyCache(); break;
      case 'm': allocator::setMemoryFraction(op.fraction, 0); break;
      case 'c': change_settings(script.confs[op.id]); break;
      case 'k': allocator::resetPeakStats(0); break;
      case 'K': allocator::resetAccumulatedStats(0); break;
      default: scope(op); break;
    }
  }

  bool changes(char kind) const {
    for (const Op& op : script.ops)
      if (op.kind == kind) return true;
    return false;
  }

  // Reset to an empty device, so that the next repeat does the same work.
  void clear() {
    for (auto& [id, count] : open)
      for (; count > 0; count--) end_pool(PoolId{0, id});
    for (void*& pointer : live) {
      if (pointer) allocator::raw_delete(pointer);
      pointer = nullptr;
    }
    for (auto& [id, count] : held)
      for (; count > 0; count--) allocator::releasePool(0, PoolId{0, id});
    if (changes('m')) allocator::setMemoryFraction(1.0, 0);
    const char* conf = getenv("PYTORCH_CUDA_ALLOC_CONF");
    if (changes('c')) change_settings(conf ? conf : "");
    device_finish_all();
    allocator::emptyCache();
    if (device_ranges() == 0) device_configure(script.memory, script.policy, script.base);
  }
};

// --- writing results ------------------------------------------------------------------------

static void tell(const char* path, const Runner& runner, long stopped_at,
                 const std::string& why) {
  // The entry of the first snapshot is the last one in the trace of the second.
  const auto before = allocator::snapshot();
  const auto after = allocator::snapshot();
  Json json{fopen(path, "w")};
  TORCH_CHECK(json.file, "cannot write ", path);
  fputc('{', json.file);
  tell_stats(json, allocator::getDeviceStats(0));
  fputs("\"addresses\":", json.file);
  json.list(runner.addresses, [&](const auto& address) {
    if (address.first) fprintf(json.file, "%zu", address.second);
    else fputs("null", json.file);
  });
  fputs(",\n\"segments\":", json.file);
  json.list(before.segments, [&](const auto& segment) { tell_segment(json, segment); });
  fputs(",\n\"trace\":", json.file);
  json.list(after.device_traces[0], [&](const auto& entry) {
    fprintf(json.file, "[\"%s\",%zu,%zu,%" PRId64 "]", action_name(int(entry.action_)),
            size_t(entry.addr_), size_t(entry.size_), stream_handle(entry.stream_));
  });
  fputs(",\n\"messages\":", json.file);
  json.list(runner.messages, [&](const std::string& message) { json.text(message); });
  fputs(",\n\"stopped\":", json.file);
  if (stopped_at < 0) fputs("null}\n", json.file);
  else fprintf(json.file, "[%ld,", stopped_at), json.text(why), fputs("]}\n", json.file);
  fclose(json.file);
}

static double seconds_now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

static void time_passes(const char* path, Runner& runner) {
  Json json{fopen(path, "w")};
  TORCH_CHECK(json.file, "cannot write ", path);
  runner.keeps_results = false;
  const char* separator = "{\"seconds\":[";
  for (long repeat = 0; repeat < runner.script.repeats; repeat++) {
    const double begin = seconds_now();
    for (const Op& op : runner.script.ops) runner.run(op);
    const double end = seconds_now();
    fprintf(json.file, "%s%.9f", separator, end - begin);
    separator = ",";
    runner.clear();
  }
  fputs("]}\n", json.file);
  fclose(json.file);
}

static void run_once(const char* path, Runner& runner) {
  begin_history();
  long stopped_at = -1;
  std::string why;
  for (size_t i = 0; i < runner.script.ops.size() && stopped_at < 0; i++) {
    current_op = sig_atomic_t(i);
    try {
      runner.run(runner.script.ops[i]);
    } catch (const std::exception& error) {
      const auto* ours = dynamic_cast<const c10::Error*>(&error);
      stopped_at = long(i);
      why = ours ? ours->what_without_backtrace() : error.what();
    }
  }
  tell(path, runner, stopped_at, why);
}

int main(int count, char** words) {
  if (count != 3) return fprintf(stderr, "usage: driver SCRIPT RESULT\n"), 2;
  for (int number : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE}) signal(number, on_crash);
  try {
    const Script script = read_script(words[1]);
    device_configure(script.memory, script.policy, script.base);
    start_allocator();
    Runner runner(script);
    if (script.repeats > 0) time_passes(words[2], runner);
    else run_once(words[2], runner);
  } catch (const std::exception& error) {
    const auto* ours = dynamic_cast<const c10::Error*>(&error);
    fprintf(stderr, "phantom: %s\n", ours ? ours->what_without_backtrace() : error.what());
    return 1;
  }
  fflush(nullptr);
  _exit(0);  // the wheel's exit handlers would access the missing device
}
