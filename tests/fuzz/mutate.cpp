// SPDX-License-Identifier: Apache-2.0
// main() of the fuzz targets without libFuzzer: PROGRAM NUM_RUNS SEED CORPUS... (files and folders). Each corpus file
// is run as it is, then NUM_RUNS mutations. The same seed gives the same inputs. On a crash, an abort or 20 seconds in
// one input, that input is in ./fuzz_failure.bin.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes);

namespace {

using Input = std::vector<uint8_t>;

constexpr size_t kMaxInputBytes = 16 * 1024;
constexpr unsigned kMaxSeconds = 20;
const Input* current = nullptr;

void keep_input(int signal_number) {
  const int file = open("fuzz_failure.bin", O_CREAT | O_TRUNC | O_WRONLY, 0644);
  if (file >= 0 && current != nullptr && write(file, current->data(), current->size()) >= 0) close(file);
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

void run(const Input& input) {
  // Its own allocation, so that AddressSanitizer sees reads behind the end.
  const Input exact(input.begin(), input.end());
  current = &exact;
  alarm(kMaxSeconds);
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  alarm(0);
  current = nullptr;
}

class Mutator {
 public:
  Mutator(const std::vector<Input>& corpus, uint32_t seed) : corpus_(corpus), random_(seed) {}

  Input next() {
    if (below(4) == 0) return random_bytes();
    Input input = corpus_[below(corpus_.size())];
    for (size_t i = 1 + below(4); i > 0; --i) mutate(input);
    if (input.size() > kMaxInputBytes) input.resize(kMaxInputBytes);
    return input;
  }

 private:
  // (std::uniform_int_distribution differs between standard libraries.)
  size_t below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }

  void mutate(Input& input) {
    const size_t at = below(input.size());
    const size_t length = std::min(input.size() - at, 1 + below(below(8) == 0 ? 512 : 16));
    switch (below(9)) {
      case 0: if (!input.empty()) input[at] ^= static_cast<uint8_t>(1u << below(8)); break;
      case 1: if (!input.empty()) input[at] = static_cast<uint8_t>(below(256)); break;
      case 2: input.erase(input.begin() + at, input.begin() + at + length); break;
      case 3: input.resize(at); break;
      case 4: repeat(input, at, length); break;
      case 5: splice(input, at); break;
      case 6: replace_number(input, at); break;
      case 7: insert_token(input, at); break;
      default: insert(input, at, random_bytes()); break;
    }
  }

  static void insert(Input& input, size_t at, const Input& what) {
    input.insert(input.begin() + at, what.begin(), what.end());
  }
  Input random_bytes() {
    Input bytes(1 + below(160));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_());
    return bytes;
  }
  void repeat(Input& input, size_t at, size_t length) {
    const Input part(input.begin() + at, input.begin() + at + length);
    for (size_t i = 1 + below(below(16) == 0 ? 4096 : 4); i > 0 && input.size() < kMaxInputBytes; --i)
      insert(input, at, part);
  }
  void splice(Input& input, size_t at) {
    const Input& other = corpus_[below(corpus_.size())];
    const size_t from = below(other.size());
    insert(input, at, Input(other.begin() + from, other.begin() + from + std::min(other.size() - from, below(256))));
  }
  // The first decimal number behind `at`.
  void replace_number(Input& input, size_t at) {
    static const char* const values[] = {"0", "1", "-1", "31", "32", "128", "65536", "2147483648", "4294967295",
                                         "4294967296", "9223372036854775807", "18446744073709551615", "0x",
                                         "09", "0b2"};
    const auto is_digit = [](uint8_t c) { return c >= '0' && c <= '9'; };
    const auto first = std::find_if(input.begin() + at, input.end(), is_digit);
    const size_t offset = first - input.begin();
    input.erase(first, std::find_if_not(first, input.end(), is_digit));
    const std::string value = values[below(std::size(values))];
    insert(input, offset, Input(value.begin(), value.end()));
  }
  void insert_token(Input& input, size_t at) {
    static const char* const tokens[] = {"{", "}", "[", "]", "(", ")", "!", "-", "|", ";", ",", ":", "\"", "\\", "/*",
                                         ".align ", " = {1,2,3,4,5,6,7,8,9}", " .b128 ", " .global .b8 x[8] = 7;",
                                         "<1000000>", "@%p0 ", ".extern ", ".pragma ", "::", "$", "%", "."};
    const std::string token = tokens[below(std::size(tokens))];
    insert(input, at, Input(token.begin(), token.end()));
  }

  const std::vector<Input>& corpus_;
  std::mt19937 random_;
};

Input read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return Input(std::istreambuf_iterator<char>(file), {});
}

std::vector<Input> read_corpus(const std::vector<std::string>& arguments) {
  std::vector<std::filesystem::path> paths;
  for (const std::string& argument : arguments) {
    if (!std::filesystem::is_directory(argument)) paths.emplace_back(argument);
    else
      for (const auto& entry : std::filesystem::directory_iterator(argument))
        if (entry.is_regular_file()) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Input> corpus{Input(256, 0)};
  for (const auto& path : paths) corpus.push_back(read_file(path));
  return corpus;
}

void bound_memory() {
#if !defined(__SANITIZE_ADDRESS__)  // whose shadow takes terabytes of address space; ASAN_OPTIONS bounds it
  const rlimit limit{rlim_t{4} << 30, rlim_t{4} << 30};
  setrlimit(RLIMIT_AS, &limit);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s NUM_RUNS SEED CORPUS...\n", argv[0]);
    return 2;
  }
  bound_memory();
  for (const int number : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGALRM}) signal(number, keep_input);
  const std::vector<Input> corpus = read_corpus({argv + 3, argv + argc});
  for (const Input& input : corpus) run(input);
  Mutator mutator(corpus, static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10)));
  const unsigned long num_runs = std::strtoul(argv[1], nullptr, 10);
  for (unsigned long i = 0; i < num_runs; ++i) run(mutator.next());
  std::printf("%zu inputs of the corpus and %lu mutations\n", corpus.size(), num_runs);
  return 0;
}
