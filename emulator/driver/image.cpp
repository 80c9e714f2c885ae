// Loading a translated module into the process.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "module.h"
#include "ptx.h"
#include "runtime/settings.h"

namespace emu::driver {
namespace {

constexpr uint16_t kMachineCuda = 190;  // EM_CUDA
constexpr uint32_t kFatbinMagic = 0xba55ed50;

std::map<std::string, std::weak_ptr<Image>>& images() {
  static auto* const by_digest = new std::map<std::string, std::weak_ptr<Image>>;
  return *by_digest;
}

// The image comes without its size: an ELF file ends behind its last segment and its table of sections.
std::string elf_bytes(const void* data) {
  const char* start = static_cast<const char*>(data);
  Elf64_Ehdr header;
  memcpy(&header, start, sizeof header);
  size_t size = header.e_shoff + static_cast<size_t>(header.e_shnum) * header.e_shentsize;
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    memcpy(&segment, start + header.e_phoff + static_cast<size_t>(i) * header.e_phentsize, sizeof segment);
    size = std::max<size_t>(size, segment.p_offset + segment.p_filesz);
  }
  return std::string(start, size);
}

void refuse_foreign(const void* data) {
  uint32_t magic;
  memcpy(&magic, data, sizeof magic);
  if (magic == kFatbinMagic) {
    refuse(CUDA_ERROR_NO_BINARY_FOR_GPU,
           "the module is a fat binary; compile it with emulator/bin/nvcc to a module of the emulator");
  }
  if (memcmp(data, ELFMAG, SELFMAG) != 0) refuse(CUDA_ERROR_INVALID_IMAGE, "the module is neither ELF nor PTX");
  Elf64_Ehdr header;
  memcpy(&header, data, sizeof header);
  if (header.e_machine == kMachineCuda) {
    refuse(CUDA_ERROR_NO_BINARY_FOR_GPU,
           "the module is a cubin for a GPU; compile it with emulator/bin/nvcc to a module of the emulator");
  }
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_type != ET_DYN) {
    refuse(CUDA_ERROR_INVALID_IMAGE, "the module is an ELF file, but not a shared object");
  }
}

// Machine code is for one architecture and the later ones of its major version (CUDA C++ Programming Guide, "Binary Compatibility").
void refuse_other_architecture(const EmuModule& module) {
  const Target target = parse_target(module.target);
  const Settings& device = settings();
  const bool same = target.minor == device.capability_minor;
  if (target.major == device.capability_major && (same || (target.suffix != 'a' && target.minor < device.capability_minor))) return;
  refuse(CUDA_ERROR_NO_BINARY_FOR_GPU, "the module is machine code for %s, the device has compute capability %d.%d", module.target,
         device.capability_major, device.capability_minor);
}

// 128 bits of FNV-1a, in two halves that begin differently.
std::string digest(const std::string& bytes) {
  uint64_t low = 0xcbf29ce484222325, high = 0x9ae16a3b2f90404f;
  for (unsigned char byte : bytes) {
    low = (low ^ byte) * 0x100000001b3;
    high = (high ^ byte) * 0x100000001b3 + (low >> 57);
  }
  char text[33];
  snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(high), static_cast<unsigned long long>(low));
  return text;
}

// Modules call functions of this library, which Python may have loaded without making its symbols global.
void make_symbols_global() {
  static bool done = false;
  Dl_info self;
  if (done || !dladdr(reinterpret_cast<void*>(&load_image), &self)) return;
  done = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL) != nullptr;
}

void* open_library(const std::string& bytes, const std::string& name) {
  const char* folder = getenv("TMPDIR");
  const std::string path =
      std::string(folder && *folder ? folder : "/tmp") + "/emucuda-" + std::to_string(getpid()) + "-" + name + ".so";
  unlink(path.c_str());  // of a process that had our number and died
  const int file = open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (file < 0) refuse(CUDA_ERROR_OPERATING_SYSTEM, "cannot write %s: %s", path.c_str(), strerror(errno));
  size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t count = write(file, bytes.data() + written, bytes.size() - written);
    if (count <= 0) break;
    written += static_cast<size_t>(count);
  }
  close(file);
  make_symbols_global();
  void* library = written == bytes.size() ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  unlink(path.c_str());  // the mapping stays
  if (written < bytes.size()) refuse(CUDA_ERROR_OPERATING_SYSTEM, "cannot write %s", path.c_str());
  if (!library) refuse(CUDA_ERROR_INVALID_IMAGE, "cannot load a module: %s", dlerror());
  return library;
}

}  // namespace

Image::~Image() {
  if (library) dlclose(library);
}

namespace {

std::shared_ptr<Image> opened(const std::string& bytes) {
  const std::string name = digest(bytes);
  std::weak_ptr<Image>& known = images()[name];
  if (auto image = known.lock()) return image;
  auto image = std::make_shared<Image>();
  image->library = open_library(bytes, name);
  image->module = static_cast<const EmuModule*>(dlsym(image->library, "emu_module"));
  if (!image->module) refuse(CUDA_ERROR_INVALID_IMAGE, "a shared object that is not a module of the emulator: no emu_module in it");
  if (image->module->abi != kEmuAbi) {
    refuse(CUDA_ERROR_INVALID_IMAGE, "a module of another age (abi %u, the emulator's is %u): compile it again", image->module->abi,
           kEmuAbi);
  }
  known = image;
  return image;
}

}  // namespace

std::shared_ptr<Image> load_image(Lock& lock, const void* data, std::string* log) {
  require(data);
  if (is_ptx(data)) {
    const char* text = static_cast<const char*>(data);
    check_ptx_target(text);
    return opened(translated(lock, text, log));
  }
  refuse_foreign(data);
  auto image = opened(elf_bytes(data));
  refuse_other_architecture(*image->module);
  return image;
}

std::string read_file(const char* path) {
  require(path);
  std::ifstream in(path, std::ios::binary);
  if (!in) refuse(CUDA_ERROR_FILE_NOT_FOUND, "no module file %s", path);
  std::ostringstream bytes;
  bytes << in.rdbuf();
  std::string text = bytes.str();
  if (text.size() < sizeof(Elf64_Ehdr)) refuse(CUDA_ERROR_INVALID_IMAGE, "%s is no module", path);
  return text;
}

size_t live_images() {
  return static_cast<size_t>(
      std::count_if(images().begin(), images().end(), [](const auto& entry) { return !entry.second.expired(); }));
}

}  // namespace emu::driver
