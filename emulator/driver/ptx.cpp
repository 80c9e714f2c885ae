// Modules that come as PTX: a translator beside this library makes shared objects of them, as NVIDIA's driver has a compiler for them.
#include "ptx.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "runtime/settings.h"

extern char** environ;

namespace emu::driver {
namespace {

// Files of one translation, which go with it.
class Scratch {
 public:
  Scratch() {
    static std::atomic<unsigned> number = 0;
    const char* folder = getenv("TMPDIR");
    const std::string stem = std::string(folder && *folder ? folder : "/tmp") + "/emucuda-" + std::to_string(getpid()) + "-jit-" +
                             std::to_string(++number);
    ptx = stem + ".ptx", module = stem + ".so", log = stem + ".log";
    remove_all();  // of a process that had our number and died
  }
  ~Scratch() { remove_all(); }

  std::string ptx, module, log;

 private:
  void remove_all() {
    for (const std::string* path : {&ptx, &module, &log}) unlink(path->c_str());
  }
};

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return bytes.str();
}

std::string own_path() {
  Dl_info self;
  return dladdr(reinterpret_cast<void*>(&translated), &self) ? self.dli_fname : "";
}

// The exit status; -1 where the program cannot be started.
int run(const char* const* command, const std::string& log) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(), O_CREAT | O_EXCL | O_WRONLY, S_IRUSR | S_IWUSR);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t child;
  const int error = posix_spawn(&child, command[0], &actions, nullptr, const_cast<char* const*>(command), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error) return -1;
  int status;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

// "sm_90a" of ".target sm_90a, debug"; empty where there is none.
std::string target_of(const char* text) {
  const char* found = strstr(text, ".target");
  if (!found) return "";
  found += strlen(".target");
  found += strspn(found, " \t");
  return std::string(found, strcspn(found, " \t\r\n,"));
}

}  // namespace

bool is_ptx(const void* data) {
  const char* text = static_cast<const char*>(data);
  text += strspn(text, " \t\r\n");
  return !strncmp(text, "//", 2) || !strncmp(text, ".version", 8);
}

Target parse_target(const std::string& name) {
  Target target;
  unsigned number = 0;
  char suffix = 0;
  if (sscanf(name.c_str(), "sm_%u%c", &number, &suffix) < 1) return target;
  target.major = static_cast<int>(number / 10), target.minor = static_cast<int>(number % 10);
  target.suffix = suffix;
  return target;
}

// Which error a GPU's driver gives for PTX that is for another device is assumed: what ptxas refuses is invalid PTX.
void check_ptx_target(const char* text) {
  const std::string name = target_of(text);
  const Target target = parse_target(name);
  const Settings& device = settings();
  if (!target.major) refuse(CUDA_ERROR_INVALID_PTX, "the module is PTX without a .target");
  const bool same = target.major == device.capability_major && target.minor == device.capability_minor;
  const bool older = target.major < device.capability_major ||
                     (target.major == device.capability_major && target.minor <= device.capability_minor);
  const bool family = target.suffix == 'f' && target.major == device.capability_major;
  if (same || (older && (!target.suffix || family))) return;
  refuse(CUDA_ERROR_INVALID_PTX, "the module is PTX for %s, the device has compute capability %d.%d", name.c_str(),
         device.capability_major, device.capability_minor);
}

std::string translated(Lock& lock, const char* text, std::string* log) {
  const std::string library = own_path();
  const std::string translator = library.substr(0, library.rfind('/') + 1) + "jit";
  if (access(translator.c_str(), X_OK) != 0) {
    refuse(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "the module is PTX, and %s, which translates it, is not there: run python -m emulator.build",
           translator.c_str());
  }
  lock.unlock();  // g++ takes seconds
  Scratch scratch;
  std::ofstream(scratch.ptx, std::ios::binary) << text;
  const char* const command[] = {translator.c_str(), "--runtime", library.c_str(), scratch.ptx.c_str(), scratch.module.c_str(), nullptr};
  const int status = run(command, scratch.log);
  const std::string said = contents(scratch.log), bytes = contents(scratch.module);
  lock.lock();
  if (status == 0 && !bytes.empty()) return bytes;
  if (log) *log = said;
  refuse(CUDA_ERROR_INVALID_PTX, "%s ended with %d: %s", translator.c_str(), status, said.c_str());
}

JitLog::JitLog(unsigned count, const CUjit_option* options, void** values) {
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER) buffer_ = static_cast<char*>(values[i]);
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) size_ = &values[i];
  }
}

JitLog::~JitLog() {
  if (!buffer_ || !size_) return;
  const size_t room = reinterpret_cast<uintptr_t>(*size_), used = room ? std::min(text.size(), room - 1) : 0;
  if (room) {
    memcpy(buffer_, text.data(), used);
    buffer_[used] = 0;
  }
  *size_ = reinterpret_cast<void*>(used);
}

}  // namespace emu::driver
